"""Train one run, or a whole sweep as lanes of one batch."""

import itertools
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from dataclasses import asdict, dataclass, fields, replace
from statistics import fmean
from typing import Annotated, Any

from torch import Tensor, nn

from wafl.base.errors import LossWarning, warn_user
from wafl.base.options import options_of, part
from wafl.base.shown import is_shown, reached, shown
from wafl.base.signatures import listing, taking
from wafl.callbacks import Callback, Callbacks, as_callbacks
from wafl.data.arguments import check_arguments
from wafl.data.federation import Federation
from wafl.data.mistakes import what_is
from wafl.methods import Method, not_a_method
from wafl.parts.schedule import Schedule, make_schedule
from wafl.results.progress import Progress
from wafl.results.run import Run, Runs
from wafl.tasks.task import Loss
from wafl.train.checkpoint.checkpoint import Checkpoint
from wafl.train.chosen_radius import check_undecided, settled
from wafl.train.embedded import Embedded, find_device
from wafl.train.loop import Trainer
from wafl.train.optimum import check_near
from wafl.train.spec import Spec
from wafl.train.trust.admission import Tolerance
from wafl.train.trust.faults import Faults
from wafl.weights import ClientWeights


@dataclass(frozen=True, kw_only=True)
class Setting:
    """The options of :func:`fit` and :func:`sweep` besides the schedule; all runs of a sweep share them."""

    client_weights: Annotated[ClientWeights | None, "Replaces the method's client weights."] = None
    loss: Annotated[
        Loss | None,
        '"cross_entropy" (default; for targets that are not whole numbers, "squared_error"), "squared_error", '
        '"margin(1, 0.25)" (:class:`wafl.MarginLoss`), a function of (outputs, y) '
        "that returns one loss per example, or a :class:`wafl.OutputLoss`.",
    ] = None
    init: Annotated[Mapping[str, Tensor] | None, "The parameters to start from; by default the model's own."] = None
    device: Annotated[str, 'The device on which models are trained, "cpu" or "cuda".'] = "cpu"
    chunk_size: Annotated[
        int | None, "How many lanes are computed together; by default, the lanes fill half of the free memory."
    ] = None
    workers: Annotated[
        int | None,
        "How many CPU threads share the clients if the network is too large to compute all clients in one batch; by "
        "default, torch's number of threads. The results are bitwise the same for any number.",
    ] = None
    callbacks: Annotated[Callbacks, "Called with every round (:mod:`wafl.callbacks`)."] = ()
    checkpoint: Annotated[Checkpoint | None, "Saves the progress, so that the same call resumes after a crash."] = None
    faults: Annotated[Faults | None, "Makes clients fail on purpose."] = None
    tolerance: Annotated[
        Tolerance | None,
        "How many clients may fail in a round. With faults or a tolerance, a non-finite reply is left out instead of "
        "ending the run.",
    ] = None
    check_optimum: Annotated[
        bool | None,
        "Whether to warn at the end if the model is not near its optimum: if a few steps with all clients would still "
        "lower the training objective. By default, `fit` checks linear models if the check takes at most a quarter of "
        "the gradients of training, and `sweep` does not check.",
    ] = None
    progress: Annotated[bool | None, "Whether to show progress; by default on a terminal and in notebooks."] = None

    def trainer(self, model: nn.Module, clients: Federation) -> Trainer:
        """Return the trainer of this model on clients in this process."""
        where, size, workers = find_device(self.device), self.chunk_size, self.workers
        here = Embedded(clients, where, size, self.faults, self.tolerance, workers=workers)
        return Trainer(model, here, usual_loss(self.loss, clients), self.init)

    def train(self, trainer: Trainer, specs: Sequence[Spec]) -> list[Run]:
        """Train all runs, and check that they reached the optimum."""
        runs = train(trainer, specs, self.callbacks, self.checkpoint)
        check_near(trainer, specs, runs, self.check_optimum)
        return runs


@dataclass(frozen=True, kw_only=True)
class Training(Setting, Schedule):
    """Every option of :func:`fit` besides the model, the clients, and the method; each field is a keyword argument."""


@taking(Training)
def fit(model: nn.Module, clients: Federation, method: Method, options: Training) -> Run:
    """Train one model on all clients; only the clients' work sees their examples.

    All options after ``method`` are keyword arguments. A *lane*, in the options below, is one client's copy of the
    parameters; the lanes of a batch are computed together.

    See Also:
        :func:`wafl.sweep`, :func:`wafl.tune`, :func:`wafl.evaluate`

    Args:
        model: any module that treats each example separately; it is copied.
        clients: the clients and their examples.
        method: one of ``wafl.METHODS``, such as ``wafl.WAFL(gamma=0.5)``, or a :class:`wafl.Method`.

    Returns:
        The trained model with its history.

    >>> import wafl
    >>> clients = wafl.load_dataset("digits").partition(num_clients=20, labels_per_client=3, seed=0)
    >>> run = wafl.fit(wafl.models.mlr(clients), clients, wafl.WAFL(gamma=1.0), rounds=5, local_epochs=1)
    >>> len(run.history)
    5
    """
    check_arguments("fit(model, clients, method)", model, clients, trained=False)
    spec = Spec(_known(method, options.client_weights), part(options, Schedule))
    trainer = options.trainer(model, clients)
    with shown(method.name, options.progress):
        return options.train(trainer, [spec])[0]


