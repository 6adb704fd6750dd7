"""No certificate that is called proven lies below what an attack of our own reaches, whatever the numbers are like.

Networks of every kind that is proven, with weights, inputs and radii over many orders of magnitude, in every norm and
of both orders; with duplicates, ties, a single class, and clients that do not count.
"""

from __future__ import annotations

import pytest

import wafl
from tests.oracles import reached
from tests.theory.networks import ARCHITECTURES, KINDS, drawn, losses


def assert_never_below(name: str, seed: int) -> None:
    case = drawn(name, seed)
    certificates = wafl.certify(
        case.model,
        case.clients,
        radii=case.radii,
        norm=case.norm,
        power=case.power,
        client_weights=wafl.weights.fixed(case.share),
        loss=KINDS.get(name, "cross_entropy"),
        achieved=False,
    )
    assert certificates.proven or certificates.simple_proven
    places = reached.places(case.model, losses, case.x, case.y, case.radii, case.norm)
    # What float64 loses of outputs that are far larger than the loss.
    lost = 1e-13 * float(case.model(case.x).detach().abs().max())
    for row in certificates.rows:
        worst = places.worst_mean(case.shares, row.radius, case.power)
        for bound, proven in ((row.value, certificates.proven), (row.simple, certificates.simple_proven)):
            assert not proven or bound >= worst - 1e-9 * abs(worst) - lost, (name, seed, row, worst, case)


def assert_no_error_rate_below(seed: int) -> None:
    case = drawn("linear", seed)
    if case.y.unique().numel() == 1:
        return
    certificates = wafl.certify(
        case.model,
        case.clients,
        radii=case.radii,
        norm=case.norm,
        power=case.power,
        metric="error",
        client_weights=wafl.weights.fixed(case.share),
    )
    layer = case.model[0]
    outputs = layer(case.x).detach().numpy()
    places = reached.errors(layer.weight.detach().numpy(), outputs, case.y.numpy(), case.norm)
    for row in certificates.rows:
        worst = places.worst_mean(case.shares, row.radius, case.power)
        assert row.value >= worst - 1e-9, (seed, row, worst, case)


@pytest.mark.parametrize("name", ARCHITECTURES)
def test_no_attack_reaches_more_than_is_proven(name: str) -> None:
    assert_never_below(name, 1)


def test_moves_along_gradients_whose_squares_are_lost_cost_what_they_are_long() -> None:
    """A sigmoid network at its ends: the direction of a gradient of 1e-170 has a length, too."""
    assert_never_below("sigmoid", 16)


def test_no_attack_reaches_a_larger_error_rate() -> None:
    assert_no_error_rate_below(1)


@pytest.mark.slow
@pytest.mark.parametrize("name", ARCHITECTURES)
def test_no_attack_reaches_more_than_is_proven_of_many(name: str) -> None:
    for seed in range(2, 36):
        assert_never_below(name, seed)


@pytest.mark.slow
def test_no_attack_reaches_a_larger_error_rate_of_many() -> None:
    for seed in range(2, 36):
        assert_no_error_rate_below(seed)
