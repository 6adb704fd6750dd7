"""Which examples each lane sees at each local step, and how many a batch has room for.

A batch has room for as many examples as its client alone decides, so that no sum rounds otherwise because of who else
is computed with it. Rooms are few, so that clients of similar sizes still share one; and close enough to what they
hold that small clients do not pay for large ones.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from wafl.core.random import Key, Purpose, permutation
from wafl.schedule import LocalWork

SMALLEST = 16
"""Below this many examples a step takes as long as with one."""


def room_for(count: int) -> int:
    """The least of 16, 24, 32, 48, 64, 96, ... that holds ``count`` examples: at most half of it is added."""
    octave = max(SMALLEST, 1 << (count - 1).bit_length())
    smaller = octave * 3 // 4
    return smaller if smaller >= max(count, SMALLEST) else octave


@dataclass(frozen=True)
class Batches:
    """``index [L, S, B]`` into each lane's own examples; ``real`` is False in slots that hold no example.

    ``steps`` are the local steps of each lane.
    """

    index: Tensor
    real: Tensor
    steps: list[int]

    @property
    def num_steps(self) -> int:
        return self.index.shape[1]

    def working(self, step: int) -> int:
        """How many lanes take this step; with the longest lanes first, they are the first ones."""
        return sum(taken > step for taken in self.steps)

    def shares(self, dtype: torch.dtype) -> Tensor:
        """Each example's share of the mean over its batch ``[L, S, B]``; zero in slots that hold no example."""
        real = self.real.to(dtype)
        return real / real.sum(2, keepdim=True).clamp_min(1.0)


def draw_batches(work: LocalWork, key: Key, sizes: Tensor, room: int) -> Batches:
    """Epoch after epoch, the lane's examples in a new random order, cut into batches; the last one may be short.

    Every batch has room for ``room`` examples.
    """
    counts: list[int] = sizes.tolist()
    steps = work.num_steps(counts)
    shape = (len(counts), max(steps), room)
    index = torch.zeros(shape, dtype=torch.int64, device=sizes.device)
    real = torch.zeros(shape, dtype=torch.bool, device=sizes.device)
    similar: dict[int, list[int]] = {}  # what is drawn is as wide as the largest client among them
    for lane, count in enumerate(counts):
        similar.setdefault(count.bit_length(), []).append(lane)
    for lanes in similar.values():
        _fill(index, real, work, key, [counts[lane] for lane in lanes], torch.tensor(lanes, device=sizes.device))
    return Batches(index, real, steps)


def _fill(index: Tensor, real: Tensor, work: LocalWork, key: Key, counts: list[int], lanes: Tensor) -> None:
    """Write the batches of these lanes, which have this many examples."""
    device, width = lanes.device, max(counts)
    cut = work.batch_size or width
    sizes, steps, per_epoch = (
        torch.tensor(values, device=device)[:, None]
        for values in (counts, work.num_steps(counts), [work.steps_per_epoch(count) for count in counts])
    )
    own = Key(key.seed[lanes], key.round[lanes], key.client[lanes], key.step[lanes])
    position = torch.arange(width, device=device)
    for epoch in range(int((-(-steps // per_epoch)).max())):
        order = permutation(own.at(epoch), Purpose.BATCH, sizes[:, 0], width)
        step = epoch * per_epoch + position // cut
        wanted = (position < sizes) & (step < steps)
        place = tuple(part[wanted] for part in torch.broadcast_tensors(lanes[:, None], step, position % cut))
        index[place] = order[wanted]
        real[place] = True
