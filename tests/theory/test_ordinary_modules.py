"""Modules with a forward of their own have the certificates of their layers, and no attack exceeds them."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

import wafl
from tests.models.layers import operator
from tests.promises.files import publish
from tests.theory.modules import Chain, Images, Residual, attacked, clients
from wafl.promises.known import known
from wafl.tasks.losses import CrossEntropy
from wafl.theory.constants.assumptions import task_of
from wafl.theory.constants.layer_by_layer import last_layer, plain_form

NORMS = (1, 2, math.inf)
FORMS = {
    "relu": (torch.relu, nn.ReLU()),
    "leaky relu": (lambda x: functional.leaky_relu(x, 0.2), nn.LeakyReLU(0.2)),
    "tanh": (lambda x: x.tanh(), nn.Tanh()),
    "sigmoid": (torch.sigmoid, nn.Sigmoid()),
    "silu": (functional.silu, nn.SiLU()),
    "gelu": (functional.gelu, nn.GELU()),
    "gelu by tanh": (lambda x: functional.gelu(x, approximate="tanh"), nn.GELU("tanh")),
    "softplus": (lambda x: functional.softplus(x, 2.0), nn.Softplus(2.0)),
}


@pytest.mark.parametrize("norm", NORMS)
@pytest.mark.parametrize("form", FORMS)
def test_a_module_has_every_bit_of_its_sequence(form: str, norm: float) -> None:
    torch.manual_seed(0)
    function, layer = FORMS[form]
    model = Chain(function)
    for metric in ("loss", "error"):
        one, two = (
            wafl.certify(each, clients(), radii=[0.1, 0.5], norm=norm, metric=metric, achieved=False)  # type: ignore[arg-type]
            for each in (model, model.sequence(layer))
        )
        assert one.proven
        assert one.rows == two.rows
        assert one.loss == two.loss


def test_constants_and_the_next_client_are_those_of_the_sequence() -> None:
    torch.manual_seed(0)
    model = Chain(torch.tanh)
    both = model, model.sequence(nn.Tanh())
    one, two = (wafl.theory.constants(each, clients()) for each in both)
    assert (one.L_z, one.L_zz, one.L_theta, one.num_params) == (two.L_z, two.L_zz, two.L_theta, two.num_params)
    assert one.L_z.proven
    seen, unseen = clients(), clients(count=20)
    first, second = (wafl.next_client(each, seen, unseen, radius=0.1, metric="error") for each in both)
    assert first.proven
    assert str(first) == str(second)


@pytest.mark.parametrize(
    "make", [Residual, lambda: Residual(functional.gelu), lambda: Residual(functional.softplus), Images]
)
@pytest.mark.parametrize("norm", [2, math.inf])
def test_no_attack_exceeds_what_is_certified_and_published(make, norm: float, tmp_path: Path) -> None:
    torch.manual_seed(1)
    model = make().double().eval()
    federation = clients((1, 8, 8) if isinstance(model, Images) else (6,))
    radii = [0.0, 0.02, 0.2]
    result = wafl.certify(model, federation, radii=radii, norm=norm, achieved=False)
    errors = wafl.certify(model, federation, radii=radii, norm=norm, metric="error", achieved=False)
    assert result.proven
    assert errors.proven
    promise = publish(model, federation, radii=radii, norm=norm)
    file = tmp_path / "certificate.json"
    promise.save(file)
    assert wafl.verify(file, model=model, data=federation).recomputed
    x, y = (torch.cat([federation.train.of(index)[part] for index in range(2)]) for part in (0, 1))
    x = x.double()
    for row, radius in zip(result.rows, radii, strict=True):
        reached = float(attacked(model, x, y, radius, norm).mean())
        assert reached <= min(row.value, row.simple) * (1.0 + 1e-9)
        assert reached <= promise.values[radius] * (1.0 + 1e-9)
    with torch.no_grad():
        assert float((model(x).argmax(1) != y).double().mean()) <= errors[0].value * (1.0 + 1e-9)


class Body(nn.Module):
    """What comes before the last layer, as the whole model."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, x: Tensor) -> Tensor:
        taken: list[Tensor] = []
        hook = self.model.last.register_forward_pre_hook(lambda _, args: taken.append(args[0]))  # type: ignore[union-attr]
        self.model(x)
        hook.remove()
        return taken[0].flatten(1)


