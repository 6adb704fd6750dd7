"""Choose the radius for ``radius="auto"`` on held-out clients, before training.

The clients are split into two halves. Each half trains all candidates, as lanes of one batch, and the other half judges
them by its training examples: test examples are never read. A client sends the server the distance of its examples from
their mean, and one number per candidate, its accuracy.
"""

import math
import warnings
from collections.abc import Mapping, Sequence
from contextlib import suppress
from copy import copy
from dataclasses import replace

import torch
from torch import Tensor

from wafl.base.describe import rounded
from wafl.base.errors import DivergedError, UnboundedError
from wafl.base.norms import typical_length
from wafl.base.random import Key, Purpose, bits, choose
from wafl.callbacks import Callback
from wafl.evaluation.score import worst_count
from wafl.parts.schedule import Schedule
from wafl.results.progress import ChosenRadius, Progress
from wafl.results.run import Run
from wafl.train.checks.watch import TOO_FAR
from wafl.train.clients import Clients, Divisible, Judge
from wafl.train.loop import Trainer
from wafl.train.spec import Spec

CANDIDATES = (0.01, 0.03, 0.1, 0.3)
"""The candidate radii, as fractions of the distance of a client's examples from their mean."""
BUDGET = 1.6
"""The cost limit of training all candidates, in runs. Judging them takes most of the rest of two runs."""
FEWEST = 4
"""The minimum number of clients; with fewer, one half says nothing about the other."""
DRAWS = 1000
"""The number of bootstrap draws for a standard error."""


def settled(trainer: Trainer, specs: Sequence[Spec], progress: Progress, callbacks: Sequence[Callback]) -> list[Spec]:
    """Return the runs with chosen radii; store new choices in ``progress`` and report them to callbacks."""
    decided: list[Spec] = []
    for index, spec in enumerate(specs):
        if spec.undecided:
            if index not in progress.chosen:
                progress.chosen[index] = choose_radius(trainer, index, spec)
                for callback in callbacks:
                    callback.on_choice(index, spec.name, progress.chosen[index])
            spec = spec.with_radius(progress.chosen[index].radius)
        decided.append(spec)
    return decided


def check_undecided(trainer: Trainer, specs: Sequence[Spec]) -> None:
    """Raise ValueError, before any work, for runs whose radius cannot be chosen."""
    sizes = trainer.roster.num_examples
    for spec in (spec for spec in specs if spec.undecided):
        if len(sizes) < FEWEST:
            raise ValueError(
                f"radius='auto' leaves clients out and needs at least {FEWEST} of them, not {len(sizes)}: give a number"
            )
        try:
            for half in halves(len(sizes), spec.schedule.seed):
                spec.method.client_weights.initial([sizes[client] for client in half])
        except ValueError as error:
            raise ValueError(f"radius='auto' leaves clients out: {error}; or give the radius as a number") from error


def choose_radius(trainer: Trainer, index: int, spec: Spec) -> ChosenRadius:
    """Choose the radius of a run: each half of the clients trains all candidates for the other half to judge."""
    clients, objective, roster = trainer.clients, spec.method.objective, trainer.clients.roster
    assert isinstance(clients, Divisible)
    assert objective is not None
    radii = candidates(clients.spread(), objective.norm, math.prod(roster.input_shape))
    parted = halves(roster.num_clients, spec.schedule.seed)
    schedule = _shorter(spec.schedule, [len(half) for half in parted])
    specs = [replace(spec.with_radius(radius), schedule=schedule) for radius in radii]
    judged = [_judged(trainer, *clients.apart(judges, index, spec), len(judges), specs) for judges in parted]
    values = torch.cat(judged, dim=1)
    larger = roster.num_classes is not None
    best, why = best_index(values, larger_is_better=larger)
    summaries = [_summary(row, larger) for row in values]
    tried = [{"radius": radius, **row} for radius, row in zip(radii, summaries, strict=True)]
    *head, last = (f"{radius:g}" for radius in radii)
    chosen = f"radius {radii[best]:g} was chosen among {', '.join(head)} and {last}: {why}"
    return ChosenRadius(radii[best], chosen, tried)


def best_index(values: Tensor, *, larger_is_better: bool = True) -> tuple[int, str]:
    """Return the index of the smallest radius that is not clearly worse than the best, and the reason in words.

    ``values [R, C]`` are accuracies or losses, with the smallest radius first. They are not finite where training
    diverged. A radius's score is the mean of two numbers: the mean over the clients, and the mean over their worst
    tenth. It is clearly worse if its score is further from the best than one standard error of the difference, by the
    bootstrap over clients.
    """
    signed = values if larger_is_better else -values
    usable = torch.isfinite(signed).all(1)
    if not bool(usable.any()):
        return 0, "every radius diverged, and it is the smallest"
    scores = torch.where(usable, _score(signed), -torch.inf)
    best = int(scores.argmax())
    gaps = scores[best] - scores  # infinite for a radius that diverged
    index = next(each for each in range(best + 1) if gaps[each] <= _standard_error(signed[best], signed[each]))
    words, scale, unit = ("accuracy", 100.0, "%") if larger_is_better else ("loss", 1.0, "")
    mean, worst = (scale * float(means[index]) for means in _mean_and_worst(values, larger_is_better))
    judged = f"clients that were left out have {words} {mean:.3g}{unit}, and their worst tenth {worst:.3g}{unit}"
    if index == best:
        return index, f"{judged}, the best mean of the two"
    return index, f"{judged}, and no larger one is better by more than a standard error"


