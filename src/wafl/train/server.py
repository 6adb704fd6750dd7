"""Run the server's side of the paper's Algorithm 1, for every method: FedAvg on the surrogate loss.

An algorithm asks for client work and receives the replies; it does not know where the clients are::

    state = algorithm.init(params)
    while (query := algorithm.ask(state)) is not None:
        state = algorithm.tell(state, query, engine(query))
"""

from collections.abc import Callable, Sequence
from dataclasses import field, replace
from functools import cached_property
from typing import Annotated

import torch
from torch import Tensor

from wafl.base.options import frozen
from wafl.methods import Method
from wafl.objectives.base import learner_of
from wafl.objectives.learned_gamma import GammaLearner
from wafl.parts.lengths import lengths_of
from wafl.parts.messages import Query, Replies, State, mean_reply, named, owned
from wafl.parts.schedule import Schedule
from wafl.train import replies as replied
from wafl.train.last_rounds import with_mean
from wafl.train.replies import LOSSES, SNAPSHOT, server_step, update_of
from wafl.train.trust.admission import Admitted
from wafl.train.trust.trust import Trust
from wafl.weights import Round


@frozen
class Algorithm:
    """A method on a schedule: it asks for client work round by round, and computes the next state from the replies."""

    method: Annotated[Method, "The objective, the client weights, the server and the local step."]
    schedule: Annotated[Schedule, "Rounds, cohort, local work and learning rate."]
    num_examples: Annotated[Sequence[int], "The number of training examples of each client."]
    lowest_gamma: Annotated[
        Callable[[Tensor], float], "The lower limit of a learned gamma, as a function of the parameters."
    ]
    num_statistics: Annotated[
        int,
        "The number of statistics at the end of the parameters. Their next value is always the weighted mean "
        "of the clients' values; the server does not see them.",
    ] = 0
    trust: Annotated[Trust, "The limits of the influence of clients' claims."] = field(default_factory=Trust)
    sees_updates: Annotated[bool, "Whether the server may know how long each client's update is."] = True

    def __post_init__(self) -> None:
        method, objective = self.method, self.method.objective
        method.client_weights.check(self.schedule, len(self.num_examples))
        nodes = len(set(self.trust.nodes)) or len(self.num_examples)
        method.server.check(min(self.schedule.cohort or nodes, nodes))
        method.local.check(method.client_weights)
        others = {**method.local.scalars(), **self.schedule.scalars(0)}
        for name in others.keys() & ({} if objective is None else objective.scalars()):
            raise ValueError(
                f"the objective's scalar {name!r} is also one of the local step or the schedule: rename it"
            )

    def init(self, params: Tensor) -> State:
        """Return the state before the first round."""
        method, objective = self.method, self.method.objective
        scalars = {} if objective is None else {name: float(value) for name, value in objective.scalars().items()}
        if (learner := self._learner) is not None:
            scalars = learner.first_scalars(scalars, self.lowest_gamma(params), self.schedule.rounds)
        weights = self.capped(method.client_weights.initial(self.num_examples))
        trained = params[: len(params) - self.num_statistics]
        server, local = method.server.initial_memory(trained), method.local.initial_vectors(params)
        return State(0, params, weights, scalars, {**named("server", server), **named("local", local)})

    def ask(self, state: State) -> Query | None:
        """Return the next query, to train or to report losses, or None after the last round."""
        if state.round == self.schedule.rounds:
            return None
        method, now = self.method, self._round(state)
        here = state.round, self.schedule.seed
        scalars = {**state.scalars, **method.local.scalars(), **self.schedule.scalars(state.round)}
        asked = method.client_weights.loss_query(now)
        params = replied.params_to_report(state, asked)
        if asked is not None and params is not None:
            equal = torch.ones(len(asked.clients), dtype=torch.float64)
            sends = () if asked.step else method.local.reports
            nodes = self.trust.nodes_of(asked.clients)
            return Query("loss", *here, asked.clients, equal, params, scalars, sends=sends, nodes=nodes)
        cohort = method.client_weights.draw(state.client_weights, now)
        train = Query("train", *here, cohort.clients, cohort.weights, state.params, scalars)
        iterates = {SNAPSHOT: asked.step} if asked is not None and asked.step else {}
        nodes, sends = self.trust.nodes_of(cohort.clients), method.local.sends
        return replace(train, vectors=owned("local", state.vectors), iterates=iterates, sends=sends, nodes=nodes)

    def bound(self, state: State, answer: Admitted) -> Admitted:
        """Return the answer to a query, limited by the trust in the clients."""
        rule, objective, train = self.method.client_weights, self.method.objective, answer.query.kind == "train"
        decides = not train or rule.judges_ends or (rule.learns and rule.loss_query(self._round(state)) is None)
        learns = train and self._learner is not None
        aimed = state.scalars.get("radius", 0.0) ** objective.power if learns and objective is not None else None
        return self.trust.bound(answer, decides=decides, aimed=aimed)

    def capped(self, weights: Tensor, reported: Sequence[int] | None = None) -> Tensor:
        """Return the weights of all clients, none above its share.

        A rule that requests losses first weighs the clients that ``reported`` against each other; other rules weigh all
        clients.
        """
        whole = reported is None or not self.method.client_weights.asks_first
        return self.trust.capped(weights, range(len(weights)) if whole else reported or ())

    def tell(self, state: State, query: Query, replies: Replies) -> State:
        """Return the state after the replies to a query."""
        return self.next_state(state, query, replies)[0]

    def next_state(self, state: State, query: Query, replies: Replies) -> tuple[State, float | None]:
        """Return the state after the replies to a query and, after training, the agreement of the updates."""
        after, agreement = self._after(state, query, replies)
        rounds, share = self.schedule.rounds, self.schedule.average_last
        return after if share is None else with_mean(rounds, share, state, after), agreement

    def _after(self, state: State, query: Query, replies: Replies) -> tuple[State, float | None]:
        rule, now = self.method.client_weights, self._round(state)
        if query.kind == "loss":
            return replied.after_losses(rule, self.method.local, state, replies, now, self.capped), None
        counts = float(query.weights.sum()) > 0  # otherwise, no client that replied has any weight
        after, agreement = self._trained(state, query, replies) if counts else (state, None)
        if SNAPSHOT in after.vectors:
            return after, agreement  # the round ends with the losses at the snapshot
        if rule.judges_ends:
            after = replied.with_losses(after, replies)
        if rule.loss_query(now) is None:  # the losses came with the models
            after = replied.with_learned_weights(rule, after, replies, now, self.capped)
        return replied.ended(rule, after), agreement

    def _trained(self, state: State, query: Query, replies: Replies) -> tuple[State, float | None]:
        """Return the state after training and the server's step, and the agreement of the updates."""
        method = self.method
        update = update_of(state, query, replies, self.schedule.local_work, self.num_examples)
        trained = len(state.params) - self.num_statistics
        params, memory = server_step(method.server, method.client_weights, state, query, update, trained)
        local = method.local.tell(owned("local", state.vectors), query, replies, update.shares)
        held = {LOSSES: state.vectors[LOSSES]} if LOSSES in state.vectors else {}
        scalars, learner = state.scalars, self._learner
        if learner is not None:
            cost, lowest = mean_reply(query, replies.cost), self.lowest_gamma(params)
            scalars = learner.next_scalars(scalars, cost, lowest, self.schedule.rounds)
        agreement = self._agreement(query, replies, update.mean()) if self.sees_updates else None
        vectors = {**memory, **named("local", local), **held}
        return replace(state, params=params, scalars=scalars, vectors=vectors), agreement

    def _agreement(self, query: Query, replies: Replies, mean: Tensor) -> float | None:
        """Return the length of the mean update over the mean length of the updates, or None if no client moved."""
        trained = slice(len(mean) - self.num_statistics)
        lengths = mean_reply(query, lengths_of(query.params[trained], replies.params[:, trained]).cpu())
        return float(lengths_of(query.params[trained], mean[None, trained])) / lengths if lengths > 0.0 else None

    def _round(self, state: State) -> Round:
        schedule, total = self.schedule, len(self.num_examples)
        known = schedule.cohort or total, self._most_steps, self.num_examples
        return Round(state.round, schedule.seed, total, *known, rounds=schedule.rounds)

    @cached_property
    def _learner(self) -> GammaLearner | None:
        return learner_of(self.method.objective)

    @cached_property
    def _most_steps(self) -> int:
        """The local steps of the largest client, computed once, since there may be a million clients."""
        return max(self.schedule.local_work.num_steps([self.trust.largest(self.num_examples)]))
