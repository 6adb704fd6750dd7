"""Training: one run, or a whole sweep as lanes of one batched run."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, fields, is_dataclass, replace
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from wafl.adversaries import AdversaryState, Wasserstein
from wafl.algorithms import Algorithm, Query, Replies, Setting, State, make_algorithm
from wafl.algorithms.base import mean_reply
from wafl.describe import describe
from wafl.engine.lanes import Lanes
from wafl.engine.local import ClientTask
from wafl.engine.watch import Watch, lowest_gamma
from wafl.federation import Federation
from wafl.fitness import check_fitness
from wafl.history import History, Record
from wafl.methods import METHODS, Method
from wafl.run import Run, with_params
from wafl.schedule import LearningRate, Schedule
from wafl.task import Loss, Problem, make_task
from wafl.weights import ClientWeights, Learned

OnRound = Callable[[int, Record, State], None]
"""Called after every round with the run's place in the sweep, its record and its state."""


def fit(
    model: nn.Module,
    clients: Federation,
    method: Method,
    *,
    rounds: int,
    cohort: int | None = None,
    local_steps: int | None = None,
    local_epochs: int | None = None,
    batch_size: int | None = 64,
    learning_rate: LearningRate = 0.01,
    momentum: float = 0.0,
    weight_decay: float = 0.0,
    server_learning_rate: float = 1.0,
    client_weights: ClientWeights | None = None,
    loss: Loss = "cross_entropy",
    init: Mapping[str, Tensor] | None = None,
    seed: int = 0,
    device: str = "cpu",
    chunk_size: int | None = None,
    on_round: OnRound | None = None,
) -> Run:
    """Train one model on all clients; their examples are seen by client work alone.

    ``cohort=None`` is all clients each round; give ``local_steps`` or ``local_epochs``; ``batch_size=None`` is all
    of a client's examples. ``learning_rate`` may be a function of the round. ``client_weights`` replaces the
    method's. ``loss`` is ``"cross_entropy"``, ``"squared_error"`` or a function of ``(outputs, y)`` that returns one
    loss an example. ``init`` are the parameters to start from, by default the model's own.

    >>> import wafl
    >>> clients = wafl.load_dataset("digits").partition(num_clients=20, labels_per_client=3, seed=0)
    >>> run = wafl.fit(wafl.models.mlr(clients), clients, wafl.WAFL(gamma=1.0), rounds=5, local_epochs=1)
    >>> len(run.history)
    5
    """
    schedule = Schedule(
        rounds, cohort, local_steps, local_epochs, batch_size, learning_rate, momentum, weight_decay,
        server_learning_rate, seed,
    )  # fmt: skip
    spec = _Spec(_known(method, client_weights), schedule)
    return _Trainer(model, clients, loss, init, device, chunk_size).train([spec], on_round)[0]


def sweep(
    model: nn.Module,
    clients: Federation,
    method: Method,
    grid: Mapping[str, Sequence[Any]],
    *,
    client_weights: ClientWeights | None = None,
    loss: Loss = "cross_entropy",
    init: Mapping[str, Tensor] | None = None,
    device: str = "cpu",
    chunk_size: int | None = None,
    on_round: OnRound | None = None,
    **schedule: Any,
) -> list[Run]:
    """Train every combination of ``grid`` and return one run each, in the order of ``itertools.product``.

    The grid names options of the method (``gamma``, ``epsilon``, ...) and of the schedule (``learning_rate``,
    ``seed``, ...); the other arguments are those of :func:`fit`. Combinations that differ in numbers alone are
    lanes of one batched run; those that differ in shape (``batch_size``, ``norm``, ...) are batched among
    themselves. Each run equals the one that :func:`fit` gives alone. What varied is in ``run.settings["sweep"]``.
    """
    if not grid or not all(isinstance(values, Sequence) and len(values) for values in grid.values()):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise ValueError(f"the grid {dict(grid)} has no combination: give every name at least one value, in a list")
    names = [field.name for field in fields(Schedule)]
    base = _known(method, client_weights)
    specs: list[_Spec] = []
    for values in itertools.product(*grid.values()):
        point = dict(zip(grid, values, strict=True))
        timing = {name: value for name, value in point.items() if name in names}
        options = {name: value for name, value in point.items() if name not in names}
        specs.append(_Spec(base.with_options(**options), Schedule(**{**schedule, **timing}), point))
    return _Trainer(model, clients, loss, init, device, chunk_size).train(specs, on_round)


@dataclass(frozen=True)
class _Spec:
    """One run to be made."""

    method: Method
    schedule: Schedule
    point: Mapping[str, Any] | None = None

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


