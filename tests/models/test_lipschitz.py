"""Networks that are 1-Lipschitz by construction: their slopes, their error certificates, and what is kept of them."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from scipy.optimize import linprog
from torch import Tensor, nn

import wafl
from tests.promises.files import publish
from wafl.models.layers import LipschitzConv2d, LipschitzLinear, MaxMin, NormalizedLinear
from wafl.tasks.structured import make_task
from wafl.tasks.task import Task
from wafl.theory.constants.assumptions import task_of
from wafl.theory.constants.layer_by_layer import last_layer
from wafl.theory.networks.margins import Margins, leads_of, margins_of

LOSS = wafl.MarginLoss(0.5, 0.25)


@pytest.fixture(scope="module")
def clients() -> wafl.Federation:
    return wafl.load_dataset("digits").partition(num_clients=4, labels_per_client=5)


@pytest.fixture(scope="module")
def run(clients: wafl.Federation) -> wafl.Run:
    model = wafl.models.lipschitz(clients, width=8, depth=2)
    return wafl.fit(
        model, clients, wafl.FedAvgM(), rounds=25, local_steps=2, batch_size=32, learning_rate=0.1, loss=LOSS
    )


def some(run: wafl.Run, clients: wafl.Federation, count: int = 60) -> tuple[Task, Tensor, Tensor, Tensor, Tensor]:
    task, params = task_of(run)
    rows = torch.linspace(0, len(clients.test.y) - 1, count).long()
    x, y = clients.test.rows(rows, torch.float64), clients.test.y[rows]
    with torch.no_grad():
        return task, params, x, y, task.outputs(params[None], x[None])[0]


def distances(run: wafl.Run, clients: wafl.Federation, norm: float) -> tuple[Tensor, Tensor, Tensor]:
    task, params, x, y, outputs = some(run, clients)
    leads = leads_of(task, params, 64)
    assert leads is not None
    return x, y, leads.distance_to_error(x.flatten(1), outputs, y, norm)


@pytest.mark.parametrize("shape", [(12,), (1, 8, 8), (3, 16, 16), (1, 28, 28), (2, 7, 5), (3, 32, 32)])
def test_networks_are_made_for_images_and_vectors(shape: tuple[int, ...]) -> None:
    x = torch.rand(2, *shape)
    federation = wafl.Federation.from_arrays([(x, torch.tensor([0, 1]))], test_fraction=0, num_classes=3)
    model = wafl.models.lipschitz(federation, width=4, depth=2)
    again = wafl.models.lipschitz(federation, width=4, depth=2)
    assert model(x).shape == (2, 3)
    assert all(torch.equal(one, two) for one, two in zip(model.parameters(), again.parameters(), strict=True))
    assert last_layer(model.double()) is not None


@pytest.mark.parametrize(
    ("options", "message"), [({"width": 3}, "even"), ({"width": 0}, "even"), ({"depth": 0}, "least 1")]
)
def test_impossible_sizes_are_refused(clients: wafl.Federation, options: dict[str, int], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        wafl.models.lipschitz(clients, **options)


def test_what_is_proven_of_layers_is_about_one_and_above_their_norms() -> None:
    torch.manual_seed(0)
    for layer in (LipschitzLinear(4, 7), LipschitzLinear(7, 4)):
        nn.init.normal_(layer.weight, std=10.0)
        with torch.no_grad():
            layer.weight[:, 0] *= 1e-6
        known = last_layer(nn.Sequential(layer, NormalizedLinear(layer.out_features, 3)).double())
        assert known is not None
        used = layer.double().rescale(layer.weight.detach())
        assert float(torch.linalg.matrix_norm(used, ord=2)) <= known[1].slope <= 1.0 + 1e-9
    strided = LipschitzConv2d(2, 4)
    strided.stride = (2, 2)
    known = last_layer(nn.Sequential(strided, nn.Flatten(), NormalizedLinear(4, 3)))
    assert known is not None
    assert math.isinf(known[1].slope), "nothing is proven of settings that the layer does not have"


def test_where_channels_are_sorted_the_gradient_jumps() -> None:
    known = last_layer(nn.Sequential(LipschitzLinear(2, 2), MaxMin(), NormalizedLinear(2, 3)).double())
    assert known is not None
    assert math.isinf(known[1].bend)


def test_an_error_is_as_far_as_the_least_lead_over_its_slope() -> None:
    draws = torch.Generator().manual_seed(0)
    rows, outputs, x = (torch.randn(n, 4, generator=draws, dtype=torch.float64) for n in (4, 20, 20))
    slopes, y = torch.cdist(rows, rows), outputs.argmax(1)
    y[:5] = (y[:5] + 1) % 4
    margins = Margins(slopes, rows, None, 10)
    for slack in (0.0, 0.3):
        distances = margins.distance_to_error(x, outputs, y, 2, slack)
        for index, (label, s) in enumerate(zip(y.tolist(), outputs.tolist(), strict=True)):
            others = [other for other in range(4) if other != label]
            least = min((s[label] - s[other] - slack) / float(slopes[label, other]) for other in others)
            assert float(distances[index]) == pytest.approx(max(least, 0.0), rel=1e-12, abs=1e-13)
    lost = torch.tensor([[1e16 + 2.0, 0.0, 0.0, 1e16]], dtype=torch.float64)
    assert margins.distance_to_error(x[:1], lost, torch.tensor([0]), 2).tolist() == [0.0], "a lead of one last digit"


def in_the_plane(loss: wafl.MarginLoss | None = None) -> tuple[nn.Module, Margins, Tensor, Tensor]:
    """A network, what is known of it, and examples with the labels that it gives them."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(2, 8), nn.ReLU(), nn.Linear(8, 3)).double()
    task = make_task(model, loss or "cross_entropy")
    margins, x = margins_of(task, task.initial(), 2), 2.0 * torch.randn(30, 2, dtype=torch.float64)
    assert margins is not None
    return model.requires_grad_(False), margins, x, model(x).argmax(1)


