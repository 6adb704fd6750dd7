"""The loop that joins algorithms and engine: every run of a sweep, batch by batch, round by round."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, fields, is_dataclass, replace
from functools import partial
from hashlib import sha256
from typing import Any

import torch
from torch import Tensor, nn

from wafl.adversaries import AdversaryState, Wasserstein
from wafl.algorithms import Algorithm, Query, Replies, Setting, State, make_algorithm
from wafl.algorithms.admission import Exclusion, Tolerance, admit, split
from wafl.algorithms.base import mean_reply
from wafl.callbacks import Callback, Moment
from wafl.describe import describe
from wafl.engine.lanes import Lanes
from wafl.engine.local import ClientTask
from wafl.engine.progress import Progress, RunProgress
from wafl.engine.watch import Watch, lowest_gamma
from wafl.errors import TooFewRepliesError
from wafl.faults import Faults, spoil, without
from wafl.federation import Federation
from wafl.fitness import check_fitness
from wafl.history import History, Record
from wafl.methods import Method
from wafl.run import Run, with_params
from wafl.schedule import Schedule
from wafl.task import Loss, Problem, make_task
from wafl.weights import Learned

OnRound = Callable[[int, Record, State], None]
"""Called after every round with the run's place in the sweep, its record and its state."""


@dataclass(frozen=True)
class Spec:
    """One run to be made."""

    method: Method
    schedule: Schedule
    point: Mapping[str, Any] | None = None

    @property
    def name(self) -> str:
        varied = ", ".join(f"{name}={value}" for name, value in (self.point or {}).items())
        return f"{self.method.name} ({varied})" if varied else self.method.name

    def fingerprint(self) -> Any:
        """All that the run is told, as plain values; a function of the round by its values."""
        weights, rounds = self.method.client_weights, range(self.schedule.rounds)
        rates = [self.schedule.rate(number) for number in rounds]
        steps = [weights.step(number) for number in rounds] if isinstance(weights, Learned) else None
        rule = replace(weights, step_size=1.0) if isinstance(weights, Learned) else weights
        plain = replace(
            self, method=replace(self.method, client_weights=rule), schedule=replace(self.schedule, learning_rate=1.0)
        )
        return [describe(plain), rates, steps]

    def shape(self) -> tuple[Any, ...]:
        """What runs must have in common to be lanes of one batch."""
        adversary = self.method.adversary
        options: list[Any] = []
        if adversary is not None and is_dataclass(adversary):
            server_side = {*adversary.scalars(), "radius", "strict"}
            options = [getattr(adversary, field.name) for field in fields(adversary) if field.name not in server_side]
        weights = self.method.client_weights
        rule = weights.rule if isinstance(weights, Learned) else None
        return (type(adversary), *options, rule, self.schedule.local_work, self.schedule.rounds)


