"""The models that the checker of certificates can prove something about: what they compute, and how steep they are.

A sequence of plain layers is read into float64. Two things are known of it. The **outputs**, with a bound on what
float64 has lost: a sum of n products is off by at most ``n u`` times the sum of their sizes (Higham, Accuracy and
Stability of Numerical Algorithms, section 3.1; ``u = 2^-53``), so if layer k sums ``n_k`` numbers, what it computes is
off by at most ``u sum_k (n_k + 4)`` times its *size*, which is what the same layers give for ``|x|``, with ``|W|`` and
``|b|``. And the **slopes**: a margin ``s_j - s_y`` changes by at most ``K_yj ||x' - x||``, with ``K_yj`` the norm of
the difference of two rows of the last layer, times the norms of the layers before it.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional

from wafl.base.norms import dual, power_norm
from wafl.tasks.losses import CrossEntropy, OutputLoss, SquaredError

UNIT = 2.0**-53
WIDER = 1.0 + 2.0**-30
"""Norms are made larger by this factor: the singular values of a matrix are off by far less."""
SLOPES: dict[type[nn.Module], float] = {
    nn.Identity: 1.0, nn.Flatten: 1.0, nn.ReLU: 1.0, nn.Tanh: 1.0, nn.Sigmoid: 0.25, nn.SiLU: 1.1
}  # fmt: skip
"""How steep activations are; for all but the sigmoid, ``|a(z)|`` is at most this times ``|z|``, too."""


@dataclass(frozen=True)
class Outputs:
    """A model's outputs ``[n, C]``, and by how much each may be off at most ``[n]``."""

    values: Tensor
    error: Tensor


