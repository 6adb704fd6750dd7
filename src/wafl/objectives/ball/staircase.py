"""Where a falling staircase meets a rising line, for every example at once.

Within bounds, the l_inf and l1 moves are decided by one number per example: how far all coordinates move together, or
how steep a coordinate must be to move at all. Coordinates drop out one by one as that number rises, so what is left of
them is a staircase.
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

Inverse = Callable[[Tensor, Tensor], Tensor]
"""The t at which a rising line has a height, for a price ``[..., 1]``."""


def crossing(reach: Tensor, gain: Tensor, price: Tensor, inverse: Inverse, near: Tensor | None = None) -> Tensor:
    """The t >= 0 where the sum of ``gain`` over ``reach > t`` falls below a line that does not fall; ``[..., 1]``.

    A coordinate drops out at its ``reach [..., D]``, finite and at least 0, and adds its ``gain``, at least 0, until
    then. Rounded sums do not grow either as coordinates drop out, so exactly one number is t, however it is found: the
    line has the height of the staircase after t at t or below, and the height before t at t or above. A few repetitions
    mostly find it, from a number ``near`` t or from above; the other examples are computed by sorting.
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
    """Where the line has the height of the staircase just after t and just before it."""

    reach: Tensor
    gain: Tensor
    price: Tensor
    inverse: Inverse

    def after(self, t: Tensor) -> Tensor:
        return self._at(torch.gt(self.reach, t, out=torch.empty_like(self.gain)))

    def before(self, t: Tensor) -> Tensor:
        return self._at(torch.ge(self.reach, t, out=torch.empty_like(self.gain)))

    def _at(self, beyond: Tensor) -> Tensor:
        """As numbers, because a comparison that makes booleans takes five times as long."""
        return self.inverse(beyond.mul_(self.gain).sum(-1, keepdim=True), self.price)


def _walked(line: _Line) -> Tensor:
    """The t of :func:`crossing`, walking from step to step; sums in another order tell where to begin."""
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
    """The t of :func:`crossing` in a fixed number of operations, which is how a GPU likes it."""
    return _sorted(reach, gain, price, inverse)[1].amax(-1, keepdim=True)


def _sorted(reach: Tensor, gain: Tensor, price: Tensor, inverse: Inverse) -> tuple[Tensor, Tensor]:
    """Return the reaches in rising order, and numbers of which the largest is t.

    With ``S_k`` the gains from the k-th reach on, the staircase has height ``S_k`` up to the k-th reach. The line falls
    below it there or before, so ``t = max over k of min(line(S_k), reach_k)``.
    """
    rising, order = reach.sort(dim=-1)
    left = gain.gather(-1, order).flip(-1).cumsum(-1).flip(-1)
    return rising, torch.minimum(inverse(left, price), rising)
