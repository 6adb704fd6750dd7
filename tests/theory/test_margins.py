"""Networks along the distance: never below phi_gamma on a dense grid, and never above the simple bound."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from importlib import import_module
from itertools import pairwise

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import wafl
from tests.promises.files import publish
from wafl.tasks.structured import make_task
from wafl.theory.networks.margins import Margins, Nearby, hidden_layers, margins_of

RADII = [0.0, 0.3, 4.0]
NETWORKS: dict[str, Callable[[], nn.Module]] = {
    "tanh": lambda: nn.Sequential(nn.Linear(2, 6), nn.Tanh(), nn.Linear(6, 3)),
    "relu": lambda: nn.Sequential(nn.Linear(2, 6), nn.ReLU(), nn.Linear(6, 5), nn.ReLU(), nn.Linear(5, 3)),
}
MIXED: dict[str, Callable[[], nn.Module]] = {
    "deep": lambda: nn.Sequential(
        *(nn.Linear(2, 6), nn.Tanh(), nn.Linear(6, 5, bias=False), nn.Linear(5, 4), nn.Sigmoid(), nn.Linear(4, 3))
    ),
    "wide": lambda: nn.Sequential(nn.Flatten(), nn.Linear(2, 40), nn.ReLU(), nn.Identity(), nn.Linear(40, 3)),
}


@pytest.fixture(autouse=True)
def nothing_is_estimated(monkeypatch: pytest.MonkeyPatch) -> None:
    """L_z and L_zz are known by layers, or no certificate rests on them: a search would be half of the time."""
    for name in ("largest_slope", "largest_curvature"):
        monkeypatch.setattr(import_module("wafl.theory.constants.estimates"), name, None)


def drawn(name: str, seed: int = 0) -> tuple[nn.Module, Tensor, Tensor]:
    torch.manual_seed(seed)
    model = {**NETWORKS, **MIXED}[name]().double()
    return model, torch.randn(6, 2, dtype=torch.float64), torch.arange(6) % 3


def known(model: nn.Module) -> Margins:
    task = make_task(model)
    result = margins_of(task, task.initial(), 2)
    assert result is not None
    return result


def along(
    margins: Margins, x: Tensor, outputs: Tensor, y: Tensor, norm: float, gamma: float, tolerance: float
) -> tuple[Tensor, Tensor]:
    prices, allowed = torch.full_like(outputs[:, 0], gamma), torch.full_like(outputs[:, 0], tolerance)
    return margins.along(x, outputs, y, norm, prices, allowed)


@pytest.mark.parametrize("norm", [1, 2, math.inf])
@pytest.mark.parametrize("name", [*NETWORKS, *MIXED])
def test_the_bound_is_never_below_phi(name: str, norm: float) -> None:
    model, x, y = drawn(name)
    margins = known(model)
    assert margins.hidden is not None
    line = torch.linspace(-5.0, 5.0, 101, dtype=torch.float64)
    moves = torch.stack(torch.meshgrid(line, line, indexing="ij"), -1).view(-1, 2)
    price = torch.linalg.vector_norm(moves, ord=norm, dim=-1).square()
    with torch.no_grad():
        outputs = model(x)
        grids = torch.stack([nn.functional.cross_entropy(model(a + moves), b.expand(len(moves)), reduction="none")
                             for a, b in zip(x, y, strict=True)])  # fmt: skip
    everywhere = replace(margins, hidden=None)
    for gamma in (0.05, 1.0):
        upper, cost = along(margins, x, outputs, y, norm, gamma, 1e-4)
        phi = (grids - gamma * price).amax(1)
        assert bool((upper >= phi).all())
        assert bool((upper >= nn.functional.cross_entropy(outputs, y, reduction="none")).all())
        assert bool((upper <= along(everywhere, x, outputs, y, norm, gamma, 1e-4)[0]).all())
        # The cost is the slope: less gamma raises the bound by about as much as the cost, and less than the cost there.
        closer, dearer = along(margins, x, outputs, y, norm, 0.8 * gamma, 1e-4)
        assert bool((closer - upper >= 0.2 * gamma * cost - 0.005).all())
        assert bool((closer - upper <= 0.2 * gamma * dearer + 0.005).all())


@pytest.mark.parametrize("norm", [1, 2, math.inf])
def test_an_example_has_lower_slopes_than_the_worst_of_all(norm: float) -> None:
    """Where all units are saturated nothing moves, and where no ReLU switches the network is linear."""
    model, x, y = drawn("tanh")
    with torch.no_grad():
        model[0].bias.add_(12.0)  # type: ignore[operator, index, union-attr]
        margins, outputs = known(model), model(x)
        loss = nn.functional.cross_entropy(outputs, y, reduction="none")
        np.testing.assert_allclose(along(margins, x, outputs, y, norm, 1.0, 1e-9)[0].numpy(), loss.numpy(), rtol=1e-6)

        relu, x, y = drawn("relu")
        for layer in (relu[0], relu[2]):  # type: ignore[index]
            layer.bias.add_(50.0)
        linear = nn.Sequential(relu[0], relu[2], relu[4])  # type: ignore[index]
        outputs = linear(x)
        assert torch.equal(outputs, relu(x))
        weight = relu[4].weight @ relu[2].weight @ relu[0].weight  # type: ignore[index]
        steep = torch.linalg.vector_norm(
            weight - weight[y][:, None], ord={1: math.inf, 2: 2, math.inf: 1}[norm], dim=-1
        )
    offsets = outputs - outputs.gather(-1, y[:, None])
    t = torch.linspace(0.0, 5.0, 20001, dtype=torch.float64)
    for network in (relu, linear):
        upper = along(known(network), x, outputs, y, norm, 0.5, 1e-4)[0]
        exact = (torch.logsumexp(offsets[..., None] + steep[..., None] * t, dim=1) - 0.5 * t.square()).amax(1)
        np.testing.assert_allclose(upper.numpy(), exact.numpy(), atol=2e-4)


@pytest.mark.parametrize(("name", "norm"), [("relu", 1), ("relu", 2), ("deep", 2), ("deep", math.inf)])
def test_no_attack_in_many_dimensions_gets_above_the_bound(name: str, norm: float) -> None:
    """Ascents from the example and from random places near it, at several gammas."""
    torch.manual_seed(1)
    first, second = {"relu": (nn.ReLU(), nn.ReLU()), "deep": (nn.Tanh(), nn.Sigmoid())}[name]
    model = nn.Sequential(nn.Linear(12, 9), first, nn.Linear(9, 9), second, nn.Linear(9, 4)).double()
    with torch.no_grad():
        for layer in model.parameters():
            layer.mul_(3.0)
    x, y = torch.randn(16, 12, dtype=torch.float64), torch.arange(16) % 4
    task = make_task(model)
    margins = margins_of(task, task.initial(), 12)
    assert margins is not None
    for gamma in (0.1, 1.0):
        best, moved = torch.full((16,), -math.inf, dtype=torch.float64), x + 0.1 * torch.randn_like(x)
        for _ in range(40):
            moved.requires_grad_(True)
            loss = nn.functional.cross_entropy(model(moved), y, reduction="none")
            cost = torch.linalg.vector_norm(moved - x, ord=norm, dim=-1).square()
            value = loss - gamma * cost
            (slope,) = torch.autograd.grad(value.sum(), moved)
            best = torch.maximum(best, value.detach())
            moved = moved.detach() + 0.2 * slope
        with torch.no_grad():
            upper = along(margins, x, model(x), y, norm, gamma, 1e-3)[0]
        assert bool((upper >= best).all())


@pytest.mark.parametrize("norm", [2, pytest.param(math.inf, marks=pytest.mark.slow)])
@pytest.mark.parametrize("name", NETWORKS)
def test_certificates_of_networks_are_proven_and_never_above_the_simple_bound(name: str, norm: float) -> None:
    model, x, y = drawn(name, 3)
    with torch.no_grad():
        for layer in model.parameters():
            layer.mul_(2.0)
    clients = wafl.Federation.from_arrays([(x.numpy(), y.numpy())], test_fraction=0.0, num_classes=3)
    certificates = wafl.certify(model, clients, radii=RADII, norm=norm, achieved=False)
    assert certificates.proven
    assert all(row.value <= row.simple * (1.0 + 1e-12) for row in certificates.rows)
    assert certificates[1].value < 0.95 * certificates[1].simple, "margins that differ are told apart"
    if name == "relu":
        shorter = wafl.certify(model, clients, radii=[0.3], norm=norm, curvature=1e6, achieved=False)
        assert shorter[0].value <= certificates[1].value * 1.001, (
            "a proof by the curvature does not replace a better one"
        )


@pytest.mark.parametrize("kind", [nn.Tanh, nn.Sigmoid])
def test_a_huge_radius_does_not_lower_what_is_certified_at_a_small_one(kind: type[nn.Module]) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 8), kind(), nn.Linear(8, 3)).double()
    x, y = torch.randn(40, 4, dtype=torch.float64), torch.arange(40) % 3
    clients = wafl.Federation.from_arrays([(x, y)], test_fraction=0.0, num_classes=3)
    certificates = wafl.certify(model, clients, radii=[1.0, 1e6], achieved=False)
    moved = x.clone().requires_grad_()
    for _ in range(100):
        loss = nn.functional.cross_entropy(model(moved), y, reduction="sum")
        (slope,) = torch.autograd.grad(loss, moved)
        ahead = moved.detach() - x + slope / slope.norm(dim=1, keepdim=True)
        moved = (x + ahead / ahead.norm(dim=1, keepdim=True)).requires_grad_()
    reached = float(nn.functional.cross_entropy(model(moved), y).detach())
    assert reached > certificates.loss
    assert all(row.best >= reached for row in certificates.rows)


def test_margins_are_those_of_the_parameters_that_are_asked_about() -> None:
    """A node's own model may have others than those it is sent."""
    model, _, _ = drawn("relu")
    task, other = make_task(model), make_task(drawn("relu", 5)[0])
    for params, wanted in ((other.initial(), other), (task.initial(), task)):
        result, expected = margins_of(task, params, 2), margins_of(wanted, params, 2)
        assert result is not None
        assert expected is not None
        np.testing.assert_allclose(result.slopes.numpy(), expected.slopes.numpy(), rtol=1e-12)
        assert result.hidden is not None
        assert expected.hidden is not None
        for one, two in zip(result.hidden, expected.hidden, strict=True):
            assert torch.equal(one.weight, two.weight)
    weights = [layer.weight for layer in model if isinstance(layer, nn.Linear)]  # type: ignore[attr-defined]
    product = math.prod(float(torch.linalg.matrix_norm(each.detach(), ord=2)) for each in weights[:-1])
    last = weights[-1].detach()
    result = margins_of(task, task.initial(), 2)
    assert result is not None
    steepest = math.sqrt(2.0) * product * float((last[0] - last[2]).norm())
    assert float(result.steepest(math.inf, 2)[0, 2]) == pytest.approx(steepest)


