"""The loop that joins algorithms and engine: every run of a sweep, batch by batch, round by round."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from hashlib import sha256
from typing import Any

import torch
from torch import Tensor, nn

from wafl.adversaries import Wasserstein
from wafl.algorithms import Algorithm, Query, Replies, State
from wafl.algorithms.messages import mean_reply
from wafl.core.describe import describe
from wafl.core.errors import DivergedError, UnboundedError
from wafl.core.history import History, Record
from wafl.core.task import Loss, make_task
from wafl.engine.callbacks import Callback, Moment
from wafl.engine.clients import Admitted, Clients, Engine
from wafl.engine.progress import Progress, RunProgress
from wafl.engine.spec import Spec
from wafl.engine.watch import Watch, lowest_gamma
from wafl.run import Run, with_params
from wafl.weights import LearnedWeights


@dataclass
class _Course:
    """One run on its way through its rounds."""

    place: int
    spec: Spec
    algorithm: Algorithm
    watch: Watch
    so_far: RunProgress
    training: tuple[Query, Replies] | None = None
    excluded: list[tuple[int, str]] = field(default_factory=list[tuple[int, str]])
    attempts: int = 1
    error: DivergedError | UnboundedError | None = None

    def fail(self, error: DivergedError | UnboundedError) -> None:
        """End the run here; it keeps the parameters it had."""
        self.error = error
        self.so_far.stopped = self.so_far.history.diverged = str(error)

    def ask(self) -> Query | None:
        return None if self.so_far.stopped else self.algorithm.ask(self.so_far.state)

    def tell(self, answer: Admitted, names: Sequence[str]) -> Record | None:
        """Move on by one query; the record of the round, if that ends one."""
        before, query = self.so_far.state, answer.query
        if answer.diverged is not None:
            raise DivergedError(f"round {query.round}: {answer.diverged}; {self.watch.likely_cause(query)}")
        self.watch.check_replies(query, answer.replies, names)
        after = self.algorithm.tell(before, query, answer.replies)
        self.watch.check_params(query, after)
        if query.kind == "train":
            self.training, self.excluded, self.attempts = (query, answer.replies), [], 1
        self.excluded += [
            (out.client, out.reason if query.kind == "train" else f"loss: {out.reason}") for out in answer.excluded
        ]
        self.attempts = max(self.attempts, answer.attempts)
        self.so_far.state = after
        if after.round == before.round:
            return None
        self.watch.check_gamma(after)
        assert self.training is not None
        trained, replies = self.training
        adversary = self.spec.method.adversary
        power = adversary.power if isinstance(adversary, Wasserstein) else 2
        learned = isinstance(self.spec.method.client_weights, LearnedWeights)
        missing = tuple(client for client, reason in self.excluded if not reason.startswith("loss: "))
        return Record(
            round=trained.round,
            loss=mean_reply(trained, replies.loss),
            seconds=0.0,
            cohort=tuple(sorted((*trained.clients, *missing))) if missing else trained.clients,
            achieved_radius=None if adversary is None else mean_reply(trained, replies.cost) ** (1.0 / power),
            gamma=trained.scalars.get("gamma"),
            client_weights=tuple(before.client_weights.tolist()) if learned else None,
            excluded=tuple(self.excluded),
            attempts=self.attempts,
        )


class Trainer:
    """One model on one set of clients; everything is checked before any work starts."""

    def __init__(self, model: nn.Module, clients: Clients, loss: Loss, init: Mapping[str, Tensor] | None) -> None:
        self.model, self.clients, self.roster, self.loss = model, clients, clients.roster, loss
        self.task = make_task(model, loss, clients.device)
        self.start = self.task.flatten(init).to(clients.device) if init is not None else self.task.initial()
        if not bool(torch.isfinite(self.start).all()):
            raise ValueError("the starting parameters hold NaN or infinity")

    def train(
        self, specs: Sequence[Spec], callbacks: Sequence[Callback] = (), progress: Progress | None = None
    ) -> list[Run]:
        """All runs, in order; with ``progress`` from where they were."""
        algorithms = self.check(specs)
        progress = progress or Progress()
        courses: list[_Course] = []
        for place, (spec, algorithm) in enumerate(zip(specs, algorithms, strict=True)):
            if place not in progress.runs:
                progress.runs[place] = RunProgress(algorithm.init(self.start))
            so_far = progress.runs[place]
            so_far.state = _moved(so_far.state, self.clients.device)
            courses.append(_Course(place, spec, algorithm, Watch(spec.method, self.task), so_far))
        self._welcome(courses)
        groups: dict[tuple[Any, ...], list[_Course]] = {}
        for course in courses:
            groups.setdefault(course.spec.shape(), []).append(course)
        for number, group in enumerate(groups.values()):
            together = {course.place: course.spec for course in group}
            engine = self.clients.engine(self.task, together, number, progress)
            self._train_lanes(engine, group, callbacks, progress)
            self._welcome(courses)
        errors = [course.error or DivergedError(course.so_far.history.diverged or "") for course in courses]
        if all(course.so_far.history.diverged for course in courses):
            raise errors[0]
        return [self._finish(course.spec, course.so_far) for course in courses]

    def check(self, specs: Sequence[Spec]) -> list[Algorithm]:
        """Refuse what cannot be trained, before any work; the algorithm of each run."""
        algorithms = [self._algorithm(spec) for spec in specs]
        for weights in dict.fromkeys(spec.method.client_weights for spec in specs):
            weights.initial(self.roster.num_examples)
        adversaries = {spec.method.adversary for spec in specs if spec.method.adversary is not None}
        self.clients.check(self.task, self.start, adversaries)
        return algorithms

    def fingerprint(self, specs: Sequence[Spec]) -> str:
        """What a checkpoint must have been written for: these runs, from this start, on these clients."""
        about = [[spec.fingerprint() for spec in specs], self.task.loss.name, self.roster.unit]
        digest = sha256(json.dumps(about).encode())
        digest.update(self.start.detach().cpu().numpy().tobytes())
        digest.update(self.task.frozen_digest())
        digest.update(self.clients.digest())
        return digest.hexdigest()

    def _welcome(self, courses: Sequence[_Course]) -> None:
        """Let clients take part that have come since the runs were at their last round."""
        self.roster = self.clients.roster
        for course in courses:
            state = course.so_far.state
            if len(state.client_weights) < self.roster.num_clients:
                course.algorithm = self._algorithm(course.spec)
                rule = course.spec.method.client_weights
                weights = rule.enlarged(state.client_weights, self.roster.num_examples)
                course.so_far.state = replace(state, client_weights=weights)

    def _algorithm(self, spec: Spec) -> Algorithm:
        roster, cohort = self.roster, spec.schedule.cohort
        if cohort is not None and cohort > roster.num_clients:
            raise ValueError(
                f"cohort={cohort} is larger than the number of clients, {roster.num_clients}: lower it or leave it out"
            )
        adversary = spec.method.adversary
        lowest = partial(lowest_gamma, adversary, self.task)
        return Algorithm(spec.parts, spec.schedule, roster.num_examples, lowest)

    def _train_lanes(
        self, engine: Engine, group: Sequence[_Course], callbacks: Sequence[Callback], progress: Progress
    ) -> None:
        """The loop of the package: ask every run, answer all at once, tell every run."""
        for course in group:
            course.watch.check_gamma(course.so_far.state)
        began = time.perf_counter()
        while asking := [(course, query) for course in group if (query := course.ask()) is not None]:
            names = self.roster.names
            answers = _answers(engine, asking)
            ended: list[tuple[_Course, Record]] = []
            diverged = False
            for (course, _), answer in zip(asking, answers, strict=True):
                try:
                    record = course.tell(answer, names)
                except (DivergedError, UnboundedError) as error:  # this run ends, the others go on
                    course.fail(error)
                    diverged = True
                    continue
                if record is not None:
                    ended.append((course, record))
            if not ended and not diverged:
                continue
            seconds = (time.perf_counter() - began) / len(group)
            for course, record in ended:
                self._end_round(course, replace(record, seconds=seconds), callbacks)
            for callback in callbacks:
                callback.on_progress(progress)
            self._welcome(group)
            began = time.perf_counter()
        for course in group:
            course.watch.check_radius(course.so_far.history)
            if callbacks:
                run = self._finish(course.spec, course.so_far)
                for callback in callbacks:
                    callback.on_end(course.place, run)

    def _end_round(self, course: _Course, record: Record, callbacks: Sequence[Callback]) -> None:
        so_far = course.so_far
        moment = Moment(
            course.place, course.spec.name, record, so_far.state, so_far.history, lambda: self._so_far(course, moment)
        )
        for callback in callbacks:
            callback.on_round(moment)
        so_far.history.append(moment.final_record())
        so_far.stopped = moment.stopped

    def _so_far(self, course: _Course, moment: Moment) -> Run:
        """The run as if it ended with this round; rounds to come change nothing in it."""
        history = History([*course.so_far.history, moment.final_record()])
        return self._finish(course.spec, RunProgress(course.so_far.state, history))

    def _finish(self, spec: Spec, so_far: RunProgress) -> Run:
        state, roster = so_far.state, self.roster
        params = {name: value.cpu().clone() for name, value in self.task.unflatten(state.params).items()}
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
            with_params(self.model, {**dict(self.model.named_parameters()), **params}),
            so_far.history,
            state.client_weights,
            settings,
            roster.num_classes,
            self.loss,
        )


def _answers(engine: Engine, asking: Sequence[tuple[_Course, Query]]) -> list[Admitted]:
    """What comes of each query; runs whose rounds differ in what they ask are answered one kind after another."""
    kinds: dict[tuple[Any, ...], list[tuple[_Course, Query]]] = {}
    for course, query in asking:
        kinds.setdefault((query.kind, query.wanted), []).append((course, query))
    found: dict[int, Admitted] = {}
    for alike in kinds.values():
        places = [course.place for course, _ in alike]
        found.update(zip(places, engine.run([query for _, query in alike], places), strict=True))
    return [found[course.place] for course, _ in asking]


def _moved(state: State, device: torch.device) -> State:
    vectors = {name: value.to(device) for name, value in state.vectors.items()}
    return replace(state, params=state.params.to(device), vectors=vectors)
