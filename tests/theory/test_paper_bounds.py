"""Every bound against a world in which the bounded quantity can be computed, and each term by hand."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import ot
import pytest
import torch
from scipy import integrate, optimize

import wafl
from tests.oracles import bounds as worlds
from tests.oracles.bounds import ROOT2, Cluster, Line, Population, least, mix, risk
from wafl import PreconditionError
from wafl.theory import (
    Bound,
    Concentration,
    Constant,
    covering_radius,
    distance_to_client,
    distance_to_target,
    excess_risk_sandwich,
    generalization_to_truth,
    risk_spread,
    robust_generalization,
)
from wafl.theory.paper.generalization import ENTROPY

WEIGHTS = [0.5, 0.3, 0.2]
CLIENTS = [Cluster((0.3, 0.1), share=0.5), Cluster((0.1, 0.4), share=0.4), Cluster((0.4, -0.2), share=0.7)]
LINES = [Line((-0.3,)), Line((0.1,)), Line((0.4,))]
MIXTURE = Line((-0.3, 0.1, 0.4), tuple(WEIGHTS))


def on_a_disc(radius: float, rings: int = 12):
    """A net of a disc: the center and 72 points on each of 12 rings."""
    angle = np.linspace(0.0, 2.0 * np.pi, 6 * rings, endpoint=False)
    circle = np.stack([np.cos(angle), np.sin(angle)], 1)
    return np.concatenate([r * circle for r in radius * np.arange(1, rings + 1) / rings] + [np.zeros((1, 2))])


# --- a bound as a value ---


def test_a_bound_is_the_sum_of_its_terms():
    bound = Bound("sum", {"small": 0.25, "large": 2.0, "middle": 1.0}, paper=2.5)
    assert bound.value == 3.25
    assert bound.largest == "large"
    assert str(bound) == "sum: 3.25 = 0.25 (small) + 2 (large) + 1 (middle); the paper's: 2.5"
    assert "paper" not in str(replace(bound, paper=None))


# --- lemma 4.2 ---


@pytest.mark.parametrize("dimension", [1, 3])
@pytest.mark.parametrize("gamma", [0.6, 3.0])
def test_the_surrogate_exceeds_the_loss_by_at_most_l_z_squared_over_4_gamma(dimension, gamma):
    rng = np.random.default_rng(dimension)
    steepest = 0.0
    for _ in range(10):
        v = rng.normal(size=dimension + 1)
        v *= 1.4 / np.linalg.norm(v)
        x = torch.from_numpy(rng.normal(size=(40, dimension)) * 10.0 ** rng.uniform(-1, 2, size=(40, 1)))
        y = torch.from_numpy(rng.integers(2, size=40))
        model = worlds.model(v)
        slope = float(wafl.theory.constants(model, (x, y)).L_z)
        assert slope == pytest.approx(np.linalg.norm(v[:-1]), rel=1e-12)
        robust = wafl.robust_loss(model, x, y, gamma=gamma, tolerance=1e-12).value
        gain = robust - torch.nn.functional.cross_entropy(model(x), y, reduction="none").detach()
        assert float(gain.max()) <= slope**2 / (4.0 * gamma) * (1.0 + 1e-9)
        steepest = max(steepest, float(gain.max()) / (slope**2 / (4.0 * gamma)))
    assert steepest > 0.999  # attained where the loss is a straight line


def moves(population: Population, v, radius: float, rng: np.random.Generator):
    """Inputs moved by ``radius`` in root mean square: at random, uphill and downhill for v, and by a common shift."""
    noise = rng.normal(size=population.x.shape)
    uphill = -population.sign[:, None] * v[:-1] / max(np.linalg.norm(v[:-1]), 1e-12)
    few = uphill * (rng.random(len(uphill)) < 0.3)[:, None]
    for move in (noise, uphill, -uphill, few, np.broadcast_to(noise[0], noise.shape)):
        length = math.sqrt(population.mass @ (move**2).sum(1))
        if length > 0:
            yield population.x + move * (radius / length)


@pytest.mark.parametrize("seed", range(12))
def test_the_sandwich_encloses_the_excess_risk_and_is_twice_too_wide(seed):
    """At any gamma; the paper needs at least ``L_z / radius``."""
    rng = np.random.default_rng(seed)
    dimension, ball = int(rng.integers(1, 3)), float(rng.choice([0.5, 1.5, 4.0]))
    centers = rng.uniform(-0.5, 0.5, size=(3, dimension))
    population = mix([Cluster(tuple(c)).sample(60, rng) for c in centers], WEIGHTS)
    radius = float(rng.choice([0.03, 0.2, 0.5]))
    steep = ROOT2 * ball
    gamma = steep / radius * float(rng.choice([0.5, 1.0, 6.0]))
    constants = worlds.constants_of(dimension, ball, gamma)
    assert float(constants.L_z) == pytest.approx(steep)
    best = least(population, steep, gamma)
    assert best.gap < 1e-6
    apart = 0.0
    for _ in range(4):
        v = rng.normal(size=dimension + 1)
        v *= steep * rng.choice([1.0, rng.random()]) / np.linalg.norm(v)
        surrogate = risk(v, population, gamma) - best.value
        star = best_gamma(v, population, radius)
        bound = excess_risk_sandwich(constants, gamma=gamma, radius=radius, surrogate_excess=surrogate, gamma_star=star)
        for x in moves(population, v, radius, rng):
            moved = population.moved(x)
            result = least(moved, steep)
            assert result.gap < 1e-6
            excess = risk(v, moved) - result.value
            assert bound.lower - 2e-6 <= excess <= bound.upper + 2e-6
            apart = max(apart, abs(excess - surrogate))
        # On a convex domain gamma* is at most L_z / (2 radius), so the paper's width is valid, though not its proof.
        assert star <= steep / (2.0 * radius) * (1.0 + 1e-3)
        if gamma >= steep / radius * (1.0 - 1e-12):
            assert apart <= bound.paper + 2e-6
        else:
            assert bound.paper is None
    assert apart <= bound.value / 2.0
    assert bound.value <= 2.0 * steep * radius + gamma * radius**2  # what the paper's proof gives without gamma*


def best_gamma(v, population: Population, radius: float) -> float:
    """The gamma of the dual, searched above the concavity limit of this v."""
    lowest = max(float(v[:-1] @ v[:-1]) / 8.0 * 1.001, 1e-9)
    result = optimize.minimize_scalar(
        lambda log: math.exp(log) * radius**2 + risk(v, population, math.exp(log)),
        bounds=(math.log(lowest), math.log(1e4)),
        method="bounded",
        options={"xatol": 1e-4},
    )
    return math.exp(result.x)


def test_the_papers_width_fails_where_examples_jump():
    """Three points: z1 at t > radius from z0, z2 at radius / 2 on the other side; all of P at z0.

    The gamma* of f is L_z / t, close to L_z / radius, so the paper's width is little more than 2 L_z radius. But the f
    that is best on Q has a different gamma*: its surrogate gains from z2, while the surrogate of f gains nothing.
    """
    slope, radius, far = 1.0, 1.0, 1.0 / 0.95
    distance = np.array([[0.0, far, 0.5], [far, 0.0, far + 0.5], [0.5, far + 0.5, 0.0]])
    f = np.array([0.0, slope * far, 0.0])
    other = -0.3 + np.array([0.0, -slope * far, 0.5 * slope])
    for loss in (f, other):
        assert (np.abs(loss[:, None] - loss) <= slope * distance + 1e-12).all()
    p, q = np.array([1.0, 0.0, 0.0]), np.array([1.0 - radius**2 / far**2, radius**2 / far**2, 0.0])
    assert ot.emd2(p, q, distance**2) == pytest.approx(radius**2)

    def robust(loss, gamma):
        return float(p @ (loss - gamma * distance**2).max(1))

    gamma, grid = slope / radius, np.linspace(0.0, 3.0, 30001)
    star = float(grid[np.argmin([g * radius**2 + robust(f, g) for g in grid])])
    assert star == pytest.approx(slope / far, abs=1e-3)
    excess = q @ f - min(q @ f, q @ other)
    surrogate = robust(f, gamma) - min(robust(f, gamma), robust(other, gamma))
    constants = replace(worlds.constants_of(1, 1.0), L_z=Constant(slope, "exact", "by construction"))
    bound = excess_risk_sandwich(constants, gamma=gamma, radius=radius, surrogate_excess=surrogate, gamma_star=star)
    assert excess - surrogate == pytest.approx(2.15)
    assert bound.paper == pytest.approx(2.05, abs=1e-3)
    assert bound.paper < excess - surrogate <= bound.value == pytest.approx(2.25)


def test_the_terms_of_the_sandwich_agree_with_a_calculation_by_hand():
    constants = worlds.constants_of(2, 3.0)
    bound = excess_risk_sandwich(constants, gamma=20.0, radius=0.25, surrogate_excess=0.5, gamma_star=4.0)
    names = ["L_z radius", "L_z^2 / (4 gamma)", "min(gamma radius^2, L_z radius)"]
    assert bound.terms == pytest.approx(dict(zip(names, [0.75 * ROOT2, 18.0 / 80.0, 0.75 * ROOT2], strict=True)))
    assert bound.paper == pytest.approx(1.5 * ROOT2 + 1.0)
    assert (bound.lower, bound.upper) == pytest.approx((0.5 - bound.value, 0.5 + bound.value))
    assert excess_risk_sandwich(constants, gamma=20.0, radius=0.25).paper is None
    below = excess_risk_sandwich(constants, gamma=16.0, radius=0.25, gamma_star=4.0)
    assert below.terms["min(gamma radius^2, L_z radius)"] == pytest.approx(1.0)
    assert below.paper is None  # the paper needs gamma >= L_z / radius = 16.97


def test_the_sandwich_needs_constants_over_the_whole_ball():
    """L_z at one model says nothing about the other models, one of which is the best on Q."""
    x, sign = np.array([[0.1], [-0.1]]), np.array([1.0, -1.0])
    near = Population(x, sign, np.array([0.5, 0.5]))
    far = near.moved(9.0 * x)
    radius, gamma, ball = 0.8, 0.3, 1.5
    still = np.zeros(2)
    surrogate = risk(still, near, gamma) - least(near, ball, gamma).value
    excess = risk(still, far) - least(far, ball).value
    assert excess > surrogate + gamma * radius**2 + 0.2  # what this model's L_z = 0 would promise
    with pytest.raises(PreconditionError, match="params_radius"):
        excess_risk_sandwich(worlds.constants_of(1, None), gamma=gamma, radius=radius, surrogate_excess=surrogate)


def test_no_two_risks_in_the_ball_are_farther_apart_than_proposition_d_1_says():
    """Uphill and downhill by the radius, where the loss is a straight line, attain it."""
    rng, radius = np.random.default_rng(0), 0.4
    v = np.array([1.2, -0.7, 30.0])
    population = replace(Cluster((0.2, 0.1)).sample(50, rng), sign=-np.ones(50))
    known = wafl.theory.constants(worlds.model(v), population.pair)
    bound = risk_spread(known, radius=radius)
    assert bound.value == pytest.approx(2.0 * radius * math.hypot(1.2, 0.7))
    risks = [risk(v, population.moved(x)) for x in moves(population, v, radius, rng)]
    assert 0.999 * bound.value <= max(risks) - min(risks) <= bound.value * (1.0 + 1e-12)


class Regression:
    """Regression without intercept on one input: ``(w x - y)^2``, where everything is known in closed form.

    With r the root mean square residual, the largest risk at W_2 distance ``radius`` is ``(r + |w| radius)^2``, of
    residuals that are all stretched alike, and the smallest is ``max(r - |w| radius, 0)^2``. phi_gamma is
    ``gamma / (gamma - w^2)`` times the loss.
    """

    def __init__(self, x, y):
        self.x, self.y = np.array(x), np.array(y)

    def residual(self, w) -> float:
        return math.sqrt(np.mean((w * self.x - self.y) ** 2))

    def stretched(self, w, length: float) -> Regression:
        return Regression(self.x + np.sign(w) * length / self.residual(w) * (w * self.x - self.y), self.y)

    def excess(self, w) -> float:
        best = np.clip(np.dot(self.x, self.y) / max(np.dot(self.x, self.x), 1e-300), -1.0, 1.0)
        return self.residual(w) ** 2 - self.residual(best) ** 2

    def surrogate_excess(self, w, gamma: float) -> float:
        def surrogate(v):
            return gamma / (gamma - v**2) * self.residual(v) ** 2

        return surrogate(w) - min(surrogate(v) for v in np.linspace(-1.0, 1.0, 401))

    def constants(self, gamma: float, w=None) -> wafl.theory.Constants:
        model = torch.nn.Linear(1, 1, bias=False).double()
        torch.nn.init.constant_(model.weight, 0.0 if w is None else w)
        pair = torch.from_numpy(self.x)[:, None], torch.from_numpy(self.y)[:, None]
        given = {"data_bounds": (-1.0, 1.0), "params_radius": 1.0 if w is None else None, "loss": "squared_error"}
        reach = wafl.theory.constants(model, pair, **given).reach_of(gamma)
        return wafl.theory.constants(model, pair, **given, reach=reach)


def regressions():
    rng = np.random.default_rng(3)
    yield Regression([1.0], [-1.0]), 1.0
    for _ in range(20):
        yield Regression(rng.uniform(-1.0, 1.0, 5), rng.uniform(-1.0, 1.0, 5)), float(rng.uniform(-1.0, 1.0))


@pytest.mark.parametrize("radius", [0.1, 1.0, 5.0])
@pytest.mark.parametrize("gamma", [1.5, 50.0])
def test_the_squared_errors_sandwich_holds_outside_the_box(gamma, radius):
    """At gamma 50 and radius 5 the largest excess is 49, and L_z of the box promises 41."""
    largest = 0.0
    for line, w in regressions():
        surrogate = line.surrogate_excess(w, gamma)
        bound = excess_risk_sandwich(line.constants(gamma), gamma=gamma, radius=radius, surrogate_excess=surrogate)
        for length in (radius, -min(radius, line.residual(w) / abs(w))):
            excess = line.stretched(w, length).excess(w)
            assert bound.lower <= excess <= bound.upper
            largest = max(largest, excess)
        if (gamma, radius) == (50.0, 5.0) and len(line.x) == 1:
            assert excess < largest == pytest.approx(49.0)
            in_box = float(line.constants(gamma).L_z) * radius
            assert surrogate + 2.0 * in_box + bound.terms["L_z^2 / (4 gamma)"] < 49.0, "the bound with L_z alone"
            assert list(bound.terms)[-1] == "min(gamma radius^2, L_z radius + L_zz radius^2 / 2)"


@pytest.mark.parametrize("radius", [0.1, 1.0, 5.0])
def test_risks_of_the_squared_error_are_as_far_apart_as_the_closed_form_says(radius):
    tightest = math.inf
    for line, w in regressions():
        risks = [line.stretched(w, length).residual(w) ** 2
                 for length in (radius, -min(radius, line.residual(w) / abs(w)))]  # fmt: skip
        r, move = line.residual(w), abs(w) * radius
        assert risks == pytest.approx([(r + move) ** 2, max(r - move, 0.0) ** 2], abs=1e-12)
        bound = risk_spread(line.constants(50.0, w), radius=radius).value
        assert risks[0] - risks[1] <= bound * (1.0 + 1e-12)
        tightest = min(tightest, bound / (risks[0] - risks[1]))
    assert tightest < 1.4


def test_moves_of_targets_count_outside_the_box():
    """With label cost k, x and y together change the residual by at most ``radius sqrt(w^2 + 1 / k)``."""
    line, w, radius, cost = Regression([1.0], [-1.0]), 1.0, 5.0, 0.5
    known = replace(line.constants(50.0, w), label_cost=cost, L_z=Constant(4.0 * math.sqrt(3.0), "exact", "by hand"))
    bound = risk_spread(known, radius=radius)
    risk_at = (2.0 + radius * math.sqrt(w**2 + 1.0 / cost)) ** 2
    assert risk_at <= bound.value
    assert bound.terms["L_zz radius^2 / 2"] == pytest.approx((w**2 + 1.0 / cost) * radius**2)


# --- theorem 4.4 ---


def test_the_entropy_integral_of_a_ball():
    """``integral of sqrt(log N)``, with ``N <= (1 + 2 C / eps)^d`` for eps below C and 1 above, is 1.35 C sqrt(d)."""
    exact = integrate.quad(lambda u: math.sqrt(math.log1p(2.0 / u)), 0.0, 1.0)[0]
    assert exact <= ENTROPY == pytest.approx(exact, abs=1e-4)


@pytest.mark.slow
def test_the_statistics_terms_bound_the_largest_deviation_of_the_surrogate():
    """``sup over theta of E phi - mean phi`` of the whole mixture, with the sup over a net of a disc of parameters."""
    rng = np.random.default_rng(0)
    ball, gamma, sizes, delta = 1.0, 5.0, [20, 40, 80], 0.1
    constants = worlds.constants_of(1, ball, gamma)
    bound = robust_generalization(constants, WEIGHTS, sizes, gamma=gamma, radius=1.0, delta=delta)
    clients = [Cluster((0.3,), share=0.5), Cluster((0.6,), share=0.3), Cluster((-0.2,), share=0.6)]
    net = on_a_disc(ROOT2 * ball)
    truths = [worlds.ascend(net, c.nodes().x, c.nodes().sign, gamma)[0] @ c.nodes().mass for c in clients]
    best = int(np.argmin(np.array(WEIGHTS) @ np.array(truths)))
    rademacher, apart, at_best = 0.0, [], []
    for _ in range(100):
        above, signed = np.zeros(len(net)), np.zeros(len(net))
        for truth, client, size, weight in zip(truths, clients, sizes, WEIGHTS, strict=True):
            sample = client.sample(size, rng)
            values = worlds.ascend(net, sample.x, sample.sign, gamma)[0]
            above += weight * (truth - values.mean(1))
            signed += weight * (values @ rng.choice([-1.0, 1.0], size)) / size
        apart.append(above.max())
        at_best.append(-above[best])
        rademacher += signed.max() / 100
    total = np.array(apart) + np.array(at_best)
    assert np.mean(total > bound.terms["complexity"] + bound.terms["confidence"]) <= delta
    # Each part separately: chaining, symmetrization, McDiarmid around the mean, and Hoeffding at the best parameters.
    assert 2.0 * rademacher <= bound.terms["complexity"]
    assert np.mean(apart) <= 2.0 * rademacher
    assert np.quantile(apart, 1.0 - delta / 2) - np.mean(apart) <= bound.terms["confidence"] / 2.0
    assert np.quantile(at_best, 1.0 - delta / 2) <= bound.terms["confidence"] / 2.0


def test_robust_generalization_holds_in_every_repetition():
    rng = np.random.default_rng(1)
    ball, radius, sizes, delta = 1.5, 0.3, [60, 120, 240], 0.05
    steep = ROOT2 * ball
    gamma = 1.2 * steep / radius
    constants = worlds.constants_of(2, ball, gamma)
    truth = mix([client.nodes(16) for client in CLIENTS], WEIGHTS)
    shifted = [truth.moved(truth.x + radius * np.array(s)) for s in ((1.0, 0.0), (0.0, -1.0), (-0.6, 0.8))]
    bests = [least(q, steep).value for q in shifted]
    largest = 0.0
    for _ in range(12):
        sample = mix([c.sample(n, rng) for c, n in zip(CLIENTS, sizes, strict=True)], WEIGHTS)
        result = least(sample, steep, gamma)
        bound = robust_generalization(
            constants, WEIGHTS, sizes, gamma=gamma, radius=radius, delta=delta, optimization_gap=result.gap
        )
        uphill = truth.moved(next(x for i, x in enumerate(moves(truth, result.v, radius, rng)) if i == 1))
        excesses = [risk(result.v, q) - best for q, best in zip(shifted, bests, strict=True)]
        excesses.append(risk(result.v, uphill) - least(uphill, steep).value)
        assert max(excesses) <= bound.value
        largest = max(largest, max(excesses) / bound.value)
    assert 1e-4 < largest < 0.1  # with much to spare: the complexity term is over 50 times too large
    assert bound.largest == "complexity"


def test_the_terms_of_robust_generalization_agree_with_a_calculation_by_hand():
    ball, gamma, radius, delta, sizes = 2.0, 30.0, 0.4, 0.1, [100, 25, 400]
    constants = worlds.constants_of(2, ball, gamma)
    bound = robust_generalization(
        constants, WEIGHTS, sizes, gamma=gamma, radius=radius, delta=delta, optimization_gap=0.02, gamma_star=3.0
    )
    roots, spread = 0.5 / 10 + 0.3 / 5 + 0.2 / 20, math.sqrt(0.25 / 100 + 0.09 / 25 + 0.04 / 400)
    norm = math.hypot(ROOT2 + ROOT2 * ball / (2.0 * gamma), 1.0)  # of (x, 1), the box and the reach
    missed = 1.0 / (1.0 + math.exp(-ROOT2 * ball * norm))
    most = math.log1p(math.exp(ROOT2 * ball * norm))
    assert bound.terms == pytest.approx(
        {
            "complexity": 24.0 * 1.3526 * ball * ROOT2 * missed * norm * math.sqrt(6) * spread,
            "confidence": most * math.sqrt(2.0 * math.log(2 / delta)) * spread,
            "optimization": 0.02,
            "L_z radius": ROOT2 * ball * radius,
            "L_z^2 / (4 gamma)": 2.0 * ball**2 / (4.0 * gamma),
            "min(gamma radius^2, L_z radius)": ROOT2 * ball * radius,
        }
    )
    printed = 48.0 * 1.5 * ball * ROOT2 * missed * norm * math.sqrt(6) + 2 * most * math.sqrt(2 * math.log(6 / delta))
    width = 2.0 * ROOT2 * ball * radius + 27.0 * radius**2
    assert bound.paper == pytest.approx(printed * roots + 0.02 + width)
    assert bound.value < bound.paper / 2.0


def test_the_generalization_bounds_refuse_failed_preconditions_and_bad_numbers():
    known = worlds.constants_of(2, 1.0)
    given = {"client_weights": WEIGHTS, "num_examples": [10, 10, 10], "radius": 2.0}
    with pytest.raises(PreconditionError, match=r"gamma=9 must exceed the concavity limit L_zz / 2 = 25"):
        robust_generalization(worlds.constants_of(2, 10.0), **given, gamma=9.0)
    with pytest.raises(PreconditionError, match=r"give params_radius=C"):
        robust_generalization(worlds.constants_of(2, None), **given, gamma=9.0)
    network = torch.nn.Sequential(torch.nn.Linear(2, 4), torch.nn.Tanh(), torch.nn.Linear(4, 2))
    searched = wafl.theory.constants(network, Cluster((0.3, 0.1)).sample(8, np.random.default_rng(0)).pair)
    assert searched.L_theta.kind == "estimate"
    with pytest.raises(PreconditionError, match=r"give params_radius=C"):
        robust_generalization(searched, **given, gamma=9.0)
    with pytest.raises(PreconditionError, match=r"L_theta = .* is an estimate: the bound needs a proven"):
        robust_generalization(replace(searched, params_radius=9.0), **given, gamma=99.0)
    unbounded = replace(known, L_z=Constant(math.inf, "exact", "by construction"))
    with pytest.raises(PreconditionError, match=r"L_z = inf is infinite"):
        robust_generalization(unbounded, **given, gamma=9.0)
    for bad in (math.nan, math.inf, -0.1):
        with pytest.raises(ValueError, match=r"optimization_gap=.* must be finite and at least 0"):
            robust_generalization(known, **given, gamma=9.0, optimization_gap=bad)
    for bad in (0.0, -1.0, math.inf, math.nan):
        with pytest.raises(ValueError, match=r"gamma=.* must be positive and finite"):
            excess_risk_sandwich(known, gamma=bad, radius=1.0)
        with pytest.raises(ValueError, match=r"radius=.* must be positive and finite"):
            excess_risk_sandwich(known, gamma=1.0, radius=bad)


CONCENTRATION = Concentration(c1=2.0, c2=1.5, alpha=3.0, dimension=2)
TAKERS = {
    "robust_generalization": lambda weights, sizes, delta: robust_generalization(
        worlds.constants_of(2, 1.0), weights, sizes, gamma=9.0, radius=1.0, delta=delta
    ),
    "generalization_to_truth": lambda weights, sizes, delta: generalization_to_truth(
        worlds.constants_of(2, 1.0, label_cost=1.0),
        weights,
        sizes,
        gamma=99.0,
        concentration=CONCENTRATION,
        delta=delta,
    ),
    "covering_radius": lambda weights, sizes, delta: covering_radius(
        worlds.constants_of(2, 1.0, label_cost=1.0), weights, sizes, concentration=CONCENTRATION, delta=delta
    ),
    "distance_to_target": lambda weights, sizes, delta: distance_to_target(
        weights, sizes, 10, empirical_distance=1.0, concentration=CONCENTRATION, delta=delta
    ),
    "distance_to_client": lambda weights, sizes, delta: distance_to_client(
        weights, sizes, 0, squared_distances=[1.0] * len(weights), concentration=CONCENTRATION, delta=delta
    ),
}


@pytest.mark.parametrize("name", sorted(TAKERS))
def test_every_bound_refuses_bad_weights_sizes_and_levels(name):
    call, sizes = TAKERS[name], [10, 20, 30]
    assert call(WEIGHTS, sizes, 0.05).value > call(WEIGHTS, sizes, 0.5).value > 0
    for delta in (0.0, 1.0, -0.1, 1.5, math.nan):
        with pytest.raises(ValueError, match=r"delta=.* must lie in \(0, 1\)"):
            call(WEIGHTS, sizes, delta)
    for weights in ([0.5, 0.3, 0.3], [0.9, 0.3, -0.2], [0.0, 0.0, 0.0], [math.nan, 0.5, 0.5]):
        with pytest.raises(ValueError, match="simplex"):
            call(weights, sizes, 0.05)
    for weights, counts in (([0.5, 0.5], sizes), ([], [])):
        with pytest.raises(ValueError, match="give one of each per client"):
            call(weights, counts, 0.05)
    with pytest.raises(ValueError, match="num_examples=0 must be at least 1"):
        call(WEIGHTS, [10, 0, 30], 0.05)


# --- corollary 4.5 ---


@pytest.mark.parametrize("dimension", [1, 2, 3, 4, 5, 10])
@pytest.mark.parametrize("alpha", [2.5, 6.0])
@pytest.mark.parametrize("delta", [0.4, 0.05, 1e-6])
def test_the_tail_at_the_squared_distance_is_delta(dimension, alpha, delta):
    concentration = Concentration(c1=3.0, c2=0.7, alpha=alpha, dimension=dimension)
    before = math.inf
    for number in (1, 2, 3, 5, 10, 20, 100, 10**4, 10**8):
        x = concentration.squared_distance(number, delta)
        rate = math.log(3.0 / delta) / (0.7 * number)
        if dimension == 4 and math.log(3.0) ** -2 < rate <= 1.0:
            assert x == 1.0  # here the tail jumps: delta lies between its values at 1 and just beyond
            assert worlds.tail(concentration, number, 1.0) > delta >= worlds.tail(concentration, number, 1.0 + 1e-12)
        else:
            assert worlds.tail(concentration, number, x) == pytest.approx(delta, rel=1e-9)
        assert x <= before
        assert concentration.squared_distance(number, delta / 2.0) >= x
        before = x


def test_the_papers_squared_distance_is_what_the_paper_prints():
    concentration = Concentration(c1=2.0, c2=1.0, alpha=3.0, dimension=4)
    rate = math.log(2.0 / 0.05)
    assert concentration.paper_squared_distance(1, 0.05) == pytest.approx(rate ** (1 / 3))
    assert concentration.squared_distance(1, 0.05) == pytest.approx(rate ** (2 / 3))
    assert concentration.paper_squared_distance(100, 0.05) == pytest.approx((rate / 100) ** 0.5)


def fitted(samples: dict[int, np.ndarray], c1: float, dimension: int) -> Concentration:
    """Half of the largest c2 for which every observed tail is below ``c1 exp(-c2 n x^2)``, also beyond x = 1."""
    c2 = math.inf
    for number, values in samples.items():
        x = np.sort(values)
        seen = 1.0 - np.arange(len(x)) / len(x)  # P(T >= x)
        c2 = min(c2, float((np.log(c1 / seen) / (number * x**2)).min()))
    return Concentration(c1=c1, c2=c2 / 2.0, alpha=4.0, dimension=dimension)


@pytest.fixture(scope="module")
def line_constants() -> Concentration:
    """Fitted to 400 samples of each of 5 sizes from all three lines: one pair of constants for all clients."""
    rng = np.random.default_rng(10)
    draws = {n: np.concatenate([line.squared_distance(line.sample((400, n), rng)) for line in LINES]) for n in FITTED}
    return fitted(draws, 2.0, 1)


FITTED = (1, 3, 10, 30, 100)


def test_samples_of_a_line_stay_within_the_squared_distance(line_constants):
    rng = np.random.default_rng(11)
    proven = worlds.box_concentration(2.0, 1)
    assert line_constants.c2 > 10.0 * proven.c2
    for line in LINES:
        for number in (2, 20, 200):
            result = line.squared_distance(line.sample((300, number), rng))
            for delta in (0.3, 0.05):
                assert np.mean(result > line_constants.squared_distance(number, delta)) <= delta
                assert np.mean(result > proven.squared_distance(number, delta)) <= delta
        assert line.squared_distance(line.quantile((np.arange(10**4) + 0.5) / 10**4)) < 1e-7  # the oracle itself


def line_clients(sizes, rng):
    """Samples from the three lines, and the mass of each example in the mixture."""
    samples = [line.sample((n,), rng) for line, n in zip(LINES, sizes, strict=True)]
    mass = np.concatenate([np.full(n, w / n) for n, w in zip(sizes, WEIGHTS, strict=True)])
    return samples, np.concatenate(samples), mass


@pytest.mark.slow
@pytest.mark.parametrize("delta", [0.5, 0.1])
def test_the_covering_radius_covers_the_truth(line_constants, delta):
    rng = np.random.default_rng(13)
    sizes = [40, 20, 80]
    constants = worlds.constants_of(1, 1.0, label_cost=1.0)
    fitted_radius = covering_radius(constants, WEIGHTS, sizes, concentration=line_constants, delta=delta).value
    proven = worlds.box_concentration(2.0, 1)
    proven_radius = covering_radius(constants, WEIGHTS, sizes, concentration=proven, delta=delta).value
    distances = []
    for _ in range(200):
        _, points, mass = line_clients(sizes, rng)
        distances.append(math.sqrt(MIXTURE.squared_distance(points, mass)))
    assert np.mean(np.array(distances) > fitted_radius) <= delta / 2.0
    assert np.mean(np.array(distances) > proven_radius) <= delta / 2.0
    assert np.median(distances) > fitted_radius / 20.0


def test_the_covering_radius_agrees_with_a_calculation_by_hand():
    constants = worlds.constants_of(2, 1.0, label_cost=1.0)
    sizes, delta = [10, 20, 1], 0.06
    bound = covering_radius(constants, WEIGHTS, sizes, concentration=CONCENTRATION, delta=delta)
    rates = [math.log(2.0 / 0.01) / (1.5 * n) for n in sizes]
    squares = [0.5 * rates[0] ** 0.5, 0.3 * rates[1] ** 0.5, 0.2 * rates[2] ** (2 / 3)]
    assert rates[2] > 1.0
    assert bound.value == pytest.approx(math.sqrt(sum(squares)))
    assert list(bound.terms.values()) == pytest.approx([s / bound.value for s in squares])
    rates = [math.log(2.0 / 0.02) / (1.5 * n) for n in sizes]  # the paper's delta / m
    assert bound.paper == pytest.approx(
        math.sqrt(0.5 * rates[0] ** 0.5 + 0.3 * rates[1] ** 0.5 + 0.2 * rates[2] ** (1 / 3))
    )
    with pytest.raises(PreconditionError, match="labels cannot move"):
        covering_radius(worlds.constants_of(2, 1.0), WEIGHTS, sizes, concentration=CONCENTRATION)
    still = generalization_to_truth(worlds.constants_of(2, 1.0), WEIGHTS, sizes, gamma=9.0, concentration=CONCENTRATION)
    assert still.paper is None


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"c1": 0.04}, "c1=0.04 must be finite and at least 1"),
        ({"c2": -1.0}, "c2=-1.0 must be positive"),
        ({"alpha": 2.0}, "alpha=2.0 must be above 2 and finite"),
        ({"alpha": math.inf}, "alpha=inf must be above 2 and finite"),
        ({"alpha": math.nan}, "alpha=nan must be above 2"),
        ({"dimension": 0}, "dimension=0 must be at least 1"),
    ],
)
def test_concentration_constants_out_of_range_are_refused(given, message):
    with pytest.raises(ValueError, match=message):
        replace(CONCENTRATION, **given)


@pytest.mark.slow
def test_generalization_to_truth_holds_in_every_repetition():
    rng = np.random.default_rng(2)
    ball, sizes, delta, label_cost = 1.0, [400, 800, 600], 0.1, 1.0
    steep = ROOT2 * ball
    gamma = 8.0
    constants = worlds.constants_of(1, ball, gamma, label_cost=label_cost)
    bound = generalization_to_truth(constants, WEIGHTS, sizes, gamma=gamma, delta=delta, optimization_gap=1e-6)
    assert gamma * label_cost > steep * math.hypot(1.0 + constants.reach, 1.0)  # moving a label never pays
    clients = [Cluster((0.3,), share=0.5), Cluster((0.6,), share=0.3), Cluster((-0.2,), share=0.6)]
    truth = mix([client.nodes(32) for client in clients], WEIGHTS)
    best, excesses = least(truth, steep), []
    for _ in range(20):
        sample = mix([c.sample(n, rng) for c, n in zip(clients, sizes, strict=True)], WEIGHTS)
        result = least(sample, steep, gamma)
        assert result.gap < 1e-6
        excesses.append(risk(result.v, truth) - best.value)
        assert excesses[-1] <= bound.value
        # The truth is in every ball around itself: the surrogate's excess and L_z^2 / (4 gamma) are enough.
        surrogate = risk(result.v, truth, gamma) - least(truth, steep, gamma).value
        assert excesses[-1] <= surrogate + float(constants.L_z) ** 2 / (4.0 * gamma) + 2e-6
    assert np.mean(excesses) > 1e-5


def test_the_terms_of_generalization_to_truth_agree_with_a_calculation_by_hand():
    gamma, delta, sizes = 99.0, 0.2, [100, 25, 400]
    constants = worlds.constants_of(2, 2.0, gamma, label_cost=1.0)
    concentration = Concentration(c1=3.0, c2=0.5, alpha=3.0, dimension=5)
    bound = generalization_to_truth(
        constants, WEIGHTS, sizes, gamma=gamma, concentration=concentration, delta=delta, optimization_gap=0.3
    )
    squares = [w * (math.log(3.0 * 6 / delta) / (0.5 * n)) ** 0.4 for w, n in zip(WEIGHTS, sizes, strict=True)]
    radius = math.sqrt(sum(squares))
    roots = 0.5 / 10 + 0.3 / 5 + 0.2 / 20
    spread = math.sqrt(0.25 / 100 + 0.09 / 25 + 0.04 / 400)
    slope, most, steep = float(constants.L_theta), float(constants.max_loss), float(constants.L_z)
    assert bound.terms == pytest.approx(
        {
            "complexity": 24.0 * 1.3526 * 2.0 * slope * math.sqrt(6) * spread,
            "confidence": most * math.sqrt(2.0 * math.log(2 / delta)) * spread,
            "optimization": 0.3,
            "L_z^2 / (4 gamma)": steep**2 / 396.0,
        }
    )
    printed = (72.0 * 2.0 * slope * math.sqrt(6) + 2.0 * most * math.sqrt(2.0 * math.log(12 / delta))) * roots
    assert bound.paper == pytest.approx(printed + 0.3 + 2.0 * steep * radius + gamma * radius**2)
    for changed in ({"concentration": None}, {"gamma": 2.0}):
        given = {"gamma": gamma, "concentration": concentration, **changed}
        assert generalization_to_truth(constants, WEIGHTS, sizes, **given).paper is None


# --- the corollaries about distances ---


def test_the_distance_to_a_target_holds(line_constants):
    rng = np.random.default_rng(14)
    target, sizes, number, delta = Line((0.6,), spread=0.4), [60, 40, 80], 50, 0.2
    truth = math.sqrt(MIXTURE.squared_distance_to(target))
    below, held = 0, []
    for _ in range(100):
        _, points, mass = line_clients(sizes, rng)
        sample = target.sample((number,), rng)
        measured = math.sqrt(worlds.squared_distance_on_line(points, mass, sample, np.full(number, 1.0 / number)))
        below += measured < truth
        bound = distance_to_target(
            WEIGHTS, sizes, number, empirical_distance=measured, concentration=line_constants, delta=delta
        )
        held.append(truth <= bound.value)
    assert np.mean(held) >= 1.0 - delta
    assert below > 20  # the measured distance alone is often too small


@pytest.mark.parametrize("client", [0, 2])
def test_the_distance_to_a_client_holds_as_a_user_composes_it(line_constants, client):
    rng = np.random.default_rng(15)
    number, delta = 60, 0.2
    sizes = [number] * 3
    truth = math.sqrt(MIXTURE.squared_distance_to(LINES[client]))
    held, paper = [], []
    for _ in range(60):
        samples, _, _ = line_clients(sizes, rng)
        ordered = np.sort(np.stack(samples), axis=1)
        center = np.array(WEIGHTS) @ ordered  # on a line, the quantiles of the barycenter are the mean quantiles
        star = math.sqrt(np.array(WEIGHTS) @ ((ordered - center) ** 2).mean(1))
        measured = wafl.weights.bilevel([sample[:, None] for sample in samples], WEIGHTS).distances
        bound = distance_to_client(
            WEIGHTS, sizes, client, squared_distances=measured, concentration=line_constants, delta=delta
        )
        assert bound.terms["mixture to barycenter"] == pytest.approx(star, rel=1e-6)
        held.append(truth <= bound.value)
        # the middle terms separately: the measured distances of the mixture and the client from the barycenter
        even = np.full(number, 1.0 / number)
        mass = np.repeat(WEIGHTS, number) / number
        to_center = worlds.squared_distance_on_line(np.concatenate(samples), mass, center, even)
        assert math.sqrt(to_center) <= bound.terms["mixture to barycenter"] + 1e-12
        square = worlds.squared_distance_on_line(samples[client], even, center, even)
        assert math.sqrt(square) == pytest.approx(bound.terms["barycenter to client"], rel=1e-6)
        paper.append(star / WEIGHTS[client] - bound.terms["barycenter to client"])
    assert np.mean(held) >= 1.0 - delta
    assert min(paper) > 0


def test_the_distance_to_a_client_holds_with_the_distances_of_any_center():
    """Three clients at 0, 4 and 5 and equal weights: with rho* = 0, of the barycenter's own weights, it would not.

    Samples of 200 points around each center, so that nearly nothing is left to sampling.
    """
    rng = np.random.default_rng(0)
    even, delta = [1 / 3] * 3, 0.05
    clients = [center + 0.1 * rng.uniform(-1, 1, size=(200, 1)) for center in (0.0, 4.0, 5.0)]
    truth = math.sqrt(ot.emd2_1d(np.concatenate(clients)[:, 0], clients[0][:, 0], metric="sqeuclidean"))
    given = {"concentration": worlds.box_concentration(0.2, 1), "delta": delta}
    for center in (wafl.weights.barycenter(clients), wafl.weights.bilevel(clients, even)):
        bound = distance_to_client(even, [200] * 3, 0, squared_distances=center.distances, **given)
        assert truth <= bound.value < 8.0
    assert wafl.weights.barycenter(clients).value == pytest.approx(0.0, abs=1e-12)
    assert truth > 3.6


def test_the_distance_to_a_target_holds_as_a_user_composes_it():
    """Weights and distance from ``mixture``, with labels: the truth is a distance of the joint metric."""
    rng = np.random.default_rng(3)
    label_cost, number, delta = 1.0, 50, 0.2
    clients, target = [Cluster((0.2,), share=0.5), Cluster((0.5,), share=0.2)], Cluster((0.4,), share=0.6)
    limits = worlds.labeled_line_concentration(2.0, label_cost)
    fine = [[c.nodes(40) for c in clients], target.nodes(40)]
    held = []
    for _ in range(20):
        samples = [c.sample(number, rng).pair for c in clients]
        aim = target.sample(number, rng).pair
        near = wafl.weights.mixture(samples, aim, label_cost=label_cost)
        bound = distance_to_target(
            near.weights, [number] * 2, number, empirical_distance=near.radius, concentration=limits,
            label_cost=label_cost, delta=delta,
        )  # fmt: skip
        mixed = mix(fine[0], near.weights)
        cost = (mixed.x - fine[1].x.T) ** 2 + label_cost * (mixed.sign[:, None] != fine[1].sign)
        held.append(math.sqrt(ot.emd2(mixed.mass, fine[1].mass / fine[1].mass.sum(), cost)) <= bound.value)
    assert np.mean(held) >= 1.0 - delta


def test_the_distances_agree_with_a_calculation_by_hand():
    sizes, delta = [10, 20, 40], 0.06
    sampling = [math.sqrt(math.log(2.0 / 0.01) / (1.5 * n)) for n in sizes]
    radius = math.sqrt(np.dot(WEIGHTS, sampling))
    printed = math.sqrt(np.dot(WEIGHTS, [math.sqrt(math.log(2.0 / 0.02) / (1.5 * n)) for n in sizes]))
    last = math.sqrt(math.log(2.0 / 0.03) / (1.5 * 30))
    bound = distance_to_target(WEIGHTS, sizes, 30, empirical_distance=0.7, concentration=CONCENTRATION, delta=delta)
    assert list(bound.terms.values()) == pytest.approx([radius, 0.7, math.sqrt(last)])
    assert bound.paper == pytest.approx(printed + 0.7 + last)
    last = math.sqrt(math.log(2.0 / 0.03) / (1.5 * 20))
    squares = [0.5, 0.2, 0.9]
    bound = distance_to_client(WEIGHTS, sizes, 1, squared_distances=squares, concentration=CONCENTRATION, delta=delta)
    star = math.sqrt(0.25 + 0.06 + 0.18)
    assert list(bound.terms.values()) == pytest.approx([radius, star, math.sqrt(0.2), math.sqrt(last)])
    assert bound.paper == pytest.approx(printed + star + star / 0.3 + last)
    assert bound.name == "W_2 of mixture and client 1"


def test_the_distances_refuse_bad_numbers_and_clients():
    given = {"num_examples": [10, 20, 40], "concentration": CONCENTRATION}
    for bad in (-0.1, math.inf, math.nan):
        with pytest.raises(ValueError, match=r"distance=.* must be finite and at least 0"):
            distance_to_target(WEIGHTS, target_examples=5, empirical_distance=bad, **given)
        with pytest.raises(ValueError, match=r"distance=.* must be finite and at least 0"):
            distance_to_client(WEIGHTS, client=0, squared_distances=[1.0, bad, 1.0], **given)
    with pytest.raises(ValueError, match="num_examples=0 must be at least 1"):
        distance_to_target(WEIGHTS, target_examples=0, empirical_distance=1.0, **given)
    for client in (-1, 3):
        with pytest.raises(ValueError, match=rf"client={client} must lie in 0 .. 2"):
            distance_to_client(WEIGHTS, client=client, squared_distances=[1.0] * 3, **given)
    with pytest.raises(ValueError, match="2 squared_distances for 3 clients"):
        distance_to_client(WEIGHTS, client=1, squared_distances=[1.0] * 2, **given)
    aside = distance_to_client([0.6, 0.0, 0.4], client=1, squared_distances=[1.0, 4.0, 1.0], **given)
    assert aside.terms["barycenter to client"] == 2.0  # it has no weight, and is bounded all the same
    assert aside.paper == math.inf
    with pytest.raises(PreconditionError, match="label_cost=inf: labels cannot move"):
        distance_to_target(WEIGHTS, target_examples=5, empirical_distance=1.0, label_cost=math.inf, **given)