def around(length: float = 1.0) -> Tensor:
    angles = torch.linspace(0.0, 2.0 * math.pi, 181, dtype=torch.float64)[:, None]
    lengths = length * torch.linspace(0.0, 1.0, 31, dtype=torch.float64)
    return torch.stack([angles.cos() * lengths, angles.sin() * lengths], dim=-1).view(-1, 2)


def test_no_move_in_the_plane_within_the_distance_ends_in_an_error() -> None:
    model, margins, x, y = in_the_plane()
    far = margins.distance_to_error(x, model(x), y, 2)
    assert bool((far > 0).all())
    assert bool((model(x[:, None] + far[:, None, None] * around()).argmax(-1) == y[:, None]).all())


def test_no_move_in_the_plane_gains_more_of_the_margin_loss_than_is_proven() -> None:
    model, margins, x, y = in_the_plane(LOSS)
    moves, gamma, t = around(4.0), torch.full((30,), 0.05, dtype=torch.float64), LOSS.temperature
    leads = model(x[:, None] + moves)
    leads = leads - leads.gather(-1, y[:, None, None].expand(-1, len(moves), 1))
    others = torch.ones(30, 1, 3, dtype=torch.float64).scatter(-1, y[:, None, None], 0.0)
    losses = t * torch.logsumexp((leads + LOSS.offset * others) / t, dim=-1)
    best = (losses - 0.05 * moves.square().sum(-1)).amax(1)
    scaled, logits = margins.scaled(1 / t), LOSS.logits(model(x), y)
    upper = t * scaled.along(x, logits, y, 2, gamma / t, torch.full_like(gamma, 1e-4))[0]
    assert bool((best <= upper + 1e-12).all())
    by_slopes = t * replace(scaled, hidden=None).along(x, logits, y, 2, gamma / t, torch.full_like(gamma, 1e-4))[0]
    far = torch.linspace(0.0, 40.0, 8001, dtype=torch.float64)[:, None]
    lines = leads[:, :1] + LOSS.offset * others + margins.steepest(2, 2)[y][:, None] * far  # the first move is none
    best = (t * torch.logsumexp(lines / t, dim=-1) - 0.05 * far[:, 0].square()).amax(1)
    assert bool((best <= by_slopes + 1e-12).all())
    assert bool((by_slopes <= best + 1e-2).all())


