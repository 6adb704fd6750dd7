"""The server's side of the paper's Algorithm 1, for every method: FedAvg on the surrogate loss.

An algorithm asks for client work and is told the replies; it never knows where clients live::

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
"""The vector at which clients report their loss, if the client weights are learned at a snapshot."""


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
    """Draw a cohort, let its clients train, let the server combine their models, and let gamma and the weights learn.

    Args:
        method: the adversary, the client weights, the server and the local step.
        schedule: rounds, cohort, local work and learning rate.
        num_examples: the number of training examples of each client.
        lowest_gamma: what a learned gamma must not fall below, as a function of the parameters.
        num_statistics: how many numbers at the end of the parameters are statistics. Their next value is the clients'
            weighted mean, whatever the server does with the rest.
    """

    method: Parts
    schedule: Schedule
    num_examples: Sequence[int]
    lowest_gamma: Callable[[Tensor], float]
    num_statistics: int = 0

    def __post_init__(self) -> None:
        rule, adversary = self.method.client_weights, self.method.adversary
        if isinstance(rule, LearnedWeights):
            rule.check(self.schedule, len(self.num_examples))
        others = {**self.method.local.scalars(), **self.schedule.scalars(0)}
        for name in others.keys() & ({} if adversary is None else adversary.scalars()):
            raise ValueError(
                f"the adversary's scalar {name!r} is also one of the local step or the schedule: rename it"
            )

    def init(self, params: Tensor) -> State:
        """The state before the first round."""
        method, adversary = self.method, self.method.adversary
        scalars = {} if adversary is None else {name: float(value) for name, value in adversary.scalars().items()}
        if isinstance(adversary, Learning) and adversary.learns:
            scalars = adversary.first_scalars(scalars, self.lowest_gamma(params))
        weights = method.client_weights.initial(self.num_examples)
        server, local = method.server.initial_vectors(params), method.local.initial_vectors(params)
        return State(0, params, weights, scalars, {**_named("server", server), **_named("local", local)})

    def ask(self, state: State) -> Query | None:
        """The next query: to train or, halfway through a round of DRFA, to report losses; None after the last round."""
        seed, loss_query = self.schedule.seed, self._loss_query(state)
        if SNAPSHOT in state.vectors:
            assert loss_query is not None
            weights = torch.ones(len(loss_query.clients), dtype=torch.float64)
            snapshot = state.vectors[SNAPSHOT]
            return Query("loss", state.round, seed, loss_query.clients, weights, snapshot, self._scalars(state))
        if state.round == self.schedule.rounds:
            return None
        cohort = self._cohort(state)
        return Query(
            "train",
            state.round,
            seed,
            cohort.clients,
            cohort.weights,
            state.params,
            self._scalars(state),
            vectors=_owned("local", state.vectors),
            iterates={} if loss_query is None else {SNAPSHOT: loss_query.step},
            sends=self.method.local.sends,
        )

    def tell(self, state: State, query: Query, replies: Replies) -> State:
        """The state after the replies to a query."""
        if query.kind == "loss":
            return self._tell_losses(state, replies)
        if float(query.weights.sum()) > 0:  # otherwise no client that replied counts
            state = self._tell_updates(state, query, replies)
        if SNAPSHOT in state.vectors:
            return state  # the round ends with the losses there
        if isinstance(self.method.client_weights, LearnedWeights) and not query.iterates:
            return self._tell_losses(state, replies)
        return replace(state, round=state.round + 1)

    def _tell_updates(self, state: State, query: Query, replies: Replies) -> State:
        method, old = self.method, state.vectors
        params, server = method.server.step(state.params, query.weights, replies, _owned("server", old))
        if self.num_statistics:
            mean = weighted_mean(query.weights, replies.params[:, -self.num_statistics :])
            params = torch.cat([params[: -self.num_statistics], mean])
        client_weights = state.client_weights[list(replies.clients)]
        local = method.local.tell(_owned("local", old), query, replies, client_weights)
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
        """The hyperparameters that clients are sent; those that are learned come from the state."""
        return {**state.scalars, **self.method.local.scalars(), **self.schedule.scalars(state.round)}

    def _learned_scalars(self, state: State, params: Tensor, cost: float) -> Mapping[str, float]:
        adversary = self.method.adversary
        if not isinstance(adversary, Learning) or not adversary.learns:
            return state.scalars
        return adversary.next_scalars(state.scalars, cost, self.lowest_gamma(params))


def _named(owner: str, vectors: Vectors) -> dict[str, Tensor]:
    """Vectors under names that say which part of the method they belong to."""
    return {f"{owner}.{name}": value for name, value in vectors.items()}


def _owned(owner: str, vectors: Vectors) -> dict[str, Tensor]:
    """The vectors of one part of the method, under the names that the part gave them."""
    return {name.removeprefix(f"{owner}."): value for name, value in vectors.items() if name.startswith(f"{owner}.")}