@pytest.mark.parametrize("make", [Residual, lambda: Residual(functional.silu), lambda: Residual(torch.tanh), Images])
def test_no_jacobian_is_steeper_than_either_bound(make) -> None:
    torch.manual_seed(2)
    model = make().double().eval()
    shape = (1, 8, 8) if isinstance(model, Images) else (6,)
    searched, checked = last_layer(plain_form(model)), known(model, CrossEntropy())
    assert searched is not None
    assert checked is not None
    body, steepest, jacobians = Body(model), 0.0, []
    for scale in (0.1, 1.0, 10.0):
        for _ in range(10):
            x = scale * torch.randn(1, *shape, dtype=torch.float64)
            jacobian = torch.autograd.functional.jacobian(lambda at: body(at)[0], x).flatten(1)
            steepest = max(steepest, float(torch.linalg.matrix_norm(jacobian, ord=2)))
            near = x + 1e-4 * torch.randn_like(x)
            other = torch.autograd.functional.jacobian(lambda at: body(at)[0], near).flatten(1)
            jacobians.append(float(torch.linalg.matrix_norm(jacobian - other, ord=2) / (x - near).norm()))
    for bound in (searched[1].slope, checked.before()):
        assert steepest <= bound <= 1e4 * steepest
    assert max(jacobians) <= searched[1].bend


LAYERS = {
    "strided": (nn.Conv2d(2, 3, 3, stride=2, padding=1), (2, 7, 6)),
    "grouped": (nn.Conv2d(4, 4, 3, groups=2), (4, 5, 5)),
    "average": (nn.AvgPool2d(2), (2, 6, 6)),
    "overlapping average": (nn.AvgPool2d(3, stride=1, padding=1), (1, 6, 5)),
    "padded average": (nn.AvgPool2d(3, stride=2, padding=1), (1, 7, 7)),
    "global average": (nn.AdaptiveAvgPool2d(1), (3, 1, 1)),
    "global average of many": (nn.AdaptiveAvgPool2d((1, 1)), (2, 4, 4)),
}


@pytest.mark.parametrize("name", LAYERS)
def test_linear_layers_are_no_steeper_than_their_matrices(name: str) -> None:
    layer, shape = LAYERS[name]
    torch.manual_seed(0)
    norm = float(torch.linalg.matrix_norm(operator(layer.double(), shape), ord=2))
    for bound in both_slopes(layer):
        assert norm <= bound


def both_slopes(layer: nn.Module) -> list[float]:
    model = nn.Sequential(layer, nn.Flatten(), nn.Linear(1, 2)).double().eval()
    searched, checked = last_layer(model), known(model, CrossEntropy())
    assert searched is not None
    assert checked is not None
    return [searched[1].slope, checked.layers[0].slope]


@pytest.mark.parametrize(
    "layer", [nn.MaxPool2d(2), nn.MaxPool2d(3, stride=1, padding=1), nn.MaxPool2d(3, stride=2), nn.MaxPool2d(2, 1)]
)
def test_max_pooling_is_no_steeper_than_the_root_of_its_overlap(layer: nn.MaxPool2d) -> None:
    spike = torch.zeros(1, 1, 7, 7, dtype=torch.float64)
    steepest = 0.0
    for index in range(49):  # a single high pixel is in every window that holds it
        high = spike.clone().view(-1)
        high[index] = 1.0
        moved = layer(2.0 * high.view(1, 1, 7, 7)) - layer(high.view(1, 1, 7, 7))
        steepest = max(steepest, float(moved.norm()))
    for bound in both_slopes(layer):
        assert steepest <= bound <= steepest * (1.0 + 1e-6)


@pytest.mark.parametrize("affine", [True, False])
def test_batch_norm_is_its_scale(affine: bool) -> None:
    torch.manual_seed(0)
    layer = nn.BatchNorm2d(3, affine=affine).double().eval()
    nn.init.uniform_(layer.running_var, 0.01, 2.0)  # type: ignore[arg-type]
    nn.init.normal_(layer.running_mean)  # type: ignore[arg-type]
    if affine:
        nn.init.normal_(layer.weight)
    norm = float(torch.linalg.matrix_norm(operator(layer, (3, 2, 2)), ord=2))
    for bound in both_slopes(layer):
        assert norm * (1.0 - 1e-12) <= bound <= norm * (1.0 + 1e-6)


ACTIVATIONS = [
    nn.LeakyReLU(0.1), nn.LeakyReLU(-0.5), nn.LeakyReLU(3.0), nn.LeakyReLU(-2.0), nn.GELU(), nn.GELU("tanh"), nn.SiLU()
]  # fmt: skip


@pytest.mark.parametrize("layer", ACTIVATIONS, ids=str)
def test_no_two_points_are_farther_apart_than_an_activation_allows(layer: nn.Module) -> None:
    torch.manual_seed(0)
    centers = torch.cat(
        [torch.linspace(-12, 12, 4001), torch.tensor([0.0, 1.41421356, -1.41421356, 2.3993573, -0.7518])]
    )
    a = centers.double().repeat(8)
    b = a + 10.0 ** torch.empty_like(a).uniform_(-6, 1) * torch.randn_like(a).sign()
    rise = (layer(b) - layer(a)).abs() / (b - a).abs()
    searched, checked = both_slopes(layer)
    for bound in (searched, checked):
        assert float(rise.max()) <= bound + 1e-8
        assert float(rise.max()) >= 0.99 * bound
    sizes = known(nn.Sequential(layer, nn.Linear(1, 2)), CrossEntropy()).layers[0].sizes  # type: ignore[union-attr]
    assert bool((layer(a).abs() <= sizes(a.abs())).all())


