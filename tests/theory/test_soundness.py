"""A bound below what was reached is never handed out: an error names the row and both numbers."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import wafl
from wafl.base.errors import UnsoundError
from wafl.theory.certificates import certify as certificates
from wafl.theory.certificates.mixture import Means
from wafl.theory.certificates.quantities import ExpectedLoss
from wafl.theory.certificates.soundness import hold
from wafl.theory.constants.constant import Constant
from wafl.theory.networks import activations
from wafl.theory.networks.activations import SShaped, Strip


def clients(seed: int = 0) -> wafl.Federation:
    pair = np.random.default_rng(seed).normal(size=(12, 4)), np.arange(12) % 3
    return wafl.Federation.from_arrays([pair], test_fraction=0.0, num_classes=3)


def a_network() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 3))


@pytest.fixture
def without_the_maximum(monkeypatch: pytest.MonkeyPatch) -> None:
    """Strips that know only the ends, as they once did at large widths."""

    def strip(self: SShaped, center: Tensor, width: Tensor) -> Strip:
        return activations._strip(self, center, width, lambda slope: [])

    monkeypatch.setattr(SShaped, "strip", strip)


@pytest.mark.usefixtures("without_the_maximum")
@pytest.mark.parametrize("achieved", [False, True])
def test_a_networks_certificate_below_what_is_reached_is_refused(achieved: bool) -> None:
    with pytest.raises(UnsoundError, match=r"radius .* at gamma .* was reached.*please report it"):
        wafl.certify(a_network(), clients(), radii=[1.0, 1e6], achieved=achieved)


@pytest.mark.usefixtures("without_the_maximum")
def test_the_next_clients_is_too(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(UnsoundError, match="please report it"):
        wafl.next_client(a_network(), clients(), clients(1), radius=4.0)
    monkeypatch.setattr(certificates, "hold_moved", lambda *_: None)
    monkeypatch.setattr(certificates, "hold_rows", lambda bounds: bounds)
    with pytest.raises(UnsoundError, match=r"client.*please report it"):
        wafl.next_client(a_network(), clients(), clients(1), radius=4.0)


@pytest.mark.parametrize("power", [1, 2])
def test_a_slope_that_is_too_small_is_refused(power: int, monkeypatch: pytest.MonkeyPatch) -> None:
    flat = Constant(1e-3, "bound", "by layers, at these parameters")
    monkeypatch.setattr("wafl.theory.certificates.certify.data_free_constants", lambda *_: {"L_z": flat, "L_zz": flat})
    with pytest.raises(UnsoundError, match="please report it"):
        wafl.certify(a_network(), clients(), radii=[1.0], power=power, achieved=False)


def test_a_linear_models_certificate_below_what_is_reached_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("wafl.theory.certificates.dual.Dual.reached", lambda self, radius: 1e3)
    with pytest.raises(UnsoundError, match=r"radius 0\.5 .*but 1000 was reached"):
        wafl.certify(nn.Linear(4, 3), clients(), radii=[0.5])


def test_clients_elsewhere_are_asked_what_they_reach() -> None:
    """As on Flower: two numbers per gamma is all that is known of them."""

    def means(report: object, settings: list[dict[str, float]]) -> Means:
        return Means([2.0 if "distance" in setting else 1.0 for setting in settings], [0.0 for _ in settings])

    question = certificates.Question(ExpectedLoss(), by_margins=True, steep=Constant(1.0, "bound", "by layers"))
    with pytest.raises(UnsoundError, match=r"radius 0\.1"):
        certificates.certificates_of(means, [0.1], question, lambda radius, bound: 0.0)


def test_a_small_ball_is_held_against_a_part_of_what_reaches_far() -> None:
    """A hundredth of the mass that moves by 10 has moved by 1: it reaches 2, where 1.5 was found."""

    def means(report: object, settings: list[dict[str, float]]) -> Means:
        far = [setting.get("distance") == 10.0 for setting in settings]
        return Means([101.0 if each else 1.0 for each in far], [100.0 if each else 0.0 for each in far])

    question = certificates.Question(ExpectedLoss(), power=1, steep=Constant(0.5, "bound", "by layers"))
    with pytest.raises(UnsoundError, match=r"radius 1 .* 1\.5 was found .* but 2 was reached"):
        certificates.certificates_of(means, [1.0, 10.0], question, lambda radius, bound: 0.0)


def test_no_number_is_no_bound_and_a_claim_is_refuted_only_beyond_rounding() -> None:
    hold("here", 1.0, math.nan)
    hold("here", math.inf, math.inf)
    hold("here", 1.0, 1.0 + 1e-9, claim="curvature=1")
    for bound, reached in ((1.0, 1.0 + 1e-9), (math.nan, 0.0)):
        with pytest.raises(UnsoundError):
            hold("here", bound, reached)
    with pytest.raises(ValueError, match=r"curvature=1 is false.* at most 1, but 1\.1 was reached: leave it out"):
        hold("here", 1.0, 1.1, claim="curvature=1")


@pytest.mark.parametrize(("first", "last"), [(1e140, 1e-170), (1e200, 1e-200), (1e-120, 1.0)])
def test_a_network_whose_squares_are_lost_is_refused(first, last):
    """Its slope would be taken for 0: an error rate of 0.05 was certified where every example becomes wrong."""
    net = nn.Sequential(nn.Linear(2, 4, bias=False), nn.ReLU(), nn.Linear(4, 2, bias=False)).double()
    with torch.no_grad():
        net[0].weight *= first
        net[2].weight *= last
    clients = wafl.Federation.from_arrays([(np.eye(2), np.arange(2))], test_fraction=0.0)
    with pytest.raises(wafl.PreconditionError, match="float64 loses squares of numbers outside"):
        wafl.certify(net, clients, radii=[5.0], metric="error")


def test_a_model_that_is_wrong_everywhere_has_the_error_rate_1_and_not_more() -> None:
    """The mean of 13 ones, each with the share 1/13, may be above 1."""
    for size in range(2, 30):
        x, y = np.ones((size, 4), dtype=np.float32), np.arange(size) % 3
        clients = wafl.Federation.from_arrays([(x, y)], test_fraction=0.0, num_classes=3)
        certificates = wafl.certify(wafl.models.mlr(clients), clients, radii=[0.3], metric="error")
        assert 1.0 - 1e-12 <= certificates.loss <= certificates[0].certified == 1.0
