"""Typical user networks, for which wafl is not tuned: transformers of images and text."""

from __future__ import annotations

import torch
from torch import Tensor, nn


class Block(nn.Module):
    """Attention and a perceptron, each after a norm and with a residual connection."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norms = nn.ModuleList(nn.LayerNorm(width) for _ in range(2))
        self.queries, self.back = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.perceptron = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

    def forward(self, x: Tensor) -> Tensor:
        before, after = self.norms
        split = self.queries(before(x)).unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
        attended = nn.functional.scaled_dot_product_attention(*split.unbind())
        x = x + self.back(attended.transpose(1, 2).flatten(2))
        return x + self.perceptron(after(x))


class VisionTransformer(nn.Module):
    """Patches of 4 x 4 pixels, blocks, and the mean over patches."""

    def __init__(self, classes: int, width: int = 192, layers: int = 6) -> None:
        super().__init__()
        self.patches = nn.Conv2d(3, width, 4, stride=4)
        self.places = nn.Parameter(0.02 * torch.randn(64, width))
        self.blocks = nn.Sequential(*(Block(width, 3) for _ in range(layers)), nn.LayerNorm(width))
        self.head = nn.Linear(width, classes)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.blocks(self.patches(x).flatten(2).transpose(1, 2) + self.places).mean(1))


def encoder(classes: int, width: int = 128, layers: int = 4) -> nn.Module:
    """Return the TransformerEncoder of torch.nn on patches of 4 x 4 pixels."""
    patches = nn.Sequential(nn.Conv2d(3, width, 4, stride=4), nn.Flatten(2))
    block = nn.TransformerEncoderLayer(width, 4, 2 * width, dropout=0.0, batch_first=True, norm_first=True)
    blocks = nn.TransformerEncoder(block, layers, enable_nested_tensor=False)
    return nn.Sequential(patches, Transposed(), blocks, nn.Flatten(), nn.Linear(64 * width, classes))


class Transposed(nn.Module):
    """The last two dimensions, swapped."""

    def forward(self, x: Tensor) -> Tensor:
        return x.transpose(1, 2)


class TextTransformer(nn.Module):
    """Words as vectors, blocks, and the mean over words."""

    def __init__(self, classes: int, words: int = 10_000, width: int = 128, layers: int = 4) -> None:
        super().__init__()
        self.embedding = nn.Embedding(words, width)
        self.blocks = nn.Sequential(*(Block(width, 4) for _ in range(layers)), nn.LayerNorm(width))
        self.head = nn.Linear(width, classes)

    def forward(self, x: Tensor) -> Tensor:
        return self.behind(self.embedding(x))

    def behind(self, hidden: Tensor) -> Tensor:
        return self.head(self.blocks(hidden).mean(1))
