"""Training: one run, or a whole sweep as lanes of one batched run."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import fields, replace
from typing import Any

from torch import Tensor, nn

from wafl.algorithms.admission import Tolerance
from wafl.core.task import Loss
from wafl.data.federation import Federation
from wafl.engine.callbacks import Callbacks, OnRound, as_callbacks
from wafl.engine.checkpoint import Checkpoint
from wafl.engine.embedded import Embedded, find_device
from wafl.engine.faults import Faults
from wafl.engine.spec import Spec
from wafl.engine.trainer import Trainer
from wafl.methods import METHODS, Method
from wafl.run import Run
from wafl.schedule import LearningRate, Schedule
from wafl.weights import ClientWeights


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
    callbacks: Callbacks = (),
    checkpoint: Checkpoint | None = None,
    faults: Faults | None = None,
    tolerance: Tolerance | None = None,
) -> Run:
    """Train one model on all clients; their examples are seen by client work alone.

    ``cohort=None`` is all clients each round; give ``local_steps`` or ``local_epochs``; ``batch_size=None`` is all
    of a client's examples. ``learning_rate`` may be a function of the round. ``client_weights`` replaces the
    method's. ``loss`` is ``"cross_entropy"``, ``"squared_error"`` or a function of ``(outputs, y)`` that returns one
    loss an example. ``init`` are the parameters to start from, by default the model's own.

    ``callbacks`` (:mod:`wafl.callbacks`) are told of every round. With a ``checkpoint`` the training survives a crash:
    the same call goes on where it was. ``faults`` lets clients fail on purpose, and ``tolerance`` says how much failing
    a round bears; with either, a reply that is not finite is left out instead of ending the training.

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
    spec = Spec(_known(method, client_weights), schedule)
    here = Embedded(clients, find_device(device), chunk_size, faults, tolerance)
    trainer = Trainer(model, here, loss, init)
    return train(trainer, [spec], on_round, callbacks, checkpoint)[0]


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
    callbacks: Callbacks = (),
    checkpoint: Checkpoint | None = None,
    faults: Faults | None = None,
    tolerance: Tolerance | None = None,
    **schedule: Any,
) -> list[Run]:
    """Train every combination of ``grid`` and return one run each, in the order of ``itertools.product``.

    The grid names options of the method (``gamma``, ``epsilon``, ...) and of the schedule (``learning_rate``,
    ``seed``, ...); the other arguments are those of :func:`fit`. Combinations that differ in numbers alone are
    lanes of one batched run; those that differ in shape (``batch_size``, ``norm``, ...) are batched among
    themselves. Each run equals the one that :func:`fit` gives alone. What varied is in ``run.settings["sweep"]``.
    """
    specs = make_specs(_known(method, client_weights), grid, schedule)
    here = Embedded(clients, find_device(device), chunk_size, faults, tolerance)
    trainer = Trainer(model, here, loss, init)
    return train(trainer, specs, on_round, callbacks, checkpoint)


def make_specs(method: Method, grid: Mapping[str, Sequence[Any]], schedule: Mapping[str, Any]) -> list[Spec]:
    """One run for every combination of the grid, in the order of ``itertools.product``."""
    if not grid or not all(isinstance(values, Sequence) and len(values) for values in grid.values()):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise ValueError(f"the grid {dict(grid)} has no combination: give every name at least one value, in a list")
    names = [field.name for field in fields(Schedule)]
    specs: list[Spec] = []
    for values in itertools.product(*grid.values()):
        point = dict(zip(grid, values, strict=True))
        timing = {name: value for name, value in point.items() if name in names}
        options = {name: value for name, value in point.items() if name not in names}
        specs.append(Spec(method.with_options(**options), Schedule(**{**schedule, **timing}), point))
    return specs


def train(
    trainer: Trainer,
    specs: Sequence[Spec],
    on_round: OnRound | None = None,
    callbacks: Callbacks = (),
    checkpoint: Checkpoint | None = None,
) -> list[Run]:
    """All runs, from where a checkpoint has them."""
    told = as_callbacks(callbacks, on_round)
    progress = None if checkpoint is None else checkpoint.read(trainer.fingerprint(specs))
    for callback in told:
        callback.on_start(progress)
    if checkpoint is None:
        return trainer.train(specs, told)
    with checkpoint:
        return trainer.train(specs, [*told, checkpoint], progress)


def _known(method: Method, client_weights: ClientWeights | None) -> Method:
    if not isinstance(method, Method):  # pyright: ignore[reportUnnecessaryIsInstance]
        names = ", ".join(f"wafl.{name}(...)" for name in METHODS)
        raise TypeError(f"unknown method {method!r}: use one of {names}, or wafl.Method(...)")
    if client_weights is None:
        return method
    return replace(method, client_weights=client_weights)
