"""Which points of a space are tried: the first trial's own setting, then a sequence that leaves no part of it empty.

The sequence is Sobol's, shifted by a draw from the key (Cranley and Patterson, 1976): each option by itself is covered
evenly, and more trials only add points.
"""

import itertools
import math
from collections.abc import Callable, Iterator

import torch
from torch.quasirandom import SobolEngine

from wafl.base.random import Key, Purpose, uniform
from wafl.tuning.candidate import Setting
from wafl.tuning.space import Interval, Space, Values


def draw_settings(
    space: Space, own: Setting, trials: int, seed: int, check: Callable[[Setting], object]
) -> list[Setting]:
    """At most ``trials`` different settings, the own one first; fewer if the space has no more.

    A setting is passed over if ``check`` raises a ValueError, because its values do not fit together.
    """
    check(own)
    found = [own]
    for point in itertools.islice(_points(space, trials, seed), 64 * trials):  # then the space counts as exhausted
        if len(found) == trials:
            break
        setting = _setting(space, point)
        if setting in found:
            continue
        try:
            check(setting)
        except ValueError:
            continue
        found.append(setting)
    return found


def _points(space: Space, trials: int, seed: int) -> Iterator[tuple[float, ...]]:
    """Points of the unit cube: Sobol's sequence, shifted modulo 1.

    If the space is a grid with no more than ``trials`` points, they are the middles of its cells.
    """
    counts = [len(dimension.values) for dimension in space.values() if isinstance(dimension, Values)]
    if len(counts) == len(space) and math.prod(counts) <= trials:
        yield from itertools.product(*([(place + 0.5) / count for place in range(count)] for count in counts))
        return
    engine, shift = SobolEngine(len(space)), uniform(Key.of(seed), Purpose.TRIALS, len(space))
    while True:
        yield tuple(((engine.draw(dtype=torch.float64)[0] + shift) % 1.0).tolist())


def _setting(space: Space, point: tuple[float, ...]) -> Setting:
    """A point as values, in the order of the space; a number may depend on the options with a few values."""
    shares = dict(zip(space, point, strict=True))
    chosen = {name: space[name].at(shares[name], {}) for name in space if isinstance(space[name], Values)}
    numbers = {name: space[name].at(shares[name], chosen) for name in space if isinstance(space[name], Interval)}
    return {name: {**chosen, **numbers}[name] for name in space}
