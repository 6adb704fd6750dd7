"""Tune methods with equal numbers of trials, as lanes of one batched run."""

import math
import statistics
import warnings
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Any

from torch import Tensor, nn

from wafl.attacks import Attack
from wafl.base.checks import check_memory, check_seed
from wafl.base.errors import DivergedError, UnboundedError
from wafl.base.options import Count
from wafl.base.shown import shows
from wafl.callbacks import Callback, Callbacks
from wafl.data.arguments import check_arguments
from wafl.data.federation import Federation
from wafl.methods import Method, not_a_method
from wafl.results.run import Run
from wafl.tasks.task import Loss
from wafl.train.checks.watch import TOO_FAR
from wafl.train.embedded import Embedded, find_device
from wafl.train.fit import train, usual_loss
from wafl.train.loop import Trainer
from wafl.train.spec import Spec
from wafl.tuning.judging import Best, Goal, Metric, Trial, Tuning, Way, choose, hold_out
from wafl.tuning.space import Candidate, Given, Setting, Space, check_names, draw_settings, make_space

Methods = Method | Sequence[Method] | Mapping[str, Method | tuple[Method, Mapping[str, Any]]]
OnMethod = Callable[[str, list[Trial]], None]


@shows("tune")
def tune(
    model: nn.Module,
    clients: Federation,
    methods: Methods,
    *,
    trials: int = 16,
    space: Given | None = None,
    held_out: Way = "examples",
    share: float = 0.2,
    metric: Metric | None = None,
    attack: Attack | None = None,
    attacked: Sequence[float] = (0.0, 1.0),
    seed: int = 0,
    seeds: Sequence[int] | None = None,
    loss: Loss | None = None,
    init: Mapping[str, Tensor] | None = None,
    device: str = "cpu",
    chunk_size: int | None = None,
    workers: int | None = None,
    callbacks: Callbacks = (),
    progress: bool | None = None,
    **schedule: Any,
) -> Tuning:
    """Tune every method with the same number of trials, judged on held-out training data.

    The first trial of a method is its given setting; the others are spread over the space. Trials train as lanes of one
    batched run. A trial that diverges loses, and does not stop the others. The clients' test examples are never read.

    By default the space contains the learning rate, and the tunable options of the method's parts: gamma or radius and
    the norm, epsilon and the norm, penalty and step_size, mu, the server's rate, the step of learned weights. A number
    is searched around its first value, by a factor of 10 or 30 each way; in another norm, around the equivalent number.

    See Also:
        :func:`wafl.fit`, :func:`wafl.sweep`

    Args:
        model: any module without batch statistics; it is copied. Other arguments are as in :func:`wafl.fit`.
        clients: the clients with the training examples.
        methods: one method, several, or several by name; a pair ``(method, schedule)`` has a separate schedule.
        trials: the number of settings to try for each method.
        space: by option, a list of values or a tuple ``(low, high)``; an empty list keeps each method's value.
        held_out: ``"examples"`` holds out a share of every client's training examples, ``"clients"`` of the clients.
        share: the share to hold out.
        metric: ``"accuracy"`` or ``"loss"``; by default accuracy, and for a regression the loss.
        attack: an attack or a shift of held-out examples; None judges trials on clean data.
        attacked: shares of the clients to attack; a trial's value is the mean over them, and 0 is clean data.
        seed: determines the held-out part, the settings, and, without ``seeds``, every random choice of the trials.
        seeds: train every setting once per seed, as lanes of the same batch; a trial's value is the mean, and a setting
            that diverges with one of them loses. Each seed determines the cohorts, the batches and the attacked
            clients.
        schedule: ``rounds``, ``cohort``, ``local_steps`` and the other options of :func:`wafl.fit`'s schedule.

    Returns:
        All trials and, in ``best``, the choice for each method and the reason for it.

    >>> import wafl
    >>> clients = wafl.load_dataset("digits").partition(num_clients=10, labels_per_client=3, seed=0)
    >>> model = wafl.models.mlr(clients)
    >>> tuning = wafl.tune(model, clients, wafl.FedAvg(), trials=4, rounds=5, local_epochs=1)
    >>> best = tuning.best["FedAvg"]
    >>> run = wafl.fit(model, clients, best.method, **best.schedule)
    """
    check_arguments("tune(model, clients, methods)", model, clients, trained=False)
    split = hold_out(clients, held_out, share, check_seed(seed))
    where = find_device(device)
    trainer = Trainer(model, Embedded(split.train, where, chunk_size, workers=workers), usual_loss(loss, clients), init)
    goal = Goal(split, metric, attack, tuple(attacked), seed, where)
    search = Search(_candidates(methods, schedule), space or {}, trials, trainer, goal, seed, seeds)
    return search.run(callbacks)


