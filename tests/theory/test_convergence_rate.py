"""The convergence theorem against Algorithm 1 with a known minimum, and its terms by hand."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

import wafl
from tests.oracles import bounds as worlds
from tests.oracles.bounds import ROOT2, Cluster, least, mix
from wafl import PreconditionError
from wafl.theory import Constants, client_drift, convergence, round_progress

WEIGHTS = [0.5, 0.3, 0.2]
BALL = 2.0
GAMMA = 4.0  # the concavity limit of the ball is 1
START = np.array([-0.5, 0.5, 0.3])
RATE = {"gamma": GAMMA, "rounds": 20, "local_steps": 5, "distance": 1.0, "noise": 0.5, "heterogeneity": 0.7}


@pytest.fixture(scope="module")
def clients() -> list[worlds.Population]:
    rng = np.random.default_rng(0)
    centers = {(0.3, 0.1): 0.5, (0.1, 0.3): 0.4, (0.3, -0.2): 0.7}
    return [Cluster(center, spread=0.6, share=share).sample(60, rng) for center, share in centers.items()]


@pytest.fixture(scope="module")
def constants() -> Constants:
    return worlds.constants_of(2, BALL, GAMMA)


@pytest.fixture(scope="module")
def best(clients) -> worlds.Least:
    result = least(mix(clients, WEIGHTS), ROOT2 * BALL, GAMMA)
    assert result.gap < 1e-6
    assert np.linalg.norm(result.v) < BALL  # inside the ball, so it is the minimum over all parameters
    return result


# --- the theorem ---


@pytest.mark.parametrize("which", ["best", "cap", "below"])
@pytest.mark.parametrize(
    ("local_steps", "rounds", "batch_size"), [(1, 30, None), (5, 12, None), (5, 12, 4), (12, 6, 1)]
)
def test_the_mean_gap_of_algorithm_1_is_below_the_bound(
    clients, constants, best, which, local_steps, rounds, batch_size
):
    rng = np.random.default_rng(1)
    deviation, heterogeneity = worlds.spreads(clients, WEIGHTS, GAMMA, BALL, rng)
    assert deviation <= float(constants.L_theta)
    assert heterogeneity <= 2.0 * float(constants.L_theta)
    noise = 0.0 if batch_size is None else deviation / math.sqrt(batch_size)
    distance = float(np.linalg.norm(START - best.v)) / ROOT2
    given = {"gamma": GAMMA, "rounds": rounds, "local_steps": local_steps, "distance": distance}
    measured = {"noise": noise, "heterogeneity": heterogeneity}
    cap = 1.0 / float(constants.smoothness(GAMMA))
    eta = {"best": None, "cap": cap, "below": cap / 7.0}[which]
    bound = convergence(constants, WEIGHTS, **given, **measured, learning_rate=eta)
    path = worlds.algorithm_1(
        clients,
        WEIGHTS,
        best,
        gamma=GAMMA,
        learning_rate=bound.learning_rate,
        rounds=rounds,
        local_steps=local_steps,
        batch_size=batch_size,
        start=START,
        runs=1 if batch_size is None else 20,
        rng=rng,
    )
    assert path.farthest <= BALL
    before, after = path.gaps[:, :-1].mean(), path.gaps[:, 1:].mean()  # k = 0 .. K-1 and 1 .. K
    assert 0 < after < before <= bound.value
    sure = {"noise": float(constants.L_theta) * (batch_size is not None), "heterogeneity": 2 * float(constants.L_theta)}
    assert bound.value <= convergence(constants, WEIGHTS, **given, **sure, learning_rate=eta).value
    omega, eta, lam = max(noise, heterogeneity), bound.learning_rate, 0.38
    printed = 2.0 * eta * lam * noise**2 + eta**2 * bound.inputs["L"] * omega**2 * (
        24 * local_steps**2 + 20 * local_steps
    )
    assert bound.value <= distance**2 / (2.0 * eta * local_steps * rounds) + printed, "the paper's, at the same rate"


@pytest.mark.parametrize("local_steps", [1, 6])
def test_with_an_l2_regularizer_the_bound_is_about_the_regularized_risk(clients, constants, local_steps):
    """The regularizer counts into F, which stays convex: only L grows."""
    decay, rng = 0.3, np.random.default_rng(2)
    best = least(mix(clients, WEIGHTS), ROOT2 * BALL, GAMMA, weight_decay=decay)
    _, apart = worlds.spreads(clients, WEIGHTS, GAMMA, BALL, rng)
    distance = float(np.linalg.norm(START - best.v)) / ROOT2
    given = {"gamma": GAMMA, "rounds": 12, "local_steps": local_steps, "distance": distance}
    bound = convergence(constants, WEIGHTS, **given, noise=0.0, heterogeneity=apart, weight_decay=decay)
    assert bound.inputs["L"] == pytest.approx(float(constants.smoothness(GAMMA)) + decay)
    path = worlds.algorithm_1(
        clients, WEIGHTS, best, gamma=GAMMA, learning_rate=bound.learning_rate, rounds=12, local_steps=local_steps,
        batch_size=None, start=START, runs=1, rng=rng, weight_decay=decay,
    )  # fmt: skip
    assert 0 < path.gaps[:, :-1].mean() <= bound.value
    assert path.gaps.min() > -1e-7  # the minimum of the regularized risk


@pytest.mark.parametrize(("local_steps", "batch_size"), [(4, None), (8, 2)])
def test_the_lemmas_on_a_round_and_on_client_drift_hold_in_every_round(
    clients, constants, best, local_steps, batch_size
):
    """Lemmas C.2 and C.3, ours and the paper's, at the paper's largest rate and at ours."""
    rng, smooth = np.random.default_rng(3), float(constants.smoothness(GAMMA))
    deviation, apart = worlds.spreads(clients, WEIGHTS, GAMMA, BALL, rng)
    noise = 0.0 if batch_size is None else deviation / math.sqrt(batch_size)
    for rate in (1.0 / (3.0 * smooth), 1.0 / smooth):
        step = {"smoothness": smooth, "learning_rate": rate, "local_steps": local_steps, "noise": noise}
        path = worlds.algorithm_1(
            clients, WEIGHTS, best, gamma=GAMMA, learning_rate=rate, rounds=4, local_steps=local_steps,
            batch_size=batch_size, start=START, runs=200 if batch_size else 1, rng=rng,
        )  # fmt: skip
        drift = client_drift(**step, heterogeneity=apart)
        assert 0 < path.drift.max() <= drift.value < drift.paper
        for number in range(4):
            before, after = (math.sqrt(value) for value in path.to_best[number : number + 2])
            strayed = float((path.drift[number, :-1] @ WEIGHTS).mean())
            bound = round_progress(WEIGHTS, **step, drift=strayed, before=before, after=after)
            gaps = path.gaps[:, number * local_steps : (number + 1) * local_steps].mean()
            assert gaps <= bound.value * (1.0 + 1e-2 * (noise > 0)) <= bound.paper * (1.0 + 1e-2)
    with pytest.raises(PreconditionError, match="must be at most 1 / L"):
        client_drift(**{**step, "learning_rate": 1.1 / smooth}, heterogeneity=apart)


def test_the_lemmas_agree_with_a_calculation_by_hand():
    drift = client_drift(smoothness=2.0, learning_rate=0.1, local_steps=3, noise=0.5, heterogeneity=0.7)
    assert drift.terms == pytest.approx({"heterogeneity": 0.08 * 9 * 0.49, "noise": 0.04 * 3 * 0.25})
    assert drift.paper == pytest.approx(0.01 * (216 + 60) * 0.49)
    step = {"smoothness": 2.0, "learning_rate": 0.1, "local_steps": 3, "noise": 0.5}
    progress = round_progress(WEIGHTS, **step, drift=0.2, before=0.9, after=0.6)
    assert progress.terms == pytest.approx({"progress": 0.45 / 0.6, "noise": 0.05 * 0.38 * 0.25, "client drift": 0.2})
    assert progress.paper == pytest.approx(0.75 + 0.2 * 0.38 * 0.25 + 0.4)


# --- the learning rates and the terms ---


def test_the_terms_agree_with_a_calculation_by_hand(constants):
    bound = convergence(constants, WEIGHTS, **RATE, learning_rate=0.01)
    smooth = float(constants.L_theta_theta + constants.L_theta_z**2 / (2.0 * GAMMA - BALL**2 / 2.0))
    lam, drift = 0.25 + 0.09 + 0.04, 0.7  # the paper's drift: the larger of noise and heterogeneity
    assert bound.inputs["L"] == pytest.approx(smooth)
    assert bound.terms == pytest.approx(
        {
            "start": 1.0 / (2.0 * 0.01 * 100),
            "noise": 0.01 * lam * 0.25 / 2.0,
            "client drift": 1e-4 * smooth * 0.62 * (0.49 * 4 * 9 / 3.0 + 0.25 * 4 / 2.0),
        }
    )
    assert bound.value == pytest.approx(sum(bound.terms.values()))
    assert bound.paper_learning_rate == pytest.approx(
        min(
            1.0 / (3.0 * smooth),
            1.0 / (2.0 * math.sqrt(5 * 20 * lam) * 0.5),
            1.0 / (48 ** (1 / 3) * 5 ** (2 / 3) * 20 ** (1 / 3) * smooth ** (1 / 3) * drift ** (2 / 3)),
            1.0 / (40 ** (1 / 3) * 5 * 20 ** (1 / 3) * smooth ** (1 / 3) * drift ** (2 / 3)),
        )
    )
    eta = bound.paper_learning_rate
    apart = eta**2 * smooth * drift**2 * (24.0 * 25 + 20.0 * 5)
    assert bound.paper == pytest.approx(1.0 / (200.0 * eta) + 2.0 * eta * lam * 0.25 + apart)
    alone = convergence(constants, WEIGHTS, **{**RATE, "local_steps": 1}, learning_rate=0.01)
    single = convergence(constants, [1.0], **RATE, learning_rate=0.01)
    assert alone.terms["client drift"] == single.terms["client drift"] == 0.0


@pytest.mark.parametrize(
    ("changed", "binding"),
    [
        ({"distance": 50.0, "rounds": 1, "local_steps": 1}, 0),
        ({"noise": 9.0, "local_steps": 1, "rounds": 10**6}, 1),
        ({"local_steps": 1, "rounds": 10**3, "noise": 0.0}, 2),
        ({"local_steps": 50}, 3),
    ],
)
def test_each_of_the_papers_four_learning_rates_can_bind(constants, changed, binding):
    given = {**RATE, **changed}
    rate = convergence(constants, WEIGHTS, **given)
    smooth, k, t = rate.inputs["L"], given["local_steps"], given["rounds"]
    lam, drift, d, noise = 0.38, max(given["noise"], 0.7), given["distance"], given["noise"]
    four = [
        1.0 / (3.0 * smooth),
        d / (2.0 * math.sqrt(k * t * lam) * noise) if noise else math.inf,
        d ** (2 / 3) / (48 * k**2 * t * smooth * drift**2) ** (1 / 3),
        d ** (2 / 3) / (40 * k**3 * t * smooth * drift**2) ** (1 / 3),
    ]
    assert int(np.argmin(four)) == binding
    assert rate.paper_learning_rate == pytest.approx(min(four))
    assert rate.value <= rate.paper * (1.0 + 1e-9)


@pytest.mark.parametrize("distance", [1e-6, 0.1, 1.0, 30.0])
@pytest.mark.parametrize("noise", [0.0, 0.5, 10.0])
@pytest.mark.parametrize("heterogeneity", [0.0, 0.7])
def test_no_learning_rate_of_a_grid_beats_the_best_one(constants, distance, noise, heterogeneity):
    given = {**RATE, "distance": distance, "noise": noise, "heterogeneity": heterogeneity}
    bound = convergence(constants, WEIGHTS, **given)
    cap = 1.0 / float(constants.smoothness(GAMMA))
    assert bound.learning_rate == bound.best_learning_rate <= cap * (1.0 + 1e-12)
    grid = np.append(np.geomspace(cap * 1e-11, cap, 400), bound.best_learning_rate * np.array([0.999, 1.0]))
    values = [convergence(constants, WEIGHTS, **given, learning_rate=float(eta)).value for eta in grid]
    assert bound.value <= min(values) * (1.0 + 1e-12)
    if distance == 30.0 and noise == heterogeneity == 0.0:
        assert bound.best_learning_rate == pytest.approx(cap)


# --- what is refused ---


def test_a_learning_rate_above_the_cap_is_refused(constants):
    cap = 1.0 / float(constants.smoothness(GAMMA))
    assert convergence(constants, WEIGHTS, **RATE, learning_rate=cap).learning_rate == cap
    with pytest.raises(PreconditionError, match=r"learning_rate=.* must be at most 1 / L = "):
        convergence(constants, WEIGHTS, **RATE, learning_rate=1.001 * cap)
    for bad in (0.0, -0.1, math.nan, math.inf):
        with pytest.raises(ValueError, match=r"learning_rate=.* must be positive and finite"):
            convergence(constants, WEIGHTS, **RATE, learning_rate=bad)


def test_bad_numbers_are_refused(constants):
    for name in ("distance", "noise", "heterogeneity"):
        for bad in (-0.1, math.nan, math.inf):
            with pytest.raises(ValueError, match=rf"{name}=.* must be finite and at least 0"):
                convergence(constants, WEIGHTS, **{**RATE, name: bad})
    for name in ("rounds", "local_steps"):
        with pytest.raises(ValueError, match=rf"{name}=0 must be at least 1"):
            convergence(constants, WEIGHTS, **{**RATE, name: 0})
    for bad in (0.0, -1.0, math.nan):
        with pytest.raises(ValueError, match=r"gamma=.* must be positive and finite"):
            convergence(constants, WEIGHTS, **{**RATE, "gamma": bad})


@pytest.mark.parametrize("weights", [[0.5, 0.3, 0.3], [0.9, 0.3, -0.2], [0.1, 0.1, 0.1], [math.nan, 0.5, 0.5], []])
def test_weights_off_the_simplex_are_refused(constants, weights):
    with pytest.raises(ValueError, match="weights"):
        convergence(constants, weights, **RATE)


def test_failed_preconditions_are_refused(constants):
    with pytest.raises(PreconditionError, match=r"gamma=0.9 must exceed the concavity limit L_zz / 2 = 1"):
        convergence(constants, WEIGHTS, **{**RATE, "gamma": 0.9})
    with pytest.raises(PreconditionError, match=r"give params_radius=C"):
        convergence(worlds.constants_of(2, None), WEIGHTS, **RATE)
    with pytest.raises(PreconditionError, match=r"labels move"):
        convergence(worlds.constants_of(2, BALL, GAMMA, label_cost=1.0), WEIGHTS, **RATE)
    pair = Cluster((0.3, 0.1)).sample(8, np.random.default_rng(0)).pair
    network = torch.nn.Sequential(torch.nn.Linear(2, 3), torch.nn.Tanh(), torch.nn.Linear(3, 2))
    with pytest.raises(PreconditionError, match="not convex in the parameters"):
        convergence(wafl.theory.constants(network, pair), WEIGHTS, **RATE)
    box = wafl.theory.constants(worlds.model(np.zeros(3)), pair, data_bounds=(-1, 1), params_radius=BALL, norm=math.inf)
    with pytest.raises(PreconditionError, match="strongly convex only for norm 2"):
        convergence(box, WEIGHTS, **RATE)
