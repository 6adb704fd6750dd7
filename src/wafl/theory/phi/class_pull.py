"""What a ground norm means to the classes of a linear model: how far each mix of classes can pull an example.

An example with label y and outputs ``s = W x + b`` has ``loss = logsumexp_j(A_j)`` with ``A_j = s_j - s_y``, and a move
``delta`` adds ``<w_j - w_y, delta>`` to each ``A_j``. For p on the simplex ``size`` is ``||sum_j p_j (w_j - w_y)||_*``.
"""

from functools import cached_property

import torch
from torch import Tensor

from wafl.base.norms import dual, power_norm, steepest
from wafl.train.lanes.lanes import free_bytes

CHUNK = 1 << 22
"""How many numbers are worked on at a time."""
COPIES = 16
"""As how many copies of what is searched a search needs memory."""
CLOSE = 1e-9
"""The share of the largest product of rows below which a squared distance of two loses digits in their Gram matrix."""


def at_once(numbers: int, device: torch.device) -> int:
    """How many numbers to search together: so many on a CPU; on a GPU, where few take as long as many, all that fit."""
    return numbers if device.type == "cpu" else free_bytes(device) // (8 * COPIES)


class Ball:
    """The moves of one ground norm, seen from the outputs of ``W [C, D]``."""

    def __init__(self, weight: Tensor, norm: float) -> None:
        self.weight = weight - weight.mean(0)  # changes no difference of rows, and keeps digits
        self.norm = norm

    @cached_property
    def gram(self) -> Tensor:
        return self.weight @ self.weight.T

    @cached_property
    def even(self) -> bool:
        """Whether the Gram matrix tells all rows apart: not if some are far closer to each other than to the rest."""
        squares = torch.stack([(self.weight - row).square().sum(-1) for row in self.weight])
        return bool((squares[squares > 0] > CLOSE * self.gram.abs().max()).all())

    @cached_property
    def distances(self) -> Tensor:
        """``||w_j - w_y||_*``, ``[C (y), C (j)]``."""
        return torch.stack([power_norm(self.weight - row, dual(self.norm), 1) for row in self.weight])

    @cached_property
    def pulls(self) -> Tensor:
        """What a move of length 1 toward class j adds to each A_k: ``[C (y), C (j), C (k)]``."""
        return torch.stack([steepest(self.weight - row, self.norm) @ (self.weight - row).T for row in self.weight])

    def size(self, y: Tensor, p: Tensor) -> Tensor:
        """``||sum_j p_j (w_j - w_y)||_*`` for labels ``[n]`` and ``p [n, C]``."""
        lean = self.lean(y, p)
        if self.norm == 2 and self.even:
            return ((lean @ self.gram) * lean).sum(-1).clamp_min(0.0).sqrt()
        return torch.cat([power_norm(part @ self.weight, dual(self.norm), 1) for part in self._pieces(lean)])

    def pull(self, y: Tensor, p: Tensor) -> tuple[Tensor, Tensor]:
        """The size, and what the move of length 1 that attains it adds to each A_k, ``[n, C]``."""
        lean = self.lean(y, p)
        if self.norm == 2 and self.even:
            seen = lean @ self.gram
            size = (seen * lean).sum(-1).clamp_min(0.0).sqrt()
            added = seen / size.clamp_min(torch.finfo(size.dtype).tiny)[:, None]
        else:
            pulls: list[tuple[Tensor, Tensor]] = []
            for piece in self._pieces(lean):
                slope = piece @ self.weight
                pulls.append((power_norm(slope, dual(self.norm), 1), steepest(slope, self.norm) @ self.weight.T))
            size, added = map(torch.cat, zip(*pulls, strict=True))
        return size, added - added.gather(-1, y[:, None])

    def lean(self, y: Tensor, p: Tensor) -> Tensor:
        """``p - e_y``: what each row of W counts in ``sum_j p_j (w_j - w_y)``."""
        return p.scatter_add(-1, y[:, None], -torch.ones_like(p[:, :1]))

    def _pieces(self, lean: Tensor) -> tuple[Tensor, ...]:
        return lean.split(max(1, CHUNK // self.weight.shape[1]))
