"""Plain references of the papers' methods: one client after another, one example after another.

Algorithm 1 of Nguyen et al. (WAFL), and the methods it is compared with, in ordinary autograd. It shares no code with
the package: the generator is Philox on Python's integers, and the ascent moves the inputs themselves. It is slow, and
the batched engine must agree with it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Protocol

import torch
from torch import Tensor, nn
from torch.nn import functional

from tests.oracles.reweighing import Weigh

Params = dict[str, Tensor]
Pair = tuple[Tensor, Tensor]
Losses = Callable[[Tensor, Tensor], Tensor]
"""From outputs ``[B, C]`` and labels to one loss per example."""

COHORT, BATCH, SNAPSHOT, LOSS_COHORT = 1, 2, 3, 4


# -- Random choices: a draw is a function of (seed, purpose, round, client, step) ---------------------------------


def philox(counter: Sequence[int], key: Sequence[int]) -> list[int]:
    """Philox-4x32-10 (Salmon et al., SC 2011)."""
    word = 2**32
    (c0, c1, c2, c3), (k0, k1) = counter, key
    for _ in range(10):
        low, high = c0 * 0xD2511F53, c2 * 0xCD9E8D57
        c0, c1, c2, c3 = (high // word) ^ c1 ^ k0, high % word, (low // word) ^ c3 ^ k1, low % word
        k0, k1 = (k0 + 0x9E3779B9) % word, (k1 + 0xBB67AE85) % word
    return [c0, c1, c2, c3]


def draw(seed: int, purpose: int, round: int, client: int, step: int, count: int) -> list[int]:
    words: list[int] = []
    for block in range(math.ceil(count / 4)):
        words += philox((block, step, round, client), (seed, purpose))
    return words[:count]


def order(seed: int, purpose: int, round: int, client: int, step: int, count: int) -> list[int]:
    draws = draw(seed, purpose, round, client, step, count)
    return sorted(range(count), key=lambda index: (draws[index], index))


def choose(seed: int, purpose: int, round: int, total: int, count: int) -> list[int]:
    """The first ``count`` of a Feistel cipher on a grid, in which a place outside ``0 .. total-1`` walks on."""
    rows = math.ceil(math.sqrt(total))
    columns = math.ceil(total / rows)

    def permuted(index: int) -> int:
        row, column = divmod(index, columns)
        for turn in range(16):
            if turn % 2 == 0:
                row = (row + philox((column, turn, round, 0), (seed, purpose))[0]) % rows
            else:
                column = (column + philox((row, turn, round, 0), (seed, purpose))[0]) % columns
        return row * columns + column

    chosen: list[int] = []
    for index in range(count):
        chosen.append(permuted(index))
        while chosen[-1] >= total:
            chosen[-1] = permuted(chosen[-1])
    return sorted(chosen)


def choose_by_weight(seed: int, round: int, weights: list[float], count: int) -> list[int]:
    """Draw clients with replacement: a uniform number of 24 bits falls into one client's interval of [0, 1)."""
    drawn: list[int] = []
    for bits in draw(seed, COHORT, round, 0, 0, count):
        reached = 0.0
        for client, weight in enumerate(weights):
            reached += weight
            if bits // 256 / 2**24 < reached:
                drawn.append(client)
                break
    return drawn


def cut_in_batches(seed: int, round: int, client: int, size: int, work: Work) -> list[list[int]]:
    """Epoch after epoch in a new random order; the last batch of an epoch may be short."""
    batch = work.batch_size or size
    batches: list[list[int]] = []
    epoch = 0
    while epoch < work.local_epochs if work.local_epochs else len(batches) < work.local_steps:
        rows = order(seed, BATCH, round, client, epoch, size)
        batches += [rows[first : first + batch] for first in range(0, size, batch)]
        epoch += 1
    return batches if work.local_epochs else batches[: work.local_steps]


# -- Losses ---------------------------------------------------------------------------------------------------


def cross_entropy(outputs: Tensor, y: Tensor) -> Tensor:
    return functional.cross_entropy(outputs, y, reduction="none")


def squared_error(outputs: Tensor, y: Tensor) -> Tensor:
    return (outputs - y.view_as(outputs)).square().sum(1)


def mlr_curvature(params: Params) -> float:
    """L_zz of the cross-entropy of ``W x + b``: the largest ``||w_j - w_k||^2 / 4``."""
    rows = next(value for value in params.values() if value.ndim == 2)
    return max(float((one - other).square().sum()) / 4 for one in rows for other in rows)