def _score(signed: Tensor) -> Tensor:
    """Return the mean of the clients' mean and their worst tenth's mean, where larger is better: ``[R]``."""
    mean, worst = _mean_and_worst(signed, True)
    return (mean + worst) / 2.0


def _mean_and_worst(values: Tensor, larger_is_better: bool) -> tuple[Tensor, Tensor]:
    """Return the mean over clients, and the mean over their worst tenth, at least one client: ``[R]`` each."""
    worst = values.topk(worst_count(0.1, values.shape[1]), dim=1, largest=not larger_is_better).values
    return values.mean(1), worst.mean(1)


def _standard_error(one: Tensor, other: Tensor) -> float:
    """Return the standard error of the difference of two scores of the same clients, by the bootstrap.

    A jackknife is not suitable, because the worst of a few clients changes only when that client is left out.
    """
    drawn = bits(Key.of(0), Purpose.BOOTSTRAP, DRAWS * len(one)).view(DRAWS, len(one)) % len(one)
    return float((_score(one[drawn]) - _score(other[drawn])).std())


def _summary(values: Tensor, larger_is_better: bool) -> dict[str, float | None]:
    if not bool(torch.isfinite(values).all()):
        return {"mean": None, "worst_tenth": None}
    mean, worst = _mean_and_worst(values[None], larger_is_better)
    return {"mean": float(mean), "worst_tenth": float(worst)}


def candidates(spread: float, norm: float, features: int) -> list[float]:
    """Return the candidate radii, the smallest first: fractions of the spread of a client's examples.

    They are in the norm of the ball.
    """
    unit = spread * typical_length(norm, features)
    if not unit > 0.0:
        raise ValueError("radius='auto': no client has two different examples to measure a radius by: give a number")
    return [rounded(share * unit, 3) for share in CANDIDATES]


def halves(num_clients: int, seed: int) -> list[list[int]]:
    """Return the indices of the clients in two halves, drawn from the seed."""
    first = set(choose(seed, Purpose.LEFT_OUT, num_clients, num_clients // 2))
    return [sorted(first), [client for client in range(num_clients) if client not in first]]


def _shorter(schedule: Schedule, halves: Sequence[int]) -> Schedule:
    """Return the schedule of a candidate: half of the cohort, and at least one round within the budget."""
    everyone = sum(halves)
    cohort = None if schedule.cohort is None else min(math.ceil(schedule.cohort / 2), *halves)
    asked = everyone if cohort is None else cohort * len(halves)
    usual = everyone if schedule.cohort is None else schedule.cohort
    rounds = max(1, math.floor(BUDGET * schedule.rounds * usual / (len(CANDIDATES) * asked)))

    def faster(round: int) -> float:
        """Return the learning rate in fewer rounds, over the same range as in all rounds."""
        return schedule.rate(round * schedule.rounds // rounds)

    rate = faster if callable(schedule.learning_rate) else schedule.learning_rate
    return replace(schedule, rounds=rounds, cohort=cohort, learning_rate=rate)


def _judged(trainer: Trainer, clients: Clients, judge: Judge, judges: int, specs: Sequence[Spec]) -> Tensor:
    """Return each candidate's accuracy (for regression, loss) on each held-out client, ``[R, C]``.

    The numbers are NaN if training diverged.
    """
    here = copy(trainer)
    here.clients, here.roster = clients, clients.roster
    runs: Sequence[Run] = ()
    with warnings.catch_warnings(), suppress(DivergedError, UnboundedError):  # of all candidates
        for category in TOO_FAR:
            warnings.simplefilter("ignore", category)
        runs = here.train(specs)
    scores: dict[int, Mapping[int, float]] = {}
    for index, run in enumerate(runs):
        if not run.diverged:
            with suppress(ValueError):  # the parameters are finite, but the losses are not
                scores[index] = judge(run)
    # A client on a node may be missing for one of them.
    heard = sorted(set[int].intersection(*(set(each) for each in scores.values()))) if scores else range(judges)
    values = torch.full((len(specs), len(heard)), torch.nan, dtype=torch.float64)
    for index, each in scores.items():
        # The last bits of a mean differ between engines, and must not decide.
        values[index] = torch.tensor([round(each[client], 12) for client in heard], dtype=torch.float64)
    return values
