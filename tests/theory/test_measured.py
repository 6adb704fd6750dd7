"""Excess risks and gradients' spreads that are measured, against a world whose minimum is known."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

import wafl
from tests.oracles import bounds as worlds
from tests.oracles.bounds import ROOT2, Cluster, least, mix, risk
from wafl import PreconditionError
from wafl.theory import excess_risk, gradient_spread, robust_generalization

WEIGHTS = [0.5, 0.3, 0.2]
CLIENTS = [Cluster((0.3, 0.1), share=0.5), Cluster((0.1, 0.4), share=0.4), Cluster((0.4, -0.2), share=0.7)]
MODEL = np.array([0.4, -0.3, 0.2])


def federation(samples: list[worlds.Population]) -> wafl.Federation:
    return wafl.Federation.from_arrays([sample.pair for sample in samples], test_fraction=0.0)


def trained(samples: list[worlds.Population], gamma: float, **schedule: object) -> wafl.Run:
    options = {"rounds": 1, "local_steps": 1, "learning_rate": 1e-9, "batch_size": None, **schedule}
    method = wafl.WAFL(gamma=gamma, client_weights=wafl.weights.fixed(WEIGHTS), bounds=None)
    return wafl.fit(worlds.model(MODEL), federation(samples), method, **options)


@pytest.mark.parametrize("gamma", [None, 2.0])
@pytest.mark.parametrize("ball", [0.6, 6.0])
def test_the_excess_risk_is_that_above_the_known_minimum(gamma: float | None, ball: float) -> None:
    """In a small ball the minimum is on its surface, in a large one inside."""
    rng = np.random.default_rng(0)
    samples = [client.sample(40, rng) for client in CLIENTS]
    everyone = mix(samples, WEIGHTS)
    best = least(everyone, ROOT2 * ball, gamma)
    result = excess_risk(trained(samples, 2.0), federation(samples), gamma=gamma, params_radius=ball)
    assert result.risk == pytest.approx(risk(MODEL, everyone, gamma), rel=1e-6)
    assert result.least <= best.value + 1e-9
    assert best.value - best.gap - 1e-9 <= result.reached <= best.value + 1e-3 * result.risk
    assert 0 <= result.value - (result.risk - best.value) <= 1e-3 * result.risk
    tangent = excess_risk(trained(samples, 2.0), federation(samples), gamma=gamma, params_radius=ball, steps=0)
    assert tangent.least <= result.least
    assert result.held_out is None


def test_the_generalization_gap_is_that_of_held_out_examples() -> None:
    clients = wafl.load_dataset("digits").partition(num_clients=3, iid=True, seed=1)
    run = wafl.fit(wafl.models.mlr(clients), clients, wafl.FedAvg(), rounds=3, local_epochs=1, learning_rate=0.5)
    result = excess_risk(run, clients, gamma=None, params_radius=100.0, steps=0)
    assert result.held_out is not None
    means = [
        [torch.nn.functional.cross_entropy(run.model(x), y).item() for x, y in map(part.of, range(3))]
        for part in (clients.train, clients.test)
    ]
    train, test = np.array(means) @ run.client_weights.double().numpy()
    assert result.generalization_gap == pytest.approx(test - train, abs=1e-6)


def test_theorem_4_4_holds_with_the_optimization_gap_that_is_measured() -> None:
    """Train on a sample, measure how far that is from the best surrogate, and bound the risk on shifted truths."""
    rng = np.random.default_rng(1)
    ball, radius, sizes = 1.5, 0.3, [60, 120, 240]
    steep = ROOT2 * ball
    gamma = 1.2 * steep / radius
    constants = worlds.constants_of(2, ball, gamma)
    truth = mix([client.nodes(16) for client in CLIENTS], WEIGHTS)
    shifted = [truth.moved(truth.x + radius * np.array(s)) for s in ((1.0, 0.0), (0.0, -1.0), (-0.6, 0.8))]
    samples = [client.sample(size, rng) for client, size in zip(CLIENTS, sizes, strict=True)]
    run = trained(samples, gamma, rounds=3, learning_rate=0.2)
    gap = excess_risk(run, federation(samples), gamma=gamma, params_radius=ball)
    assert gap.value > 0.01  # it has not converged, and the bound must know
    v = (run.model.weight[1] - run.model.weight[0]).detach().double().numpy()
    v = np.append(v, (run.model.bias[1] - run.model.bias[0]).item())
    known = least(mix(samples, WEIGHTS), steep, gamma)
    assert risk(v, mix(samples, WEIGHTS), gamma) - known.value <= gap.value + 1e-9
    bound = robust_generalization(constants, WEIGHTS, sizes, gamma=gamma, radius=radius, optimization_gap=gap.value)
    assert max(risk(v, q) - least(q, steep).value for q in shifted) <= bound.value


def test_the_spreads_are_those_of_single_gradients() -> None:
    rng, gamma = np.random.default_rng(2), 2.0
    samples = [client.sample(size, rng) for client, size in zip(CLIENTS, (20, 30, 25), strict=True)]
    result = gradient_spread(trained(samples, gamma), federation(samples), gamma=gamma)
    variances, means = [], []
    for sample in samples:
        _, slope, moved = worlds.ascend(MODEL, sample.x, sample.sign, gamma)
        every = worlds.gradients(slope, sample.sign, moved)  # in v; those in theta are sqrt(2) times as long
        means.append(every.mean(0))
        variances.append(((every - means[-1]) ** 2).sum(1).mean())
    mean = np.array(WEIGHTS) @ np.array(means)
    assert result.noise == pytest.approx(ROOT2 * math.sqrt(max(variances)), rel=1e-5)
    assert result.heterogeneity == pytest.approx(ROOT2 * max(np.linalg.norm(m - mean) for m in means), rel=1e-5)
    ball = worlds.constants_of(2, 1.5, gamma)
    wider = gradient_spread(trained(samples, gamma), federation(samples), gamma=gamma, params_radius=1.5)
    assert result.noise <= wider.noise <= ball.L_theta
    assert result.heterogeneity <= wider.heterogeneity <= 2.0 * ball.L_theta
    assert wider.noise.kind == "estimate"


def test_a_network_has_no_known_minimum() -> None:
    rng = np.random.default_rng(0)
    samples = [client.sample(10, rng) for client in CLIENTS]
    network = torch.nn.Sequential(torch.nn.Linear(2, 3), torch.nn.Tanh(), torch.nn.Linear(3, 2))
    with pytest.raises(PreconditionError, match="not convex in the parameters"):
        excess_risk(network, federation(samples), gamma=2.0, params_radius=1.0)
