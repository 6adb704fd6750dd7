"""What was tried, what was chosen, and why."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from wafl.methods import Method
from wafl.results.frames import to_frame
from wafl.tuning.candidate import Candidate, Setting
from wafl.tuning.goal import Goal
from wafl.tuning.space import Interval, Space

EDGE = 0.15
"""How near an end of its range a value is, as a share of the range in the logarithm, to be called at the edge."""


@dataclass(frozen=True)
class Trial:
    """One setting of a method and what it gave on held-out data.

    Args:
        setting: the values of what was searched.
        value: the held-out metric; None if the trial diverged.
        diverged: why it diverged, if it did.
    """

    setting: Setting
    value: float | None
    diverged: str | None = None


@dataclass(frozen=True)
class Best:
    """What was chosen for a method: ``wafl.fit(model, clients, best.method, **best.schedule)`` trains it.

    Args:
        method: the method with the chosen options.
        schedule: its schedule with the chosen values, without the seed.
        setting: the chosen values of what was searched.
        value: the held-out metric.
        why: the reason, in words.
        edges: which values are the lowest or highest that were tried, in words: a wider range may be better.
    """

    method: Method
    schedule: dict[str, Any]
    setting: Setting
    value: float
    why: str
    edges: tuple[str, ...] = ()


@dataclass(frozen=True, repr=False)
class Tuning:
    """What :func:`wafl.tune` returns.

    Args:
        trials: all trials of each method, in the order in which they were drawn; the first is its own setting.
        best: the choice for each method; a method whose trials all diverged is left out.
        measure: what the values are.
        larger_is_better: whether a larger value is better.
    """

    trials: dict[str, list[Trial]]
    best: dict[str, Best]
    measure: str
    larger_is_better: bool

    def rows(self) -> list[dict[str, Any]]:
        """One dictionary per trial."""
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
        """One row per trial, as a pandas DataFrame."""
        return to_frame(self.rows())

    def __repr__(self) -> str:
        lines = [f"Tuning by {self.measure}:"]
        lines += [f"  {name}: {describe_setting(best.setting)}: {best.why}" for name, best in self.best.items()]
        lines += [f"  {name}: every trial diverged" for name in self.trials if name not in self.best]
        return "\n".join(lines)


def describe_setting(setting: Mapping[str, Any]) -> str:
    """The values of a setting in one line.

    >>> describe_setting({"gamma": 0.5, "norm": 2})
    'gamma=0.5, norm=2'
    """
    return ", ".join(
        f"{name}={value:g}" if isinstance(value, float) else f"{name}={value}" for name, value in setting.items()
    )


def choose(candidate: Candidate, space: Space, trials: Sequence[Trial], goal: Goal) -> Best | None:
    """The trial with the best value, and of several the gentlest; None if all diverged."""
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
    own = trials[0]
    if winner is own:
        return f"{text}, with its own setting"
    return f"{text}; its own setting {'diverged' if own.value is None else f'gave {goal.shown(own.value)}'}"


def _tie(space: Space, count: int) -> str:
    """How the choice among several best trials was made, if there were several."""
    ends = {"low": "smallest", "high": "largest"}
    order = [f"{ends[each.gentle]} {name}" for name, each in space.items() if isinstance(each, Interval)]
    return f"; {count} tie: {', then '.join(order) or 'the first'}" if count > 1 else ""


def _edges(space: Space, trials: Sequence[Trial], winner: Trial) -> list[str]:
    """The values of the winner that no trial exceeded and that lie near an end of their range."""
    found: list[str] = []
    for name, dimension in space.items():
        if not isinstance(dimension, Interval):
            continue
        places = [dimension.place(trial.setting[name], trial.setting) for trial in trials]
        own = dimension.place(winner.setting[name], winner.setting)
        if own == min(places) and own < EDGE:
            found.append(f"{name}={winner.setting[name]:g} is the lowest that was tried")
        elif own == max(places) and own > 1.0 - EDGE:
            found.append(f"{name}={winner.setting[name]:g} is the highest that was tried")
    return found
