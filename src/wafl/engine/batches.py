"""Which examples each lane sees at each local step."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from wafl.core.random import Key, Purpose, permutation
from wafl.schedule import LocalWork


@dataclass(frozen=True)
class Batches:
    """``index [L, S, B]`` into each lane's own examples; ``real`` is False in slots that hold no example."""

    index: Tensor
    real: Tensor

    @property
    def num_steps(self) -> int:
        return self.index.shape[1]

    def weight(self, step: int, dtype: torch.dtype) -> Tensor:
        """Each example's share of the mean over its batch ``[L, B]``; zero in a lane that has finished."""
        real = self.real[:, step].to(dtype)
        return real / real.sum(1, keepdim=True).clamp_min(1.0)


def draw_batches(work: LocalWork, key: Key, sizes: Tensor, room: int) -> Batches:
    """Epoch after epoch, the lane's examples in a new random order, cut into batches; the last one may be short.

    Every batch has room for ``room`` examples.
    """
    counts = sizes.tolist()
    device = sizes.device
    width = max(counts)
    cut = work.batch_size or width
    steps = torch.tensor(work.num_steps(counts), device=device)
    per_epoch = torch.tensor([work.steps_per_epoch(count) for count in counts], device=device)
    shape = (len(counts), int(steps.max()), room)
    index = torch.zeros(shape, dtype=torch.int64, device=device)
    real = torch.zeros(shape, dtype=torch.bool, device=device)
    position = torch.arange(width, device=device)
    lane = torch.arange(len(counts), device=device)[:, None]
    for epoch in range(int((-(-steps // per_epoch)).max())):
        order = permutation(key.at(epoch), Purpose.BATCH, sizes, width)
        step = epoch * per_epoch[:, None] + position // cut
        wanted = (position < sizes[:, None]) & (step < steps[:, None])
        place = tuple(part[wanted] for part in torch.broadcast_tensors(lane, step, position % cut))
        index[place] = order[wanted]
        real[place] = True
    return Batches(index, real)
