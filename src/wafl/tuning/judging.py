"""Judge trials: the held-out data, the goal, the trials, and the choice of the best with its reason."""

import math
import statistics
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Annotated, Any, Literal

import torch
from torch import Tensor

from wafl.attacks import Attack
from wafl.base.options import documented, frozen
from wafl.base.random import Purpose
from wafl.data.examples import Examples
from wafl.data.federation import Federation
from wafl.data.splits import split_rows
from wafl.evaluation.compare import compare
from wafl.evaluation.evaluate import check_attack, check_share
from wafl.methods import Method
from wafl.results.frames import to_frame
from wafl.results.run import Run
from wafl.tuning.space import Candidate, Interval, Setting, Space

Way = Literal["examples", "clients"]
BLOCK = 256
"""The number of clients that are split together."""


@dataclass(frozen=True)
class HeldOut:
    """Training examples in two parts: trials train on ``train``; the test examples of ``judges`` were held out."""

    train: Federation
    judges: Federation
    num_clients: int
    words: str


def hold_out(clients: Federation, way: Way, share: float, seed: int) -> HeldOut:
    """Hold out a share of every client's training examples, or of the clients."""
    if not 0.0 < share < 1.0:
        raise ValueError(f"share={share} must lie between 0 and 1: 0.2 holds a fifth out")
    untested = replace(clients, test=clients.train.picked([torch.arange(0)] * clients.num_clients))
    if way == "examples":
        return _hold_out_examples(untested, share, seed)
    if way == "clients":
        seen, unseen = untested.hold_out(share, seed=seed)
        judges = replace(unseen, test=unseen.train)
        words = f"{len(judges.test.y)} training examples of {judges.num_clients} held-out clients"
        return HeldOut(replace(seen, recipe=None), judges, clients.num_clients, words)
    raise ValueError(f"held_out={way!r} must be 'examples' or 'clients'")


def _hold_out_examples(clients: Federation, share: float, seed: int) -> HeldOut:
    kept, held = map(clients.train.picked, zip(*_split(clients.train, share, seed), strict=True))
    if len(held.y) == 0:
        raise ValueError(
            f"share={share} of the training examples is not one example of any client: raise it, or hold out clients"
        )
    train = replace(clients, train=kept, recipe=None)
    words = f"{len(held.y)} held-out training examples"
    return HeldOut(train, replace(train, test=held), clients.num_clients, words)


def _split(examples: Examples, share: float, seed: int) -> Iterator[tuple[Tensor, Tensor]]:
    """Yield the rows that each client keeps, and the rows that it holds out."""
    for first in range(0, examples.num_clients, BLOCK):
        sizes, begins = (values[first : first + BLOCK] for values in (examples.num_examples, examples.offsets[:-1]))
        for begin, (kept, held) in zip(begins, split_rows(first, sizes, share, seed, Purpose.HELD_OUT), strict=True):
            yield begin + kept, begin + held


Metric = Literal["accuracy", "loss"]
CPU = torch.device("cpu")


@dataclass(frozen=True)
class Goal:
    """The criterion of trials: the mean of a metric over shares of attacked clients, with 0 for clean data."""

    held_out: HeldOut
    metric: Metric | None = None
    attack: Attack | None = None
    attacked: Sequence[float] = (0.0, 1.0)
    seed: int = 0
    device: torch.device = CPU

    def __post_init__(self) -> None:
        if self.metric not in (None, "accuracy", "loss"):
            raise ValueError(f"metric={self.metric!r} must be 'accuracy' or 'loss'")
        if self.metric == "accuracy" and self.held_out.judges.num_classes is None:
            raise ValueError("metric='accuracy' needs classes, and this is a regression: use metric='loss'")
        if not self.attacked:
            raise ValueError("attacked=() holds no share: give at least one, such as 0 for clean data")
        for share in self.attacked:
            check_share(share)
        object.__setattr__(self, "attack", check_attack(self.attack, self.held_out.judges))

    @property
    def accuracy(self) -> bool:
        """Whether the metric is the accuracy, so that larger is better."""
        return self.metric == "accuracy" or (self.metric is None and self.held_out.judges.num_classes is not None)

    def value(self, run: Run) -> float:
        """Return the metric of a trained model: the mean over the shares."""
        table = compare(
            {"trial": run.to(self.device)},
            self.held_out.judges,
            attacks=self.attack,
            attacked=self.attacked,
            seed=self.seed,
        )
        scores = [row.score for row in table.rows]
        return statistics.fmean((score.accuracy or 0.0) if self.accuracy else score.loss for score in scores)

    def words(self) -> str:
        """Describe the goal in words."""
        text = f"{'accuracy' if self.accuracy else 'loss'} on {self.held_out.words}"
        if self.attack is None:
            return text
        *others, last = (f"{100.0 * share:g}" for share in self.attacked)
        shares = f"mean over {', '.join(others)} and {last}%" if others else f"{last}%"
        return f"{text}, {shares} of the clients attacked ({self.attack.describe(self.held_out.judges.unit)})"

    def shown(self, value: float) -> str:
        """Format a value for people."""
        return f"{100.0 * value:.1f}%" if self.accuracy else f"{value:.4g}"


EDGE = 0.15
"""The distance from an end of a range that counts as its edge, as a fraction of the range in the logarithm."""


