"""Search for the largest slope and curvature at given examples; the results never exceed the true values."""

from collections.abc import Callable, Sequence
from functools import partial
from typing import cast

import torch
from torch import Tensor
from torch.autograd.functional import vhp
from torch.func import grad, vmap

from wafl.base.norms import dual, power_norm
from wafl.base.random import Key, Purpose, normal
from wafl.tasks.task import Task

ITERATIONS = 30
CHUNK = 32
"""Examples processed together: second derivatives keep a copy of the parameters for each."""


def largest_slope(task: Task, params: Tensor, x: Tensor, y: Tensor, norm: float) -> float:
    """Return the largest ``||dloss/dx||_*`` over the examples ``x [N, ...]``."""
    gradients = task.input_gradient(params[None], x[None], y[None])[1][0]
    return float(power_norm(gradients.flatten(1), dual(norm), 1).max())


def largest_curvature(task: Task, params: Tensor, x: Tensor, y: Tensor, norm: float) -> float:
    """Return the largest ``||H v||_*`` over ``||v|| <= 1``, H the Hessian in x, by power iteration.

    No iteration lowers it.
    """

    def step(z: Tensor, label: Tensor, v: Tensor) -> Tensor:
        slope = grad(lambda moved: _loss(task, moved, label, params))
        return grad(lambda moved: (slope(moved) * v.view_as(z)).sum())(z).flatten()

    if task.traits.obstacle is None:
        return _power_iteration(step, x, y, x[0].numel(), norm)
    return max(_curvature_together(task, params, *part, norm) for part in _parts(x, y))


def _curvature_together(task: Task, params: Tensor, x: Tensor, y: Tensor, norm: float) -> float:
    """Return the largest curvature for a model that ``vmap`` cannot call.

    Each example's loss must depend on no other example.
    """
    steepest = vmap(partial(_steepest, norm=norm))

    def bent(v: Tensor) -> Tensor:
        product = vhp(lambda moved: task.losses(params[None], moved[None], y[None]).sum(), x, v.view_as(x))[1]
        return cast(Tensor, product).flatten(1)

    v = steepest(_starts(x, x[0].numel()))
    for _ in range(ITERATIONS):
        v = steepest(bent(v))
    return float(power_norm(bent(v), dual(norm), 1).max())


def largest_param_slope(task: Task, params: Tensor, x: Tensor, y: Tensor) -> float:
    """Return the largest ``||dloss/dtheta||`` over the examples."""

    def length(z: Tensor, label: Tensor) -> Tensor:
        return grad(lambda flat: _loss(task, z, label, flat))(params).norm()

    return max(float(vmap(length)(*part).max()) for part in _parts(x, y))


def largest_label_gap(task: Task, params: Tensor, x: Tensor, labels: Sequence[Tensor]) -> float:
    """Return how much a label changes the loss: between classes, or per unit of a target at these targets."""
    if not labels[0].is_floating_point():
        losses = torch.stack([task.losses(params[None], x[None], y[None])[0] for y in labels])
        return float((losses.amax(0) - losses.amin(0)).max())

    def length(z: Tensor, target: Tensor) -> Tensor:
        return grad(lambda moved: _loss(task, z, moved, params))(target).norm()

    return max(float(vmap(length)(x, y).max()) for y in labels)


def largest_param_curvature(task: Task, params: Tensor, x: Tensor, y: Tensor) -> float:
    """Return the largest norm of the Hessian in theta over the examples, by power iteration."""

    def step(z: Tensor, label: Tensor, v: Tensor) -> Tensor:
        slope = grad(lambda flat: _loss(task, z, label, flat))
        return grad(lambda flat: (slope(flat) * v).sum())(params)

    return _power_iteration(step, x, y, params.numel(), 2)


def largest_mixed(task: Task, params: Tensor, x: Tensor, y: Tensor) -> float:
    """Return the largest norm of ``A = d^2 loss / dtheta dx`` over the examples, by power iteration on ``A^T A``."""

    def step(z: Tensor, label: Tensor, v: Tensor) -> Tensor:
        in_input = grad(lambda moved, flat: _loss(task, moved, label, flat))
        in_params = grad(lambda flat, moved: _loss(task, moved, label, flat))
        u = grad(lambda flat: (in_input(z, flat) * v.view_as(z)).sum())(params)
        return grad(lambda moved: (in_params(params, moved) * u).sum())(z).flatten()

    return _power_iteration(step, x, y, x[0].numel(), 2) ** 0.5


def _power_iteration(
    step: Callable[[Tensor, Tensor, Tensor], Tensor], x: Tensor, y: Tensor, width: int, norm: float
) -> float:
    """Return the largest ``||step(z, y, v)||_*`` found over ``||v|| <= 1`` and all examples."""

    def one(z: Tensor, label: Tensor, start: Tensor) -> Tensor:
        v = _steepest(start, norm)
        for _ in range(ITERATIONS):
            v = _steepest(step(z, label, v), norm)
        return power_norm(step(z, label, v), dual(norm), 1)

    return max(float(vmap(one)(*part, _starts(part[0], width)).max()) for part in _parts(x, y))


def _steepest(g: Tensor, norm: float) -> Tensor:
    """Return the unit vector of the norm that maximizes ``<g, v>``."""
    if norm == 2:
        return g / g.norm().clamp_min(1e-30)
    if norm == 1:
        peak = g.abs() >= g.abs().amax()
        return torch.where(peak, g.sign(), 0.0) / peak.sum()
    return g.sign()


def _loss(task: Task, z: Tensor, label: Tensor, flat: Tensor) -> Tensor:
    return task.losses(flat[None], z[None, None], label[None, None])[0, 0]


def _parts(x: Tensor, y: Tensor) -> list[tuple[Tensor, Tensor]]:
    return list(zip(x.split(CHUNK), y.split(CHUNK), strict=True))


def _starts(x: Tensor, width: int) -> Tensor:
    """Return one random direction per example."""
    number = torch.arange(len(x), device=x.device)
    zero = torch.zeros_like(number)
    return normal(Key(zero, zero, number, zero), Purpose.START, width).to(x)
