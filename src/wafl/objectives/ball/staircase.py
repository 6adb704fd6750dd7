"""Where a falling staircase meets a rising line, for every example at once and without sorting.

Within bounds, the l_inf and l1 moves are decided by one number per example: how far all coordinates move together, or
how steep a coordinate must be to move at all. Coordinates drop out one by one as that number rises, so what is left of
them is a staircase.
"""

from collections.abc import Callable

import torch
from torch import Tensor


def crossing(reach: Tensor, gain: Tensor, line: Callable[[Tensor], Tensor]) -> Tensor:
    """The t >= 0 where the sum of ``gain`` over ``reach > t`` falls below a line that does not fall; ``[..., 1]``.

    ``line(height)`` is the t at which the line has this height. Each turn looks at one t. The height of the staircase
    there, and the end of its step on the side of the crossing, narrow the bracket; it closes exactly, on a step or on
    an edge. Closed brackets are left alone, so no example depends on the others. A coordinate drops out at its
    ``reach [..., D]``, finite and at least 0, and adds its ``gain``, at least 0, until then.
    """
    if reach.is_cuda:
        return by_sorting(reach, gain, line)
    high = line(gain.sum(-1, keepdim=True))
    if (found := _repeated(reach, gain, line, high)) is not None:
        return found
    low = torch.zeros_like(high)
    left, right = high, low  # where the line has the heights that the staircase has at the two ends
    t = high
    for turn in range(100):  # far more than are ever needed: 2 to 10 for images
        beyond = (reach - t).sign_().clamp_min_(0.0)
        here = line(torch.linalg.vecdot(gain, beyond).unsqueeze(-1))
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


def _repeated(reach: Tensor, gain: Tensor, line: Callable[[Tensor], Tensor], t: Tensor) -> Tensor | None:
    """Where the height of the staircase leads back to itself, if a few repetitions show that for all: that is exact."""
    for _ in range(3):  # with the few gray levels of images they rarely fail
        here = line(torch.linalg.vecdot(gain, (reach > t).to(gain)).unsqueeze(-1))
        if torch.equal(here, t):
            return t
        t = here
    return None


def by_sorting(reach: Tensor, gain: Tensor, line: Callable[[Tensor], Tensor]) -> Tensor:
    """The t of :func:`crossing` in a fixed number of operations, which is how a GPU likes it.

    With the reaches in rising order and ``S_k`` the gains from the k-th on, the staircase has height ``S_k`` up to the
    k-th reach. The line falls below it there or before, so ``t = max over k of min(line(S_k), reach_k)``.
    """
    rising, order = reach.sort(dim=-1)
    left = gain.gather(-1, order).flip(-1).cumsum(-1).flip(-1)
    return torch.minimum(line(left), rising).amax(-1, keepdim=True)


def _next(turn: int, low: Tensor, high: Tensor, left: Tensor, right: Tensor) -> Tensor:
    """A chord converges fastest, the middle keeps it from creeping, and the lower end always passes an edge."""
    if turn % 4 == 2:
        return torch.lerp(low, high, 0.5)
    if turn % 4 == 3:
        return low
    share = (left - low) / (left - low + high - right)
    return torch.lerp(low, high, share.nan_to_num(0.5))
