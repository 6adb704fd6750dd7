"""Convert between gamma and the radius that it achieves."""

import math
import os
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from torch import nn

from wafl.attacks import Attack, Population
from wafl.base.bounds import DATA, Bounds, Box, check_bounds
from wafl.base.checks import check_positive, check_seed
from wafl.base.norms import norm_name, power_norm
from wafl.base.shown import shows
from wafl.data.arguments import check_arguments
from wafl.data.federation import Federation
from wafl.objectives import Wasserstein
from wafl.results.run import Run
from wafl.tasks.task import Loss
from wafl.theory.certificates.mixture import Means, Mixture
from wafl.theory.certificates.upper import UpperBound
from wafl.weights import ClientWeights

SECTIONS = 8
"""The number of parts into which the gammas of one query cut a bracket."""
CHUNK = 2048


@dataclass(frozen=True)
class Calibration:
    """The achieved radius and the robust loss at each gamma.

    ``radii[k]`` is the root mean cost at ``gammas[k]``, and ``losses[k]`` is the mean phi_gamma. ``declared`` is the
    box that the data declare.
    """

    gammas: tuple[float, ...]
    radii: tuple[float, ...]
    losses: tuple[float, ...]
    norm: float
    unit: str
    mixture: Mixture = field(repr=False)
    objective: Wasserstein = field(repr=False)
    seed: int
    declared: Box | None = None

    def __str__(self) -> str:
        rows = [f"{'gamma':>10} {'radius':>10} {'loss':>10}"]
        rows += [
            f"{gamma:>10.4g} {radius:>10.4g} {loss:>10.4g}"
            for gamma, radius, loss in zip(self.gammas, self.radii, self.losses, strict=True)
        ]
        return "\n".join([*rows, f"{norm_name(self.norm)} ball, {self.unit}; loss is the mean of phi_gamma"])

    def gamma_for(self, radius: float) -> float:
        """Return the gamma with this achieved radius.

        If the radius jumps there, this is the smallest gamma that stays below it. The achieved radius decreases as
        gamma increases, so each query to all clients narrows a bracket.

        As in training, an ascent finds the moves. Below the concavity limit, better and longer moves may exist
        (``restarts`` looks for some), so this is not the gamma of the worst distribution at that radius.
        Use :func:`wafl.certify` for that gamma.
        """
        check_positive("radius", radius)
        limit = _finite_above(self.mixture, self.objective)
        low, high = (gamma - limit for gamma in self._bracket(radius))
        low = max(low, high * 1e-9)
        while high / low > 1.0 + 1e-6:
            inner = [low * (high / low) ** (part / SECTIONS) for part in range(1, SECTIONS)]
            achieved = self._achieved([limit + excess for excess in inner])
            low = max([low, *(excess for excess, value in zip(inner, achieved, strict=True) if value > radius)])
            high = min([high, *(excess for excess in inner if excess > low)])
        return limit + high

    def gamma_matching(self, attack: Attack) -> float:
        """Return the gamma with moves as large as an attack's, such as ``wafl.PGD(epsilon=0.3)``."""
        return self.gamma_for(self.size_of(attack))

    def size_of(self, attack: Attack) -> float:
        """Return the root mean cost of an attack's moves over the mixture, in the ground norm."""
        attack = attack.within(self.declared)
        whole, problem = self.mixture.population(), self.mixture.problem
        numbers, shares = whole.numbers(), whole.shares()
        pieces = list(numbers.split(CHUNK)) if attack.pointwise else [numbers]
        total = 0.0
        for rows in pieces:
            part = Population(whole.x[:, rows], whole.y[:, rows], rows, shares[rows])
            moved = attack.move(problem, part, self.seed)
            cost = power_norm((moved - part.x).flatten(2), self.norm, self.objective.power)[0]
            total += float(shares[rows] @ cost)
        return total ** (1.0 / self.objective.power)

    def plot(self, path: str | os.PathLike[str] | None = None) -> Any:
        """Plot the achieved radius against gamma: the paper's figure 2."""
        from wafl.report.plotting import radius_against_gamma

        return radius_against_gamma(self.gammas, self.radii, self.norm, self.unit, None if path is None else Path(path))

    def _achieved(self, gammas: Sequence[float]) -> list[float]:
        costs = _means(self.mixture, self.objective, gammas, self.seed).cost
        return [cost ** (1.0 / self.objective.power) for cost in costs]

    def _bracket(self, radius: float) -> tuple[float, float]:
        """Return two gammas with achieved radii below and above ``radius``, from the grid or beyond it."""
        points = dict(zip(self.gammas, self.radii, strict=True))
        while not any(achieved > radius for achieved in points.values()):
            gamma = min(points) / 4.0
            if gamma < 1e-12:
                raise ValueError(
                    f"radius={radius:g} cannot be reached: even at no cost the examples move by only "
                    f"{max(points.values()):.4g} (the loss is flat, or the bounds are full)"
                )
            points[gamma] = self._achieved([gamma])[0]
        while not any(achieved <= radius for achieved in points.values()):
            gamma = max(points) * 4.0
            points[gamma] = self._achieved([gamma])[0]
        low = max(gamma for gamma, achieved in points.items() if achieved > radius)
        high = min(gamma for gamma, achieved in points.items() if achieved <= radius)
        return (low, high) if low < high else (high, low)


