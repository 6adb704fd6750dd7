"""Train all runs of a sweep by connecting algorithms and engines; runs with the same shape train together as lanes."""

import copy
import json
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from hashlib import sha256
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy

from wafl.base.describe import describe
from wafl.base.errors import DivergedError, UnboundedError
from wafl.base.fingerprint import model_digest, object_digest, tensors_digest
from wafl.callbacks import Callback, Moment, with_metrics
from wafl.data.mistakes import what_is
from wafl.objectives.ball.cost_matrix import CostMatrix
from wafl.parts.messages import Query, State, mean_reply
from wafl.results.history import History, Record
from wafl.results.progress import Progress, RunProgress
from wafl.results.run import Run, with_params
from wafl.tasks.modes.statistics import check_statistics
from wafl.tasks.structured import make_task
from wafl.tasks.task import Loss
from wafl.train.checks.cost import check_cost
from wafl.train.checks.watch import Watch, lowest_gamma
from wafl.train.clients import Clients, Engine, trust_in
from wafl.train.last_rounds import mean_of
from wafl.train.server import Algorithm
from wafl.train.spec import Spec, code_of_methods
from wafl.train.trust.admission import Admitted

MANY_CLIENTS = 1000
"""The number of clients above which a round does not record all weights."""


@dataclass
class _ActiveRun:
    """A run in training: its progress, and the events of the current round."""

    index: int
    name: str
    spec: Spec
    algorithm: Algorithm
    watch: Watch
    reached: RunProgress
    trained: Admitted | None = None
    agreement: float | None = None
    excluded: list[tuple[int, str]] = field(default_factory=list[tuple[int, str]])
    limited: list[tuple[int, str]] = field(default_factory=list[tuple[int, str]])
    attempts: int = 1
    error: DivergedError | UnboundedError | None = None

    def fail(self, error: DivergedError | UnboundedError) -> None:
        """Stop the run here, with the parameters of its last good round."""
        self.error = error
        self.reached.stopped = self.reached.history.diverged = str(error)

    def ask(self) -> Query | None:
        return None if self.reached.stopped else self.algorithm.ask(self.reached.state)

    def tell(self, answer: Admitted, names: Sequence[str]) -> Record | None:
        """Process the answer to a query; return the record of the round if the query ends it."""
        before, query = self.reached.state, answer.query
        if answer.diverged is not None:
            raise DivergedError(f"round {query.round}: {answer.diverged}; {self.watch.likely_cause(query)}")
        self.watch.check_replies(query, answer.replies, names)
        self.watch.check_growth(query, answer.replies, names, self.reached.history)
        answer = self.algorithm.bound(before, answer)
        query = answer.query
        after, agreement = self.algorithm.next_state(before, query, answer.replies)
        self.watch.check_params(query, after)

        if query.kind == "train":
            self.trained, self.agreement, self.excluded, self.attempts = answer, agreement, [], 1
        prefix = "" if query.kind == "train" else "loss: "
        self.excluded += [(client, f"{prefix}{reason}") for client, reason in answer.excluded.items()]
        self.limited += answer.limited
        self.attempts = max(self.attempts, answer.attempts)
        record = None if after.round == before.round else self._record(before)
        if record is not None and self.trained is not None:
            self.watch.check_loss(self.trained.query, self.trained.replies, record, names, self.reached.history)
        self.reached.state = after
        if record is not None:
            self.limited, self.trained = [], None  # the next round does not keep the vectors of this one
            self.watch.check_gamma(after)
        return record

    def _record(self, before: State) -> Record:
        """Return the record of the round that started from this state; its seconds are filled in later."""
        assert self.trained is not None
        query, replies = self.trained.query, self.trained.replies
        objective = self.spec.method.objective
        learned, weights = self.spec.method.client_weights.learns, before.client_weights
        missing = tuple(client for client, reason in self.excluded if not reason.startswith("loss: "))
        return Record(
            round=query.round,
            loss=mean_reply(query, replies.loss),
            seconds=0.0,
            cohort=tuple(sorted((*query.clients, *missing))) if missing else query.clients,
            achieved_radius=None if objective is None else mean_reply(query, replies.cost) ** (1.0 / objective.power),
            gamma=query.scalars.get("gamma"),
            client_weights=tuple(weights.tolist()) if learned and len(weights) <= MANY_CLIENTS else None,
            excluded=tuple(self.excluded),
            attempts=self.attempts,
            shortened=tuple(self.trained.shortened.items()),
            agreement=self.agreement,
            limited=tuple(self.limited),
        )


def initialized(model: nn.Module, shape: Sequence[int]) -> nn.Module:
    """Return the model; if it is lazy (``nn.LazyLinear``), return a copy initialized for this shape."""
    if not any(map(is_lazy, (*model.parameters(), *model.buffers()))):
        return model
    ready, training = copy.deepcopy(model), model.training
    with torch.no_grad():
        ready.eval()(torch.zeros(2, *shape))
    return ready.train(training)


