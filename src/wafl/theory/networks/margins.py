"""phi_gamma of a network with cross-entropy from above, along the distance alone.

``A_j = s_j - s_y`` changes by at most ``K_yj t`` over a distance t, with ``K_yj`` the norm of the difference of two
rows of the last layer times the Lipschitz constant of what comes before it (``layer_by_layer.py``). So

    phi_gamma <= max over t >= 0 of  logsumexp_j(A_j + K_yj t) - gamma t^2,

which ``lines.py`` bounds by chords, at every gamma > 0. Since no ``K_yj`` is larger than L_z, each chord
lies below ``loss + L_z t``: at ``gamma = L_z / (2 radius)`` the certificate is at most ``E[loss] + L_z radius``.

Where the layers are linear ones and activations whose secants are known, each example has lines of its own, lower ones
the smaller the ball is on which they hold (``margin_lines.py``). From ``t = max_j K_yj / gamma`` on, nothing is
above the loss at the example itself. The distances up to there are cut into pieces, each with the lines of the ball
that ends where it ends; pieces that promise more than is reached at the end of any are cut in two.
"""

import copy
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Self
from weakref import WeakKeyDictionary

import torch
from torch import Tensor

from wafl.base.norms import dual
from wafl.tasks.losses import MarginLoss
from wafl.tasks.task import Task
from wafl.theory.constants.layer_by_layer import declared, last_layer, plain_layers
from wafl.theory.networks.margin_lines import Hidden, Nearby, hidden_layers
from wafl.theory.phi.lines import CHUNK, along_lines

UNIT = 2.0**-53
FARTHER = 4.0
"""How many times farther than the slopes say an example's boundary is looked for first; then the square root of it."""
MOST_CUTS = 14
"""How often the first piece is halved at most."""


