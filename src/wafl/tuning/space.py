"""Define methods to tune, their search spaces (by default the tunable options), and the points to try.

The first point is the method's own setting; then a sequence covers the whole space. It is Sobol's, shifted by a draw
from the key (Cranley and Patterson, 1976): each option is covered evenly, and more trials only add points.
"""

import itertools
import math
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from numbers import Real
from typing import Any, Literal

import torch
from torch.quasirandom import SobolEngine

from wafl.base.describe import rounded
from wafl.base.errors import did_you_mean
from wafl.base.options import Choice, Count, EachRound, Option, Range, Tunable, options_of
from wafl.base.random import Key, Purpose, uniform
from wafl.methods import Method
from wafl.parts.schedule import Schedule, make_schedule
from wafl.train.spec import Spec

Setting = dict[str, Any]
"""The searched values, by the names of options of the method and the schedule."""


@dataclass(frozen=True)
class Candidate:
    """A method to tune, with the options and the schedule of its first trial.

    ``listed`` are values of options to choose from, including the values of the first trial. ``make`` builds your own
    method from ``arguments``, which are then searched instead of the method's options. ``only`` are the names that may
    be searched; None means all.
    """

    name: str
    method: Method
    schedule: Mapping[str, Any]
    listed: Mapping[str, Sequence[Any]] = field(default_factory=dict[str, Sequence[Any]])
    make: Callable[..., Method] | None = None
    arguments: Mapping[str, Any] = field(default_factory=dict[str, Any])
    only: Collection[str] | None = None

    def options(self) -> dict[str, tuple[Option, Any]]:
        """Return the options that may be searched, each with its declaration and its value in the first trial."""
        schedule = {
            name: (option, self.schedule.get(name, option.default))
            for name, option in options_of(Schedule).items()
            if name not in ("rounds", "seed")  # trials of a method train equally long, from the same draws
        }
        arguments = {name: (Option(name, Any, None, "", None, True), value) for name, value in self.arguments.items()}
        known = {**(self.method.declared() if self.make is None else arguments), **schedule}
        return {name: about for name, about in known.items() if self.only is None or name in self.only}

    def method_with(self, setting: Mapping[str, Any]) -> Method:
        """Return the method of a trial."""
        options = {name: value for name, value in setting.items() if name not in options_of(Schedule)}
        return self.method.with_options(**options) if self.make is None else self.make(**{**self.arguments, **options})

    def schedule_with(self, setting: Mapping[str, Any]) -> dict[str, Any]:
        """Return the schedule of a trial, without its seed."""
        timing = {name: value for name, value in setting.items() if name in options_of(Schedule)}
        return {**self.schedule, **timing}

    def spec(self, setting: Setting, seed: int) -> Spec:
        """Return the run of a trial."""
        return Spec(self.method_with(setting), make_schedule({**self.schedule_with(setting), "seed": seed}), setting)


DIGITS = 3
"""The number of significant digits of a drawn value: enough to distinguish values, and few enough to read."""

Given = Mapping[str, Sequence[Any]]
"""The given space by option: a list of values, a pair ``(low, high)``, or an empty list to keep each method's value."""


@dataclass(frozen=True)
class Values:
    """A few values with equal probabilities."""

    values: tuple[Any, ...]

    def at(self, share: float, setting: Setting) -> Any:
        """Return the value at this fraction of the way, in [0, 1)."""
        return self.values[int(share * len(self.values))]

    def gentleness(self, value: Any, setting: Setting) -> float:
        """Return 0, since none of the values is gentler than the others."""
        return 0.0

    def gentlest(self, value: Any) -> Any:
        """Return the method's own value, since none of the values is gentler than the others."""
        return value


@dataclass(frozen=True)
class Interval:
    """Numbers from ``low`` to ``high``, uniform in the logarithm; ``gentle`` is the end with the weakest effect.

    If the option must stay ``below`` a number, as a momentum below 1, the distance to it is uniform in the logarithm.
    ``scale`` is the factor of the ends, given the values of the options with a few values.
    """

    low: float
    high: float
    below: float | None = None
    whole: bool = False
    gentle: Literal["low", "high"] = "low"
    scale: partial[float] | None = None

    def at(self, share: float, setting: Setting) -> float:
        """Return the number at this fraction of the way, in [0, 1)."""
        if self.below is not None:
            near, far = self.below - self.low, self.below - self.high
            return rounded(self.below - rounded(near * (far / near) ** share, DIGITS), DIGITS)
        value = self.low * (self.high / self.low) ** share
        return round(value) if self.whole else rounded(value * self._scale(setting), DIGITS)

    def position(self, value: float, setting: Setting) -> float:
        """Return the position of a number between ``low``, 0, and ``high``, 1; it may lie outside."""
        if self.below is not None:
            near, far, size = self.below - self.low, self.below - self.high, self.below - value
        else:
            near, far, size = self.low, self.high, value / self._scale(setting)
        return math.log(size / near) / math.log(far / near) if size > 0 else -math.inf

    def gentleness(self, value: float, setting: Setting) -> float:
        """Return a number that is larger for values with a weaker effect."""
        position = self.position(value, setting)
        return position if self.gentle == "high" else -position

    def gentlest(self, value: Any) -> float:
        """Return the value with the weakest effect, for the method's own values of other options."""
        return self.at(1.0 if self.gentle == "high" else 0.0, {})

    def _scale(self, setting: Setting) -> float:
        return 1.0 if self.scale is None else self.scale(setting)


Dimension = Values | Interval
Space = dict[str, Dimension]


