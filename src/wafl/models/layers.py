"""Define layers that never increase distances: networks of them are 1-Lipschitz in l2 up to their last layer.

Almost-orthogonal layers (Prach and Lampert, "Almost-orthogonal layers for efficient general-purpose Lipschitz
networks", ECCV 2022): with ``R = W^T W``, the matrix ``D - R`` is diagonally dominant, and therefore positive
semidefinite, for the diagonal ``D_ii = sum_j |R_ij|``. Hence ``||W D^-1/2||_2 <= 1``. For a convolution, R is a
convolution as well, and the sum includes its taps; zeros around the image only remove rows and columns. The same is
true for ``W W^T`` and ``D^-1/2 W``, which is used where a layer has fewer outputs than inputs.
"""

import math
from functools import cache
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from wafl.tasks.rescaling import Rescaled

TINY = 1e-12
"""The smallest divisor of a channel."""


class _RescaledLinear(nn.Linear, Rescaled):
    """A layer ``x -> W' x + b``, where ``W'`` is W rescaled."""

    plain = nn.Linear

    def forward(self, input: Tensor) -> Tensor:
        return functional.linear(input, self.rescale(self.weight), self.bias)


class LipschitzLinear(_RescaledLinear):
    """A layer ``x -> W' x + b``, with W rescaled to a norm of at most 1; arguments as in :class:`torch.nn.Linear`.

    >>> layer = LipschitzLinear(3, 5)
    >>> bool(torch.linalg.matrix_norm(layer.rescale(layer.weight), ord=2) <= 1.000001)
    True
    """

    def reset_parameters(self) -> None:
        """Start with orthogonal weights."""
        nn.init.orthogonal_(self.weight)
        _reset_bias(self.bias)

    def rescale(self, weight: Tensor) -> Tensor:
        """Return the weights rescaled to a norm of at most 1."""
        return almost_orthogonal(weight[..., None, None]).squeeze((-1, -2))


class LipschitzConv2d(nn.Conv2d, Rescaled):
    """A convolution with rescaled filters, so that its norm is at most 1 on images of every size.

    There are no strides: use :class:`torch.nn.PixelUnshuffle`, which keeps all distances.

    Args:
        in_channels: the number of input channels.
        out_channels: the number of output channels.
        kernel_size: the side of a filter.
        padding: the number of zeros around an image; by default, the number that keeps its size, for an odd side.
        bias: whether to add one number per channel.
    """

    plain = nn.Conv2d

    def __init__(
        self, in_channels: int, out_channels: int, kernel_size: int = 3, padding: int | None = None, bias: bool = True
    ) -> None:
        around = kernel_size // 2 if padding is None else padding
        super().__init__(in_channels, out_channels, kernel_size, padding=around, bias=bias)

    def reset_parameters(self) -> None:
        """Start with orthogonal weights at the center of the filters, and zeros elsewhere."""
        middle, around = self.kernel_size[0] // 2, self.kernel_size[1] // 2
        nn.init.zeros_(self.weight)
        nn.init.orthogonal_(self.weight.detach()[:, :, middle, around])
        _reset_bias(self.bias)

    def rescale(self, weight: Tensor) -> Tensor:
        """Return the filters rescaled to a norm of at most 1."""
        return almost_orthogonal(weight)

    def forward(self, input: Tensor) -> Tensor:
        """Return the convolution with rescaled filters."""
        return functional.conv2d(input, self.rescale(self.weight), self.bias, padding=self.padding)


class NormalizedLinear(_RescaledLinear):
    """A last layer ``x -> W' x + b``, with rows scaled to norm 1; arguments as in :class:`torch.nn.Linear`."""

    def rescale(self, weight: Tensor) -> Tensor:
        """Return the weights with rows of norm 1."""
        return weight / weight.norm(dim=-1, keepdim=True).clamp_min(TINY)


class MaxMin(nn.Module):
    """The larger and the smaller of each channel of the first half and its partner in the second: 1-Lipschitz.

    >>> MaxMin()(torch.tensor([[1.0, 5.0, 3.0, 2.0]]))
    tensor([[3., 5., 1., 2.]])
    """

    def forward(self, input: Tensor) -> Tensor:
        """Return the larger values, then the smaller values; raise ValueError for an odd number of channels."""
        if input.shape[1] % 2:
            raise ValueError(
                f"MaxMin pairs channels, and there are {input.shape[1]}: give the layer before an even number"
            )
        first, second = input.chunk(2, dim=1)
        return torch.cat([torch.maximum(first, second), torch.minimum(first, second)], dim=1)


def almost_orthogonal(weight: Tensor) -> Tensor:
    """Rescale filters ``[..., out, in, height, width]`` to a norm of at most 1, on the side with fewer channels."""
    with torch.autocast(weight.device.type, enabled=False):
        if weight.shape[-4] < weight.shape[-3]:
            return _columns_rescaled(weight.transpose(-4, -3)).transpose(-4, -3)
        return _columns_rescaled(weight)


def _columns_rescaled(weight: Tensor) -> Tensor:
    sums = entries_of_gram(weight).sum(-1)
    return weight * sums.clamp_min(TINY).rsqrt()[..., None, :, None, None]


def entries_of_gram(weight: Tensor) -> Tensor:
    """Return the absolute entries of ``R = W^T W``, summed over its taps: ``[..., in, in]``."""
    columns, taps = weight.shape[-3], math.prod(weight.shape[-2:])
    matrix = weight.flatten(-3)
    gram = (matrix.mT @ matrix).unflatten(-1, (columns, taps)).unflatten(-3, (columns, taps)).transpose(-3, -2)
    pairs = gram.flatten(-2)
    if taps > 1:
        pairs = pairs @ _equally_apart(*weight.shape[-2:], weight.device, weight.dtype)
    return pairs.abs().sum(-1)


@cache  # kept on the device, where a captured step could not send it
def _equally_apart(height: int, width: int, device: torch.device, dtype: torch.dtype) -> Tensor:
    """Return the tap of R to which a pair of taps contributes, by their displacement: ``[pairs, taps of R]``.

    The entries are 0 or 1.
    """
    taps = [(row, column) for row in range(height) for column in range(width)]
    apart = [(other[0] - one[0], other[1] - one[1]) for one in taps for other in taps]
    known = sorted(set(apart))
    return torch.tensor([[float(pair == each) for each in known] for pair in apart], dtype=dtype, device=device)


def _reset_bias(bias: Any) -> None:
    if bias is not None:
        nn.init.zeros_(bias)
