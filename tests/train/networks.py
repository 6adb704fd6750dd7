"""Networks with normalization, and images to train them on."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

SIZES = (5, 7, 3)
TIMING: dict[str, Any] = {"rounds": 2, "local_epochs": 1, "batch_size": 3, "learning_rate": 0.3, "seed": 7}


def images(shape: tuple[int, ...] = (6, 3), dtype: torch.dtype = torch.float64) -> list[tuple[Tensor, Tensor]]:
    generator = torch.Generator().manual_seed(1)
    return [
        (torch.randn(size, *shape, generator=generator, dtype=torch.float64).to(dtype), torch.arange(size) % 3)
        for size in SIZES
    ]


def seeded(model: Any, **options: Any) -> nn.Module:
    with torch.random.fork_rng():
        torch.manual_seed(4)
        return model(**options).double()


class Normalized(nn.Module):
    """BatchNorm in evaluation mode from the start; its scale and offset are trained."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.norm, self.head = nn.Conv1d(6, 4, 2), nn.BatchNorm1d(4), nn.Linear(8, 3)
        with torch.no_grad():
            self.norm.running_mean.uniform_(-1, 1)  # pyright: ignore
            self.norm.running_var.uniform_(0.5, 2)  # pyright: ignore
        self.norm.eval()

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.norm(self.conv(x)).tanh().flatten(1))