@listing(Training, check_optimum=False)
def sweep(
    model: nn.Module, clients: Federation, method: Method, grid: Mapping[str, Sequence[Any]], **options: Any
) -> Runs:
    """Train every combination of a grid, as lanes of one batch where possible.

    A *lane* is one client's copy of the parameters in one run. Combinations that run the same computation with
    different numbers share a batch. Combinations with different computations (a different ``batch_size``, ``norm``,
    ...) train one after another. Each run equals the run that :func:`fit` returns for the same options. If a run
    diverges, only this run stops, and ``run.diverged`` contains the reason; if all runs diverge, an error is raised.

    See Also:
        :func:`wafl.fit`, :func:`wafl.compare`

    Args:
        model: any module that treats each example separately; it is copied.
        clients: the clients and their examples.
        method: the method with the varied options.
        grid: values for options of the method (``gamma``, ``epsilon``, ``server``, ...) and of the schedule
            (``rounds``, ``learning_rate``, ``seed``, ...); these replace the options below.

    Returns:
        One run per combination, in the order of ``itertools.product``: a list with ``to_pandas()`` and ``plot()``;
        ``run.point`` contains the varied values.
    """
    check_arguments("sweep(model, clients, method, grid)", model, clients, trained=False)
    schedule = {name: options.pop(name) for name in options_of(Schedule) if name in options}
    setting = Setting(**options)
    specs = make_specs(_known(method, setting.client_weights), grid, schedule)
    trainer = setting.trainer(model, clients)
    with shown(f"{len(specs)} runs of {method.name}", setting.progress):
        return Runs(setting.train(trainer, specs))


def usual_loss(given: Loss | None, clients: Federation) -> Loss:
    """Return the given loss; otherwise the squared error for targets that are not whole numbers, or cross-entropy."""
    y = clients.train.y
    if given is not None or not y.is_floating_point() or bool((y == y.round()).all()):
        return "cross_entropy" if given is None else given
    warn_user(
        "the targets are not whole numbers, so loss='squared_error' is used: pass it to silence this warning",
        LossWarning,
    )
    return "squared_error"


def make_specs(method: Method, grid: Mapping[str, Sequence[Any]], schedule: Mapping[str, Any]) -> list[Spec]:
    """Return the spec of every combination of the grid, in the order of ``itertools.product``."""
    if not isinstance(grid, Mapping):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise TypeError(f"grid={grid!r} must be a dict of lists by option, such as {{'gamma': [0.1, 1.0]}}")
    lists = [isinstance(values, Sequence) and not isinstance(values, str) for values in grid.values()]  # pyright: ignore[reportUnnecessaryIsInstance]
    if not grid or not all(lists) or not all(map(len, grid.values())):
        raise ValueError(f"the grid {dict(grid)} has no combinations: give every name at least one value, in a list")
    names = [field.name for field in fields(Schedule)]
    specs: list[Spec] = []
    for values in itertools.product(*grid.values()):
        point = dict(zip(grid, values, strict=True))
        timing = {name: value for name, value in point.items() if name in names}
        options = {name: value for name, value in point.items() if name not in names}
        specs.append(Spec(method.with_options(**options), make_schedule({**schedule, **timing}), point))
    return specs


@dataclass(frozen=True)
class _Rounds(Callback):
    """The visible progress of training: the finished rounds of all runs, and the mean loss of the last rounds."""

    rounds: Sequence[int]

    def on_progress(self, progress: Progress) -> None:
        runs = progress.runs
        done = sum(self.rounds[index] if run.stopped else len(run.history) for index, run in runs.items())
        last = [run.history[-1].loss for run in runs.values() if run.history]
        reached(done, sum(self.rounds), "rounds", f"loss {fmean(last):.4g}" if last else "")


def train(
    trainer: Trainer,
    specs: Sequence[Spec],
    callbacks: Callbacks = (),
    checkpoint: Checkpoint | None = None,
) -> list[Run]:
    """Train all runs, resuming from a checkpoint if there is one."""
    rounds = [_Rounds([spec.schedule.rounds for spec in specs])] if is_shown() else []
    listeners = [*as_callbacks(callbacks), *rounds]
    check_undecided(trainer, specs)
    if checkpoint is not None and not isinstance(checkpoint, Checkpoint):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise TypeError(f"checkpoint is {what_is(checkpoint)}: pass a wafl.train.checkpoint.checkpoint.Checkpoint")
    progress = None if checkpoint is None else checkpoint.read(trainer.fingerprint(specs))
    for callback in listeners:
        callback.on_start(progress)
    progress = progress or Progress()
    with checkpoint or nullcontext():
        everyone = listeners if checkpoint is None else [*listeners, checkpoint]
        runs = trainer.train(settled(trainer, specs, progress, listeners), everyone, progress)
        if checkpoint is not None:
            checkpoint.write()  # a signal can now only delay the write
    for index, chosen in progress.chosen.items():
        runs[index].settings["chosen"] = asdict(chosen)
    return runs


def _known(method: Method, client_weights: ClientWeights | None) -> Method:
    """Return the method, with other client weights if they are given."""
    if not isinstance(method, Method):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise TypeError(not_a_method(method))
    return method if client_weights is None else replace(method, client_weights=client_weights)
