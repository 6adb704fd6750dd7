"""Objectives beyond the loss at moved examples: autograd through each paper's equation.

Each is an objective of :func:`tests.oracles.reference.train`. It counts the steps of each client, for its random draws
have the key (seed, round, client, step); the draws are in the order of the batch.
"""

from __future__ import annotations

import itertools
import math
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field

import torch
from torch import Tensor
from torch.distributions import Normal, kl_divergence
from torch.nn.functional import cross_entropy, kl_div, log_softmax, softplus

from tests.oracles.reference import Minimized, Moved, Params, Transport, draw
from wafl.base.random import Key, Purpose, normal

START = 5
Outputs = Callable[[Tensor], Tensor]
Descended = Callable[[Outputs, Tensor, Tensor, int, int], Tensor]
"""A function of a model, a batch, the client and its number of earlier queries, with one number as its value."""


@dataclass
class Penalized:
    """Descend any scalar function of a model."""

    scalar: Descended
    asked: Counter[int] = field(default_factory=Counter)

    def move(self, minimized: Minimized, params: Params, x: Tensor, y: Tensor, gamma: float, client: int) -> Moved:
        value = self.scalar(lambda at: minimized.outputs(params, at), x, y, client, self.asked[client])
        self.asked[client] += 1
        slopes = torch.autograd.grad(value, list(minimized.model.parameters()))
        return Moved(x, y, float(value.detach()), 0.0, dict(zip(params, slopes, strict=True)))


def changed(outputs: Outputs, x: Tensor, moved: Tensor, shift: Tensor) -> Tensor:
    """``KL(p(x), p(moved))`` per example, with the probabilities of ``outputs + shift``."""
    rest, other = (log_softmax(outputs(at) + shift, -1) for at in (x, moved))
    return kl_div(other, rest, reduction="none", log_target=True).sum(-1)


