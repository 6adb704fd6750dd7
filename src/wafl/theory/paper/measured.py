"""Measure the quantities that the paper's statements assume: excess risks, and differences of gradients.

With ``phi = phi_gamma``, the largest of ``l(theta, z') - gamma c(z, z')`` over z', any z' bounds it from below for
*all* theta, and a loss that is convex in theta lies above its tangents. So an ascent that stops early costs tightness,
never truth: with F and g the mean and its gradient at the moved examples of some theta,

    min over ||theta'|| <= C of E phi(theta')  >=  F - <g, theta> - C ||g||.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.func import grad, vmap

from wafl.base.checks import check_positive
from wafl.base.random import Key, Purpose, normal
from wafl.data.federation import Federation
from wafl.objectives import Wasserstein
from wafl.results.run import Run
from wafl.tasks.task import Loss
from wafl.theory.certificates.mixture import Mixture
from wafl.theory.constants.constant import Constant
from wafl.theory.paper.theorem import require

CHUNK = 256
"""The number of examples whose gradients are in memory at once."""
PRICES = 20
"""The maximum number of prices of a norm to try for the minimum over a ball of parameters."""
CLOSE = 1e-3
"""The maximum gap between the reached and the proven value, as a fraction of the model's risk."""


@dataclass(frozen=True)
class ExcessRisk:
    """The risk of a model, and a lower bound on the risk of all parameters of the ball (definition 4.1).

    ``risk`` is the mean loss or surrogate over the clients' mixture, without the constant ``gamma radius^2``. An ascent
    computes it, exactly above the concavity limit. ``least`` is the proven bound, ``reached`` the least value
    found in the ball, and ``held_out`` the same mean over test examples.
    """

    risk: float
    least: float
    reached: float
    held_out: float | None

    @property
    def value(self) -> float:
        """An upper bound on the excess risk: the model is an epsilon-minimizer with this epsilon."""
        return self.risk - self.least

    @property
    def generalization_gap(self) -> float | None:
        """The mean over test examples less the risk."""
        return None if self.held_out is None else self.held_out - self.risk


def excess_risk(
    model: Run | nn.Module,
    clients: Federation,
    *,
    gamma: float | None,
    params_radius: float,
    steps: int = 100,
    loss: Loss | None = None,
    **cost: Any,
) -> ExcessRisk:
    """Bound how far a model's risk on the clients' examples is above the least possible risk (definition 4.1).

    The minimum over ``||theta|| <= params_radius`` is searched for by L-BFGS, with a price on the norm if it would
    leave the ball, and bounded from below by a tangent plane (see the module). The loss must be convex in the
    parameters: a linear model.

    Args:
        model: a model, or a run, which brings its loss and client weights.
        clients: the federation whose training examples are the center, and whose test examples are held out.
        gamma: the price of transport; None for the plain loss.
        params_radius: C, the radius of the set of parameters that the model competes with.
        steps: the maximum number of steps of one search; 0 only takes the tangent plane at the model itself.
        loss: the loss to use instead of the run's loss; cross-entropy for a plain model.
        cost: options of :class:`wafl.objectives.Wasserstein`, such as ``label_cost`` or ``bounds``.

    >>> import wafl
    >>> clients = wafl.load_dataset("digits").partition(num_clients=3, iid=True)
    >>> run = wafl.fit(wafl.models.mlr(clients), clients, wafl.FedAvg(), rounds=2, local_steps=5, learning_rate=0.5)
    >>> excess = excess_risk(run, clients, gamma=1.0, params_radius=2.0, steps=3)
    >>> 0 <= excess.least <= excess.reached <= excess.risk
    True
    """
    check_positive("params_radius", params_radius)
    mixture = Mixture.of(model, clients, loss=loss)
    convex = mixture.task.linear(mixture.params[None]) is not None and mixture.task.loss.convex
    require(convex, "the loss is not convex in the parameters: its least value is known for linear models only")
    objective = _objective(gamma, cost)
    risk, slope = _value_and_gradient(mixture, objective)
    least = max(0.0, _tangent(mixture.params, risk, slope, params_radius))
    reached = risk if float(mixture.params.norm()) <= params_radius else math.inf
    for params, value, gradient in _searched(mixture, objective, params_radius, steps):
        least = max(least, _tangent(params, value, gradient, params_radius))
        if float(params.norm()) <= params_radius * (1.0 + 1e-9):
            reached = min(reached, value)
        if reached - least <= CLOSE * risk:
            break
    held_out = None
    if min(clients.test.num_examples.tolist()) > 0:
        held_out = _value_and_gradient(Mixture.of(model, clients, "test", loss=loss), objective)[0]
    return ExcessRisk(risk, min(least, risk), reached, held_out)


@dataclass(frozen=True)
class GradientSpread:
    """Measured values for assumptions 3.4 and 3.5: sigma of one example's gradient, and Omega of one client's gradient.

    A batch of B examples has ``noise / sqrt(B)``. Both are the largest over the evaluated parameters, so
    they are estimates; L_theta and 2 L_theta bound them.
    """

    noise: Constant
    heterogeneity: Constant