class _Trainer:
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

    def train(self, specs: Sequence[_Spec], on_round: OnRound | None) -> list[Run]:
        algorithms = [self._algorithm(spec) for spec in specs]
        self._rehearse(specs)
        examples = self.clients.train.to(self.device)
        runs: dict[int, Run] = {}
        shapes = list(dict.fromkeys(spec.shape() for spec in specs))
        for shape in shapes:
            places = [place for place, spec in enumerate(specs) if spec.shape() == shape]
            first = specs[places[0]]
            client = ClientTask(self.task, first.method.adversary, first.schedule.local_work, examples)
            group = [(place, specs[place], algorithms[place]) for place in places]
            runs.update(self._train_lanes(Lanes(client, self.chunk_size), group, on_round))
        return [runs[place] for place in range(len(specs))]

    def _algorithm(self, spec: _Spec) -> Algorithm:
        total, cohort = self.clients.num_clients, spec.schedule.cohort
        if cohort is not None and cohort > total:
            raise ValueError(f"cohort={cohort} is larger than the number of clients, {total}: lower it or leave it out")
        sizes = self.clients.train.num_examples.tolist()
        setting = Setting(
            spec.schedule, spec.method.adversary, sizes, partial(lowest_gamma, spec.method.adversary, self.task)
        )
        return make_algorithm(setting, spec.method.client_weights)

    def _rehearse(self, specs: Sequence[_Spec]) -> None:
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
        self, engine: Lanes, group: Sequence[tuple[int, _Spec, Algorithm]], on_round: OnRound | None
    ) -> dict[int, Run]:
        """The loop of the package: ask every run, answer all at once, tell every run."""
        algorithms = [algorithm for _, _, algorithm in group]
        states = [algorithm.init(self.start) for algorithm in algorithms]
        watches = [Watch(spec.method, self.task, self.clients.names) for _, spec, _ in group]
        histories = [History() for _ in group]
        for watch, state in zip(watches, states, strict=True):
            watch.check_gamma(state)
        training: list[tuple[Query, Replies]] = []
        began = time.perf_counter()
        while (queries := _ask_all(algorithms, states)) is not None:
            with _full_precision(self.device):
                replies = engine.run(queries)
            if queries[0].kind == "train":
                training = list(zip(queries, replies, strict=True))
            for index, (algorithm, query, reply) in enumerate(zip(algorithms, queries, replies, strict=True)):
                watches[index].check_replies(query, reply)
                before, states[index] = states[index], algorithm.tell(states[index], query, reply)
                if states[index].round == before.round:
                    continue
                watches[index].check_gamma(states[index])
                seconds = (time.perf_counter() - began) / len(group)
                record = _record(group[index][1].method, before, *training[index], seconds)
                histories[index].append(record)
                if on_round is not None:
                    on_round(group[index][0], record, states[index])
            if states[-1].snapshot is None:
                began = time.perf_counter()
        for watch, history in zip(watches, histories, strict=True):
            watch.check_radius(history)
        return {
            place: self._finish(spec, state, history)
            for (place, spec, _), state, history in zip(group, states, histories, strict=True)
        }

    def _finish(self, spec: _Spec, state: State, history: History) -> Run:
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
            history,
            state.client_weights,
            settings,
            self.clients.num_classes,
            self.loss,
        )


def _ask_all(algorithms: Sequence[Algorithm], states: Sequence[State]) -> list[Query] | None:
    """One query a run; runs of one shape ask in step, so either all have one or none has."""
    queries = [algorithm.ask(state) for algorithm, state in zip(algorithms, states, strict=True)]
    asked = [query for query in queries if query is not None]
    return asked or None


def _record(method: Method, before: State, query: Query, replies: Replies, seconds: float) -> Record:
    adversary = method.adversary
    power = adversary.power if isinstance(adversary, Wasserstein) else 2
    return Record(
        round=query.round,
        loss=mean_reply(query, replies.loss),
        seconds=seconds,
        cohort=query.clients,
        achieved_radius=None if adversary is None else mean_reply(query, replies.cost) ** (1.0 / power),
        gamma=query.scalars.get("gamma"),
        client_weights=tuple(before.client_weights.tolist()) if isinstance(method.client_weights, Learned) else None,
    )


def _known(method: Method, client_weights: ClientWeights | None) -> Method:
    if not isinstance(method, Method):  # pyright: ignore[reportUnnecessaryIsInstance]
        names = ", ".join(f"wafl.{name}(...)" for name in METHODS)
        raise TypeError(f"unknown method {method!r}: use one of {names}, or wafl.Method(...)")
    if client_weights is None:
        return method
    return replace(method, client_weights=client_weights)


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
