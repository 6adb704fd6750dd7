"""Store the examples of every lane without repetition."""

from dataclasses import dataclass, replace
from typing import Self

import torch
from torch import Tensor

from wafl.tasks.structure.sequence import Passed


@dataclass(frozen=True)
class Inputs:
    """Examples ``[L, B, ...]``: each batch of ``base [G, B, ...]`` serves the next ``L / G`` lanes.

    Lanes of a sweep that differ only in gamma see the same batch. For a linear model an example may also be moved along
    the rows of the weights W. It is then ``base + W^T shift`` with ``shift [L, C, B]``, and its outputs, ``outputs [L,
    C, B]``, are known without writing a single pixel. For a chain of layers, ``passed`` contains the values of a
    forward pass, if there was one.
    """

    base: Tensor
    lanes: int
    weight: Tensor | None = None
    shift: Tensor | None = None
    outputs: Tensor | None = None
    passed: Passed | None = None

    def shifted(self, weight: Tensor, shift: Tensor, outputs: Tensor) -> Self:
        """Return the examples moved along the rows of a linear model's weights, with these outputs."""
        return replace(self, weight=weight, shift=shift, outputs=outputs)

    def dense(self) -> Tensor:
        """Return one tensor ``[L, B, ...]``."""
        x = self.base
        if len(x) != self.lanes:
            x = x.repeat_interleave(self.lanes // len(x), dim=0)
        if self.shift is None or self.weight is None:
            return x
        return x + torch.bmm(self.shift.mT, self.weight).view_as(x)


@dataclass(frozen=True)
class Shifted:
    """Examples that are moved at the output of a layer, which becomes ``at_rest + delta``, ``[L, B, ...]``."""

    x: Tensor
    layer: str
    at_rest: Tensor
    delta: Tensor

    def dense(self) -> Tensor:
        """Return the moved examples in the space of the layer's output."""
        return self.at_rest + self.delta


def dense(x: Tensor | Inputs | Shifted) -> Tensor:
    """Return a plain tensor ``[L, B, ...]`` from any form of an objective's input."""
    return x if isinstance(x, Tensor) else x.dense()


def shared(x: Tensor | Inputs) -> Inputs:
    """Return the structured form of plain examples, without sharing between lanes."""
    return x if isinstance(x, Inputs) else Inputs(x, len(x))