@shows("calibrate")
def calibrate(
    model: Run | nn.Module,
    clients: Federation,
    *,
    gammas: Sequence[float],
    norm: float = 2,
    power: int = 2,
    label_cost: float = math.inf,
    steps: int = 200,
    tolerance: float = 1e-6,
    restarts: int = 0,
    bounds: Bounds = DATA,
    split: Literal["train", "test"] = "train",
    client_weights: ClientWeights | None = None,
    loss: Loss | None = None,
    seed: int = 0,
    progress: bool | None = None,
) -> Calibration:
    """Compute the achieved radius of each gamma, as in the paper's figure 2; clients report two numbers per gamma.

    The model does not change. During training the radius of a gamma changes with the model;
    ``wafl.WAFL(radius=...)`` adjusts gamma to it.

    See Also:
        :func:`wafl.certify`

    Args:
        model: a model, or a run, which brings its loss and client weights.
        clients: the federation with the examples.
        gammas: the prices of transport to evaluate; at least one.
        norm: the ground norm, 1, 2 or inf.
        power: the order of the transport cost, 1 or 2.
        label_cost: the price of changing a label; inf keeps labels fixed.
        steps: the maximum number of steps of the inner ascent.
        tolerance: how close to its fixed point an example stops, relative to its move; 0 takes all steps.
        restarts: random starts in addition to the example itself.
        bounds: where moved examples must stay: ``"data"`` (the clients' declared bounds), a box ``(low, high)``, or
            None.
        split: ``"train"`` or ``"test"`` examples.
        client_weights: the center of the ball; by default the run's final weights, or by examples for a plain model.
        loss: the loss to use instead of the run's loss; cross-entropy for a plain model.
        seed: the seed of the random starts.
        progress: whether to show progress; by default on a terminal and in notebooks.

    >>> import wafl
    >>> clients = wafl.load_dataset("digits").partition(num_clients=4, iid=True)
    >>> run = wafl.fit(wafl.models.mlr(clients), clients, wafl.FedAvg(), rounds=2, local_epochs=1)
    >>> ball = calibrate(run, clients, gammas=[0.1, 1.0, 10.0])
    >>> ball.radii[0] > ball.radii[1] > ball.radii[2]
    True
    >>> gamma = ball.gamma_for(0.05)
    """
    check_arguments("calibrate(model, clients, gammas=[...])", model, clients)
    check_seed(seed)
    wanted = tuple(float(gamma) for gamma in gammas)
    if not wanted:
        raise ValueError("gammas is empty: give at least one")
    for gamma in wanted:
        check_positive("gamma", gamma)
    options = (norm, power, label_cost, steps, tolerance, restarts, check_bounds(bounds))
    objective = Wasserstein(wanted[0], None, *options).within(clients.bounds)
    objective.check_length()
    mixture = Mixture.of(model, clients, split, client_weights, loss)
    means = _means(mixture, objective, wanted, seed)
    radii = tuple(cost ** (1.0 / power) for cost in means.cost)
    return Calibration(wanted, radii, tuple(means.value), norm, clients.unit, mixture, objective, seed, clients.bounds)


def _means(mixture: Mixture, objective: Wasserstein, gammas: Sequence[float], seed: int) -> Means:
    """Return the mean robust loss and cost over the mixture at each gamma."""
    limit = _finite_above(mixture, objective)
    if limit == 0.0:
        return mixture.means(objective, [{"gamma": gamma} for gamma in gammas], seed)
    # A regression's ascent is slow near the limit, but it climbs a parabola, whose maximum is known.
    above = [gamma for gamma in gammas if gamma > limit]
    settings = [{"gamma": gamma, "curvature": 2.0 * limit} for gamma in above]
    means = (
        mixture.means(UpperBound(2, objective.steps, objective.tolerance, None), settings, seed)
        if above
        else Means([], [])
    )
    value, cost = (dict(zip(above, part, strict=True)) for part in (means.value, means.cost))
    return Means([value.get(gamma, math.inf) for gamma in gammas], [cost.get(gamma, math.inf) for gamma in gammas])


def _finite_above(mixture: Mixture, objective: Wasserstein) -> float:
    """Return the gamma above which phi_gamma is finite: ``L_zz / 2`` for a linear regression, otherwise 0."""
    plain = objective.norm == 2 and objective.power == 2 and objective.bounds is None
    curvature = mixture.problem.curvature
    if not plain or math.isfinite(objective.label_cost) or mixture.task.loss.quadratic is None:
        return 0.0
    return 0.0 if curvature is None else float(curvature[0]) / 2.0