def gradient_spread(
    model: Run | nn.Module,
    clients: Federation,
    *,
    gamma: float | None,
    params_radius: float | None = None,
    draws: int = 8,
    loss: Loss | None = None,
    seed: int = 0,
    **cost: Any,
) -> GradientSpread:
    """Measure how far gradients differ: of examples from their client's, and of clients from the mixture's.

    Args:
        model: as in :func:`excess_risk`.
        clients: as in :func:`excess_risk`.
        gamma: as in :func:`excess_risk`.
        params_radius: also evaluate ``draws`` random parameters of this norm; None for the model's parameters alone.
        draws: the number of random parameters.
        loss: as in :func:`excess_risk`.
        seed: the seed of the draws.
        cost: as in :func:`excess_risk`.
    """
    mixture, objective = Mixture.of(model, clients, loss=loss), _objective(gamma, cost)
    points = [mixture.params]
    if params_radius is not None:
        for direction in normal(Key.of(seed), Purpose.START, draws * len(mixture.params)).view(draws, -1).double():
            points.append(params_radius * direction / direction.norm())
    spreads = [_spread(replace(mixture, params=point), objective) for point in points]
    why = f"largest at {len(points)} parameters"
    noise, apart = (Constant(max(values), "estimate", why) for values in zip(*spreads, strict=True))
    return GradientSpread(noise, apart)


def _objective(gamma: float | None, cost: dict[str, Any]) -> Wasserstein | None:
    options: dict[str, Any] = {"bounds": None, "steps": 200, "tolerance": 1e-9, **cost}
    return None if gamma is None else Wasserstein(gamma, **options)


def _moved(
    mixture: Mixture, objective: Wasserstein | None, size: int
) -> Iterator[tuple[Tensor, Tensor, Tensor, Tensor]]:
    """Yield moved examples, their labels, the cost of moving, and their shares, a piece at a time."""
    whole = mixture.population()
    assert whole.weight is not None
    for rows in torch.arange(whole.x.shape[1]).split(size):
        x, y = whole.x[:, rows], whole.y[:, rows]
        cost = torch.zeros_like(whole.weight[rows])
        if objective is not None:
            move = objective(mixture.problem, x, y)
            assert objective.gamma is not None
            x, y, cost = move.x_adv, move.y_adv, objective.gamma * move.cost[0]
        yield x, y, cost, whole.weight[rows]


def _value_and_gradient(mixture: Mixture, objective: Wasserstein | None) -> tuple[float, Tensor]:
    """Return the mean over the mixture and its gradient in the parameters, by Danskin's theorem."""
    params = mixture.params.detach().clone().requires_grad_()
    value, slope = 0.0, torch.zeros_like(mixture.params)
    for x, y, cost, share in _moved(mixture, objective, 16 * CHUNK):
        mean = (mixture.task.losses(params[None], x, y)[0] - cost) @ share
        slope += torch.autograd.grad(mean, params)[0]
        value += float(mean.detach())
    return value, slope


def _tangent(params: Tensor, value: float, slope: Tensor, radius: float) -> float:
    """Return the least value of the tangent plane over the ball of parameters."""
    return value - float(slope @ params) - radius * float(slope.norm())


def _searched(
    mixture: Mixture, objective: Wasserstein | None, radius: float, steps: int
) -> Iterator[tuple[Tensor, float, Tensor]]:
    """Yield minimizers of ``F + price / 2 ||theta||^2`` and their values, for prices until one stays inside."""
    from scipy import optimize

    at_zero = _value_and_gradient(replace(mixture, params=torch.zeros_like(mixture.params)), objective)[1]
    point, price, low, high = mixture.params, 0.0, 1e-9, float(at_zero.norm()) / radius  # at high, theta stays inside
    for _ in range(PRICES if steps else 0):

        def goal(flat_params: Any, price: float = price) -> tuple[float, Any]:
            at = torch.from_numpy(flat_params)
            value, slope = _value_and_gradient(replace(mixture, params=at), objective)
            return value + price / 2.0 * float(at @ at), (slope + price * at).numpy()

        flat = 0.1 * CLOSE / radius / math.sqrt(len(point))  # so long a gradient leaves a tenth of the gap
        options = {"maxiter": steps, "ftol": 1e-14, "gtol": flat}
        minimum = cast(Any, optimize).minimize(goal, point.numpy(), jac=True, method="L-BFGS-B", options=options)
        point = torch.from_numpy(minimum.x.copy())
        inside = float(point.norm()) <= radius
        for at in (point,) if inside else (point, point * (radius / point.norm())):
            yield (at, *_value_and_gradient(replace(mixture, params=at), objective))
        if inside and price == 0.0:
            return
        low, high = (low, price) if inside else (max(low, price), high)
        price = math.sqrt(low * high)


def _spread(mixture: Mixture, objective: Wasserstein | None) -> tuple[float, float]:
    """Return sigma and Omega at one set of parameters."""
    flat, task = mixture.params, mixture.task

    def gradient(x: Tensor, y: Tensor) -> Tensor:
        return grad(lambda at: task.losses(at[None], x[None, None], y[None, None])[0, 0])(flat)

    owner = torch.repeat_interleave(torch.arange(len(mixture.weights)), mixture.examples.num_examples)
    total = flat.new_zeros(len(mixture.weights), len(flat))
    square, first = flat.new_zeros(len(mixture.weights)), 0
    for x, y, _, share in _moved(mixture, objective, CHUNK):
        every, whose = vmap(gradient)(x[0], y[0]), owner[first : first + len(share)]
        total.index_add_(0, whose, every)
        square.index_add_(0, whose, every.square().sum(1))
        first += len(share)
    sizes = mixture.examples.num_examples.to(flat)
    means = total / sizes[:, None]
    noise = (square / sizes - means.square().sum(1)).clamp_min(0.0).max().sqrt()
    return float(noise), float((means - mixture.weights @ means).norm(dim=1).max())