def test_no_two_inputs_and_no_ascent_get_outputs_apart_faster_than_is_proven(
    run: wafl.Run, clients: wafl.Federation
) -> None:
    task, params, x, y, _ = some(run, clients)
    leads = leads_of(task, params, 64)
    assert leads is not None
    slopes = leads.steepest(2, 64, 10)
    others = (y + 1) % 10

    def lead(x: Tensor) -> Tensor:
        scores = task.outputs(params[None], x[None])[0]
        return (scores.gather(1, others[:, None]) - scores.gather(1, y[:, None]))[:, 0]

    most = slopes[y, others]
    torch.manual_seed(0)
    for scale in (1e-3, 0.1, 10.0):
        moved = x + scale * torch.randn_like(x)
        change = (lead(moved) - lead(x)).abs() / (moved - x).flatten(1).norm(dim=1)
        assert bool((change <= most).all())
    moved, steepest = x + 0.01 * torch.randn_like(x), torch.zeros(len(x), dtype=torch.float64)
    for _ in range(60):
        moved = moved.detach().requires_grad_()
        leading = lead(moved)
        (slope,) = torch.autograd.grad(leading.sum(), moved)
        change = (leading.detach() - lead(x)) / (moved.detach() - x).flatten(1).norm(dim=1)
        for each in (change, slope.flatten(1).norm(dim=1)):
            assert bool((each <= most * (1 + 1e-12)).all())
        steepest = torch.maximum(steepest, change)
        moved = moved.detach() + 0.05 * slope
    assert float((steepest / most).mean()) > 0.3, "the ascent gets somewhere"


@pytest.mark.parametrize("norm", [1, 2, math.inf])
def test_no_attack_within_the_certified_distance_finds_an_error(
    norm: float, run: wafl.Run, clients: wafl.Federation
) -> None:
    task, params, _, _, _ = some(run, clients)
    x, y, far = distances(run, clients, norm)
    held = far > 0
    assert 0.5 < float(held.double().mean()) < 1.0
    moved = x.clone()
    for step in range(60):
        moved = moved.detach().requires_grad_()
        outputs = task.outputs(params[None], moved[None])[0]
        of_label = outputs.gather(1, y[:, None])[:, 0]
        rest = outputs.scatter(1, y[:, None], -math.inf)
        assert bool((of_label > rest.amax(1))[held].all()), f"step {step}"
        (slope,) = torch.autograd.grad((rest.amax(1) - of_label).sum(), moved)
        delta = (moved.detach() - x + 0.2 * far.view(-1, 1, 1, 1) * _steepest(slope, norm)).flatten(1)
        length = torch.linalg.vector_norm(delta, ord=norm, dim=1, keepdim=True)
        moved = x + (delta * (far[:, None] / length.clamp_min(1e-30)).clamp_max(1.0)).view_as(x)


def _steepest(slope: Tensor, norm: float) -> Tensor:
    if norm == math.inf:
        return slope.sign()
    flat = slope.flatten(1)
    if norm == 1:
        flat = flat * (flat.abs() == flat.abs().amax(1, keepdim=True))
    return (flat / torch.linalg.vector_norm(flat, ord=norm, dim=1, keepdim=True)).view_as(slope)