@dataclass(frozen=True)
class Attendance:
    """Who watches a training, what befalls its clients, and how much of that it bears.

    ``on_progress`` is told after every round, when all runs that train together have finished it.
    """

    on_round: OnRound | None = None
    callbacks: Sequence[Callback] = ()
    on_progress: Callable[[Progress], None] | None = None
    faults: Faults | None = None
    tolerance: Tolerance | None = None


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

    def ask(self) -> Query | None:
        return None if self.so_far.stopped else self.algorithm.ask(self.so_far.state)

    def tell(self, answer: _Answer) -> tuple[State, Record] | None:
        """Move on by one query; the state before and the record of the round, if that ends one."""
        before, query = self.so_far.state, answer.query
        self.watch.check_replies(query, answer.replies)
        if query.kind == "train":
            self.training, self.excluded, self.attempts = (query, answer.replies), [], 1
        self.excluded += [
            (out.client, out.reason if query.kind == "train" else f"loss: {out.reason}") for out in answer.excluded
        ]
        self.attempts = max(self.attempts, answer.attempts)
        self.so_far.state = self.algorithm.tell(before, query, answer.replies)
        if self.so_far.state.round == before.round:
            return None
        self.watch.check_gamma(self.so_far.state)
        assert self.training is not None
        trained, replies = self.training
        adversary = self.spec.method.adversary
        power = adversary.power if isinstance(adversary, Wasserstein) else 2
        learned = isinstance(self.spec.method.client_weights, Learned)
        missing = tuple(client for client, reason in self.excluded if not reason.startswith("loss: "))
        return before, Record(
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


@dataclass(frozen=True)
class _Answer:
    """A query as if only those had been asked whose replies count, their replies, and who was left out."""

    query: Query
    replies: Replies
    excluded: Sequence[Exclusion] = ()
    attempts: int = 1


class Trainer:
    """One model on one federation; everything is checked before any work starts."""

    def __init__(
        self,
        model: nn.Module,
        clients: Federation,
        loss: Loss,
        init: Mapping[str, Tensor] | None,
        device: str,
        chunk_size: int | None,
    ) -> None:
        self.model, self.clients, self.device, self.chunk_size = model, clients, _device(device), chunk_size
        self.loss, self.task = loss, make_task(model, loss, self.device)
        self.start = self.task.flatten(init).to(self.device) if init is not None else self.task.initial()
        if not bool(torch.isfinite(self.start).all()):
            raise ValueError("the starting parameters hold NaN or infinity")
        check_fitness(Problem(self.task, self.start[None]), *_first_example(clients, self.start), clients.num_classes)

    def train(self, specs: Sequence[Spec], attendance: Attendance, progress: Progress | None = None) -> list[Run]:
        """All runs, in order; with ``progress`` from where they were."""
        algorithms = self.check(specs)
        progress = progress or Progress()
        examples = self.clients.train.to(self.device)
        courses: list[_Course] = []
        for place, (spec, algorithm) in enumerate(zip(specs, algorithms, strict=True)):
            watch = Watch(spec.method, self.task, self.clients.names)
            so_far = progress.runs.setdefault(place, RunProgress(algorithm.init(self.start)))
            so_far.state = _moved(so_far.state, self.device)
            courses.append(_Course(place, spec, algorithm, watch, so_far))
        shapes = list(dict.fromkeys(spec.shape() for spec in specs))
        for number, shape in enumerate(shapes):
            group = [course for course in courses if course.spec.shape() == shape]
            first = group[0].spec
            client = ClientTask(self.task, first.method.adversary, first.schedule.local_work, examples)
            engine = Lanes(client, progress.chunk_sizes.get(number, self.chunk_size))
            engine.memory.update(progress.memory)
            self._train_lanes(engine, group, attendance, progress, number)
        return [self._finish(course.spec, course.so_far) for course in courses]

    def check(self, specs: Sequence[Spec]) -> list[Algorithm]:
        """Refuse what cannot be trained, before any work; the algorithm of each run."""
        algorithms = [self._algorithm(spec) for spec in specs]
        for spec in specs:
            spec.method.client_weights.initial(self.clients.train.num_examples.tolist())
        self._rehearse(specs)
        return algorithms

    def fingerprint(self, specs: Sequence[Spec]) -> str:
        """What a checkpoint must have been written for: these runs, from this start, on these clients."""
        about = [[spec.fingerprint() for spec in specs], self.task.loss.name, self.clients.unit]
        digest = sha256(json.dumps(about).encode())
        digest.update(self.start.detach().cpu().numpy().tobytes())
        digest.update(self.task.frozen_digest())
        train = self.clients.train
        some = torch.linspace(0, len(train.y) - 1, min(len(train.y), 4096), dtype=torch.float64).long()
        for part in (train.y, train.offsets, train.rows(some, train.dtype)):
            digest.update(part.numpy().tobytes())
        return digest.hexdigest()

    def _algorithm(self, spec: Spec) -> Algorithm:
        total, cohort = self.clients.num_clients, spec.schedule.cohort
        if cohort is not None and cohort > total:
            raise ValueError(f"cohort={cohort} is larger than the number of clients, {total}: lower it or leave it out")
        sizes = self.clients.train.num_examples.tolist()
        setting = Setting(
            spec.schedule, spec.method.adversary, sizes, partial(lowest_gamma, spec.method.adversary, self.task)
        )
        return make_algorithm(setting, spec.method.client_weights)

    def _rehearse(self, specs: Sequence[Spec]) -> None:
        """Let each adversary move one example, so that what it cannot do is said before any work."""
        x, y = _first_example(self.clients, self.start)
        problem = Problem(self.task, self.start[None])
        for adversary in {spec.method.adversary for spec in specs}:
            if adversary is not None:
                bounds = getattr(adversary, "bounds", None)
                if bounds is not None:
                    low, high = self.clients.train.span()
                    if low < bounds[0] or high > bounds[1]:
                        raise ValueError(
                            f"the examples lie in [{low:g}, {high:g}], outside bounds={bounds}: widen them"
                        )
                if isinstance(adversary, Wasserstein) and adversary.strict and problem.curvature is None:
                    raise ValueError(
                        "strict=True needs a model whose curvature L_zz is known: use a linear one, or leave it out"
                    )
                adversary(problem, x, y, AdversaryState())

    def _train_lanes(
        self, engine: Lanes, group: Sequence[_Course], attendance: Attendance, progress: Progress, number: int
    ) -> None:
        """The loop of the package: ask every run, answer all at once, tell every run."""
        for course in group:
            course.watch.check_gamma(course.so_far.state)
        began = time.perf_counter()
        while asking := [(course, query) for course in group if (query := course.ask()) is not None]:
            answers = self._answer(engine, asking, attendance)
            told = [(course, course.tell(answer)) for (course, _), answer in zip(asking, answers, strict=True)]
            ended = [(course, end) for course, end in told if end is not None]
            if not ended:
                continue
            seconds = (time.perf_counter() - began) / len(group)
            for course, (_, record) in ended:
                self._end_round(course, replace(record, seconds=seconds), attendance)
            progress.memory.update(engine.memory)
            if engine.chunk_size is not None:
                progress.chunk_sizes[number] = engine.chunk_size
            if attendance.on_progress is not None:
                attendance.on_progress(progress)
            began = time.perf_counter()
        for course in group:
            course.watch.check_radius(course.so_far.history)
            for callback in attendance.callbacks:
                callback.on_end(course.place, self._finish(course.spec, course.so_far))

    def _answer(self, engine: Lanes, asking: Sequence[tuple[_Course, Query]], attendance: Attendance) -> list[_Answer]:
        """The replies to every run's query; with faults those that survive them, the round repeated if too few do."""
        queries, places = [query for _, query in asking], [course.place for course, _ in asking]
        if attendance.faults is None and attendance.tolerance is None:
            with _full_precision(self.device):
                return [_Answer(q, r) for q, r in zip(queries, engine.run(queries, places), strict=True)]
        faults, tolerance = attendance.faults or Faults(), attendance.tolerance or Tolerance()
        answers: dict[int, _Answer] = {}
        kept_before = dict(engine.memory)
        for attempt in range(tolerance.attempts):
            open_ = [(place, query) for place, query in zip(places, queries, strict=True) if place not in answers]
            fates = {place: faults.befall(query, attempt) for place, query in open_}
            gone = {place: [c for c, fate in fates[place].items() if fate == "dropout"] for place, _ in open_}
            present = [(place, without(query, gone[place])) for place, query in open_]
            present = [(place, query) for place, query in present if query.clients]
            with _full_precision(self.device):
                replies = engine.run([query for _, query in present], [place for place, _ in present])
            for (place, query), reply in zip(present, replies, strict=True):
                arrived, late = spoil(split(reply), fates[place])
                counted, kept, faulty = admit(query, arrived, tolerance)
                asked = len(query.clients) + len(gone[place])
                if kept is not None and tolerance.enough(len(kept.clients), asked):
                    dropped = [Exclusion(client, "dropped out") for client in gone[place]]
                    answers[place] = _Answer(counted, kept, [*dropped, *late, *faulty], attempt + 1)
            if len(answers) == len(queries):
                return [answers[place] for place in places]
            # An attempt that failed has not happened: clients keep what they kept before it.
            engine.memory = {
                key: value if key[0] in answers else kept_before[key]
                for key, value in engine.memory.items()
                if key[0] in answers or key in kept_before
            }
        place = next(place for place in places if place not in answers)
        query = queries[places.index(place)]
        raise TooFewRepliesError(
            f"round {query.round}: fewer than {tolerance.min_replies:.0%} of {len(query.clients)} clients gave a "
            f"usable reply, {tolerance.attempts} times over; the rounds before it are kept"
        )

    def _end_round(self, course: _Course, record: Record, attendance: Attendance) -> None:
        so_far = course.so_far
        moment = Moment(
            course.place, course.spec.name, record, so_far.state, so_far.history, lambda: self._so_far(course, moment)
        )
        for callback in attendance.callbacks:
            callback.on_round(moment)
        so_far.history.append(moment.final_record())
        so_far.stopped = moment.stopped
        if attendance.on_round is not None:
            attendance.on_round(course.place, so_far.history[-1], so_far.state)

    def _so_far(self, course: _Course, moment: Moment) -> Run:
        """The run as if it ended with this round; rounds to come change nothing in it."""
        history = History([*course.so_far.history, moment.final_record()])
        return self._finish(course.spec, RunProgress(course.so_far.state, history))

    def _finish(self, spec: Spec, so_far: RunProgress) -> Run:
        state = so_far.state
        params = {name: value.cpu().clone() for name, value in self.task.unflatten(state.params).items()}
        settings = {
            "method": describe(spec.method),
            "schedule": describe(spec.schedule),
            "sweep": describe(spec.point),
            "loss": self.task.loss.name,
            "data": describe(self.clients.recipe),
            "unit": self.clients.unit,
            "bounds": describe(self.clients.bounds),
            "scalars": dict(state.scalars),
        }
        return Run(
            spec.method.name,
            params,
            with_params(self.model, {**dict(self.model.named_parameters()), **params}),
            so_far.history,
            state.client_weights,
            settings,
            self.clients.num_classes,
            self.loss,
        )


def _moved(state: State, device: torch.device) -> State:
    snapshot = None if state.snapshot is None else state.snapshot.to(device)
    return replace(state, params=state.params.to(device), snapshot=snapshot)


def _device(name: str) -> torch.device:
    device = torch.device(name)
    if device.type == "cuda" and not torch.cuda.is_available():
        raise ValueError(f"device={name!r} asks for CUDA, which torch does not find here: use device='cpu'")
    return device


@contextmanager
def _full_precision(device: torch.device) -> Generator[None, None, None]:
    """float32 means float32: convolutions on a GPU would else round their inputs to TF32's 10 bits."""
    if device.type != "cuda":
        yield
        return
    before = torch.backends.cudnn.allow_tf32
    torch.backends.cudnn.allow_tf32 = False
    try:
        yield
    finally:
        torch.backends.cudnn.allow_tf32 = before


def _first_example(clients: Federation, start: Tensor) -> tuple[Tensor, Tensor]:
    """One lane with one example, in the type of the parameters."""
    x, y = (values[:1][None] for values in clients.train.of(0))
    return x.to(start), y.to(start) if y.is_floating_point() else y.to(start.device)