def test_other_losses_and_layers_have_no_margins() -> None:
    torch.manual_seed(0)
    regression = make_task(nn.Sequential(nn.Linear(2, 4), nn.ReLU(), nn.Linear(4, 1)), "squared_error")
    assert margins_of(regression, regression.initial(), 2) is None
    unknown = make_task(nn.Sequential(nn.Linear(2, 4), nn.LayerNorm(4), nn.Linear(4, 3)))
    assert margins_of(unknown, unknown.initial(), 2) is None


@pytest.mark.parametrize(
    ("features", "layers"),
    [
        (16, [nn.Conv2d(1, 2, 3), nn.ReLU(), nn.Flatten(), nn.Linear(8, 3)]),
        (16, [nn.Linear(4, 4), nn.ReLU(), nn.Flatten(), nn.Linear(16, 3)]),  # row by row
        (4, [nn.Linear(4, 4), nn.SiLU(), nn.Linear(4, 3)]),
        (4, [nn.Tanh(), nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 3)]),
        (4, [nn.Linear(4, 4), nn.Tanh(), nn.Tanh(), nn.Linear(4, 3)]),
    ],
)
def test_other_networks_keep_the_slopes_of_their_layers(features: int, layers: list[nn.Module]) -> None:
    task = make_task(nn.Sequential(*layers).double())
    result = margins_of(task, task.initial(), features)
    assert result is not None
    assert result.hidden is None