@dataclass(frozen=True)
class Most:
    """Find the largest change of the outputs in an l_inf ball, from a random start, by steps of the gradient's sign."""

    epsilon: float
    step_size: float
    steps: int
    seed: int
    local_steps: int

    def place(self, outputs: Outputs, x: Tensor, client: int, asked: int, shift: Tensor) -> Tensor:
        words = draw(self.seed, START, *place_of(asked, self.local_steps, client), x.numel())
        uniform = torch.tensor([word // 256 / 2**24 for word in words], dtype=x.dtype).view_as(x)
        moved = x + self.epsilon * (2 * uniform - 1)
        for _ in range(self.steps):
            at = moved.detach().requires_grad_()
            (slope,) = torch.autograd.grad(changed(outputs, x, at, shift).sum(), at)
            moved = (moved + self.step_size * slope.sign()).clamp(x - self.epsilon, x + self.epsilon)
        return moved.detach()


def place_of(asked: int, local_steps: int, client: int) -> tuple[int, int, int]:
    """Return the round, client and step of a key."""
    return asked // local_steps, client, asked % local_steps


def trades(beta: float, ball: Most) -> Penalized:
    """Zhang et al. 2019: ``loss(x) + beta max KL(p(x), p(x + d))``."""

    def scalar(outputs: Outputs, x: Tensor, y: Tensor, client: int, asked: int) -> Tensor:
        none = torch.zeros((), dtype=x.dtype)
        moved = ball.place(outputs, x, client, asked, none)
        return cross_entropy(outputs(x), y) + beta * changed(outputs, x, moved, none).mean()

    return Penalized(scalar)


def calibrated(ball: Most, classes: int) -> Penalized:
    """Chen et al. 2022: the cross-entropy of ``s(x + d) + log pi``, pi the shares of the client's classes."""

    def scalar(outputs: Outputs, x: Tensor, y: Tensor, client: int, asked: int) -> Tensor:
        shares = torch.bincount(y, minlength=classes).to(x) / len(y)
        shift = shares.clamp_min(1e-8).log()
        return cross_entropy(outputs(ball.place(outputs, x, client, asked, shift)) + shift, y)

    return Penalized(scalar)


def invariant(penalty: float) -> Penalized:
    """Arjovsky et al. 2019, IRMv1: the loss plus its squared derivative in a factor of the outputs."""

    def scalar(outputs: Outputs, x: Tensor, y: Tensor, client: int, asked: int) -> Tensor:
        factor = torch.ones((), dtype=x.dtype, requires_grad=True)
        loss = cross_entropy(factor * outputs(x), y)
        (slope,) = torch.autograd.grad(loss, factor, create_graph=True)
        return loss + penalty * slope**2

    return Penalized(scalar)


@dataclass
class Noisy:
    """Bishop 1995: ``x + d`` with Gaussian moves d, so large that ``E ||d||^2 = size^2``."""

    size: float
    seed: int
    local_steps: int
    asked: Counter[int] = field(default_factory=Counter)

    def move(self, minimized: Minimized, params: Params, x: Tensor, y: Tensor, gamma: float, client: int) -> Moved:
        key = Key.of(self.seed, *place_of(self.asked[client], self.local_steps, client))
        self.asked[client] += 1
        deviation = self.size / x[0].numel() ** 0.5
        moved = x + deviation * normal(key, Purpose.START, x.numel()).view_as(x)
        value = minimized.at(params, moved, y).mean().detach()
        return Moved(moved, y, float(value), float((moved - x).square().sum(1).mean()))


def mixed(alpha: float, seed: int, local_steps: int) -> Penalized:
    """Zhang et al. 2018: two examples and their losses are mixed, with a weight from Beta(alpha, alpha).

    The weight is made from Student's t by Bailey's polar method, with the draws of the package.
    """

    def scalar(outputs: Outputs, x: Tensor, y: Tensor, client: int, asked: int) -> Tensor:
        index = place_of(asked, local_steps, client)
        words = draw(seed, START, *index, len(y))
        order = sorted(range(len(y)), key=words.__getitem__)
        u, v = (word // 256 / 2**24 for word in draw(seed, START + 256, *index, 2))
        t = math.sqrt(2 * alpha * ((1 - u) ** (-1 / alpha) - 1)) * math.cos(2 * math.pi * v)
        part = 0.5 + t / (2 * math.sqrt(2 * alpha + t**2))
        at = outputs(part * x + (1 - part) * x[order])
        return part * cross_entropy(at, y) + (1 - part) * cross_entropy(at, y[order])

    return Penalized(scalar)


def steep(radius: float) -> Penalized:
    """Bai et al. 2025: the mean loss plus the radius times how steep a linear model's cross-entropy can be."""

    def scalar(outputs: Outputs, x: Tensor, y: Tensor, client: int, asked: int) -> Tensor:
        corners = torch.eye(x.shape[1], dtype=x.dtype)
        weight = (outputs(corners) - outputs(torch.zeros_like(corners))).T
        apart = [(one - other).norm() for one, other in itertools.combinations(weight, 2)]
        return cross_entropy(outputs(x), y) + radius * torch.stack(apart).max()

    return Penalized(scalar)


@dataclass
class Spread:
    """Wang, Gao and Xie 2025: ``gamma eps log E exp(loss(x + d) / gamma eps)`` by draws around WAFL's maximizer."""

    ball: Transport
    noise: float
    samples: int
    seed: int
    local_steps: int
    asked: Counter[int] = field(default_factory=Counter)

    def move(self, minimized: Minimized, params: Params, x: Tensor, y: Tensor, gamma: float, client: int) -> Moved:
        gamma = self.ball.gamma
        top = self.ball.move(minimized, params, x, y, gamma, client).x
        key = Key.of(self.seed, *place_of(self.asked[client], self.local_steps, client))
        self.asked[client] += 1
        shifts = self.noise * normal(key, Purpose.START, self.samples * x.numel()).view(len(x), self.samples, -1)
        scale = 2 * gamma * self.noise**2
        exponents: list[Tensor] = []
        for sample in range(self.samples):
            move = top - x + shifts[:, sample].to(x)
            density = (shifts[:, sample].square().sum(1) - move.square().sum(1)) / (2 * self.noise**2)
            exponents.append(minimized.at(params, x + move, y) / scale + density)
        value = scale * (torch.stack(exponents).exp().mean(0)).log().mean()
        slopes = torch.autograd.grad(value, list(minimized.model.parameters()))
        return Moved(x, y, float(value.detach()), 0.0, dict(zip(params, slopes, strict=True)))


@dataclass
class BestExplained:
    """Wang et al. 2025: the soft minimum ``-t log E exp(-phi / t)`` of the robust losses of a client's examples."""

    ball: Transport
    temperature: float

    def move(self, minimized: Minimized, params: Params, x: Tensor, y: Tensor, gamma: float, client: int) -> Moved:
        moved = self.ball.move(minimized, params, x, y, self.ball.gamma, client)
        costs = torch.tensor([self.ball.cost(delta) for delta in moved.x - x], dtype=x.dtype)
        robust = minimized.at(params, moved.x, y) - self.ball.gamma * costs
        value = -self.temperature * (-robust / self.temperature).exp().mean().log()
        slopes = torch.autograd.grad(value, list(minimized.model.parameters()))
        return Moved(x, y, float(value.detach()), 0.0, dict(zip(params, slopes, strict=True)))


@dataclass
class NoisyOutputs:
    """Nguyen, Torr and Lim 2022, where the outputs are the representation: noise, and a price for its length and for
    what it tells beyond the class, ``KL(p(z | x), r_i(z | y))``; each client's r descends the same objective.
    """

    l2: float
    cmi: float
    noise: float
    rate: float
    seed: int
    local_steps: int
    classes: int
    asked: Counter[int] = field(default_factory=Counter)
    kept: dict[int, tuple[Tensor, Tensor]] = field(default_factory=dict)

    def move(self, minimized: Minimized, params: Params, x: Tensor, y: Tensor, gamma: float, client: int) -> Moved:
        mean = minimized.outputs(params, x)
        start = torch.zeros(self.classes, mean.shape[1], dtype=x.dtype)
        center, raw = (part.requires_grad_() for part in self.kept.get(client, (start, start + 1)))
        key = Key.of(self.seed, *place_of(self.asked[client], self.local_steps, client))
        self.asked[client] += 1
        z = mean + self.noise * normal(key, Purpose.START, mean.numel()).view_as(mean)
        divergence = kl_divergence(Normal(mean, self.noise), Normal(center[y], softplus(raw)[y])).sum(1)
        lengths = mean.square().sum(1) + mean.shape[1] * self.noise**2
        value = cross_entropy(z, y) + (self.l2 * lengths + self.cmi * divergence).mean()
        model = list(minimized.model.parameters())
        *slopes, of_center, of_raw = torch.autograd.grad(value, [*model, center, raw])
        self.kept[client] = (center - self.rate * of_center).detach(), (raw - self.rate * of_raw).detach()
        return Moved(x, y, float(value.detach()), 0.0, dict(zip(params, slopes, strict=True)))
