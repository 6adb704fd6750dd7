"""What was tried, what was chosen, and why."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any

from wafl.base.options import documented, frozen
from wafl.methods import Method
from wafl.results.frames import to_frame
from wafl.tuning.goal import Goal
from wafl.tuning.space import Candidate, Interval, Setting, Space

EDGE = 0.15
"""How near an end of its range a value is, as a share of the range in the logarithm, to be called at the edge."""


@frozen
class Trial:
    """One setting of a method and what it gave on held-out data."""

    setting: Annotated[Setting, "The values of what was searched."]
    value: Annotated[float | None, "The held-out metric; None if the trial diverged."]
    diverged: Annotated[str | None, "Why it diverged, if it did."] = None


@frozen
class Best:
    """The choice for a method: ``wafl.fit(model, clients, best.method, **best.schedule)`` trains it."""

    method: Annotated[Method, "The method with the chosen options."]
    schedule: Annotated[dict[str, Any], "The schedule with the chosen values, without the seed."]
    setting: Annotated[Setting, "The chosen values of what was searched."]
    value: Annotated[float, "The held-out metric."]
    why: Annotated[str, "The reason, in words."]
    edges: Annotated[tuple[str, ...], "Values at an end of what was tried, in words: a wider range may be better."] = ()


@documented
@dataclass(frozen=True, repr=False)
class Tuning:
    """All trials of several methods, and the choice for each: what :func:`wafl.tune` returns."""

    trials: Annotated[
        dict[str, list[Trial]], "The trials of each method as they were drawn; the first is its own setting."
    ]
    best: Annotated[dict[str, Best], "The choice for each method; a method whose trials all diverged is left out."]
    measure: Annotated[str, "What the values are."]
    larger_is_better: Annotated[bool, "Whether a larger value is better."]

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
        """A ``pandas.DataFrame`` with one row per trial (needs ``wafl-learn[pandas]``)."""
        return to_frame(self.rows)

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
    """The choice for a method: the trial with the best value, and of several the gentlest; None if all diverged."""
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
    """How the choice among several best trials was made, if there were several."""
    ends = {"low": "smallest", "high": "largest"}
    order = [f"{ends[each.gentle]} {name}" for name, each in space.items() if isinstance(each, Interval)]
    return f"; {count} tie: {', then '.join(order) or 'the first'}" if count > 1 else ""


def _edges(space: Space, trials: Sequence[Trial], winner: Trial) -> list[str]:
    """The values of the winner that no trial exceeded and that lie near an end of their range."""
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