@pytest.mark.parametrize("power", [1, 2])
def test_the_certified_error_is_what_a_linear_program_finds(
    power: int, run: wafl.Run, clients: wafl.Federation
) -> None:
    radii = [0.0, 0.05, 0.2, 0.5]
    certificate = wafl.certify(
        run, clients, radii=radii, metric="error", power=power, split="test", client_weights=wafl.weights.by_examples()
    )
    assert certificate.proven
    assert all(row.achieved is None for row in certificate.rows[1:])
    task, params = task_of(run)
    x, y = clients.test.rows(torch.arange(len(clients.test.y)), torch.float64), clients.test.y
    leads = leads_of(task, params, 64)
    assert leads is not None
    with torch.no_grad():
        outputs = task.outputs(params[None], x[None])[0]
    costs = leads.distance_to_error(x.flatten(1), outputs, y, 2).pow(power).numpy()
    shares = np.full(len(costs), 1.0 / len(costs))
    for row in certificate.rows:
        best = linprog(-shares, A_ub=[shares * costs], b_ub=[row.radius**power], bounds=(0, 1))
        assert row.value == pytest.approx(-best.fun, abs=1e-8)


def test_a_network_of_other_layers_has_error_certificates_that_no_attack_breaks(clients: wafl.Federation) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Flatten(), nn.Linear(64, 12), nn.ReLU(), nn.Linear(12, 10))
    run = wafl.fit(model, clients, wafl.FedAvg(), rounds=10, local_epochs=1, learning_rate=0.3)
    task, params, x, y, outputs = some(run, clients)
    leads = leads_of(task, params, 64)
    assert leads is not None
    by_slopes = (outputs.gather(1, y[:, None]) - outputs) / leads.steepest(2, 64)[y]
    by_slopes = by_slopes.scatter(1, y[:, None], math.inf).amin(1).clamp_min(0.0)
    far = leads.distance_to_error(x.flatten(1), outputs, y, 2)
    assert bool((far >= by_slopes * (1 - 1e-9)).all())
    assert float(far.sum()) > 1.2 * float(by_slopes.sum()), "where units can get to says more than their slopes"
    score = wafl.evaluate(run, clients, attack=wafl.PGD(epsilon=0.05, norm=2, steps=40))
    certificate = wafl.certify(
        run, clients, radii=[0.05], metric="error", split="test", client_weights=wafl.weights.by_examples()
    )
    assert score.accuracy is not None
    reached = 1.0 - score.accuracy
    assert 0.0 < reached <= certificate[0].value <= 3.0 * reached, "no attack breaks it, and it is not the trivial 1"


@pytest.mark.slow
def test_the_margin_loss_is_certified_along_the_margins(run: wafl.Run, clients: wafl.Federation) -> None:
    certificate = wafl.certify(run, clients, radii=[0.2], achieved=False)
    reached = wafl.evaluate(run, clients, attack=wafl.WassersteinShift(0.2, bounds=None, steps=20))
    assert certificate.proven
    assert certificate.L_z <= 2.0 * (1 + 1e-9)
    assert reached.loss < certificate[0].value <= certificate[0].simple
    task, params, x, y, outputs = some(run, clients, 5)
    margins = margins_of(task, params, 64)
    assert margins is not None
    grid = torch.linspace(0.0, 3.0, 3001, dtype=torch.float64)
    slopes = margins.steepest(2, 64)[y]
    moved = outputs - outputs.gather(1, y[:, None]) + slopes * grid[:, None, None]
    best = (LOSS.value(moved, y.expand(3001, -1)) - 0.7 * grid[:, None].square()).amax(0)
    price, allowed = (torch.full((5,), value, dtype=torch.float64) for value in (0.7, 1e-4))
    t = LOSS.temperature
    upper, _ = margins.scaled(1 / t).along(x.flatten(1), LOSS.logits(outputs, y), y, 2, price / t, allowed / t)
    assert bool((best <= t * upper + 1e-12).all())
    assert bool((t * upper <= best + 1e-3).all())


class Declared(nn.Module):
    """A module that says how steep it is, with an operation without a proof that changes nothing."""

    def __init__(self, inner: nn.Module, lipschitz: Any) -> None:
        super().__init__()
        self.inner, self.lipschitz = inner, lipschitz

    def forward(self, x: Tensor) -> Tensor:
        return self.inner(x.clamp_max(1e9))


