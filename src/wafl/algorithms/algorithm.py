"""The server's side of the paper's Algorithm 1, for every method: FedAvg on the surrogate loss.

An algorithm asks for client work and is told the replies; it never knows where clients live::

    state = algorithm.init(params)
    while (query := algorithm.ask(state)) is not None:
        state = algorithm.tell(state, query, engine.run(query))
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Protocol

import torch
from torch import Tensor

from wafl.adversaries import Adversary
from wafl.algorithms.messages import Query, Replies, State, Vectors, mean_reply, weighted_mean
from wafl.algorithms.parts import LocalStep, Server
from wafl.algorithms.servers.aggregating import Aggregating
from wafl.schedule import Schedule
from wafl.weights import ClientWeights, Cohort, LearnedWeights, LossQuery, Round
from wafl.weights.base import Damped, uniform_cohort

SNAPSHOT = "snapshot"
"""The vector at which clients report their loss, if the client weights are learned at a snapshot."""
LOSSES, LAST_LOSSES = "losses", "last_losses"
"""What each client reported before this round trains, and before the last: NaN for those that did not report."""


def reports(local: LocalStep) -> tuple[str, ...]:
    """The names of the vectors that a local step sends with a loss that is asked before training."""
    return getattr(local, "reports", ())


def asks_first(rule: ClientWeights) -> bool:
    """Whether a rule for the client weights asks for losses before a round trains."""
    query = rule.loss_query(Round(0, 0, 1, 1, 1)) if isinstance(rule, LearnedWeights) else None
    return query is not None and query.step == 0


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
        num_statistics: how many numbers at the end of the parameters are statistics. Their next value is the server's
            aggregate of the clients' values, whatever its optimizer does with the rest.
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
        if isinstance(self.method.server, Aggregating):
            self.method.server.check(self.schedule.cohort or len(self.num_examples))
        if reports(self.method.local) and not asks_first(rule):
            raise ValueError(
                f"local={self.method.local} needs client weights that ask for losses before a round trains, not "
                f"client_weights={rule}: use wafl.ScaffPD(), or wafl.weights.primal_dual(), cvar(), kl() or term()"
            )
        others = {**self.method.local.scalars(), **self.schedule.scalars(0)}
        for name in others.keys() & ({} if adversary is None else adversary.scalars()):
            raise ValueError(
                f"the adversary's scalar {name!r} is also one of the local step or the schedule: rename it"
            )

    def init(self, params: Tensor) -> State:
        """The state before the first round."""
        method, adversary = self.method, self.method.adversary
        scalars = {} if adversary is None else {name: float(value) for name, value in adversary.scalars().items()}
        if adversary is not None and adversary.learns:
            scalars = adversary.first_scalars(scalars, self.lowest_gamma(params), self.schedule.rounds)
        weights = method.client_weights.initial(self.num_examples)
        server, local = method.server.initial_vectors(params), method.local.initial_vectors(params)
        return State(0, params, weights, scalars, {**_named("server", server), **_named("local", local)})

    def ask(self, state: State) -> Query | None:
        """The next query: to train, or to report losses before or after that; None after the last round."""
        if state.round == self.schedule.rounds:
            return None
        seed, loss_query = self.schedule.seed, self._loss_query(state)
        where = None if loss_query is None else self._where_to_report(state, loss_query)
        if loss_query is not None and where is not None:
            weights = torch.ones(len(loss_query.clients), dtype=torch.float64)
            sends = () if loss_query.step else reports(self.method.local)
            scalars = self._scalars(state)
            return Query("loss", state.round, seed, loss_query.clients, weights, where, scalars, sends=sends)
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
            iterates={SNAPSHOT: loss_query.step} if loss_query is not None and loss_query.step else {},
            sends=self.method.local.sends,
        )

    def tell(self, state: State, query: Query, replies: Replies) -> State:
        """The state after the replies to a query."""
        if query.kind == "loss":
            told = self._learned_weights(state, replies)
            return _ended(told) if SNAPSHOT in state.vectors else _holding(self._tell_reports(told, replies), replies)
        told = state
        if float(query.weights.sum()) > 0:  # otherwise no client that replied counts
            told = self._tell_updates(state, query, replies)
        if SNAPSHOT in told.vectors:
            return told  # the round ends with the losses there
        if isinstance(self.method.client_weights, LearnedWeights) and self._loss_query(state) is None:
            told = self._learned_weights(told, replies)
        return _ended(told, getattr(self.method.client_weights, "remembers_losses", False))

    def _tell_updates(self, state: State, query: Query, replies: Replies) -> State:
        method, old = self.method, state.vectors
        params, server = method.server.step(state.params, query.weights, replies, _owned("server", old))
        if isinstance(method.client_weights, Damped):
            share = self._damping(method.client_weights, state, query, replies)
            params = state.params + share * (params - state.params)
        if self.num_statistics:
            whole = self._aggregate(state.params, query.weights, replies.params)
            params = torch.cat([params[: -self.num_statistics], whole[-self.num_statistics :]])
        client_weights = state.client_weights[list(replies.clients)]
        local = method.local.tell(_owned("local", old), query, replies, client_weights)
        scalars = self._learned_scalars(state, params, mean_reply(query, replies.cost))
        iterates = {
            name: self._aggregate(state.params, query.weights, replies.vectors[name]) for name in query.iterates
        }
        held = {LOSSES: old[LOSSES]} if LOSSES in old else {}
        vectors = {**_named("server", server), **_named("local", local), **iterates, **held}
        return replace(state, params=params, scalars=scalars, vectors=vectors)

    def _aggregate(self, params: Tensor, weights: Tensor, models: Tensor) -> Tensor:
        """One model from those of the clients as the server makes it, before its optimizer; otherwise their mean."""
        server = self.method.server
        return (
            server.aggregate(params, weights, models)
            if isinstance(server, Aggregating)
            else weighted_mean(weights, models)
        )

    def _learned_weights(self, state: State, replies: Replies) -> State:
        rule = self.method.client_weights
        assert isinstance(rule, LearnedWeights)
        now = replace(self._round(state.round), last_losses=_lengthened(state))
        weights = rule.learn(state.client_weights, replies.clients, replies.loss, now)
        return replace(state, client_weights=weights)

    def _tell_reports(self, state: State, replies: Replies) -> State:
        """The state after what clients sent with the losses that they reported before they train."""
        local: Any = self.method.local
        if not reports(local):
            return state
        weights = state.client_weights[list(replies.clients)]
        told = local.tell_reports(_owned("local", state.vectors), replies, weights)
        return replace(state, vectors={**state.vectors, **_named("local", told)})

    def _where_to_report(self, state: State, loss_query: LossQuery) -> Tensor | None:
        """The parameters at which clients report their losses now; None if it is not their turn."""
        if loss_query.step:
            return state.vectors.get(SNAPSHOT)
        return None if LOSSES in state.vectors else state.params

    def _damping(self, rule: Damped, state: State, query: Query, replies: Replies) -> float:
        trained = slice(len(state.params) - self.num_statistics)
        lengths = (replies.params - state.params)[:, trained].double().square().sum(1)
        losses, weights = state.vectors[LOSSES][list(replies.clients)], query.weights / query.weights.sum()
        return rule.damping(weights, losses.to(weights), lengths.to(weights), query.scalars["learning_rate"])

    def _round(self, number: int) -> Round:
        schedule, total = self.schedule, len(self.num_examples)
        return Round(number, schedule.seed, total, schedule.cohort or total, self._most_steps, self.num_examples)

    @cached_property
    def _most_steps(self) -> int:
        """The local steps of the largest client: found once, because there may be a million clients."""
        return max(self.schedule.local_work.num_steps([max(self.num_examples)]))

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
        if adversary is None or not adversary.learns:
            return state.scalars
        return adversary.next_scalars(state.scalars, cost, self.lowest_gamma(params), self.schedule.rounds)


def _holding(state: State, replies: Replies) -> State:
    """The state with what these clients reported, until the round has trained."""
    losses = torch.full_like(state.client_weights, torch.nan)
    losses[list(replies.clients)] = replies.loss.to(losses)
    return replace(state, vectors={**state.vectors, LOSSES: losses})


def _ended(state: State, remember: bool = False) -> State:
    """The state after a round, without what was held for its own end; its losses may be remembered for the next."""
    passing = (SNAPSHOT, LOSSES, LAST_LOSSES)
    kept = {name: value for name, value in state.vectors.items() if name not in passing}
    last = {LAST_LOSSES: state.vectors[LOSSES]} if remember and LOSSES in state.vectors else {}
    return replace(state, round=state.round + 1, vectors={**kept, **last})


def _lengthened(state: State) -> Tensor | None:
    """The losses of the round before, with NaN for clients that have joined since."""
    last = state.vectors.get(LAST_LOSSES)
    if last is None:
        return None
    return torch.cat([last, last.new_full((len(state.client_weights) - len(last),), torch.nan)])


def _named(owner: str, vectors: Vectors) -> dict[str, Tensor]:
    """Vectors under names that say which part of the method they belong to."""
    return {f"{owner}.{name}": value for name, value in vectors.items()}


def _owned(owner: str, vectors: Vectors) -> dict[str, Tensor]:
    """The vectors of one part of the method, under the names that the part gave them."""
    return {name.removeprefix(f"{owner}."): value for name, value in vectors.items() if name.startswith(f"{owner}.")}
