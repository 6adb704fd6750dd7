"""Modules as people write them, with a sequence of the same layers where there is one."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.utils import parametrizations

import wafl


def clients(shape: tuple[int, ...] = (6,), count: int = 12) -> wafl.Federation:
    rng = np.random.default_rng(0)
    pairs = [
        (x := rng.random((count, *shape)), (x.reshape(count, -1).mean(1) > 0.5).astype(np.int64)) for _ in range(2)
    ]
    return wafl.Federation.from_arrays(pairs, bounds=(0.0, 1.0), num_classes=2, test_fraction=0.0)


class Chain(nn.Module):
    """A chain of layers in a forward that calls them; the last layer is defined first."""

    def __init__(self, act: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.last, self.drop, self.first, self.act = nn.Linear(8, 2), nn.Dropout(0.5), nn.Linear(6, 8), act

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        if mask is not None:
            x = x * mask
        return self.last(self.drop(self.act(self.first(x.view(x.size(0), -1)))))

    def sequence(self, layer: nn.Module) -> nn.Sequential:
        return nn.Sequential(nn.Flatten(), self.first, layer, self.last)


class Residual(nn.Module):
    """A sum and a concatenation of paths, with BatchNorm, a parametrization and arithmetic."""

    def __init__(self, act: Callable[[Tensor], Tensor] = functional.relu) -> None:
        super().__init__()
        self.first, self.norm, self.second = nn.Linear(6, 8), nn.BatchNorm1d(8), nn.Linear(8, 8)
        self.last, self.act = nn.Linear(16, 2), act
        self.register_buffer("mean", torch.rand(6))
        self.scale = nn.Parameter(torch.rand(8, 8))
        parametrizations.weight_norm(self.second)
        nn.init.uniform_(self.norm.running_mean, -1.0, 1.0)  # type: ignore[arg-type]
        nn.init.uniform_(self.norm.running_var, 0.1, 2.0)  # type: ignore[arg-type]
        nn.init.normal_(self.norm.weight)

    def forward(self, x: Tensor) -> Tensor:
        x = (x - self.mean) / 0.5
        h = self.act(self.norm(self.first(x)))
        g = self.act(self.second(h)) + h
        return self.last(
            torch.cat([functional.linear(g, 0.5 * self.scale), functional.dropout(h, 0.5, self.training)], dim=1)
        )


class Block(nn.Module):
    def __init__(self, channels: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(channels, channels, 3, padding=1, bias=False)
        self.bn1, self.relu = nn.BatchNorm2d(channels), nn.ReLU(inplace=True)
        self.conv2 = nn.Conv2d(channels, channels, 3, padding=1, groups=2)

    def forward(self, x: Tensor) -> Tensor:
        out = self.conv2(self.relu(self.bn1(self.conv1(x))))
        out += x
        return self.relu(out)


class Images(nn.Module):
    """A small residual network of images, with a loop over blocks."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(1, 4, 3, stride=2, padding=1)
        self.blocks = nn.ModuleList(Block(4) for _ in range(2))
        self.last = nn.Linear(4 * 4, 2)

    def forward(self, x: Tensor) -> Tensor:
        x = functional.max_pool2d(functional.gelu(self.stem(x)), 3, stride=1, padding=1)
        for block in self.blocks:
            x = block(x)
        x = functional.avg_pool2d(x, 2)
        return self.last(torch.flatten(x, 1))


def attacked(model: nn.Module, x: Tensor, y: Tensor, radius: float, norm: float, seed: int = 0) -> Tensor:
    """The largest losses ``[n]`` that projected gradient ascent finds within the radius of each example."""
    torch.manual_seed(seed)
    best = torch.full((len(x),), -torch.inf, dtype=torch.float64)
    for start in range(3):
        move = torch.zeros_like(x) if start == 0 else radius * projected(torch.randn_like(x), norm, 1.0)
        for _ in range(40):
            move.requires_grad_()
            losses = functional.cross_entropy(model(x + move), y, reduction="none")
            best = torch.maximum(best, losses.detach())
            (slope,) = torch.autograd.grad(losses.sum(), move)
            move = projected(move.detach() + 0.25 * radius * direction(slope, norm), norm, radius)
        best = torch.maximum(best, functional.cross_entropy(model(x + move), y, reduction="none").detach())
    return best


def direction(slope: Tensor, norm: float) -> Tensor:
    if norm == 2:
        return slope / slope.flatten(1).norm(dim=1).clamp_min(1e-30).view(-1, *(1,) * (slope.ndim - 1))
    return slope.sign()


def projected(move: Tensor, norm: float, radius: float) -> Tensor:
    if norm == 2:
        length = move.flatten(1).norm(dim=1).clamp_min(1e-30)
        return move * (radius / length).clamp_max(1.0).view(-1, *(1,) * (move.ndim - 1))
    return move.clamp(-radius, radius)
