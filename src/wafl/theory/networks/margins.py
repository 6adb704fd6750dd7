"""Bound phi_gamma of a network with cross-entropy from above, along the distance alone.

``A_j = s_j - s_y`` changes by at most ``K_yj t`` over a distance t, with ``K_yj`` the norm of the difference of two
rows of the last layer times the Lipschitz constant of the layers before it (``layer_by_layer.py``). So

    phi_gamma <= max over t >= 0 of  logsumexp_j(A_j + K_yj t) - gamma t^2,

which ``lines.py`` bounds by chords, at every gamma > 0. Since no ``K_yj`` is larger than L_z, each chord
lies below ``loss + L_z t``: at ``gamma = L_z / (2 radius)`` the certificate is at most ``E[loss] + L_z radius``.

If the layers are linear ones and activations whose secants are known, each example has individual lines, which are
lower on smaller balls (:class:`Nearby`). From ``t = max_j K_yj / gamma`` on, nothing is
above the loss at the example itself. The distances up to there are cut into pieces, each with the lines of the ball
that ends where the piece ends. Pieces whose bounds exceed the value at every end are cut in two.

These lines, for linear layers ``W_l`` and activations f (ReLU, tanh, sigmoid), on the ball of radius t around x:

1. Forward, each input of an activation has a Lipschitz constant ``D_l`` on that ball, and all of a layer together one
   in l2, ``E_l``: ``D_1`` is the dual norm of a row of ``W_1``. With ``h_l`` the steepest secants of the activations
   on ``center +- D_l t`` (``activations.py``), ``|p_l - p_l(x)|`` grows by at most ``|W_l| (h D)`` or by
   ``||row||_2 max(h) E`` in the next layer, whichever is smaller.
2. Backward, a row ``r`` of the requested outputs goes through the layers by two kinds of lines:
   *secants*, ``f(p) - f(c) = (s + e) (p - c)`` with ``|e| <= w``, so that a layer adds
   ``min(sum |r| w D, ||r w||_2 E)`` to the slope; and *strips*, ``slope (p - c) + [low, high]``, so that it adds the
   product of ``r`` with low and high to the offset. The row then is ``(r s) W_l``, and at the input its dual norm is
   the rest of the slope.

Either line holds for every distance up to t.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Self
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn

from wafl.base.norms import dual, power_norm
from wafl.tasks.losses import MarginLoss
from wafl.tasks.structure.graph import Network, plain_graph
from wafl.tasks.task import Task
from wafl.theory.constants.layer_by_layer import declared, last_layer, matrix_norm
from wafl.theory.networks.activations import KNOWN, Activation, Straight
from wafl.theory.phi.lines import CHUNK, along_lines

CACHED = 1 << 17
"""How many numbers of a layer a CPU processes at a time, so that they stay in its cache."""

Lines = tuple[Tensor, Tensor]
"""Offset and slope in the distance, each ``[n, C]``."""


@dataclass(frozen=True)
class Hidden:
    """A linear layer and its activation."""

    weight: Tensor
    bias: Tensor
    activation: Activation
    norm: float
    """The norm of the weights, as a matrix in l2."""


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
        """Return lines above ``rows [m, C, H]`` times the last hidden layer: one by secants, one by strips.

        They hold for the examples ``which [m]`` and distances up to ``t [m]``.
        """
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
        """Return ``D_l [m, H_l]`` and ``E_l [m]`` of each hidden layer, for distances up to ``t [m]``."""
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
    """Return all layers but the last of a network of linear layers and known activations; None for other networks."""
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
    """Return ``[m, C, H]`` times ``[m, H]``, example by example."""
    return (rows @ vector[..., None])[..., 0]


def _hidden(layer: nn.Linear, activation: Activation) -> Hidden:
    weight = layer.weight.detach().double()
    bias = weight.new_zeros(len(weight)) if layer.bias is None else layer.bias.detach().double()  # pyright: ignore[reportUnnecessaryComparison]
    return Hidden(weight, bias, activation, matrix_norm(weight))


UNIT = 2.0**-53
SHARP = 1e-4
"""The share of the tolerance for a search along the distance alone, which is cheap and finds a better gamma."""
FARTHER = 4.0
"""The factor by which the search for an example's boundary first exceeds the slopes' distance; then its square root."""
MOST_CUTS = 14
"""The maximum number of times that the first piece is halved."""


@dataclass(frozen=True)
class Margins:
    """A network's margins: ``slopes [C (y), C (j)]`` in l2, or one number for any two, and its layers, if known."""

    slopes: Tensor
    rows: Tensor
    """The rows of the last layer, ``[C, H]``."""
    hidden: Sequence[Hidden] | None
    terms: int
    """The maximum number of terms in an output."""
    jumps: Tensor | None = None
    """How far each margin may exceed its slope's bound, ``[C (y), C (j)]``: both of its ends may jump."""

    def along(
        self, x: Tensor, outputs: Tensor, y: Tensor, norm: float, gamma: Tensor, tolerance: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Return an upper bound on phi_gamma of each of ``x [n, d]``, and the squared distance that attains it."""
        slopes = self.steepest(norm, x.shape[1], outputs.shape[1])[y]
        offsets = self._apart(outputs, y)
        upper, cost = torch.empty_like(gamma), torch.empty_like(gamma)
        allowed = tolerance if self.hidden is not None else SHARP * tolerance
        for each in gamma.unique():
            here = gamma == each
            sides = along_lines(offsets[here], slopes[here], float(each), allowed[here])
            upper[here], cost[here] = sides.upper, sides.t.square()
        if self.hidden is None:
            return upper, cost
        widest = max(x.shape[1], *(len(layer.weight) for layer in self.hidden))
        size = max(1, (CHUNK if x.is_cuda else CACHED) // (len(self.rows) * widest))
        for here in torch.arange(len(x), device=x.device).split(size) if len(x) else ():
            rows = self.rows - self.rows[y[here]][:, None]
            near = Nearby(self.hidden, x[here], norm)
            closer, distance = _by_pieces(near, rows, offsets[here], slopes[here], gamma[here], tolerance[here])
            better = closer < upper[here]
            upper[here] = torch.where(better, closer, upper[here])
            cost[here] = torch.where(better, distance.square(), cost[here])
        return upper, cost

    def _apart(self, outputs: Tensor, y: Tensor) -> Tensor:
        apart = outputs - outputs.gather(-1, y[:, None])
        return apart if self.jumps is None else apart + self.jumps[y]

    def steepest(self, norm: float, features: int, classes: int = 0) -> Tensor:
        """Return the largest change of class j's lead over y (``[y, j]``) per unit of distance.

        In l_inf it is sqrt(d) times the l2 value.
        """
        slopes = self.slopes if self.slopes.ndim else self.slopes * (1.0 - torch.eye(classes).to(self.slopes))
        return slopes * (math.sqrt(features) if dual(norm) == 1 else 1.0)

    def scaled(self, factor: float) -> Self:
        """Return the margins of the network with outputs multiplied by a factor."""
        jumps = None if self.jumps is None else factor * self.jumps
        return replace(self, slopes=factor * self.slopes, rows=factor * self.rows, jumps=jumps)

    def distance_to_error(self, x: Tensor, outputs: Tensor, y: Tensor, norm: float, slack: float = 0.0) -> Tensor:
        """Return a lower bound on each example's distance from ``x [n, d]`` to an error; 0 for errors.

        At an error, another class has the output of the example's class. The bound is ``(s_y - s_j) / K_yj``, or the
        distance up to which the lines around the example stay below zero, if that is farther. Leads are reduced by
        ``slack`` and by the possible rounding of outputs of this size in float64.
        """
        if not len(x):
            return outputs.new_zeros(0)
        slopes = self.steepest(norm, x.shape[1], outputs.shape[1])[y]
        sizes = outputs.abs().amax(1) + slopes.amax(1) * x.norm(dim=1)
        behind = self._apart(outputs, y) + (slack + 8.0 * (self.terms + 4) * UNIT * sizes)[:, None]
        behind.scatter_(-1, y[:, None], -math.inf)
        distance = torch.where(behind >= 0.0, 0.0, -behind / slopes).amin(-1) * (1.0 - 8.0 * UNIT)
        if self.hidden is None:
            return distance
        widest = max(x.shape[1], *(len(layer.weight) for layer in self.hidden))
        for here in torch.arange(len(x), device=x.device).split(max(1, CHUNK // (len(self.rows) * widest))):
            near = Nearby(self.hidden, x[here], norm)
            rows, owner = self.rows - self.rows[y[here]][:, None], torch.arange(len(here), device=x.device)
            low, factor = distance[here], FARTHER
            for _ in range(MOST_CUTS):
                farther = low * factor
                holds = torch.zeros_like(low, dtype=torch.bool)
                for offset, slope in near.lines(rows, owner, farther):
                    # The rounding of the lines' arithmetic is far below a thousandth of a millionth of them.
                    most = behind[here] + (offset + slope * farther[:, None]) * (1.0 + 1e-9)
                    holds |= (most < 0.0).all(-1)
                low, factor = torch.where(holds, farther, low), math.sqrt(factor)
            distance[here] = low
        return distance


_KNOWN: WeakKeyDictionary[Task, tuple[Tensor, int, Margins | None]] = WeakKeyDictionary()
"""The last parameters for which margins were computed, because clients are asked in pieces."""


def margins_of(task: Task, params: Tensor, features: int) -> Margins | None:
    """Return a network's margins at ``params [P]``; None for an unknown layer or a loss without margins."""
    known = task.loss.logistic or isinstance(task.loss, MarginLoss)
    return leads_of(task, params, features) if known else None


def leads_of(task: Task, params: Tensor, features: int) -> Margins | None:
    """Return a network's margins, for any loss; None if a layer is unknown and the network declares no bound."""
    last = _KNOWN.get(task)
    if last is None or last[1] != features or not torch.equal(last[0], params):
        last = params.clone(), features, _margins(task, params, features)
        _KNOWN[task] = last
    return last[2]


def _margins(task: Task, params: Tensor, features: int) -> Margins | None:
    module = task.module_at(params)
    layers = last_layer(module)
    if layers is None:
        bound = declared(module)
        slope = params.new_tensor(math.inf if bound is None else math.sqrt(2.0) * bound)
        return None if bound is None else Margins(slope, slope.view(1, 1), None, len(params))
    weight, before = layers
    slopes = torch.stack([(weight - row).norm(dim=1) for row in weight]) * before.slope
    hidden, jumps = None, None
    if type(module) is not Network:
        hidden = hidden_layers([node.module for node in plain_graph(module).nodes], features)
    if before.jump > 0.0:
        jumps = 2.0 * before.jump * torch.stack([(weight - row).abs().sum(1) for row in weight])
    return Margins(slopes, weight, hidden, len(params), jumps)


def _by_pieces(
    near: Nearby, rows: Tensor, offsets: Tensor, slopes: Tensor, gamma: Tensor, tolerance: Tensor
) -> tuple[Tensor, Tensor]:
    """Return the bound of each example, and the distance that comes nearest to it."""
    reached, distance = torch.logsumexp(offsets, dim=1), torch.zeros_like(offsets[:, 0])
    upper = reached.clone()
    # All pieces of one length: their examples, where they begin and end, and the lines that hold up to the end.
    owner = torch.arange(len(offsets), device=offsets.device)
    left, right = torch.zeros_like(reached), (slopes.amax(1) / gamma).log2().ceil().exp2()
    lines = _lowest(near, rows, owner, offsets, torch.stack([offsets, slopes]), right)
    for turn in range(MOST_CUTS + 1):
        price = gamma[owner]
        at_end = torch.logsumexp(lines[0] + lines[1] * right[:, None], dim=1) - price * right.square()
        reached = reached.scatter_reduce(0, owner, at_end, "amax")
        here = at_end == reached[owner]
        distance[owner[here]] = right[here]
        promised = _highest(left, right, lines, price)
        promising = (promised > reached[owner] + tolerance[owner]) & (turn < MOST_CUTS)
        upper = upper.scatter_reduce(0, owner[~promising], promised[~promising], "amax")
        if not bool(promising.any()):
            break
        owner, left, right, lines = owner[promising], left[promising], right[promising], lines[:, promising]
        middle = (left + right) / 2.0
        first = _lowest(near, rows[owner], owner, offsets[owner], lines, middle)
        left, right = torch.cat([left, middle]), torch.cat([middle, right])
        owner, lines = owner.repeat(2), torch.cat([first, lines], dim=1)
    return torch.maximum(upper, reached), distance


def _lowest(near: Nearby, rows: Tensor, owner: Tensor, offsets: Tensor, lines: Tensor, t: Tensor) -> Tensor:
    """Return the lower lines at t, of those valid farther out and those valid up to t: ``[2, m, C]``.

    The first row has the offsets, the second the slopes.
    """
    for offset, slope in near.lines(rows, owner, t):
        other = torch.stack([offsets + offset, slope])
        lower = other[0] + other[1] * t[:, None] < lines[0] + lines[1] * t[:, None]
        lines = torch.where(lower, other, lines)
    return lines


def _highest(left: Tensor, right: Tensor, lines: Tensor, gamma: Tensor) -> Tensor:
    """Return a piece's bound: its lines form a convex function, below the chord between the piece's ends."""
    start, end = (torch.logsumexp(lines[0] + lines[1] * t[:, None], dim=1) for t in (left, right))
    slope = torch.where(right > left, (end - start) / (right - left).clamp_min(1e-300), 0.0)
    top = torch.clamp(slope / (2.0 * gamma), left, right)
    return start + slope * (top - left) - gamma * top.square()
