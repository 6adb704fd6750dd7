"""The models of the work as torch modules, for contestants whose environment has torch."""

from collections.abc import Mapping
from typing import Any

import torch
from numpy.typing import NDArray
from torch import Tensor, nn


def make_net(model: str, params: Mapping[str, NDArray[Any]]) -> nn.Sequential:
    """Return the model of a work, with these parameters."""
    shapes = {name.removesuffix(".weight"): value.shape for name, value in params.items()}
    if model == "resnet":
        net = resnet18(10)
    elif model == "mlr":
        net = nn.Sequential(nn.Flatten(), nn.Linear(*shapes["1"][::-1]))
    else:
        first, second = (nn.Conv2d(shapes[layer][1], shapes[layer][0], 5, padding=2) for layer in "03")
        third, last = (nn.Linear(*shapes[layer][::-1]) for layer in "79")
        pool = (nn.ReLU(), nn.MaxPool2d(2))
        net = nn.Sequential(first, *pool, second, *pool, nn.Flatten(), third, nn.ReLU(), last)
    net.load_state_dict({name: torch.from_numpy(value) for name, value in params.items()})
    return net


class Residual(nn.Module):
    """Two convolutions with GroupNorm, plus the input."""

    def __init__(self, before: int, after: int, stride: int) -> None:
        super().__init__()
        self.first = nn.Conv2d(before, after, 3, stride, padding=1, bias=False)
        self.second = nn.Conv2d(after, after, 3, padding=1, bias=False)
        self.norms = nn.ModuleList(nn.GroupNorm(min(32, after), after) for _ in range(2))
        same = before == after and stride == 1
        self.short = nn.Identity() if same else nn.Conv2d(before, after, 1, stride, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        first, second = self.norms
        return (second(self.second(first(self.first(x)).relu())) + self.short(x)).relu()


def resnet18(classes: int, width: int = 64) -> nn.Sequential:
    """ResNet-18 for small images, with GroupNorm."""
    widths = [width, width, 2 * width, 4 * width, 8 * width]
    blocks = [
        Residual(widths[level] if block == 0 else widths[level + 1], widths[level + 1], 2 if level and not block else 1)
        for level in range(4)
        for block in range(2)
    ]
    head = [nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(widths[-1], classes)]
    return nn.Sequential(nn.Conv2d(3, width, 3, padding=1), *blocks, *head)