@pytest.mark.parametrize(("beta", "threshold"), [(1.0, 20.0), (2.0, 5.0), (0.5, 1.0), (10.0, 0.0)])
def test_a_softplus_that_jumps_stays_below_its_bounds(beta: float, threshold: float) -> None:
    """Just above the threshold the softplus is lower, so a tiny move back to it gains the whole jump."""
    edge = threshold / beta
    model = nn.Sequential(nn.Linear(1, 1), nn.Softplus(beta, threshold), nn.Linear(1, 2)).double()
    high = 1000.0 * edge
    with torch.no_grad():
        for layer, weight, bias in ((model[0], [[1.0]], [0.0]), (model[2], [[1000.0], [-1000.0]], [-high, high])):
            layer.weight.copy_(torch.tensor(weight))
            layer.bias.copy_(torch.tensor(bias))
    x, moved = (torch.tensor([[place]], dtype=torch.float64) for place in (edge * (1.0 + 1e-15) + 1e-300, edge))
    y = torch.tensor([1])  # the first output rises with the softplus
    radius = max(float((x - moved).abs()), 1e-14)
    with torch.no_grad():
        rest, reached = (float(functional.cross_entropy(model(place), y)) for place in (x, moved))
        wrong = float(model(moved).argmax(1) != y)
    assert reached > rest + 4e4 * radius, "20 times as much as the slope explains"
    federation = wafl.Federation.from_arrays([(x.numpy(), y.numpy())], test_fraction=0.0, num_classes=2)
    result = wafl.certify(model, federation, radii=[radius], achieved=False)
    assert result.proven
    assert reached <= result[0].value
    error = wafl.certify(model, federation, radii=[radius], achieved=False, metric="error")
    assert wrong <= error[0].value
    promise = publish(model, federation, radii=[radius])
    assert reached <= promise.values[radius]
    assert wrong <= publish(model, federation, radii=[radius], metric="error").values[radius]


class Joined(nn.Module):
    """Two copies of an orthogonal layer's outputs, added or side by side."""

    def __init__(self, join: Callable[[Tensor], Tensor], act: nn.Module, width: int) -> None:
        super().__init__()
        self.first, self.act, self.last, self.join = nn.Linear(4, 4), act, nn.Linear(width, 2), join
        nn.init.orthogonal_(self.first.weight)
        nn.init.constant_(self.last.weight, 1.0)

    def forward(self, x: Tensor) -> Tensor:
        return self.last(self.join(self.act(self.first(x))))


JOINS: dict[str, tuple[Callable[[Tensor], Tensor], float, float, int]] = {
    "sum": (lambda h: h + h, 2.0, 2.0, 4),
    "weighted": (lambda h: torch.add(h, h, alpha=-3.0), 4.0, 4.0, 4),
    "difference": (lambda h: 2.0 * h - h, 3.0, 3.0, 4),
    "concatenation": (lambda h: torch.cat([h, h, 2.0 * h], dim=-1), math.sqrt(6.0), 2.0, 12),
    "both": (lambda h: torch.cat([h + h, h], dim=1), math.sqrt(5.0), 2.0, 8),
    "constant": (lambda h: 1.0 - h / 0.25, 4.0, 4.0, 4),
}
"""A join, its slope if both inputs have slope 1, what it makes of a jump, and the number of its outputs."""


def test_joins_have_exactly_their_slopes_and_jumps() -> None:
    for join, slope, raised, width in JOINS.values():
        check_join(join, slope, raised, width)


def check_join(join: Callable[[Tensor], Tensor], slope: float, raised: float, width: int) -> None:
    torch.manual_seed(0)
    model = Joined(join, nn.Identity(), width).double()
    searched, checked = last_layer(plain_form(model)), known(model, CrossEntropy())
    assert searched is not None
    assert checked is not None
    for bound in (searched[1].slope, checked.before()):
        assert bound == pytest.approx(slope, rel=1e-6)
    assert (searched[1].bend, searched[1].jump) == (0.0, 0.0)
    model = Joined(join, nn.Softplus(1.0, 0.0), width).double()
    searched, checked = last_layer(plain_form(model)), known(model, CrossEntropy())
    assert searched is not None
    assert checked is not None
    jump = math.log(2.0)
    assert searched[1].jump == pytest.approx(raised * jump, rel=1e-6)
    assert searched[1].bend == pytest.approx(slope / 4.0, rel=1e-6)
    error = checked.outputs(torch.zeros(1, 4, dtype=torch.float64)).error
    assert float(error) == pytest.approx(2.0 * width * raised * jump, rel=1e-6), "the sum of the last layer's weights"