def make_space(candidate: Candidate, given: Given, features: int) -> Space:
    """Return a method's search space on ``features`` features: from lists, from the user, or from its options."""
    space: Space = {}
    options = candidate.options()
    for name, (option, value) in options.items():
        if name in candidate.listed:
            space[name] = Values(tuple(candidate.listed[name]))
        elif name in given and value is not None:
            if len(given[name]):
                space[name] = _given(option, given[name])
        elif option.tunable is not None:
            norm = options["norm"][1] if "norm" in options else None
            dimension = _declared(option, option.tunable, value, norm, features)
            if dimension is not None:
                space[name] = dimension
    scaled = any(isinstance(dimension, Interval) and dimension.scale is not None for dimension in space.values())
    if not scaled and "norm" not in candidate.listed and "norm" not in given:
        space.pop("norm", None)  # values that were chosen for one norm mean nothing in another
    return space


def check_names(given: Given, candidates: Collection[Candidate]) -> None:
    """Raise ValueError for options that no method has, or for which no method has a first value."""
    known = {name for candidate in candidates for name, (_, value) in candidate.options().items() if value is not None}
    for name in given:
        if name not in known:
            hint = did_you_mean(name, known) or f": there are {', '.join(sorted(known))}"
            raise ValueError(f"space: no method here has a value of {name!r} to start from{hint}")


def _given(option: Option, values: Sequence[Any]) -> Dimension:
    """Return the dimension that the user gave."""
    name = option.name
    if not isinstance(values, tuple):
        if isinstance(values, str):
            raise ValueError(f"space: {name}={values!r} must be a list of values, or a tuple (low, high)")
        for value in values:
            option.check(value)
        return Values(tuple(values))
    limits = option.limits.range if isinstance(option.limits, EachRound) else option.limits
    if isinstance(limits, Choice):
        raise ValueError(f"space: {name}={values!r} is one of a few values: give a list of them")
    numbers = len(values) == 2 and all(isinstance(value, Real) for value in values)
    if not numbers or not values[0] < values[1]:
        raise ValueError(f"space: {name}={values!r} must be (low, high) with low < high; a list is a few values")
    for value in values:
        option.check(value)
    below = _end(limits)
    if below is None and values[0] <= 0:
        raise ValueError(
            f"space: {name}={values!r} must begin above 0, as it is spread evenly in the logarithm; a list may hold 0"
        )
    gentle = option.tunable.gentle if option.tunable is not None else "low"
    return Interval(values[0], values[1], below, isinstance(limits, Count), gentle)


def _declared(option: Option, tunable: Tunable, value: Any, norm: float | None, features: int) -> Dimension | None:
    """Return the dimension that an option declares around its value, or None if there is no value to scale."""
    limits = option.limits.range if isinstance(option.limits, EachRound) else option.limits
    if isinstance(limits, Choice):
        return Values(limits.values)
    if value == 0:
        value = option.default
    if not isinstance(value, Real) or not isinstance(limits, Range):
        return None
    center, below = float(value), _end(limits)
    if below is not None:
        distance = below - center
        return Interval(max(limits.low, below - distance * tunable.factor), below - distance / tunable.factor, below)
    scale = None
    if tunable.comparable is not None and norm is not None:
        scale = partial(_worth, tunable=tunable, norm=norm, features=features)
    return Interval(center / tunable.factor, center * tunable.factor, gentle=tunable.gentle, scale=scale)


def _worth(setting: Setting, tunable: Tunable, norm: float, features: int) -> float:
    """Return the factor by which a number changes from ``norm`` to a setting's norm to have the same effect."""
    assert tunable.comparable is not None
    return tunable.comparable(setting.get("norm", norm), features) / tunable.comparable(norm, features)


def _end(limits: Any) -> float | None:
    """Return the upper end that an option may approach but not reach."""
    return limits.high if isinstance(limits, Range) and limits.high_open and limits.high < math.inf else None


def draw_settings(
    space: Space, first: Setting, trials: int, seed: int, check: Callable[[Setting], object]
) -> list[Setting]:
    """Return up to ``trials`` different settings, starting with ``first``; skip settings that fail ``check``."""
    check(first)
    settings = [first]
    for point in itertools.islice(_points(space, trials, seed), 64 * trials):  # then the space counts as exhausted
        if len(settings) == trials:
            break
        setting = _setting(space, point)
        if setting in settings:
            continue
        try:
            check(setting)
        except ValueError:
            continue
        settings.append(setting)
    return settings


def _points(space: Space, trials: int, seed: int) -> Iterator[tuple[float, ...]]:
    """Yield points of the unit cube: centers of a grid of at most ``trials`` cells, or Sobol's sequence, shifted."""
    counts = [len(dimension.values) for dimension in space.values() if isinstance(dimension, Values)]
    if len(counts) == len(space) and math.prod(counts) <= trials:
        yield from itertools.product(*([(index + 0.5) / count for index in range(count)] for count in counts))
        return
    engine, shift = SobolEngine(len(space)), uniform(Key.of(seed), Purpose.TRIALS, len(space))
    while True:
        yield tuple(((engine.draw(dtype=torch.float64)[0] + shift) % 1.0).tolist())


def _setting(space: Space, point: tuple[float, ...]) -> Setting:
    """Return a point as values, in the order of the space; a number may depend on the options with a few values."""
    shares = dict(zip(space, point, strict=True))
    chosen = {name: space[name].at(shares[name], {}) for name in space if isinstance(space[name], Values)}
    numbers = {name: space[name].at(shares[name], chosen) for name in space if isinstance(space[name], Interval)}
    return {name: {**chosen, **numbers}[name] for name in space}