def test_certificates_along_the_margins_need_no_curvature() -> None:
    model, x, y = drawn("relu")
    clients = wafl.Federation.from_arrays([(x.numpy(), y.numpy())], test_fraction=0.0, num_classes=3)
    labels = publish(model, clients, radii=[0.3], points=2).parts.labels
    assert labels is not None
    assert all(more <= less for less, more in pairwise(labels.labels[0].surrogates)), "falls with gamma, at every gamma"
    result = wafl.certify(model, clients, radii=[0.3], achieved=False)
    assert result.proven
    assert math.isinf(result.L_zz)
    assert wafl.certify(model, clients, radii=[0.3], achieved=False, curvature=5.0).L_zz == 5.0


@pytest.mark.slow
def test_layers_that_share_a_weight_are_proven_with_it() -> None:
    torch.manual_seed(0)
    first, second = nn.Linear(4, 4), nn.Linear(4, 4)
    second.weight = first.weight
    model = nn.Sequential(first, nn.Tanh(), second, nn.ReLU(), nn.Linear(4, 3)).double()
    x, y = torch.randn(6, 4, dtype=torch.float64), torch.arange(6) % 3
    certificates = wafl.certify(
        model, wafl.Federation.from_arrays([(x, y)], test_fraction=0.0, num_classes=3), radii=[1.0]
    )
    assert certificates.proven
    assert certificates.loss == pytest.approx(float(nn.functional.cross_entropy(model(x), y).detach()))
    assert certificates[0].achieved is not None
    assert certificates[0].achieved <= certificates[0].best