class Trainer:
    """A trainer of one model on one set of clients, which checks everything before any work starts."""

    def __init__(self, model: nn.Module, clients: Clients, loss: Loss, init: Mapping[str, Tensor] | None) -> None:
        model = initialized(model, clients.roster.input_shape)
        self.model, self.clients, self.roster, self.loss = model, clients, clients.roster, loss
        self.task = make_task(model, loss, clients.device)
        self._cost_matrices: dict[str | None, CostMatrix] = {}
        if init is not None and not isinstance(init, Mapping):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise TypeError(f"init is {what_is(init)}: pass parameters by name, such as init=run.params")
        self.start = self.task.flatten(init).to(clients.device) if init is not None else self.task.initial()
        if not bool(torch.isfinite(self.start).all()):
            raise ValueError("the starting parameters contain NaN or infinity")

    def train(
        self, specs: Sequence[Spec], callbacks: Sequence[Callback] = (), progress: Progress | None = None
    ) -> list[Run]:
        """Train all runs, resuming from ``progress`` if given; return them in the order of the specs."""
        algorithms = self.check(specs)
        specs = self.within(specs)
        for objective in dict.fromkeys(spec.method.objective for spec in specs if spec.method.objective is not None):
            objective.check_unit(self.roster.bounds, self.roster.input_shape, self.roster.unit)
        progress = progress or Progress()
        active: list[_ActiveRun] = []
        for index, (spec, algorithm) in enumerate(zip(specs, algorithms, strict=True)):
            if index not in progress.runs:
                progress.runs[index] = RunProgress(algorithm.init(self.start))
            reached = progress.runs[index]
            state = reached.state
            vectors = {name: value.to(self.clients.device) for name, value in state.vectors.items()}
            reached.state = replace(state, params=state.params.to(self.clients.device), vectors=vectors)
            about = (self.roster.num_classes, self.clients.tolerance, self.roster.unit, self.clients.uneven_columns)
            watch = Watch(spec.method, self.task, *about)
            active.append(_ActiveRun(index, spec.name, spec, algorithm, watch, reached))
        self._welcome(active)
        groups: dict[tuple[Any, ...], list[_ActiveRun]] = {}
        for run in active:
            groups.setdefault(run.spec.shape(), []).append(run)
        for number, group in enumerate(groups.values()):
            engine = self.clients.engine(self.task, {run.index: run.spec for run in group}, number, progress)
            self._train_lanes(engine, group, callbacks, progress)
            self._welcome(active)
        if all(run.reached.history.diverged for run in active):
            raise active[0].error or DivergedError(active[0].reached.history.diverged)
        return [self._finish(run.spec, run.reached) for run in active]

    def check(self, specs: Sequence[Spec]) -> list[Algorithm]:
        """Raise an error, before any work, for impossible runs; return the algorithm of each run."""
        specs = self.within([spec.with_radius(1.0) if spec.undecided else spec for spec in specs])
        for spec in specs:
            check_cost(spec, self.roster.num_examples)
            if spec.schedule.label_smoothing and not self.task.loss.logistic:
                raise ValueError(
                    f"label_smoothing={spec.schedule.label_smoothing} is for loss='cross_entropy', not "
                    f"{self.task.loss.name!r}: leave it out"
                )
        for statistics in dict.fromkeys(spec.schedule.statistics for spec in specs):
            check_statistics(statistics, self.task.tracking)
        algorithms = [self._algorithm(spec) for spec in specs]
        for weights in dict.fromkeys(spec.method.client_weights for spec in specs):
            weights.initial(self.roster.num_examples)
        objectives = {spec.method.objective for spec in specs if spec.method.objective is not None}
        self.clients.check(self.task, self.start, objectives)
        return algorithms

    def fingerprint(self, specs: Sequence[Spec]) -> dict[str, str]:
        """Return digests, by name, of these runs, their start and their clients; a checkpoint must match them."""
        about = [
            [spec.fingerprint() for spec in self.within(specs)],
            self.roster.unit,
            sorted(code_of_methods(specs).items()),
        ]
        return {"methods": sha256(json.dumps(about).encode()).hexdigest(), **self.subject()}

    def subject(self) -> dict[str, str]:
        """Return digests, by name, of everything except the method: model, start, loss and clients."""
        return {
            "model": model_digest(self.model),
            "starting parameters": tensors_digest([self.start]),
            "loss": object_digest(self.loss),
            **self.clients.fingerprint(),
        }

    def within(self, specs: Sequence[Spec]) -> list[Spec]:
        """Return the runs with the values from the clients' data: the bounds, and the cost matrix if requested."""
        bounded = [spec.within(self.roster.bounds) for spec in specs]
        return [
            spec.with_cost_matrix(self._cost_matrix_at(spec.layer)) if spec.asks_cost_matrix else spec
            for spec in bounded
        ]

    def _cost_matrix_at(self, layer: str | None) -> CostMatrix:
        """Return the cost matrix of the clients' differences, which training does not change."""
        if layer not in self._cost_matrices:
            self._cost_matrices[layer] = self.clients.cost_matrix_of_clients(self.task, self.start, layer)
        return self._cost_matrices[layer]

    def _train_lanes(
        self, engine: Engine, group: Sequence[_ActiveRun], callbacks: Sequence[Callback], progress: Progress
    ) -> None:
        """Run the training loop: ask every run, answer all queries at once, tell every run."""
        for run in group:
            run.watch.check_gamma(run.reached.state)
        began = time.perf_counter()
        while asking := [(run, query) for run in group if (query := run.ask()) is not None]:
            names = self.roster.names
            answers = _answers(engine, asking)
            ended: list[tuple[_ActiveRun, Record]] = []
            diverged = False
            for run, _ in asking:
                try:
                    record = run.tell(answers.pop(run.index), names)
                except (DivergedError, UnboundedError) as error:  # this run ends, and the others continue
                    run.fail(error)
                    diverged = True
                    continue
                if record is not None:
                    ended.append((run, record))
            if not ended and not diverged:
                continue
            seconds = (time.perf_counter() - began) / max(1, len(ended))  # together, what was spent
            for run, record in ended:
                self._end_round(run, replace(record, seconds=seconds), callbacks)
            for callback in callbacks:
                callback.on_progress(progress)
            self._welcome(group)
            began = time.perf_counter()
        for run in group:
            run.watch.check_ball(run.reached.history)
            if callbacks:
                finished = self._finish(run.spec, run.reached)
                for callback in callbacks:
                    callback.on_end(run.index, finished)

    def _end_round(self, run: _ActiveRun, record: Record, callbacks: Sequence[Callback]) -> None:
        """Tell callbacks about the round, and add it to the history with the metrics that they added."""
        state, history, spec = run.reached.state, run.reached.history, run.spec
        rounds, metrics = len(history), dict[str, float]()

        # As if training ended with this round, even if it is called later. It must not know the moment, which knows it:
        # what both hold would never be released.
        def make_run() -> Run:
            return self._finish(spec, RunProgress(state, History([*history[:rounds], with_metrics(record, metrics)])))

        moment = Moment(run.index, run.name, record, state, history, make_run, metrics)
        for callback in callbacks:
            callback.on_round(moment)
        history.append(moment.final_record())
        run.reached.stopped = moment.stopped

    def _welcome(self, active: Sequence[_ActiveRun]) -> None:
        """Add clients that have joined since the last round."""
        self.roster = self.clients.roster
        for run in active:
            state = run.reached.state
            if len(state.client_weights) < len(self.roster.names):
                run.algorithm = self._algorithm(run.spec)
                rule = run.spec.method.client_weights
                weights = run.algorithm.capped(rule.enlarged(state.client_weights, self.roster.num_examples))
                run.reached.state = replace(state, client_weights=weights)

    def _algorithm(self, spec: Spec) -> Algorithm:
        roster, cohort = self.roster, spec.schedule.cohort
        if cohort is not None and cohort > roster.num_clients:
            raise ValueError(
                f"cohort={cohort} is larger than the number of clients, {roster.num_clients}: lower it or leave it out"
            )
        lowest = partial(lowest_gamma, spec.method.objective, self.task)
        trust = trust_in(roster, self.clients.tolerance, self.clients.caps, spec.method.client_weights)
        statistics, sees = self.task.num_statistics, self.clients.sees_updates
        return Algorithm(spec.parts, spec.schedule, roster.num_examples, lowest, statistics, trust, sees)

    def _finish(self, spec: Spec, reached: RunProgress) -> Run:
        """Return the run that :func:`wafl.fit` returns if training stops here."""
        state, roster, mean = reached.state, self.roster, mean_of(reached.state)
        last = self._named(state.params)
        params = last if mean is None else self._named(mean[0])
        statistics = {name: params.pop(name) for name in self.task.layout.statistics}
        settings = {
            "method": describe(spec.method),
            "schedule": describe(spec.schedule),
            "sweep": describe(spec.point),
            "loss": self.task.loss.name,
            "data": describe(roster.recipe),
            "unit": roster.unit,
            "bounds": describe(roster.bounds),
            "scalars": dict(state.scalars),
        }
        return Run(
            spec.method.name,
            params,
            with_params(self.model, {**dict(self.model.named_parameters()), **params}, statistics),
            self.task.layout,
            reached.history,
            mean[1].cpu() if mean is not None and spec.method.client_weights.learns else state.client_weights,
            settings,
            roster.num_classes,
            self.loss,
            roster.intake,
            None if mean is None else last,
        )

    def _named(self, params: Tensor) -> dict[str, Tensor]:
        return {name: value.cpu().clone() for name, value in self.task.unflatten(params).items()}


def _answers(engine: Engine, asking: Sequence[tuple[_ActiveRun, Query]]) -> dict[int, Admitted]:
    """Return the answer to each run's query. Queries with the same kind and vectors are answered together."""
    kinds: dict[tuple[Any, ...], list[tuple[_ActiveRun, Query]]] = {}
    for run, query in asking:
        kinds.setdefault((query.kind, query.wanted), []).append((run, query))
    answers: dict[int, Admitted] = {}
    for alike in kinds.values():
        indices = [run.index for run, _ in alike]
        answers.update(zip(indices, engine([query for _, query in alike], indices), strict=True))
    return answers
