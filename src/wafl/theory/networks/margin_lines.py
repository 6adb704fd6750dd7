"""How far a network's margins get from where they are at an example, by straight lines in the distance.

For a network of linear layers ``W_l`` and activations f (ReLU, tanh, sigmoid), on the ball of radius t around x:

1. Forward, each input of an activation has a Lipschitz constant ``D_l`` on that ball, and all of a layer together one
   in l2, ``E_l``: ``D_1`` is the dual norm of a row of ``W_1``. With ``h_l`` the steepest secants of the activations
   on ``center +- D_l t`` (``activations.py``), ``|p_l - p_l(x)|`` grows by at most ``|W_l| (h D)`` or by
   ``||row||_2 max(h) E`` in the next layer, whichever is smaller.
2. Backward, a row ``r`` of what is asked about goes through the layers by two kinds of lines:
   *secants*, ``f(p) - f(c) = (s + e) (p - c)`` with ``|e| <= w``, so that a layer adds
   ``min(sum |r| w D, ||r w||_2 E)`` to the slope; and *strips*, ``slope (p - c) + [low, high]``, so that it adds what
   ``r`` makes of low and high to the offset. The row then is ``(r s) W_l``, and at the input its dual norm is the rest
   of the slope.

Either line holds for every distance up to t.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from wafl.base.norms import dual, power_norm
from wafl.theory.networks.activations import KNOWN, Activation, Straight

Lines = tuple[Tensor, Tensor]
"""Offset and slope in the distance, each ``[n, C]``."""


@dataclass(frozen=True)
class Hidden:
    """A linear layer and the activation behind it."""

    weight: Tensor
    bias: Tensor
    activation: Activation
    norm: float
    """Of the weights, as a matrix in l2."""


class Nearby:
    """The hidden layers of a network, around some examples ``x [n, d]``."""

    def __init__(self, hidden: Sequence[Hidden], x: Tensor, norm: float) -> None:
        self._hidden, self._norm, self._centers = hidden, norm, list[tuple[Tensor, Tensor]]()
        first, inner = hidden[0].weight, x
        for layer in hidden:
            center = inner @ layer.weight.T + layer.bias
            self._centers.append((center, layer.activation.turn(center)))
            inner = layer.activation(center)
        self._rows = power_norm(first, dual(norm), 1)
        # The largest l2 norm of W_1 v for ||v|| <= 1.
        self._whole = hidden[0].norm * (math.sqrt(first.shape[1]) if norm == math.inf else 1.0)
        if norm == 1:
            self._whole = float(first.norm(dim=0).max())
        # In l2 only the length of r W_1 counts, which a square root of W_1 W_1^T has too.
        short = norm == 2 and first.shape[0] < first.shape[1]
        self._first = torch.linalg.qr(first.T, mode="r").R.T if short else first

    def lines(self, rows: Tensor, which: Tensor, t: Tensor) -> list[Lines]:
        """For the examples ``which [m]`` and distances up to ``t [m]``, how far ``rows [m, C, H]`` times the last
        hidden layer gets: one line by secants, one by strips."""  # fmt: skip
        centers = [(center[which], turn[which]) for center, turn in self._centers]
        widths, together = self._widths(centers, t)
        by_secants, by_strips = rows, rows
        slope, offset = torch.zeros_like(rows[..., 0]), torch.zeros_like(rows[..., 0])
        for index in reversed(range(len(self._hidden))):
            layer, (center, turn), width = self._hidden[index], centers[index], widths[index]
            low, high = layer.activation.secants(center, turn, width * t[:, None])
            spread = by_secants.abs() * ((high - low) / 2.0)[:, None]
            slope = slope + torch.minimum(_times(spread, width), spread.norm(dim=-1) * together[index][:, None])
            strip = layer.activation.strip(center, width * t[:, None])
            offset = offset + _times(by_strips, (strip.low + strip.high) / 2.0)
            offset = offset + _times(by_strips.abs(), (strip.high - strip.low) / 2.0)
            weight = layer.weight if index else self._first
            by_secants = (by_secants * ((low + high) / 2.0)[:, None]) @ weight
            by_strips = (by_strips * strip.slope[:, None]) @ weight
        length = dual(self._norm)
        slope = slope + power_norm(by_secants, length, 1)
        return [(torch.zeros_like(offset), slope), (offset, power_norm(by_strips, length, 1))]

    def _widths(self, centers: Sequence[tuple[Tensor, Tensor]], t: Tensor) -> tuple[list[Tensor], list[Tensor]]:
        """``D_l [m, H_l]`` and ``E_l [m]`` of each hidden layer, for distances up to ``t [m]``."""
        widths, together = [self._rows.expand_as(centers[0][0])], [torch.full_like(t, self._whole)]
        for before, layer, (center, turn) in zip(self._hidden, self._hidden[1:], centers, strict=False):
            steepest = before.activation.secants(center, turn, widths[-1] * t[:, None])[1]
            moved = steepest * widths[-1]
            length = torch.minimum(steepest.amax(-1) * together[-1], moved.norm(dim=-1))
            width = torch.minimum(moved @ layer.weight.abs().T, length[:, None] * layer.weight.norm(dim=1))
            widths.append(width)
            together.append(torch.minimum(length * layer.norm, width.norm(dim=-1)))
        return widths, together


def hidden_layers(layers: Sequence[nn.Module], features: int) -> list[Hidden] | None:
    """The hidden layers of a network of linear layers and known activations, all but the last; None for another."""
    hidden: list[Hidden] = []
    inputs, waiting = features, None
    for layer in (layer for layer in layers[:-1] if not isinstance(layer, nn.Flatten | nn.Identity)):
        if type(layer) is nn.Linear:
            if waiting is not None:
                hidden.append(_hidden(waiting, Straight()))
            if layer.in_features != inputs:
                return None
            waiting, inputs = layer, layer.out_features
        elif type(layer) in KNOWN and waiting is not None:
            hidden.append(_hidden(waiting, KNOWN[type(layer)]))
            waiting = None
        else:
            return None
    if waiting is not None:
        hidden.append(_hidden(waiting, Straight()))
    last = layers[-1]
    return hidden if hidden and isinstance(last, nn.Linear) and last.in_features == inputs else None


def _times(rows: Tensor, vector: Tensor) -> Tensor:
    """``[m, C, H]`` times ``[m, H]``, example by example."""
    return (rows @ vector[..., None])[..., 0]


def _hidden(layer: nn.Linear, activation: Activation) -> Hidden:
    weight = layer.weight.detach().double()
    bias = weight.new_zeros(len(weight)) if layer.bias is None else layer.bias.detach().double()  # pyright: ignore[reportUnnecessaryComparison]
    return Hidden(weight, bias, activation, float(torch.linalg.matrix_norm(weight, ord=2)))
