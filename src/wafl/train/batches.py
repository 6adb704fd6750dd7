"""Choose the examples of each lane at each local step, and the room of a batch.

Only the client determines the room of its batch, so that no sum rounds differently because of other clients in the same
computation. There are few room sizes, so that clients of similar sizes share one. The sizes are close enough to each
other that small clients do not pay for large ones.
"""

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from wafl.base.random import Key, Purpose, permutation
from wafl.parts.schedule import LocalWork

SMALLEST = 16
"""The number of examples below which a step takes as long as with one example."""
FEW = 2**15
"""The number of draws below which a CPU is faster than launching the operations on a GPU."""


def room_for(count: int, smallest: int = SMALLEST) -> int:
    """Return the smallest of 16, 24, 32, 48, 64, 96, ... (or from another power of 2 on) that is at least ``count``."""
    octave = max(smallest, 1 << (count - 1).bit_length())
    smaller = octave * 3 // 4
    return smaller if smaller >= max(count, smallest) else octave


@dataclass(frozen=True)
class Batches:
    """Indices ``[L, S, B]`` of each lane's examples, ``real`` where there is an example, and ``steps`` of each lane."""

    index: Tensor
    real: Tensor
    steps: list[int]

    def working(self, step: int) -> int:
        """Return the number of lanes that take this step: the first lanes, since the longest come first."""
        return sum(taken > step for taken in self.steps)

    def shares(self, dtype: torch.dtype) -> Tensor:
        """Return each example's share of the mean over its batch ``[L, S, B]``; zero in empty slots."""
        real = self.real.to(dtype)
        return real / real.sum(2, keepdim=True).clamp_min(1.0)


def draw_batches(work: LocalWork, key: Key, sizes: Tensor, room: int) -> Batches:
    """Draw each lane's examples, in a new random order in each epoch, in batches with room for ``room``."""
    counts: list[int] = sizes.tolist()
    steps, device, width = work.num_steps(counts), sizes.device, max(counts)
    shape, cut = (len(counts), max(steps), room), work.batch_size or width
    if device.type != "cpu" and shape[0] * shape[1] * cut <= FEW:
        here = Key(*(part.cpu() for part in (key.seed, key.round, key.client, key.step)))
        drawn = draw_batches(work, here, sizes.cpu(), room)
        return Batches(drawn.index.to(device), drawn.real.to(device), steps)
    lane, last, per_epoch = (
        torch.tensor(values, device=device)[:, None]
        for values in (range(len(counts)), steps, [work.steps_per_epoch(count) for count in counts])
    )
    epochs = torch.arange(int((-(-last // per_epoch)).max()), device=device)[:, None]
    order = permutation(Key(key.seed, key.round, key.client, epochs), Purpose.BATCH, sizes, width)
    position = torch.arange(width, device=device)
    step = epochs[..., None] * per_epoch + position // cut
    wanted = (position < sizes[:, None]) & (step < last)
    # One extra slot, for examples that are drawn but not used.
    slots = torch.where(wanted, (lane * shape[1] + step) * room + position % cut, math.prod(shape)).flatten()
    index = torch.zeros(math.prod(shape) + 1, dtype=torch.int64, device=device).scatter_(0, slots, order.flatten())
    real = torch.zeros_like(index, dtype=torch.bool).index_fill_(0, slots, True)
    return Batches(index[:-1].view(shape), real[:-1].view(shape), steps)
