"""The examples of every lane, stored without repetition."""

from dataclasses import dataclass, replace
from typing import Self

import torch
from torch import Tensor

from wafl.tasks.structure.sequence import Passed


@dataclass(frozen=True)
class Inputs:
    """Examples ``[L, B, ...]``: each batch of ``base [G, B, ...]`` serves the next ``L / G`` lanes.

    Lanes of a sweep that differ only in gamma see the same batch. For a linear model an example may also be moved
    along the rows of the weights W: it is then ``base + W^T shift`` with ``shift [L, C, B]``, and the model's outputs
    there, ``outputs [L, C, B]``, are known without writing a single pixel. For a chain of layers, ``passed`` is what a
    forward pass left behind, if one was made there.
    """

    base: Tensor
    lanes: int
    weight: Tensor | None = None
    shift: Tensor | None = None
    outputs: Tensor | None = None
    passed: Passed | None = None

    def shifted(self, weight: Tensor, shift: Tensor, outputs: Tensor) -> Self:
        """The same examples, moved along the rows of a linear model's weights to where it has these outputs."""
        return replace(self, weight=weight, shift=shift, outputs=outputs)

    def dense(self) -> Tensor:
        """One tensor ``[L, B, ...]``."""
        x = self.base
        if len(x) != self.lanes:
            x = x.repeat_interleave(self.lanes // len(x), dim=0)
        if self.shift is None or self.weight is None:
            return x
        return x + torch.bmm(self.shift.mT, self.weight).view_as(x)


@dataclass(frozen=True)
class Shifted:
    """Examples that are moved at the output of a layer: there, the model has ``at_rest + delta``, ``[L, B, ...]``."""

    x: Tensor
    layer: str
    at_rest: Tensor
    delta: Tensor

    def dense(self) -> Tensor:
        """Where the examples went, in the space of the layer's output."""
        return self.at_rest + self.delta


def dense(x: Tensor | Inputs | Shifted) -> Tensor:
    """A plain tensor ``[L, B, ...]``, whatever an objective was given."""
    return x if isinstance(x, Tensor) else x.dense()


def shared(x: Tensor | Inputs) -> Inputs:
    """The structured form of plain examples, of which no two lanes share any."""
    return x if isinstance(x, Inputs) else Inputs(x, len(x))