@pytest.mark.parametrize("norm", [2, math.inf])
@pytest.mark.parametrize("scale", [1.0, 3.0])
def test_a_convolutional_network_is_certified_at_no_more_than_what_is_published(scale: float, norm: float) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(
        *(nn.Conv2d(1, 8, 5, padding=2), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(8, 16, 3, stride=2), nn.ReLU()),
        *(nn.Flatten(), nn.Linear(16, 10)),
    )
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(scale)
    x = torch.rand(20, 1, 8, 8, generator=torch.Generator().manual_seed(1))
    clients = wafl.Federation.from_arrays([(x.numpy(), np.arange(20) % 10)], test_fraction=0.0, num_classes=10)
    radii = [0.1, 0.5, 1.0]
    published = [row.value for row in publish(model, clients, radii=radii, norm=norm).parts.claim.rows]
    found = wafl.certify(model, clients, radii=radii, norm=norm, achieved=False)
    assert all(row.value <= value for row, value in zip(found.rows, published, strict=True))


@pytest.mark.parametrize("norm", [1, 2, math.inf])
@pytest.mark.parametrize("kind", [nn.ReLU, nn.Tanh])
def test_no_hidden_unit_behind_two_layers_moves_farther_than_its_lines(kind: type[nn.Module], norm: float) -> None:
    torch.manual_seed(0)
    directions = torch.linspace(0.0, 2.0 * math.pi, 73, dtype=torch.float64)
    directions = torch.stack([directions.cos(), directions.sin()], dim=1)
    directions = directions / directions.norm(norm, dim=1, keepdim=True)
    for _ in range(20):
        model = nn.Sequential(nn.Linear(2, 3), kind(), nn.Linear(3, 3), kind(), nn.Linear(3, 2)).double()
        hidden = hidden_layers(list(model), 2)
        assert hidden is not None
        x, rows = torch.randn(8, 2, dtype=torch.float64), torch.cat([torch.eye(3), -torch.eye(3)]).double()
        for length in (0.1, 1.0, 4.0):
            which, t = torch.arange(8), torch.full((8,), length, dtype=torch.float64)
            steps = torch.linspace(0.0, length, 9, dtype=torch.float64)[:, None, None, None]
            gained = model[:4](x[:, None] + steps * directions) - model[:4](x)[:, None]
            for offset, slope in Nearby(hidden, x, norm).lines(rows.expand(8, 6, 3), which, t):
                bound = offset + slope * steps[:, :, 0]
                assert bool(((gained @ rows.T).amax(2) <= bound + 1e-9).all())
