"""The server's side of the paper's Algorithm 1, for every method: FedAvg on the surrogate loss.

An algorithm asks for client work and is told the replies; it never knows where clients live::

    state = algorithm.init(params)
    while (query := algorithm.ask(state)) is not None:
        state = algorithm.tell(state, query, engine.run(query))
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import field, replace
from functools import cached_property, partial
from typing import Annotated, Protocol

import torch
from torch import Tensor

from wafl.base.options import frozen
from wafl.objectives import Objective
from wafl.objectives.base import learner_of
from wafl.parts.lengths import lengths_of
from wafl.parts.local_step import LocalStep
from wafl.parts.messages import Query, Replies, State, mean_reply, named, owned, weighted_mean
from wafl.parts.schedule import Schedule
from wafl.parts.server import Server
from wafl.rounds import reported_losses
from wafl.rounds.admission import Admitted
from wafl.rounds.last_rounds import with_mean
from wafl.rounds.reported_losses import SNAPSHOT
from wafl.rounds.trust import Trust, per_node
from wafl.weights import ClientWeights, Round


class Parts(Protocol):
    """What a method is made of."""

    @property
    def objective(self) -> Objective | None: ...
    @property
    def client_weights(self) -> ClientWeights: ...
    @property
    def server(self) -> Server: ...
    @property
    def local(self) -> LocalStep: ...


@frozen
class Algorithm:
    """A method on a schedule: it asks for client work round by round, and makes the next state of the replies."""

    method: Annotated[Parts, "The objective, the client weights, the server and the local step."]
    schedule: Annotated[Schedule, "Rounds, cohort, local work and learning rate."]
    num_examples: Annotated[Sequence[int], "The number of training examples of each client."]
    lowest_gamma: Annotated[
        Callable[[Tensor], float], "What a learned gamma must not fall below, as a function of the parameters."
    ]
    num_statistics: Annotated[
        int,
        "How many numbers at the end of the parameters are statistics. Their next value is the server's aggregate "
        "of the clients' values, whatever its optimizer does with the rest.",
    ] = 0
    trust: Annotated[Trust, "How far clients are believed."] = field(default_factory=Trust)
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
        """The state before the first round."""
        method, objective = self.method, self.method.objective
        scalars = {} if objective is None else {name: float(value) for name, value in objective.scalars().items()}
        if (learner := learner_of(objective)) is not None:
            scalars = learner.first_scalars(scalars, self.lowest_gamma(params), self.schedule.rounds)
        weights = self.capped(method.client_weights.initial(self.num_examples))
        server, local = method.server.initial_vectors(params), method.local.initial_vectors(params)
        return State(0, params, weights, scalars, {**named("server", server), **named("local", local)})

    def ask(self, state: State) -> Query | None:
        """The next query: to train, or to report losses before or after that; None after the last round."""
        if state.round == self.schedule.rounds:
            return None
        method, now = self.method, self._round(state)
        here = state.round, self.schedule.seed
        scalars = {**state.scalars, **method.local.scalars(), **self.schedule.scalars(state.round)}
        asked = method.client_weights.loss_query(now)
        place = reported_losses.place_to_report(state, asked)
        if asked is not None and place is not None:
            equal = torch.ones(len(asked.clients), dtype=torch.float64)
            sends = () if asked.step else method.local.reports
            nodes = self.trust.nodes_of(asked.clients)
            return Query("loss", *here, asked.clients, equal, place, scalars, sends=sends, nodes=nodes)
        cohort = method.client_weights.draw(state.client_weights, now)
        train = Query("train", *here, cohort.clients, cohort.weights, state.params, scalars)
        iterates = {SNAPSHOT: asked.step} if asked is not None and asked.step else {}
        nodes, sends = self.trust.nodes_of(cohort.clients), method.local.sends
        return replace(train, vectors=owned("local", state.vectors), iterates=iterates, sends=sends, nodes=nodes)

    def bound(self, state: State, answer: Admitted) -> Admitted:
        """The answer to a query as far as it is believed."""
        rule, objective, train = self.method.client_weights, self.method.objective, answer.query.kind == "train"
        decides = not train or rule.judges_ends or (rule.learns and rule.loss_query(self._round(state)) is None)
        learns = train and learner_of(objective) is not None
        aimed = state.scalars.get("radius", 0.0) ** objective.power if learns and objective is not None else None
        return self.trust.bound(answer, decides=decides, aimed=aimed)

    def capped(self, weights: Tensor, reported: Sequence[int] | None = None) -> Tensor:
        """The weights of all clients, none above its share.

        A rule that asks for losses first weighs those that ``reported`` against each other; others weigh everyone.
        """
        whole = reported is None or not self.method.client_weights.asks_first
        return self.trust.capped(weights, range(len(weights)) if whole else reported or ())

    def tell(self, state: State, query: Query, replies: Replies) -> State:
        """The state after the replies to a query."""
        return self.told(state, query, replies)[0]

    def told(self, state: State, query: Query, replies: Replies) -> tuple[State, float | None]:
        """The state after the replies to a query and, if clients have trained, how far their updates agree."""
        after, agreement = self._told(state, query, replies)
        return with_mean(self.schedule, state, after), agreement

    def _told(self, state: State, query: Query, replies: Replies) -> tuple[State, float | None]:
        rule, now = self.method.client_weights, self._round(state)
        if query.kind == "loss":
            return reported_losses.after_losses(rule, self.method.local, state, replies, now, self.capped), None
        counts = float(query.weights.sum()) > 0  # otherwise no client that replied counts
        told, agreement = self._trained(state, query, replies) if counts else (state, None)
        if SNAPSHOT in told.vectors:
            return told, agreement  # the round ends with the losses there
        if rule.judges_ends:
            told = reported_losses.with_losses(told, replies)
        if rule.loss_query(now) is None:  # the losses came with the models
            told = reported_losses.with_learned_weights(rule, told, replies, now, self.capped)
        return reported_losses.ended(rule, told), agreement

    def _trained(self, state: State, query: Query, replies: Replies) -> tuple[State, float | None]:
        """The state after clients have trained: the server combines their models; and how far their updates agree."""
        method, old = self.method, state.vectors
        # A server that looks at single models sees one per node, whoever its clients are.
        weights, models = (query.weights, replies) if method.server.averages else per_node(query, replies)
        aggregate = partial(method.server.aggregate, state.params, weights)
        combined = aggregate(models.params)
        params, server = method.server.step(state.params, combined, models, owned("server", old))
        params = reported_losses.damped(method.client_weights, state, query, replies, params, self.num_statistics)
        if self.num_statistics:
            params = torch.cat([params[: -self.num_statistics], combined[-self.num_statistics :]])
        local = method.local.tell(owned("local", old), query, replies, state.client_weights[list(replies.clients)])
        scalars = self._learned_scalars(state, params, mean_reply(query, replies.cost))
        iterates = {name: aggregate(models.vectors[name]) for name in query.iterates}
        vectors = {**named("server", server), **named("local", local), **iterates, **reported_losses.held_losses(state)}
        agreement = self._agreement(query, replies, combined) if self.sees_updates else None
        return replace(state, params=params, scalars=scalars, vectors=vectors), agreement

    def _agreement(self, query: Query, replies: Replies, combined: Tensor) -> float | None:
        """The length of the mean update over the mean length of the updates; None if nobody moved."""
        trained = slice(len(combined) - self.num_statistics)
        mean = combined if self.method.server.averages else weighted_mean(query.weights, replies.params)
        lengths = mean_reply(query, lengths_of(query.params[trained], replies.params[:, trained]).cpu())
        return float(lengths_of(query.params[trained], mean[None, trained])) / lengths if lengths > 0.0 else None

    def _learned_scalars(self, state: State, params: Tensor, cost: float) -> Mapping[str, float]:
        learner = learner_of(self.method.objective)
        if learner is None:
            return state.scalars
        return learner.next_scalars(state.scalars, cost, self.lowest_gamma(params), self.schedule.rounds)

    def _round(self, state: State) -> Round:
        schedule, total = self.schedule, len(self.num_examples)
        known = schedule.cohort or total, self._most_steps, self.num_examples
        return Round(state.round, schedule.seed, total, *known, rounds=schedule.rounds)

    @cached_property
    def _most_steps(self) -> int:
        """The local steps of the largest client: found once, because there may be a million clients."""
        return max(self.schedule.local_work.num_steps([self.trust.largest(self.num_examples)]))