@dataclass(frozen=True)
class Search:
    """All trials, built and checked before any work: ``trials`` settings of each candidate.

    ``given`` is the user's space. The trainer trains on the remaining data, and the goal judges on the held-out data.
    Settings are drawn from ``seed``, which is also the seed of the training unless ``seeds`` are given; then a trial's
    value is the mean over these seeds.
    """

    candidates: Sequence[Candidate]
    given: Given
    trials: int
    trainer: Trainer
    goal: Goal
    seed: int = 0
    seeds: Sequence[int] | None = None
    spaces: dict[str, Space] = field(init=False, default_factory=dict[str, Space])
    settings: dict[str, list[Setting]] = field(init=False, default_factory=dict[str, list[Setting]])

    def __post_init__(self) -> None:
        Count(2, ": the first is the method's own setting").check("trials", self.trials)
        _check_seeds(self.seeds)
        check_names(self.given, self.candidates)
        features = math.prod(self.trainer.roster.input_shape)
        lanes = float(self.trials) * len(self.trained_seeds) * len(self.candidates)
        check_memory(f"the models of trials={self.trials}", 4.0 * lanes * self.trainer.task.num_params, "lower trials")
        for candidate in self.candidates:
            _check_weights(candidate, self.goal.held_out.train)
            space = make_space(candidate, self.given, features)
            first = {name: value for name, (_, value) in candidate.options().items() if name in space}
            self.spaces[candidate.name] = space
            self.settings[candidate.name] = draw_settings(
                space,
                first,
                self.trials,
                self.seed,
                lambda setting, candidate=candidate: self._spec(candidate, setting, self.seed),
            )
        self.trainer.check([spec for _, spec in self._specs(self.candidates)])

    @property
    def trained_seeds(self) -> tuple[int, ...]:
        """The seeds with which every setting is trained."""
        return (self.seed,) if self.seeds is None else tuple(self.seeds)

    def words(self) -> str:
        """Describe the values of trials."""
        count = len(self.trained_seeds)
        return self.goal.words() + (f", mean of {count} seeds" if count > 1 else "")

    def run(
        self, callbacks: Callbacks = (), known: Mapping[str, list[Trial]] | None = None, keep: OnMethod | None = None
    ) -> Tuning:
        """Train and judge all trials, except for ``known`` methods; ``keep`` receives a method's finished trials."""
        done = dict(known or {})
        pending = [candidate for candidate in self.candidates if candidate.name not in done]
        if pending:
            judging = _Judging(self, self._specs(pending), done, keep)
            with warnings.catch_warnings():
                for category in TOO_FAR:
                    warnings.simplefilter("ignore", category)
                with suppress(DivergedError, UnboundedError):  # of all trials, each of which has said why
                    train(self.trainer, judging.specs, callbacks=[*callbacks, judging])
        trials = {candidate.name: done[candidate.name] for candidate in self.candidates}
        best: dict[str, Best] = {}
        for candidate in self.candidates:
            chosen = choose(candidate, self.spaces[candidate.name], trials[candidate.name], self.goal)
            if chosen is not None:
                best[candidate.name] = chosen
        if not best:
            reason = next(trial.diverged for listed in trials.values() for trial in listed)
            raise DivergedError(f"every trial of every method diverged; {reason}")
        return Tuning(trials, best, self.words(), self.goal.accuracy)

    def _specs(self, candidates: Sequence[Candidate]) -> list[tuple[str, Spec]]:
        return [
            (candidate.name, self._spec(candidate, setting, seed))
            for candidate in candidates
            for setting in self.settings[candidate.name]
            for seed in self.trained_seeds
        ]

    def _spec(self, candidate: Candidate, setting: Setting, seed: int) -> Spec:
        """Return a run of a trial; if clients are held out, a cohort contains at most the remaining clients."""
        cohort, most = candidate.schedule.get("cohort"), self.trainer.roster.num_clients
        if cohort is not None and most < cohort <= self.goal.held_out.num_clients:
            candidate = replace(candidate, schedule={**candidate.schedule, "cohort": most})
        return candidate.spec(setting, seed)


