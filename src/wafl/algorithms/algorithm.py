"""The server's side of the paper's Algorithm 1, for every method: FedAvg on the surrogate loss.

An algorithm asks for client work and is told the replies; it never knows where clients live.

state = algorithm.init(params)
while (query := algorithm.ask(state)) is not None:
    state = algorithm.tell(state, query, engine.run(query))
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

import torch
from torch import Tensor

from wafl.adversaries import Adversary, Learning
from wafl.algorithms.messages import Query, Replies, State, Vectors, mean_reply, weighted_mean
from wafl.algorithms.parts import LocalStep, Server
from wafl.schedule import Schedule
from wafl.weights import ClientWeights, Cohort, LearnedWeights, LossQuery, Round
from wafl.weights.base import uniform_cohort

SNAPSHOT = "snapshot"
"""The vector at which clients report their loss, if the client weights are learned from it."""


class Parts(Protocol):
    """What a method is made of."""

    @property
    def adversary(self) -> Adversary | None: ...
    @property
    def client_weights(self) -> ClientWeights: ...
    @property
    def server(self) -> Server: ...
    @property
    def local(self) -> LocalStep: ...


@dataclass(frozen=True)
class Algorithm:
    """Sample a cohort, let each client train, let the server combine their models, let the weights learn.

    ``lowest_gamma`` is what a learned gamma must not fall below at given parameters.
    """

    method: Parts
    schedule: Schedule
    num_examples: Sequence[int]
    lowest_gamma: Callable[[Tensor], float]

    def __post_init__(self) -> None:
        rule = self.method.client_weights
        if isinstance(rule, LearnedWeights):
            rule.check(self.schedule, len(self.num_examples))

    def init(self, params: Tensor) -> State:
        method, adversary = self.method, self.method.adversary
        scalars = {} if adversary is None else adversary.scalars()
        if isinstance(adversary, Learning) and adversary.learns:
            scalars = adversary.first_scalars(scalars, self.lowest_gamma(params))
        weights = method.client_weights.initial(self.num_examples)
        server, local = method.server.initial_vectors(params), method.local.initial_vectors(params)
        return State(0, params, weights, scalars, {**_named("server", server), **_named("local", local)})

    def ask(self, state: State) -> Query | None:
        schedule, method = self.schedule, self.method
        loss_query = self._loss_query(state)
        if SNAPSHOT in state.vectors:
            assert loss_query is not None
            weights = torch.ones(len(loss_query.clients), dtype=torch.float64)
            snapshot, scalars = state.vectors[SNAPSHOT], self._scalars(state)
            return Query("loss", state.round, schedule.seed, loss_query.clients, weights, snapshot, scalars)
        if state.round == schedule.rounds:
            return None
        cohort = self._cohort(state)
        return Query(
            "train",
            state.round,
            schedule.seed,
            cohort.clients,
            cohort.weights,
            state.params,
            self._scalars(state),
            _owned("local", state.vectors),
            {} if loss_query is None else {SNAPSHOT: loss_query.step},
            method.local.sends,
        )

    def tell(self, state: State, query: Query, replies: Replies) -> State:
        if query.kind == "loss":
            return self._tell_losses(state, replies)
        if float(query.weights.sum()) > 0:  # otherwise none of the clients that replied counts
            state = self._tell_updates(state, query, replies)
        if SNAPSHOT in state.vectors:
            return state
        if isinstance(self.method.client_weights, LearnedWeights):
            return self._tell_losses(state, replies)
        return replace(state, round=state.round + 1)

    def _tell_updates(self, state: State, query: Query, replies: Replies) -> State:
        method, vectors = self.method, state.vectors
        params, server = method.server.step(state.params, query.weights, replies, _owned("server", vectors))
        lambdas = state.client_weights[list(replies.clients)]
        local = method.local.tell(_owned("local", vectors), query, replies, lambdas)
        scalars = self._learned_scalars(state, params, mean_reply(query, replies.cost))
        iterates = {name: weighted_mean(query.weights, replies.vectors[name]) for name in query.iterates}
        vectors = {**_named("server", server), **_named("local", local), **iterates}
        return replace(state, params=params, scalars=scalars, vectors=vectors)

    def _tell_losses(self, state: State, replies: Replies) -> State:
        rule = self.method.client_weights
        assert isinstance(rule, LearnedWeights)
        weights = rule.learn(state.client_weights, replies.clients, replies.loss, self._round(state.round))
        vectors = {name: value for name, value in state.vectors.items() if name != SNAPSHOT}
        return replace(state, round=state.round + 1, client_weights=weights, vectors=vectors)

    def _round(self, number: int) -> Round:
        schedule, total = self.schedule, len(self.num_examples)
        steps = max(schedule.local_work.num_steps(self.num_examples))
        return Round(number, schedule.seed, total, schedule.cohort or total, steps)

    def _cohort(self, state: State) -> Cohort:
        rule, now = self.method.client_weights, self._round(state.round)
        if isinstance(rule, LearnedWeights):
            return rule.draw(state.client_weights, now)
        clients = uniform_cohort(now)
        return Cohort(clients, state.client_weights[list(clients)])

    def _loss_query(self, state: State) -> LossQuery | None:
        rule = self.method.client_weights
        return rule.loss_query(self._round(state.round)) if isinstance(rule, LearnedWeights) else None

    def _scalars(self, state: State) -> dict[str, float]:
        """Hyperparameters for the clients; those that are learned come from the state."""
        return {**state.scalars, **self.method.local.scalars(), **self.schedule.scalars(state.round)}

    def _learned_scalars(self, state: State, params: Tensor, cost: float) -> Mapping[str, float]:
        adversary = self.method.adversary
        if not isinstance(adversary, Learning) or not adversary.learns:
            return state.scalars
        return adversary.next_scalars(state.scalars, cost, self.lowest_gamma(params))


def _named(owner: str, vectors: Vectors) -> dict[str, Tensor]:
    return {f"{owner}.{name}": value for name, value in vectors.items()}


def _owned(owner: str, vectors: Vectors) -> dict[str, Tensor]:
    return {name.removeprefix(f"{owner}."): value for name, value in vectors.items() if name.startswith(f"{owner}.")}