@frozen
class Trial:
    """One setting of a method and its result on held-out data."""

    setting: Annotated[Setting, "The values of the searched options."]
    value: Annotated[float | None, "The held-out metric; None if the trial diverged."]
    diverged: Annotated[str | None, "Why it diverged, if it did."] = None


@frozen
class Best:
    """The choice for a method: ``wafl.fit(model, clients, best.method, **best.schedule)`` trains it."""

    method: Annotated[Method, "The method with the chosen options."]
    schedule: Annotated[dict[str, Any], "The schedule with the chosen values, without the seed."]
    setting: Annotated[Setting, "The chosen values of the searched options."]
    value: Annotated[float, "The held-out metric."]
    why: Annotated[str, "The reason, in words."]
    edges: Annotated[tuple[str, ...], "Values at an end of their range, in words: a wider range may be better."] = ()


@documented
@dataclass(frozen=True, repr=False)
class Tuning:
    """All trials of several methods, and the choice for each, the result of :func:`wafl.tune`."""

    trials: Annotated[
        dict[str, list[Trial]], "The trials of each method as they were drawn; the first is its own setting."
    ]
    best: Annotated[dict[str, Best], "The choice for each method, except for methods of which all trials diverged."]
    measure: Annotated[str, "What the values are."]
    larger_is_better: Annotated[bool, "Whether a larger value is better."]

    def rows(self) -> list[dict[str, Any]]:
        """Return one dictionary per trial."""
        return [
            {
                "method": name,
                "trial": number,
                **trial.setting,
                "value": trial.value,
                "chosen": name in self.best and trial.setting == self.best[name].setting,
                "diverged": trial.diverged,
            }
            for name, trials in self.trials.items()
            for number, trial in enumerate(trials)
        ]

    def to_pandas(self) -> Any:
        """Return a ``pandas.DataFrame`` with one row per trial (needs ``wafl-learn[pandas]``)."""
        return to_frame(self.rows)

    def __repr__(self) -> str:
        lines = [f"Tuning by {self.measure}:"]
        lines += [f"  {name}: {describe_setting(best.setting)}: {best.why}" for name, best in self.best.items()]
        lines += [f"  {name}: every trial diverged" for name in self.trials if name not in self.best]
        return "\n".join(lines)


def describe_setting(setting: Mapping[str, Any]) -> str:
    """Describe the values of a setting in one line.

    >>> describe_setting({"gamma": 0.5, "norm": 2})
    'gamma=0.5, norm=2'
    """
    return ", ".join(
        f"{name}={value:g}" if isinstance(value, float) else f"{name}={value}" for name, value in setting.items()
    )


def choose(candidate: Candidate, space: Space, trials: Sequence[Trial], goal: Goal) -> Best | None:
    """Return the choice for a method: the trial with the best value, the gentlest among ties; None if all diverged."""
    sign = 1.0 if goal.accuracy else -1.0
    values = [-math.inf if trial.value is None else sign * trial.value for trial in trials]
    top = max(values)
    if top == -math.inf:
        return None
    tied = [trial for trial, value in zip(trials, values, strict=True) if value == top]

    def gentleness(trial: Trial) -> list[float]:
        return [dimension.gentleness(trial.setting[name], trial.setting) for name, dimension in space.items()]

    winner = max(tied, key=gentleness)
    assert winner.value is not None
    return Best(
        candidate.method_with(winner.setting),
        candidate.schedule_with(winner.setting),
        winner.setting,
        winner.value,
        _reason(trials, winner, goal) + _tie(space, len(tied)),
        tuple(_edges(space, trials, winner)),
    )


def _reason(trials: Sequence[Trial], winner: Trial, goal: Goal) -> str:
    assert winner.value is not None
    lost = sum(trial.value is None for trial in trials)
    end = "highest" if goal.accuracy else "lowest"
    text = f"{goal.shown(winner.value)}, the {end} of {len(trials)} trials" + (f" ({lost} diverged)" if lost else "")
    first = trials[0]
    if winner is first:
        return f"{text}, with its own setting"
    return f"{text}; its own setting {'diverged' if first.value is None else f'gave {goal.shown(first.value)}'}"


def _tie(space: Space, count: int) -> str:
    """Describe how the choice among several best trials was made, if there were several."""
    ends = {"low": "smallest", "high": "largest"}
    order = [f"{ends[each.gentle]} {name}" for name, each in space.items() if isinstance(each, Interval)]
    return f"; {count} tie: {', then '.join(order) or 'the first'}" if count > 1 else ""


def _edges(space: Space, trials: Sequence[Trial], winner: Trial) -> list[str]:
    """Return the winner's values that lie near an end of their range and that no trial exceeded."""
    edges: list[str] = []
    for name, dimension in space.items():
        if not isinstance(dimension, Interval):
            continue
        positions = [dimension.position(trial.setting[name], trial.setting) for trial in trials]
        position = dimension.position(winner.setting[name], winner.setting)
        if position == -math.inf:  # 0, below which there is nothing
            continue
        if position == min(positions) and position < EDGE:
            edges.append(f"{name}={winner.setting[name]:g} is the lowest that was tried")
        elif position == max(positions) and position > 1.0 - EDGE:
            edges.append(f"{name}={winner.setting[name]:g} is the highest that was tried")
    return edges