class _Judging(Callback):
    """A callback that judges each run at its end, and passes on a method's trials after its last run."""

    def __init__(
        self,
        search: Search,
        specs: Sequence[tuple[str, Spec]],
        done: dict[str, list[Trial]],
        keep: OnMethod | None,
    ) -> None:
        self.specs = [spec for _, spec in specs]
        self._names = [name for name, _ in specs]
        self._settings, self._seeds, self._done, self._keep = search.settings, search.trained_seeds, done, keep
        self._goals = {seed: replace(search.goal, seed=seed) for seed in self._seeds}
        self._values: dict[int, float | str] = {}
        """The value of each run, by index, or the reason why it has none."""

    def on_end(self, index: int, run: Run) -> None:
        name = self._names[index]
        self._values[index] = self._judged(self._goals[self.specs[index].schedule.seed], run)
        first, settings, each = self._names.index(name), self._settings[name], len(self._seeds)
        mine = range(first, first + each * len(settings))
        if all(other in self._values for other in mine):
            values = [self._values[other] for other in mine]
            self._done[name] = [
                self._trial(setting, values[number * each : (number + 1) * each])
                for number, setting in enumerate(settings)
            ]
            if self._keep is not None:
                self._keep(name, self._done[name])

    def _trial(self, setting: Setting, outcomes: Sequence[float | str]) -> Trial:
        """Return the trial of a setting: the mean over the seeds, or the first reason for a missing value."""
        values = [value for value in outcomes if not isinstance(value, str)]
        if len(values) == len(outcomes):
            return Trial(setting, statistics.fmean(values))
        seeds = zip(self._seeds, outcomes, strict=True)
        seed, reason = next((seed, outcome) for seed, outcome in seeds if isinstance(outcome, str))
        return Trial(setting, None, reason if len(outcomes) == 1 else f"seed {seed}: {reason}")

    def _judged(self, goal: Goal, run: Run) -> float | str:
        if run.diverged:
            return run.diverged
        try:
            return goal.value(run)
        except ValueError as error:  # finite parameters whose losses are not
            return str(error)


def _candidates(methods: Methods, schedule: Mapping[str, Any]) -> list[Candidate]:
    """Return the methods to tune, each with its name and its schedule."""
    if not isinstance(methods, Mapping):
        several = methods if isinstance(methods, Sequence) else [methods]
        names: list[str] = [getattr(method, "name", repr(method)) for method in several]
        if len(set(names)) < len(names):
            raise ValueError(f"two of the methods {', '.join(names)} have the same name: give them by name, in a dict")
        methods = dict(zip(names, several, strict=True))
    if not methods:
        raise ValueError("there are no methods to tune: give at least one, such as wafl.WAFL()")
    candidates: list[Candidate] = []
    for name, given in methods.items():
        method, own_schedule = given if isinstance(given, tuple) else (given, {})
        if not isinstance(method, Method):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise TypeError(f"{not_a_method(method)}, or a pair of a method and a schedule")
        candidates.append(Candidate(name, method, {**schedule, **own_schedule}))
    return candidates


def _check_weights(candidate: Candidate, clients: Federation) -> None:
    """Raise ValueError for weights that are given client by client, if some clients are held out."""
    try:
        candidate.method.client_weights.initial(clients.train.num_examples.tolist())
    except ValueError as error:
        raise ValueError(f"{candidate.name}: {error}; held_out='examples' keeps all clients") from error


def _check_seeds(seeds: Sequence[int] | None) -> None:
    """Raise an error if the value is not a list of different seeds."""
    if seeds is None:
        return
    if not isinstance(seeds, Sequence) or not seeds or len(set(seeds)) < len(seeds):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise ValueError(f"seeds={seeds!r} must be a list of one seed or more, all different, such as [1, 2, 3]")
    for seed in seeds:
        check_seed(seed)
