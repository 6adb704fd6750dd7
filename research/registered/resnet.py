"""ResNet-18 for 32 x 32 images, with GroupNorm, which keeps examples of a batch apart.

He et al., "Deep residual learning for image recognition", CVPR 2016; Wu and He, "Group normalization", ECCV 2018; Hsieh
et al., "The non-IID data quagmire of decentralized machine learning", ICML 2020, for GroupNorm in federated learning.
"""

from __future__ import annotations

from torch import Tensor, nn

GROUPS = 8
"""The most groups of a norm; each has at least two channels."""


def norm(channels: int) -> nn.GroupNorm:
    """Return the norm of a layer with this many channels."""
    return nn.GroupNorm(min(GROUPS, channels // 2), channels)


class Block(nn.Module):
    """Two convolutions and a shortcut."""

    def __init__(self, before: int, after: int, stride: int) -> None:
        super().__init__()
        self.first = nn.Conv2d(before, after, 3, stride, 1, bias=False)
        self.first_norm = norm(after)
        self.second = nn.Conv2d(after, after, 3, 1, 1, bias=False)
        self.second_norm = norm(after)
        same = stride == 1 and before == after
        self.shortcut = (
            nn.Identity() if same else nn.Sequential(nn.Conv2d(before, after, 1, stride, bias=False), norm(after))
        )

    def forward(self, x: Tensor) -> Tensor:
        """Return the block's output."""
        y = self.first_norm(self.first(x)).relu()
        return (self.second_norm(self.second(y)) + self.shortcut(x)).relu()


class ResNet18(nn.Module):
    """Four stages of two blocks: the first has ``width`` channels, and the next have twice the channels each time."""

    def __init__(self, channels: int, classes: int, width: int = 64) -> None:
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(channels, width, 3, 1, 1, bias=False), norm(width), nn.ReLU())
        widths = [width * 2**stage for stage in range(4)]
        blocks: list[nn.Module] = []
        for before, after in zip([width, *widths], widths, strict=False):
            blocks += [Block(before, after, 1 if after == width else 2), Block(after, after, 1)]
        self.blocks = nn.Sequential(*blocks)
        self.head = nn.Linear(widths[-1], classes)

    def forward(self, x: Tensor) -> Tensor:
        """Return the logits of images ``[N, channels, height, width]``."""
        return self.head(self.blocks(self.stem(x)).mean((2, 3)))
