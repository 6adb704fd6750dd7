"""Find the crossing of a falling staircase and a rising line, for every example at once.

Within bounds, the l_inf and l1 moves depend on one number per example: the common move of all coordinates, or the slope
at which a coordinate starts to move. Coordinates drop out one by one as that number rises, so the remaining gain is a
staircase.
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

Inverse = Callable[[Tensor, Tensor], Tensor]
"""The t at which a rising line has a given height, for a price ``[..., 1]``."""


def crossing(reach: Tensor, gain: Tensor, price: Tensor, inverse: Inverse, near: Tensor | None = None) -> Tensor:
    """Return the t >= 0 where the sum of ``gain`` over ``reach > t`` falls below a nondecreasing line; ``[..., 1]``.

    A coordinate adds its ``gain``, at least 0, until it drops out at its ``reach [..., D]``, finite and at least 0.
    Rounded sums do not grow as coordinates drop out, so exactly one number is t, whatever the method: the line has the
    height of the staircase after t at t or below, and the height before t at t or above. A few repetitions usually find
    it, from a number ``near`` t or from above; the other examples are computed by sorting.
    """
    if reach.is_cuda:
        return by_sorting(reach, gain, price, inverse)
    line = _Line(reach, gain, price, inverse)
    if near is None:
        last = line.after(inverse(gain.sum(-1, keepdim=True), price))
        t = line.after(last)
        if not torch.equal(last, t):
            last, t = t, line.after(t)
    else:
        last = near.clamp(line.after(near), line.before(near))
        t = torch.where(last == near, last, line.after(last))
    if torch.equal(last, t):
        return t
    rows = (last != t).squeeze(-1).nonzero(as_tuple=True)
    t[rows] = _walked(_Line(reach[rows], gain[rows], price.expand_as(t)[rows], inverse))
    return t


@dataclass(frozen=True)
class _Line:
    """The points at which the line has the height of the staircase just after t and just before it."""

    reach: Tensor
    gain: Tensor
    price: Tensor
    inverse: Inverse

    def after(self, t: Tensor) -> Tensor:
        return self._at(torch.gt(self.reach, t, out=torch.empty_like(self.gain)))

    def before(self, t: Tensor) -> Tensor:
        return self._at(torch.ge(self.reach, t, out=torch.empty_like(self.gain)))

    def _at(self, beyond: Tensor) -> Tensor:
        """Return the point of each coordinate as numbers, since comparisons with booleans take five times as long."""
        return self.inverse(beyond.mul_(self.gain).sum(-1, keepdim=True), self.price)


def _walked(line: _Line) -> Tensor:
    """Return the t of :func:`crossing` by walking from step to step; sums in another order give the first step."""
    rising, ends = _sorted(line.reach, line.gain, line.price, line.inverse)
    step = ends.argmax(-1, keepdim=True)
    while True:
        edge, lower = (rising.gather(-1, each) for each in (step, (step - 1).clamp_min(0)))
        before = line.before(edge)
        beyond, short = line.after(edge) > edge, (before < lower) & (step > 0)
        if not bool((beyond | short).any()):
            return torch.minimum(before, edge)
        step = step + beyond.long() - short.long()


def by_sorting(reach: Tensor, gain: Tensor, price: Tensor, inverse: Inverse) -> Tensor:
    """Return the t of :func:`crossing` in a fixed number of operations, which suits a GPU."""
    return _sorted(reach, gain, price, inverse)[1].amax(-1, keepdim=True)


def _sorted(reach: Tensor, gain: Tensor, price: Tensor, inverse: Inverse) -> tuple[Tensor, Tensor]:
    """Return the reaches in rising order, and numbers whose maximum is t.

    With ``S_k`` the gains from the k-th reach on, the staircase has height ``S_k`` up to the k-th reach. The line falls
    below it there or before, so ``t = max over k of min(line(S_k), reach_k)``.
    """
    rising, order = reach.sort(dim=-1)
    left = gain.gather(-1, order).flip(-1).cumsum(-1).flip(-1)
    return rising, torch.minimum(inverse(left, price), rising)