@dataclass(frozen=True)
class Margins:
    """A network's margins: ``slopes [C (y), C (j)]`` in l2, or one number for any two, and its layers, if known."""

    slopes: Tensor
    rows: Tensor
    """Of the last layer, ``[C, H]``."""
    hidden: Sequence[Hidden] | None
    terms: int
    """How many numbers an output is made of, at most."""

    def along(
        self, x: Tensor, outputs: Tensor, y: Tensor, norm: float, gamma: Tensor, tolerance: Tensor
    ) -> tuple[Tensor, Tensor]:
        """An upper bound on phi_gamma of each of ``x [n, d]``, and the squared distance at which it is attained."""
        slopes = self.steepest(norm, x.shape[1], outputs.shape[1])[y]
        offsets = outputs - outputs.gather(-1, y[:, None])
        upper, cost = torch.empty_like(gamma), torch.empty_like(gamma)
        for each in gamma.unique():
            here = gamma == each
            sides = along_lines(offsets[here], slopes[here], float(each), tolerance[here])
            upper[here], cost[here] = sides.upper, sides.t.square()
        if self.hidden is None:
            return upper, cost
        widest = max(x.shape[1], *(len(layer.weight) for layer in self.hidden))
        size = max(1, CHUNK // (len(self.rows) * widest))
        for here in torch.arange(len(x), device=x.device).split(size) if len(x) else ():
            rows = self.rows - self.rows[y[here]][:, None]
            near = Nearby(self.hidden, x[here], norm)
            closer, distance = _by_pieces(near, rows, offsets[here], slopes[here], gamma[here], tolerance[here])
            better = closer < upper[here]
            upper[here] = torch.where(better, closer, upper[here])
            cost[here] = torch.where(better, distance.square(), cost[here])
        return upper, cost

    def steepest(self, norm: float, features: int, classes: int = 0) -> Tensor:
        """How much the lead of class j over y (``[y, j]``) changes at most with distance; sqrt(d) as much in l_inf."""
        slopes = self.slopes if self.slopes.ndim else self.slopes * (1.0 - torch.eye(classes).to(self.slopes))
        return slopes * (math.sqrt(features) if dual(norm) == 1 else 1.0)

    def scaled(self, factor: float) -> Self:
        """The margins of the network whose outputs are those of this one times a factor."""
        return replace(self, slopes=factor * self.slopes, rows=factor * self.rows)

    def distance_to_error(self, x: Tensor, outputs: Tensor, y: Tensor, norm: float, slack: float = 0.0) -> Tensor:
        """How far each example ``x [n, d]`` is at least from where another class has its class's output; 0 for errors.

        ``(s_y - s_j) / K_yj``, or how far the lines around the example stay below zero, if that is farther. Leads are
        taken to be smaller by ``slack`` and by what float64 may have lost of outputs of this size.
        """
        if not len(x):
            return outputs.new_zeros(0)
        slopes = self.steepest(norm, x.shape[1], outputs.shape[1])[y]
        sizes = outputs.abs().amax(1) + slopes.amax(1) * x.norm(dim=1)
        behind = outputs - outputs.gather(-1, y[:, None]) + (slack + 8.0 * (self.terms + 4) * UNIT * sizes)[:, None]
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
                    # What the lines' own arithmetic loses is far below a thousandth of a millionth of them.
                    most = behind[here] + (offset + slope * farther[:, None]) * (1.0 + 1e-9)
                    holds |= (most < 0.0).all(-1)
                low, factor = torch.where(holds, farther, low), math.sqrt(factor)
            distance[here] = low
        return distance


_KNOWN: WeakKeyDictionary[Task, tuple[Tensor, int, Margins | None]] = WeakKeyDictionary()
"""The last parameters that were asked about: clients are asked in pieces."""


def margins_of(task: Task, params: Tensor, features: int) -> Margins | None:
    """How steep the margins of a network at ``params [P]`` are; None for an unknown layer or a loss without margins."""
    known = task.loss.logistic or isinstance(task.loss, MarginLoss)
    return leads_of(task, params, features) if known else None


def leads_of(task: Task, params: Tensor, features: int) -> Margins | None:
    """How steep the margins of a network are, for any loss; None if a layer is not known and it declares no bound."""
    last = _KNOWN.get(task)
    if last is None or last[1] != features or not torch.equal(last[0], params):
        last = params.clone(), features, _margins(task, params, features)
        _KNOWN[task] = last
    return last[2]


def _margins(task: Task, params: Tensor, features: int) -> Margins | None:
    module = copy.deepcopy(task.module)
    module.load_state_dict(dict(task.unflatten(params)), strict=False)
    layers = last_layer(module)
    if layers is None:
        bound = declared(module)
        slope = params.new_tensor(math.inf if bound is None else math.sqrt(2.0) * bound)
        return None if bound is None else Margins(slope, slope.view(1, 1), None, len(params))
    weight, before = layers
    slopes = torch.stack([(weight - row).norm(dim=1) for row in weight]) * before.slope
    return Margins(slopes, weight, hidden_layers(plain_layers(module), features), len(params))


def _by_pieces(
    near: Nearby, rows: Tensor, offsets: Tensor, slopes: Tensor, gamma: Tensor, tolerance: Tensor
) -> tuple[Tensor, Tensor]:
    """The bound of each example, and the distance that comes nearest to it."""
    reached, distance = torch.logsumexp(offsets, dim=1), torch.zeros_like(offsets[:, 0])
    upper = reached.clone()
    # All pieces of one length: whose they are, where they begin and end, and the lines that hold up to the end.
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
    """Of lines that hold farther out and those that hold up to t, the lowest at t: offset and slope, ``[2, m, C]``."""
    for offset, slope in near.lines(rows, owner, t):
        other = torch.stack([offsets + offset, slope])
        lower = other[0] + other[1] * t[:, None] < lines[0] + lines[1] * t[:, None]
        lines = torch.where(lower, other, lines)
    return lines


def _highest(left: Tensor, right: Tensor, lines: Tensor, gamma: Tensor) -> Tensor:
    """What a piece promises: its lines make a convex function, which is below the chord between the piece's ends."""
    start, end = (torch.logsumexp(lines[0] + lines[1] * t[:, None], dim=1) for t in (left, right))
    slope = torch.where(right > left, (end - start) / (right - left).clamp_min(1e-300), 0.0)
    top = torch.clamp(slope / (2.0 * gamma), left, right)
    return start + slope * (top - left) - gamma * top.square()