def test_a_node_computes_with_the_numbers_of_the_server_whatever_its_own_are() -> None:
    """All that training changes is in the flat vector: weights, statistics, and what a forward makes of parameters."""

    class Scaled(Residual):
        def __init__(self) -> None:
            super().__init__()
            self.gain = nn.Parameter(torch.rand(6))

        def forward(self, x: Tensor) -> Tensor:
            return super().forward(self.gain * x - self.gain / 2.0)

    there, here = Scaled(), Scaled()
    here.mean = there.mean.clone()  # a buffer that no training changes
    (_, params), (task, start) = task_of(there), task_of(here)
    assert last_layer(task.module) is not None, "traced"
    assert not torch.equal(params, start)
    x = torch.rand(5, 6, dtype=torch.float64)
    with torch.no_grad():
        expected = there.double().eval()(x)
        torch.testing.assert_close(task.outputs(params[None], x[None])[0], expected, rtol=1e-12, atol=1e-12)
    assert wafl.theory.constants(there.float(), clients()).num_params == sum(map(Tensor.numel, there.parameters()))


class JoinedEarly(nn.Module):
    """A smooth network whose sum or concatenation takes a value from before its first activation."""

    def __init__(self, concatenates: bool) -> None:
        super().__init__()
        self.concatenates = concatenates
        self.first, self.inner, self.last = nn.Linear(3, 3), nn.Linear(3, 3), nn.Linear(3 + 3 * concatenates, 2)

    def forward(self, x: Tensor) -> Tensor:
        before = self.first(x)
        after = self.inner(torch.sigmoid(before))
        return self.last(torch.cat([before, after], 1) if self.concatenates else before + after)


@pytest.mark.parametrize("concatenates", [False, True])
@pytest.mark.parametrize("norm", [1, 2, math.inf])
def test_a_smooth_network_may_join_values_from_before_its_first_activation(concatenates: bool, norm: float) -> None:
    torch.manual_seed(0)
    rng = np.random.default_rng(0)
    pairs = [(rng.normal(size=(6, 3)), np.arange(6) % 2) for _ in range(3)]
    clients = wafl.Federation.from_arrays(pairs, test_fraction=0.0)
    result = wafl.certify(JoinedEarly(concatenates).double(), clients, radii=[0.1, 1.0], norm=norm)
    assert result.certifies
    for row in result.rows:
        assert row.certified is not None
        assert row.achieved is not None
        assert row.achieved <= row.certified


class Tokens(nn.Module):
    """A layer that is applied to each of several rows of an example."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(2, 3), nn.Linear(9, 2)

    def forward(self, x: Tensor) -> Tensor:
        return self.last(torch.tanh(self.first(x)).flatten(1))


@pytest.mark.parametrize("norm", [1, 2, math.inf])
def test_a_layer_of_tokens_is_a_block_diagonal_matrix(norm: float) -> None:
    torch.manual_seed(0)
    model, whole = Tokens().double(), nn.Linear(6, 9).double()
    whole.weight.data.copy_(torch.block_diag(*[model.first.weight.data] * 3))
    whole.bias.data.copy_(model.first.bias.data.repeat(3))
    flat = nn.Sequential(nn.Flatten(), whole, nn.Tanh(), nn.Flatten(), model.last)
    some = clients((3, 2))
    one, other = (wafl.certify(each, some, radii=[0.3], norm=norm, achieved=False) for each in (model, flat))
    assert one.certifies
    assert one.L_z == pytest.approx(other.L_z, rel=1e-9)
    x, y = some.train.rows(torch.arange(len(some.train.y)), torch.float64), some.train.y
    inner = (2, 0.3 / math.sqrt(6)) if norm == 1 else (norm, 0.3)  # the l1 ball has this l2 ball inside
    assert attacked(model, x, y, inner[1], inner[0]).mean() <= one[0].certified
    assert one[0].certified <= one.loss + 0.3 * other.L_z * (1 + 1e-9)


def test_a_network_with_one_class_has_no_loss() -> None:
    x = np.random.default_rng(0).normal(size=(6, 3))
    some = wafl.Federation.from_arrays([(x, np.zeros(6, np.int64))], num_classes=1, test_fraction=0.0)
    model = nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 1))
    certificates = wafl.certify(model, some, radii=[0.0, 0.5])
    assert certificates.proven
    assert all(0.0 <= row.certified <= 1e-9 for row in certificates.rows)