def test_two_outputs_come_apart_by_the_root_of_two_times_what_a_model_says() -> None:
    model = Declared(nn.Linear(2, 2).double(), 1.0)
    with torch.no_grad():
        model.inner.weight.copy_(torch.eye(2))  # type: ignore[operator]
        model.inner.bias.zero_()  # type: ignore[operator]
    task, x = make_task(model), torch.tensor([[3.0, 1.0], [0.0, 5.0]], dtype=torch.float64)
    leads = leads_of(task, task.initial(), 2)
    assert leads is not None
    distances = leads.distance_to_error(x, x, torch.tensor([0, 1]), 2)
    assert distances.tolist() == pytest.approx([2.0 / math.sqrt(2.0), 5.0 / math.sqrt(2.0)]), (
        "to where both are the same"
    )


def test_what_a_model_says_of_itself_is_attested_and_never_proven(run: wafl.Run) -> None:
    clients = wafl.load_dataset("digits").partition(num_clients=4, labels_per_client=5, sizes=(40, 4))
    model = Declared(run.model, math.sqrt(10))
    for metric, power in (("error", 2), ("error", 1), ("loss", 2), ("loss", 1)):
        certificate = wafl.certify(model, clients, radii=[0.1], metric=metric, power=power, achieved=False)  # type: ignore[arg-type]
        known = wafl.certify(run.model, clients, radii=[0.1], metric=metric, power=power, achieved=False)  # type: ignore[arg-type]
        assert known.proven
        assert known[0].value < certificate[0].value
        assert not certificate.proven
        assert not certificate.simple_proven
        assert "attested" in str(certificate)
    assert not wafl.next_client(model, *clients.hold_out(0.5), radius=0.1, metric="error").proven
    for metric in ("error", "loss"):
        attested = publish(model, clients, radii=[0.1], metric=metric).parts.attested  # type: ignore[arg-type]
        assert attested == "its Lipschitz constant is only attested (model.lipschitz)"
    with pytest.raises(ValueError, match=r"Declared\.lipschitz = -1 must be a finite number"):
        wafl.certify(Declared(run.model, -1), clients, radii=[0.1])
    with pytest.raises(wafl.PreconditionError, match=r"lipschitz = 1\.0"):
        wafl.certify(Declared(run.model, None), clients, radii=[0.1], metric="error")


def test_a_run_is_saved_and_loaded(run: wafl.Run, clients: wafl.Federation, tmp_path: Path) -> None:
    run.save(tmp_path / "run")
    again = wafl.load_run(tmp_path / "run")
    x = clients.test.rows(torch.arange(8), torch.float32)
    assert torch.equal(run.model(x), again.model(x))
    assert again.loss == "margin(0.5, 0.25)"
    assert make_task(again.model, again.loss).loss == LOSS
    one, two = (wafl.certify(each, clients, radii=[0.1], metric="error") for each in (run, again))
    assert one[0].value == two[0].value


def test_training_moves_and_mirrors_images_by_its_seed(clients: wafl.Federation) -> None:
    def trained(**options: Any) -> Tensor:
        model = wafl.models.lipschitz(clients, width=4, depth=1)
        run = wafl.fit(model, clients, wafl.FedAvg(), rounds=1, local_steps=1, learning_rate=0.1, **options)
        return run.params["1.weight"]

    first = trained(shift=2, flip=0.5)
    assert torch.equal(first, trained(shift=2, flip=0.5))
    assert not torch.equal(first, trained())
    assert not torch.equal(first, trained(shift=2, flip=0.5, seed=1))
    vectors = wafl.Federation.from_arrays([(torch.rand(8, 3), torch.arange(8) % 2)])
    with pytest.raises(ValueError, match="are for images"):
        wafl.fit(wafl.models.mlr(vectors), vectors, wafl.FedAvg(), rounds=1, local_steps=1, shift=1)
    with pytest.raises(ValueError, match="flip=2"):
        trained(flip=2.0)


def test_the_layers_act_on_channels() -> None:
    """MaxMin pairs channels, so images and vectors are sorted alike."""
    x = torch.randn(3, 4)
    assert torch.equal(MaxMin()(x), MaxMin()(x[..., None, None])[..., 0, 0])