@dataclass(frozen=True)
class Known:
    """A model that is a sequence of known layers, in float64, with a loss that is known."""

    layers: tuple[nn.Module, ...]
    loss: OutputLoss

    @property
    def classifies(self) -> bool:
        return isinstance(self.loss, CrossEntropy)

    @property
    def last(self) -> Tensor:
        """The weights of the last layer ``[C, H]``."""
        layer = self.layers[-1]
        assert isinstance(layer, nn.Linear)
        return layer.weight

    @property
    def linear(self) -> bool:
        """Whether the outputs are an affine function of the flat input."""
        return all(type(layer) in (nn.Flatten, nn.Identity) for layer in self.layers[:-1])

    def plain(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            x = layer(x)
        return x

    def outputs(self, x: Tensor) -> Outputs:
        """Two passes: one for the outputs, one for their sizes."""
        values, size, summed = x, x.abs(), 0
        with torch.no_grad():
            for layer in self.layers:
                values, size, summed = layer(values), _size(layer, size), summed + _summed(layer) + 4
        return Outputs(values, 2.0 * UNIT * summed * size.amax(1))

    def before(self) -> float:
        """The l2 slope of what comes before the last layer."""
        return math.prod(steepness(layer) or 0.0 for layer in self.layers[:-1]) * WIDER

    def margins(self, norm: float, inputs: int) -> Tensor:
        """``K [C (y), C (j)]`` for moves whose length is in this norm."""
        rows = self.last
        if self.linear:
            return torch.stack([power_norm(rows - row, dual(norm), 1) for row in rows]) * WIDER
        lengths = torch.stack([(rows - row).norm(dim=1) for row in rows]) * WIDER
        return lengths * self.before() * _stretch(norm, inputs)

    def widest(self, norm: float, inputs: int) -> float:
        """How far the outputs move at most, in l2, if the input moves by 1 in this norm."""
        rows = self.last
        each = float(power_norm(rows, dual(norm), 2).sum().sqrt())  # of each output alone
        whole = float(torch.linalg.matrix_norm(rows, ord=2)) * _stretch(norm, inputs)
        if not self.linear:
            return whole * self.before() * WIDER
        column = float(rows.norm(dim=0).max())  # in l1 a corner of the ball is a single input
        return min(each, column if norm == 1 else whole) * WIDER


def known(module: nn.Module, loss: OutputLoss) -> Known | None:
    """The model, if every layer is known and does nothing else, and the loss is; otherwise None."""
    layers = _flat(copy.deepcopy(module).cpu().double().eval().requires_grad_(False))
    if not layers or type(layers[-1]) is not nn.Linear or type(loss) not in (CrossEntropy, SquaredError):
        return None
    if any(not _is_plain(layer) or steepness(layer) is None for layer in layers):
        return None
    for layer in layers:
        if isinstance(layer, nn.ReLU | nn.SiLU):
            layer.inplace = False
    return Known(tuple(layers), loss)


def _flat(module: nn.Module) -> list[nn.Module]:
    kind = type(module)
    if isinstance(module, nn.Sequential) and kind.forward is nn.Sequential.forward and _is_plain(module):
        return [layer for part in module for layer in _flat(part)]
    return [module]


def _is_plain(module: nn.Module) -> bool:
    """Whether it computes what its kind computes: nothing is replaced on the object, and nothing hooks into it."""
    own = set(vars(module)) & {"forward", "_conv_forward", "__call__", "_call_impl"}
    calls = type(module).__call__ is nn.Module.__call__ and (
        not isinstance(module, nn.Sequential) or type(module).__iter__ is nn.Sequential.__iter__
    )
    hooks = any(vars(module).get(name) for name in ("_forward_hooks", "_forward_pre_hooks"))
    return calls and not own and not hooks


def steepness(layer: nn.Module) -> float | None:
    """The l2 Lipschitz constant of a layer, rounded upwards; None if it is not known."""
    kind = type(layer)
    if kind is nn.Flatten:
        return 1.0 if isinstance(layer, nn.Flatten) and (layer.start_dim, layer.end_dim) == (1, -1) else None
    if kind in SLOPES:
        return SLOPES[kind]
    if kind is nn.Linear and isinstance(layer, nn.Linear):
        return float(torch.linalg.matrix_norm(layer.weight.double(), ord=2)) * WIDER
    if kind is nn.Conv2d and isinstance(layer, nn.Conv2d) and layer.padding_mode == "zeros":
        # The norm of the kernel on one patch, times the root of how many patches an input is in.
        parts = [part.double().flatten(1) for part in layer.weight.chunk(layer.groups)]
        patch = max(float(torch.linalg.matrix_norm(part, ord=2)) for part in parts)
        return patch * math.sqrt(_windows(layer.kernel_size, layer.stride, layer.dilation)) * WIDER
    if kind is nn.MaxPool2d and isinstance(layer, nn.MaxPool2d) and not (layer.ceil_mode or layer.return_indices):
        return math.sqrt(_windows(layer.kernel_size, layer.stride, layer.dilation)) * WIDER
    if kind is nn.AvgPool2d and isinstance(layer, nn.AvgPool2d):
        if layer.ceil_mode or layer.divisor_override is not None or layer.padding:
            return None
        share = _windows(layer.kernel_size, layer.stride, 1) / math.prod(_pair(layer.kernel_size))
        return math.sqrt(share) * WIDER
    return None


def _size(layer: nn.Module, size: Tensor) -> Tensor:
    """What a layer makes of the sizes of its inputs."""
    if isinstance(layer, nn.Linear):
        return functional.linear(size, layer.weight.abs(), None if layer.bias is None else layer.bias.abs())  # pyright: ignore[reportUnnecessaryComparison]
    if isinstance(layer, nn.Conv2d):
        bias = None if layer.bias is None else layer.bias.abs()
        return layer._conv_forward(size, layer.weight.abs(), bias)  # pyright: ignore[reportPrivateUsage]
    if isinstance(layer, nn.Sigmoid):
        return size.clamp_min(1.0)
    if isinstance(layer, nn.ReLU | nn.Tanh | nn.SiLU):
        return size * SLOPES[type(layer)]
    return layer(size)


def _summed(layer: nn.Module) -> int:
    if isinstance(layer, nn.Linear | nn.Conv2d):
        return layer.weight[0].numel() + 1
    return math.prod(_pair(layer.kernel_size)) if isinstance(layer, nn.AvgPool2d) else 0


def _stretch(norm: float, inputs: int) -> float:
    """``||v||_2`` is at most so many times ``||v||``."""
    return math.sqrt(inputs) * WIDER if norm == math.inf else 1.0


def _windows(size: int | Sequence[int], stride: int | Sequence[int], dilation: int | Sequence[int]) -> int:
    """The largest number of windows that an input is in."""
    about = zip(_pair(size), _pair(stride), _pair(dilation), strict=True)
    return math.prod(k if d > 1 else math.ceil(k / s) for k, s, d in about)


def _pair(value: int | Sequence[int]) -> tuple[int, int]:
    return (value, value) if isinstance(value, int) else (value[0], value[1])