@dataclass(frozen=True)
class Minimized:
    """A model with its loss."""

    model: nn.Module
    losses: Losses

    def outputs(self, params: Params, x: Tensor) -> Tensor:
        for name, value in self.model.named_parameters():
            value.data = params[name]
        return self.model(x)

    def at(self, params: Params, x: Tensor, y: Tensor) -> Tensor:
        return self.losses(self.outputs(params, x), y)

    def mean(self, params: Params, x: Tensor, y: Tensor) -> float:
        return float(self.at(params, x, y).mean().detach())

    def gradient(self, params: Params, x: Tensor, y: Tensor) -> Params:
        """Return the gradient of a batch's mean loss in the parameters."""
        slopes = torch.autograd.grad(self.at(params, x, y).mean(), list(self.model.parameters()))
        return dict(zip(params, slopes, strict=True))

    def with_input_gradient(self, params: Params, x: Tensor, y: Tensor) -> tuple[float, Tensor]:
        """Return the loss of a single example and its gradient in the input."""
        x = x.detach().requires_grad_()
        loss = self.at(params, x[None], y[None]).sum()
        return float(loss.detach()), torch.autograd.grad(loss, x)[0]


# -- Objectives ----------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Moved:
    """A batch after the objective, and the means over the batch of what it maximized and what it paid.

    The model descends the loss there, unless the objective says which ``gradient`` it descends instead.
    """

    x: Tensor
    y: Tensor
    value: float
    cost: float
    gradient: Params | None = None


@dataclass(frozen=True)
class Unmoved:
    def move(self, minimized: Minimized, params: Params, x: Tensor, y: Tensor, gamma: float, client: int) -> Moved:
        return Moved(x, y, minimized.mean(params, x, y), 0.0)


