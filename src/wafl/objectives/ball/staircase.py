"""Where a falling staircase meets a rising line, for every example at once and without sorting.

Within bounds, the l_inf and l1 moves are decided by one number per example: how far all coordinates move together, or
how steep a coordinate must be to move at all. Coordinates drop out one by one as that number rises, so what is left of
them is a staircase.
"""

from collections.abc import Callable

import torch
from torch import Tensor

Inverse = Callable[[Tensor, Tensor], Tensor]
"""The t at which a rising line has a height, for a price ``[..., 1]``."""


def crossing(reach: Tensor, gain: Tensor, price: Tensor, inverse: Inverse) -> Tensor:
    """The t >= 0 where the sum of ``gain`` over ``reach > t`` falls below a line that does not fall; ``[..., 1]``.

    A coordinate drops out at its ``reach [..., D]``, finite and at least 0, and adds its ``gain``, at least 0, until
    then. Where the height of the staircase leads back to itself, t is exact, and with the few gray levels of images
    three repetitions mostly show that; the other examples are narrowed down by themselves.
    """
    if reach.is_cuda:
        return by_sorting(reach, gain, price, inverse)
    before = t = inverse(gain.sum(-1, keepdim=True), price)
    beyond = torch.empty_like(gain)
    for _ in range(3):
        torch.gt(reach, t, out=beyond)  # as numbers: a comparison that makes booleans takes eight times as long
        before, t = t, inverse(torch.linalg.vecdot(gain, beyond).unsqueeze(-1), price)
        if torch.equal(before, t):
            return t
    rows = (before != t).squeeze(-1).nonzero(as_tuple=True)
    t[rows] = _narrowed(reach[rows], gain[rows], price.expand_as(t)[rows], inverse)
    return t


def _narrowed(reach: Tensor, gain: Tensor, price: Tensor, inverse: Inverse) -> Tensor:
    """The t of :func:`crossing`, from a bracket that closes exactly, on a step or on an edge.

    Each turn looks at one t. The height of the staircase there, and the end of its step on the side of the crossing,
    narrow the bracket. Closed brackets are left alone, so no example depends on the others.
    """
    high = inverse(gain.sum(-1, keepdim=True), price)
    low = torch.zeros_like(high)
    left, right = high, low  # where the line has the heights that the staircase has at the two ends
    t = high
    for turn in range(100):  # far more than are ever needed: 2 to 10 for images
        beyond = (reach - t).sign_().clamp_min_(0.0)
        here = inverse(torch.linalg.vecdot(gain, beyond).unsqueeze(-1), price)
        before = here > t
        toward = torch.where(before, 1.0, -1.0).to(t)
        away = beyond.sub_(0.5 - 0.5 * toward).abs_().reciprocal_().sub_(1.0)  # infinite for reaches on the other side
        edge = torch.addcmul(away, reach, toward).amin(-1, keepdim=True) * toward
        is_open = low < high
        low = torch.where(is_open, torch.where(before, torch.minimum(here, edge), here).maximum(low), low)
        high = torch.where(is_open, torch.where(before, here, torch.maximum(here, edge)).minimum(high), high)
        if not bool((low < high).any()):
            break
        left, right = torch.where(before, here, left), torch.where(before, right, here)
        t = _next(turn, low, high, left, right)
    return low


def by_sorting(reach: Tensor, gain: Tensor, price: Tensor, inverse: Inverse) -> Tensor:
    """The t of :func:`crossing` in a fixed number of operations, which is how a GPU likes it.

    With the reaches in rising order and ``S_k`` the gains from the k-th on, the staircase has height ``S_k`` up to the
    k-th reach. The line falls below it there or before, so ``t = max over k of min(line(S_k), reach_k)``.
    """
    rising, order = reach.sort(dim=-1)
    left = gain.gather(-1, order).flip(-1).cumsum(-1).flip(-1)
    return torch.minimum(inverse(left, price), rising).amax(-1, keepdim=True)


def _next(turn: int, low: Tensor, high: Tensor, left: Tensor, right: Tensor) -> Tensor:
    """A chord converges fastest, the middle keeps it from creeping, and the lower end always passes an edge."""
    if turn % 4 == 2:
        return torch.lerp(low, high, 0.5)
    if turn % 4 == 3:
        return low
    share = (left - low) / (left - low + high - right)
    return torch.lerp(low, high, share.nan_to_num(0.5))
