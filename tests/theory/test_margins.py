"""Networks along the distance: never below phi_gamma on a dense grid, and never above the simple bound."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import wafl
from wafl.core.structured import make_task
from wafl.theory.margins import along_margins, margin_slopes

RADII = [0.0, 0.05, 0.3, 1.0, 4.0]
NETWORKS: dict[str, Callable[[], nn.Module]] = {
    "tanh": lambda: nn.Sequential(nn.Linear(2, 6), nn.Tanh(), nn.Linear(6, 3)),
    "relu": lambda: nn.Sequential(nn.Linear(2, 6), nn.ReLU(), nn.Linear(6, 5), nn.ReLU(), nn.Linear(5, 3)),
}


@pytest.fixture(autouse=True)
def no_estimates(monkeypatch: pytest.MonkeyPatch) -> None:
    """The search for estimates takes seconds, and proves nothing."""
    for name in ("largest_slope", "largest_curvature"):
        monkeypatch.setattr(f"wafl.theory.estimates.{name}", lambda *_: 1.0)  # pyright: ignore[reportUnknownLambdaType]


def drawn(name: str, seed: int = 0) -> tuple[nn.Module, Tensor, Tensor]:
    torch.manual_seed(seed)
    model = NETWORKS[name]().double()
    return model, torch.randn(9, 2, dtype=torch.float64), torch.arange(9) % 3


@pytest.mark.parametrize("norm", [1, 2, math.inf])
@pytest.mark.parametrize("name", NETWORKS)
def test_the_bound_is_never_below_phi(name: str, norm: float) -> None:
    model, x, y = drawn(name)
    task = make_task(model)
    slopes = margin_slopes(task, task.initial(), norm, 2)
    assert slopes is not None
    line = torch.linspace(-6.0, 6.0, 241, dtype=torch.float64)
    moves = torch.stack(torch.meshgrid(line, line, indexing="ij"), -1).view(-1, 2)
    price = torch.linalg.vector_norm(moves, ord=norm, dim=-1).square()
    with torch.no_grad():
        outputs = model(x)
        grids = torch.stack([nn.functional.cross_entropy(model(a + moves), b.expand(len(moves)), reduction="none")
                             for a, b in zip(x, y, strict=True)])  # fmt: skip
    for gamma in (0.02, 0.3, 5.0):
        upper, cost = along_margins(slopes, outputs, y, gamma, 1e-4)
        phi = (grids - gamma * price).amax(1)
        assert bool((upper >= phi).all())
        assert bool((upper >= nn.functional.cross_entropy(outputs, y, reduction="none")).all())
        # The cost is the slope: a little less gamma raises the bound by that much of it.
        closer = along_margins(slopes, outputs, y, gamma * (1.0 - 1e-4), 1e-4)[0]
        torch.testing.assert_close((closer - upper) / (1e-4 * gamma), cost, rtol=0.2, atol=1.0)


@pytest.mark.parametrize("norm", [2, math.inf])
@pytest.mark.parametrize("name", NETWORKS)
def test_certificates_of_networks_are_proven_and_never_above_the_simple_bound(name: str, norm: float) -> None:
    model, x, y = drawn(name, 3)
    with torch.no_grad():
        for layer in model.parameters():
            layer.mul_(2.0)
    clients = wafl.Federation.from_arrays([(x.numpy(), y.numpy())], test_fraction=0.0, num_classes=3)
    found = wafl.certify(model, clients, radii=RADII, norm=norm, achieved=False)
    assert found.proven
    assert all(row.value <= row.simple * (1.0 + 1e-12) for row in found.rows)
    assert found[3].value < 0.999 * found[3].simple, "margins that differ are told apart"
    if name == "relu":
        shorter = wafl.certify(model, clients, radii=[0.3], norm=norm, curvature=1e6, achieved=False)
        assert shorter[0].value <= found[2].value * 1.001, "a proof by the curvature does not replace a better one"


@pytest.mark.slow
def test_no_distribution_in_the_ball_is_worse_than_a_networks_certificate() -> None:
    model, x, y = drawn("tanh", 3)
    clients = wafl.Federation.from_arrays([(x.numpy(), y.numpy())], test_fraction=0.0, num_classes=3)
    for row in wafl.certify(model, clients, radii=RADII).rows:
        assert row.achieved is not None
        assert row.achieved <= row.value * (1.0 + 1e-12)


def test_slopes_of_margins_are_those_of_the_parameters_that_are_asked_about() -> None:
    """A node's own model may have others than those it is sent."""
    model, _, _ = drawn("relu")
    task, other = make_task(model), make_task(drawn("relu", 5)[0])
    for params, wanted in ((other.initial(), other), (task.initial(), task)):
        found, expected = margin_slopes(task, params, 2, 2), margin_slopes(wanted, params, 2, 2)
        assert found is not None
        assert expected is not None
        np.testing.assert_allclose(found.numpy(), expected.numpy(), rtol=1e-12)
    weights = [layer.weight for layer in model if isinstance(layer, nn.Linear)]  # type: ignore[attr-defined]
    product = math.prod(float(torch.linalg.matrix_norm(each.detach(), ord=2)) for each in weights[:-1])
    last = weights[-1].detach()
    found = margin_slopes(task, task.initial(), math.inf, 2)
    assert found is not None
    assert float(found[0, 2]) == pytest.approx(math.sqrt(2.0) * product * float((last[0] - last[2]).norm()))


def test_other_losses_and_layers_have_no_margins() -> None:
    torch.manual_seed(0)
    regression = make_task(nn.Sequential(nn.Linear(2, 4), nn.ReLU(), nn.Linear(4, 1)), "squared_error")
    assert margin_slopes(regression, regression.initial(), 2, 2) is None
    unknown = make_task(nn.Sequential(nn.Linear(2, 4), nn.LayerNorm(4), nn.Linear(4, 3)))
    assert margin_slopes(unknown, unknown.initial(), 2, 2) is None


def test_an_estimated_curvature_is_never_published() -> None:
    """Certificates along the margins are proven although L_zz is not: what needs L_zz is left out."""
    model, x, y = drawn("relu")
    clients = wafl.Federation.from_arrays([(x.numpy(), y.numpy())], test_fraction=0.0, num_classes=3)
    content = wafl.issue(model, clients, radii=[0.3], points=2).content
    assert list(content["constants"]) == ["L_z"]
    phi = content["labels"]["labels"][0]["surrogates"]
    assert phi == sorted(phi, reverse=True), "along the margins, at every gamma"
    assert [row["proof"] for row in content["certificates"]] == ["duality"]
    assert wafl.certify(model, clients, radii=[0.3], achieved=False).L_zz.kind == "estimate"