@dataclass(frozen=True)
class Transport:
    """WAFL's: ``sup over (x', y') of loss - gamma (||x' - x||^power + label_cost [y' != y])``, per example."""

    gamma: float = 1.0
    radius: float | None = None
    norm: float = 2
    power: int = 2
    label_cost: float = math.inf
    steps: int = 15
    tolerance: float = 1e-3
    bounds: tuple[float, float] | None = None
    num_classes: int = 0

    def __post_init__(self) -> None:
        if self.radius is not None and self.power == 2:
            object.__setattr__(self, "gamma", 1e6)

    def move(self, minimized: Minimized, params: Params, x: Tensor, y: Tensor, gamma: float, client: int) -> Moved:
        if self.radius is not None and self.power == 2:
            gamma = max(gamma, self.least_gamma(minimized, params, x, y))
        moved = [self.move_one(minimized, params, *pair, gamma) for pair in zip(x, y, strict=True)]
        xs, ys, values, costs = zip(*moved, strict=True)
        return Moved(torch.stack(xs), torch.stack(ys), sum(values) / len(values), sum(costs) / len(costs))

    def least_gamma(self, minimized: Minimized, params: Params, x: Tensor, y: Tensor) -> float:
        """The gamma at which a batch moves by 1.25 radii, after four linearizations, each at the last move."""
        assert self.radius is not None
        reach, dual, kept = 1.25 * self.radius, {1: math.inf, 2: 2, math.inf: 1}[self.norm], 1.0
        gamma, deltas = math.nan, [torch.zeros_like(one) for one in x]
        for _ in range(4):
            at = [one + delta for one, delta in zip(x, deltas, strict=True)]
            slopes = [minimized.with_input_gradient(params, *pair)[1] for pair in zip(at, y, strict=True)]
            steepness = _rms([float(torch.linalg.vector_norm(slope.flatten(), ord=dual)) for slope in slopes])
            gamma = max(kept * steepness / (2 * reach), 1e-300)
            deltas = [self.linear_maximizer(slope, one, gamma) for slope, one in zip(slopes, x, strict=True)]
            if self.bounds is not None:
                kept *= _rms([self.length(delta) for delta in deltas]) / reach
        return gamma

    def move_one(
        self, minimized: Minimized, params: Params, x: Tensor, y: Tensor, gamma: float
    ) -> tuple[Tensor, Tensor, float, float]:
        if math.isinf(self.label_cost):
            delta, value = self.ascend(minimized, params, x, y, gamma)
            return x + delta, y, value, self.cost(delta)
        if y.is_floating_point():
            return self.move_target(minimized, params, x, y, gamma)
        tries: list[tuple[Tensor, Tensor, float, float]] = []
        for label in range(self.num_classes):
            toll = self.label_cost if label != int(y) else 0.0
            delta, value = self.ascend(minimized, params, x, torch.tensor(label), gamma)
            tries.append((x + delta, torch.tensor(label), value - gamma * toll, self.cost(delta) + toll))
        return max(tries, key=lambda one: one[2])

    def move_target(
        self, minimized: Minimized, params: Params, x: Tensor, y: Tensor, gamma: float
    ) -> tuple[Tensor, Tensor, float, float]:
        """Squared error: over t, ``(f - t)^2 - gamma k (t - y)^2`` is stationary where ``t - f = gamma k (t - y)``."""
        price = gamma * self.label_cost

        def best_target(outputs: Tensor, y: Tensor) -> Tensor:
            return (price * y.view_as(outputs) - outputs) / (price - 1)

        def over_targets(outputs: Tensor, y: Tensor) -> Tensor:
            target = best_target(outputs, y)
            paid = self.label_cost * (target - y.view_as(outputs)).square().sum(1)
            return squared_error(outputs, target) - gamma * paid

        delta, value = self.ascend(Minimized(minimized.model, over_targets), params, x, y, gamma)
        outputs = minimized.outputs(params, (x + delta)[None]).detach()
        target = best_target(outputs, y[None]).view_as(y)
        return x + delta, target, value, self.cost(delta) + self.label_cost * float((target - y).square().sum())

    def ascend(self, minimized: Minimized, params: Params, x: Tensor, y: Tensor, gamma: float) -> tuple[Tensor, float]:
        """``delta <- delta + a (linear maximizer - delta)``, where a is halved whenever a step would descend."""

        def evaluate(delta: Tensor) -> tuple[float, Tensor]:
            loss, gradient = minimized.with_input_gradient(params, x + delta, y)
            return loss - gamma * self.cost(delta), self.linear_maximizer(gradient, x, gamma)

        delta, damping = torch.zeros_like(x), 1.0
        value, aim = evaluate(delta)
        for _ in range(self.steps):
            if self._settled(delta, aim):
                break
            trial = delta + damping * (aim - delta)
            trial_value, trial_aim = evaluate(trial)
            if trial_value >= value - 1e-15 * max(1.0, abs(value)):
                delta, value, aim = trial, trial_value, trial_aim
            else:
                damping /= 2
        return delta, value

    def _settled(self, delta: Tensor, aim: Tensor) -> bool:
        return self.tolerance > 0 and self.length(aim - delta) <= self.tolerance * self.length(aim)

    def length(self, delta: Tensor) -> float:
        return float(torch.linalg.vector_norm(delta.flatten(), ord=self.norm))

    def cost(self, delta: Tensor) -> float:
        return self.length(delta) ** self.power

    def linear_maximizer(self, gradient: Tensor, x: Tensor, gamma: float) -> Tensor:
        """``argmax <g, d> - gamma ||d||^power`` over d that keep ``x + d`` within the bounds."""
        g = gradient.flatten().tolist()
        low, high = self.bounds or (-math.inf, math.inf)
        space = [high - at if slope >= 0 else at - low for slope, at in zip(g, x.flatten().tolist(), strict=True)]
        lengths = {1: self._l1_lengths, 2: self._l2_lengths, math.inf: self._linf_lengths}[self.norm]
        far = lengths([abs(slope) for slope in g], space, gamma)
        delta = [math.copysign(length, slope) if slope else 0.0 for length, slope in zip(far, g, strict=True)]
        return torch.tensor(delta, dtype=x.dtype).view_as(x)

    def _l2_lengths(self, sizes: list[float], space: list[float], gamma: float) -> list[float]:
        if self.power == 2:  # each coordinate by itself
            return [min(size / (2 * gamma), room) for size, room in zip(sizes, space, strict=True)]

        def clipped(t: float) -> list[float]:
            return [min(t * size, room) for size, room in zip(sizes, space, strict=True)]

        # Stationary: d = clip(t g) with t = ||d|| / gamma. ||clip(t g)|| / t only falls, so there is at most one t.
        low, high = 0.0, math.hypot(*space) / gamma
        for _ in range(200):
            middle = (low + high) / 2
            low, high = (middle, high) if math.hypot(*clipped(middle)) > gamma * middle else (low, middle)
        return clipped(high)

    def _l1_lengths(self, sizes: list[float], space: list[float], gamma: float) -> list[float]:
        """Along the steepest coordinate until another unit costs more than it gains, then along the next."""
        far, spent = [0.0] * len(sizes), 0.0
        for index in sorted(range(len(sizes)), key=lambda index: -sizes[index]):
            far[index] = min(self._worth(sizes[index], spent, gamma), space[index])
            spent += far[index]
        return far

    def _linf_lengths(self, sizes: list[float], space: list[float], gamma: float) -> list[float]:
        """All coordinates together, until the gain of those that still move is less than the cost."""
        level = 0.0
        for reach in sorted(set(space)):
            gain = sum(size for size, room in zip(sizes, space, strict=True) if room >= reach)
            level += min(self._worth(gain, level, gamma), reach - level)
        return [min(level, room) for room in space]

    def _worth(self, gain: float, spent: float, gamma: float) -> float:
        """How much further it pays to go: until the gain of a unit is ``2 gamma t`` (power 2) or gamma (power 1)."""
        if self.power == 2:
            return max(0.0, gain / (2 * gamma) - spent)
        return math.inf if gain > gamma else 0.0

    def in_round(self, t: int, rounds: int) -> Transport:
        """Over a third of the rounds, at most 30, the ball grows from a tenth of the radius, by a constant factor."""
        warm = min(30, rounds // 3)
        return self if self.radius is None or t >= warm else replace(self, radius=self.radius * 10 ** (t / warm - 1))

    def next_gamma(self, gamma: float, cost: float) -> float:
        """Up: in proportion to the achieved radius. Down: by its root, or to where half the radius is achieved."""
        if self.radius is None:
            return gamma
        ratio = cost ** (1 / self.power) / self.radius
        if self.power == 1:
            return gamma * min(max(math.sqrt(ratio), 0.5), 2.0)
        if ratio == 0:
            return gamma
        if ratio > 1:
            return gamma * min(ratio, 2.0)
        return gamma * min(math.sqrt(ratio), 2 * ratio)


def _rms(lengths: list[float]) -> float:
    return math.sqrt(sum(length**2 for length in lengths) / len(lengths))


@dataclass(frozen=True)
class Ball:
    """Projected gradient ascent (Madry et al. 2018); one step of length epsilon is FGSM (Goodfellow et al. 2015)."""

    epsilon: float
    step_size: float
    steps: int
    norm: float = math.inf
    bounds: tuple[float, float] | None = None

    def move(self, minimized: Minimized, params: Params, x: Tensor, y: Tensor, gamma: float, client: int) -> Moved:
        moved = torch.stack([self.move_one(minimized, params, *pair) for pair in zip(x, y, strict=True)])
        distances = torch.linalg.vector_norm((moved - x).flatten(1), ord=self.norm, dim=1)
        return Moved(moved, y, minimized.mean(params, moved, y), float(distances.square().mean()))

    def move_one(self, minimized: Minimized, params: Params, x: Tensor, y: Tensor) -> Tensor:
        moved = x
        for _ in range(self.steps):
            gradient = minimized.with_input_gradient(params, moved, y)[1]
            direction = gradient.sign() if self.norm == math.inf else functional.normalize(gradient.flatten(), dim=0)
            delta = moved + self.step_size * direction.view_as(x) - x
            if self.norm == math.inf:
                delta = delta.clamp(-self.epsilon, self.epsilon)
            elif float(delta.norm()) > self.epsilon:
                delta = delta * (self.epsilon / delta.norm())
            moved = x + delta if self.bounds is None else (x + delta).clamp(*self.bounds)
        return moved


@dataclass
class AffineMaps:
    """FedRobust's (Reisizadeh et al. 2020): ``x -> A x + b``, one map per client, one ascent step per local step."""

    penalty: float
    step_size: float
    maps: dict[int, tuple[Tensor, Tensor]] = field(default_factory=dict)

    def move(self, minimized: Minimized, params: Params, x: Tensor, y: Tensor, gamma: float, client: int) -> Moved:
        flat = x.flatten(1)
        identity = torch.eye(flat.shape[1], dtype=x.dtype)
        linear, offset = self.maps.get(client, (identity, torch.zeros_like(flat[0])))
        linear, offset = linear.requires_grad_(), offset.requires_grad_()
        moved = (flat @ linear.T + offset).view_as(x)
        away = (linear - identity).square().sum() + offset.square().sum()
        value = minimized.at(params, moved, y).mean() - self.penalty * away
        up = torch.autograd.grad(value, (linear, offset))
        self.maps[client] = tuple(
            (old + self.step_size * slope).detach() for old, slope in zip((linear, offset), up, strict=True)
        )
        moved = moved.detach()
        return Moved(moved, y, float(value.detach()), float((moved - x).flatten(1).square().sum(1).mean()))


class Objective(Protocol):
    def move(self, minimized: Minimized, params: Params, x: Tensor, y: Tensor, gamma: float, client: int) -> Moved: ...


# -- Training -------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Work:
    local_steps: int = 0
    local_epochs: int = 0
    batch_size: int | None = 64
    momentum: float = 0.0
    weight_decay: float = 0.0


@dataclass(frozen=True)
class Learned:
    """Client weights that ascend the losses: by the rule of AFL, DRFA, GroupDRO or FedDG-GA."""

    rule: str
    step: float


@dataclass(frozen=True)
class Reweighed:
    """Weights of a cohort by its losses at the server's model; q-FFL (Li et al. 2020, algorithm 2) has its own step."""

    weigh: Weigh
    center: Sequence[float]
    q: float | None = None

    def step(self, params: Params, losses: list[float], center: list[float], ends: list[Params], rate: float) -> Params:
        """``w - sum_k Delta_k / sum_k h_k`` with ``L = 1 / rate``, ``Delta = F^q L (w - w_k)`` and
        ``h = q F^(q - 1) ||L (w - w_k)||^2 + L F^q``; each client counts with its weight in the center.
        """
        assert self.q is not None
        numerator, denominator = {name: torch.zeros_like(value) for name, value in params.items()}, 0.0
        for share, loss, end in zip(center, losses, ends, strict=True):
            slope = {name: (params[name] - end[name]) / rate for name in params}
            length = sum(float(value.square().sum()) for value in slope.values())
            numerator = {name: numerator[name] + share * loss**self.q * slope[name] for name in params}
            denominator += share * (self.q * loss ** (self.q - 1) * length + loss**self.q / rate)
        return {name: params[name] - numerator[name] / denominator for name in params}


@dataclass
class Prox:
    """FedProx (Li et al. 2020, eq. 2): the gradient of ``mu / 2 ||w - w_t||^2`` is added to the loss's gradient."""

    mu: float

    def round_begins(self, lam: Sequence[float], slopes: Callable[[int], Params]) -> None:
        pass

    def correct(self, gradients: Params, params: Params, sent: Params, client: int) -> Params:
        return {name: gradients[name] + self.mu * (params[name] - sent[name]) for name in params}

    def end(self, path: list[Params], rate: float, client: int) -> None:
        pass

    def round_ends(self, lam: Sequence[float]) -> None:
        pass


@dataclass
class Scaffold:
    """SCAFFOLD (Karimireddy et al. 2020, algorithm 1), option II; the server's c is the weighted mean of all c_i."""

    variates: dict[int, Params] = field(default_factory=dict)
    server: Params = field(default_factory=dict)

    def round_begins(self, lam: Sequence[float], slopes: Callable[[int], Params]) -> None:
        pass

    def correct(self, gradients: Params, params: Params, sent: Params, client: int) -> Params:
        local_value = self.variates.get(client, {})
        return {name: gradients[name] - local_value.get(name, 0.0) + self.server.get(name, 0.0) for name in params}

    def end(self, path: list[Params], rate: float, client: int) -> None:
        """``c_i+ = c_i - c + (x - y_i) / (K eta)``."""
        start, last, local_value = path[0], path[-1], self.variates.get(client, {})
        self.variates[client] = {
            name: local_value.get(name, 0.0)
            - self.server.get(name, 0.0)
            + (start[name] - last[name]) / ((len(path) - 1) * rate)
            for name in start
        }

    def round_ends(self, lam: Sequence[float]) -> None:
        names = next(iter(self.variates.values()))
        self.server = {
            name: sum(lam[client] * variate[name] for client, variate in self.variates.items()) for name in names
        }


@dataclass
class GradientControl:
    """Scaff-PD's local steps (Yu et al. 2023) on full batches: ``c_i`` is a client's slope at the server's model."""

    slopes_of: list[Params] = field(default_factory=list)
    mean: Params = field(default_factory=dict)

    def round_begins(self, lam: Sequence[float], slopes: Callable[[int], Params]) -> None:
        self.slopes_of = [slopes(client) for client in range(len(lam))]
        self.mean = weighted_sum(list(lam), self.slopes_of)

    def correct(self, gradients: Params, params: Params, sent: Params, client: int) -> Params:
        return {name: gradients[name] - self.slopes_of[client][name] + self.mean[name] for name in params}

    def end(self, path: list[Params], rate: float, client: int) -> None:
        pass

    def round_ends(self, lam: Sequence[float]) -> None:
        pass


@dataclass
class Admm:
    """Consensus ADMM (Boyd et al. 2011, section 7.1) in the order z, w, u, each client's problem by its local steps."""

    rho: float
    z: Params = field(default_factory=dict)
    w: dict[int, Params] = field(default_factory=dict)
    u: dict[int, Params] = field(default_factory=dict)

    def round_begins(self, lam: Sequence[float], slopes: Callable[[int], Params]) -> None:
        if self.w:
            self.z = {
                name: sum(lam[i] * (self.w[i][name] + self.u[i][name] / self.rho) for i in self.w) for name in self.z
            }

    def correct(self, gradients: Params, params: Params, sent: Params, client: int) -> Params:
        self.z = self.z or sent
        u = self.u.get(client, {})
        return {name: gradients[name] + u.get(name, 0.0) + self.rho * (params[name] - self.z[name]) for name in params}

    def end(self, path: list[Params], rate: float, client: int) -> None:
        self.w[client], u = path[-1], self.u.get(client, {})
        self.u[client] = {name: u.get(name, 0.0) + self.rho * (path[-1][name] - self.z[name]) for name in self.z}

    def round_ends(self, lam: Sequence[float]) -> None:
        pass


@dataclass
class Dynamic:
    """FedDyn (Acar et al. 2021, algorithm 1) with client weights: the paper's 1 / m is the weight of a client."""

    alpha: float
    g: dict[int, Params] = field(default_factory=dict)
    h: Params = field(default_factory=dict)

    def round_begins(self, lam: Sequence[float], slopes: Callable[[int], Params]) -> None:
        pass

    def correct(self, gradients: Params, params: Params, sent: Params, client: int) -> Params:
        """The gradient of ``L(w) - <g, w> + alpha / 2 ||w - w_t||^2``."""
        g = self.g.get(client, {})
        return {name: gradients[name] - g.get(name, 0.0) + self.alpha * (params[name] - sent[name]) for name in params}

    def end(self, path: list[Params], rate: float, client: int) -> None:
        g, sent, last = self.g.get(client, {}), path[0], path[-1]
        self.g[client] = {name: g.get(name, 0.0) - self.alpha * (last[name] - sent[name]) for name in sent}

    def round_ends(self, lam: Sequence[float]) -> None:
        pass

    def next_params(self, params: Params, mean: Params, ends: list[Params], weights: list[float]) -> Params:
        """Return the server's step, for the weights of these clients among all clients."""
        for end, weight in zip(ends, weights, strict=True):
            self.h = {name: self.h.get(name, 0.0) - self.alpha * weight * (end[name] - params[name]) for name in params}
        return {name: mean[name] - self.h[name] / self.alpha for name in params}


@dataclass
class Sharpness(Prox):
    """FedSAM (Qu et al. 2022): the gradient is taken at ``w + rho g / ||g||``."""

    rho: float = 0.0

    def uphill(self, params: Params, gradients: Params) -> Params:
        length = math.sqrt(sum(float(value.square().sum()) for value in gradients.values()))
        return {name: params[name] + self.rho * gradients[name] / length for name in params}


LocalStep = Prox | Scaffold | GradientControl | Admm | Dynamic


@dataclass
class ServerOptimizer:
    """Reddi et al. 2021, algorithm 2, for adam and yogi; FedAvgM (Hsu et al. 2019) for momentum; plain for sgd."""

    kind: str
    rate: float
    beta1: float = 0.9
    beta2: float = 0.99
    tau: float = 1e-3
    m: Params = field(default_factory=dict)
    v: Params = field(default_factory=dict)

    def step(self, params: Params, mean: Params) -> Params:
        return {name: self._step_one(name, value, mean[name] - value) for name, value in params.items()}

    def _step_one(self, name: str, x: Tensor, delta: Tensor) -> Tensor:
        m = self.m.get(name, torch.zeros_like(x))
        if self.kind == "sgd":
            return x + self.rate * delta
        if self.kind == "momentum":
            self.m[name] = self.beta1 * m + delta
            return x + self.rate * self.m[name]
        self.m[name] = self.beta1 * m + (1 - self.beta1) * delta
        v = self.v.get(name, torch.full_like(x, self.tau**2))
        if self.kind == "adam":
            self.v[name] = self.beta2 * v + (1 - self.beta2) * delta**2
        else:
            self.v[name] = v - (1 - self.beta2) * delta**2 * torch.sign(v - delta**2)
        return x + self.rate * self.m[name] / (torch.sqrt(self.v[name]) + self.tau)


@dataclass(frozen=True)
class Update:
    """A client's round: its parameters before and after each local step, its loss and its cost."""

    path: list[Params]
    loss: float
    cost: float


Aggregate = Callable[[Params, list[Params], list[float]], Params]
"""From the server's model, the clients' models and their shares to one model."""


@dataclass(frozen=True)
class Trained:
    params: Params
    client_weights: list[float]
    gamma: float
    cohorts: list[list[int]]


def train(
    minimized: Minimized,
    params: Params,
    clients: Sequence[Pair],
    work: Work,
    *,
    rounds: int,
    objective: Objective,
    weights: Sequence[float] | Learned | Reweighed,
    learning_rate: Callable[[int], float],
    server_learning_rate: float = 1.0,
    server: ServerOptimizer | None = None,
    local: LocalStep | None = None,
    aggregate: Aggregate | None = None,
    clip_norm: float = math.inf,
    cohort: int | None = None,
    seed: int = 0,
) -> Trained:
    """Algorithm 1, with any objective, client weights, server and local step."""
    aggregate = aggregate or (lambda start, models, shares: weighted_sum(shares, models))
    server, local = server or ServerOptimizer("sgd", server_learning_rate), local or Prox(0.0)
    total = len(clients)
    cohort = cohort or total
    learned = weights if isinstance(weights, Learned) else None
    reweighed = weights if isinstance(weights, Reweighed) else None
    center: Sequence[float] = [1.0] * total if learned else reweighed.center if reweighed else weights  # pyright: ignore
    lam = [weight / sum(center) for weight in center]
    gamma, whole = getattr(objective, "gamma", 0.0), objective
    cohorts: list[list[int]] = []
    own_losses: list[float] = []
    for t in range(rounds):
        rate = learning_rate(t)
        if isinstance(whole, Transport):
            objective = whole.in_round(t, rounds)
        if learned and learned.rule in ("GroupDRO", "FedDGGA"):
            now = [objective.move(minimized, params, *pair, gamma, c).value for c, pair in enumerate(clients)]
        if learned and learned.rule == "GroupDRO":
            raw = [w * math.exp(learned.step * loss) for w, loss in zip(lam, now, strict=True)]  # pyright: ignore
            lam = [value / sum(raw) for value in raw]
        if learned and learned.rule == "FedDGGA" and own_losses:
            gaps = [after - before for after, before in zip(now, own_losses, strict=True)]  # pyright: ignore
            step = learned.step / total * (1 - t / rounds) / max(abs(each) for each in gaps)
            raw = [min(max(w + step * each, 0.0), 1.0) for w, each in zip(lam, gaps, strict=True)]
            lam = [value / sum(raw) for value in raw]
        if learned and learned.rule == "DRFA":
            asked = sorted(choose_by_weight(seed, t, lam, cohort))
            shares = [1 / cohort] * cohort
        else:
            asked = choose(seed, COHORT, t, total, cohort)
            if reweighed:
                inside = sum(center[client] for client in asked)
                local_value = {client: center[client] / inside for client in asked}
                result = {c: objective.move(minimized, params, *clients[c], gamma, c).value for c in asked}
                new = reweighed.weigh([local_value[client] for client in asked], [result[client] for client in asked])
                lam = [dict(zip(asked, new, strict=True)).get(client, 0.0) for client in range(total)]
                asked = [client for client in asked if lam[client] > 1e-12]
            shares = [lam[client] / sum(lam[client] for client in asked) for client in asked]
        cohorts.append(asked)

        def slopes(client: int, at: Params = params, gamma: float = gamma, objective: Objective = objective) -> Params:
            return descended(minimized, at, objective.move(minimized, at, *clients[client], gamma, client))

        local.round_begins(lam, slopes)
        updates = [
            local_training(minimized, params, clients[client], work, objective, rate, gamma, seed, t, client, local)
            for client in asked
        ]
        ends = [clipped(params, update.path[-1], clip_norm) for update in updates]
        if reweighed and reweighed.q is not None:
            params = reweighed.step(params, [result[c] for c in asked], [local_value[c] for c in asked], ends, rate)  # pyright: ignore
        elif isinstance(local, Dynamic):
            params = local.next_params(params, weighted_sum(shares, ends), ends, [lam[client] for client in asked])
        else:
            params = server.step(params, aggregate(params, ends, shares))
        local.round_ends(lam)
        if isinstance(objective, Transport):
            cost = sum(share * update.cost for share, update in zip(shares, updates, strict=True))
            gamma = objective.next_gamma(gamma, cost)
            if objective.radius is not None and objective.power == 2:  # a larger ball has a smaller price
                gamma *= objective.radius / whole.in_round(t + 1, rounds).radius
        if learned and learned.rule == "FedDGGA":
            local_value = zip(asked, updates, strict=True)
            own_losses = [
                objective.move(minimized, end.path[-1], *clients[c], gamma, c).value for c, end in local_value
            ]
        if learned and learned.rule == "AFL":
            lam = project([w + learned.step * update.loss for w, update in zip(lam, updates, strict=True)])
        if learned and learned.rule == "DRFA":
            most = max(len(cut_in_batches(seed, 0, 0, len(x), work)) for x, _ in clients)
            step = draw(seed, SNAPSHOT, t, 0, 0, 1)[0] % most + 1
            snapshot = weighted_sum(shares, [update.path[min(step, len(update.path) - 1)] for update in updates])
            reporting = choose(seed, LOSS_COHORT, t, total, cohort)
            climbed = list(lam)
            for client in reporting:
                loss = objective.move(minimized, snapshot, *clients[client], gamma, client).value
                climbed[client] += most * learned.step * total / cohort * loss
            lam = project(climbed)
    return Trained(params, lam, gamma, cohorts)


def local_training(
    minimized: Minimized,
    params: Params,
    examples: Pair,
    work: Work,
    objective: Objective,
    rate: float,
    gamma: float,
    seed: int,
    round: int,
    client: int,
    local: LocalStep,
) -> Update:
    """Lines 3 to 8 of Algorithm 1; momentum and weight decay as in torch.optim.SGD."""
    x, y = examples
    path = [params]
    velocity = {name: torch.zeros_like(value) for name, value in params.items()}
    first: Moved | None = None
    for rows in cut_in_batches(seed, round, client, len(x), work):
        moved = objective.move(minimized, params, x[rows], y[rows], gamma, client)
        first = first or moved
        at, gradients = params, descended(minimized, params, moved)
        if isinstance(local, Sharpness):
            at = local.uphill(params, gradients)
            gradients = descended(minimized, at, objective.move(minimized, at, x[rows], y[rows], gamma, client))
        gradients = {name: gradients[name] + work.weight_decay * at[name] for name in params}
        gradients = local.correct(gradients, params, path[0], client)
        velocity = {name: work.momentum * velocity[name] + gradients[name] for name in params}
        params = {name: params[name] - rate * velocity[name] for name in params}
        path.append(params)
    assert first is not None
    local.end(path, rate, client)
    return Update(path, first.value, first.cost)


def descended(minimized: Minimized, params: Params, moved: Moved) -> Params:
    """Return a client's gradient after its objective has moved its batch."""
    return minimized.gradient(params, moved.x, moved.y) if moved.gradient is None else moved.gradient


def clipped(start: Params, end: Params, longest: float) -> Params:
    """The end of an update that is shortened if it is longer than that."""
    length = math.sqrt(sum(float((end[name] - start[name]).square().sum()) for name in start))
    share = min(1.0, longest / length) if length > 0 else 1.0
    return {name: start[name] + share * (end[name] - start[name]) for name in start}


def weighted_sum(shares: list[float], models: list[Params]) -> Params:
    return {name: sum(s * model[name] for s, model in zip(shares, models, strict=True)) for name in models[0]}


def project(values: list[float]) -> list[float]:
    """Return the nearest point of the simplex: lower all values equally, by bisection, and cut them off at 0."""
    low, high = min(values) - 1, max(values)
    for _ in range(200):
        middle = (low + high) / 2
        low, high = (middle, high) if sum(max(v - middle, 0) for v in values) > 1 else (low, middle)
    return [max(v - high, 0.0) for v in values]
