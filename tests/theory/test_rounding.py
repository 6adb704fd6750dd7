"""Certificates include rounding: checked in exact arithmetic, and against float64 and float32 in any order."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Sequence

import mpmath
import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional

import wafl
from wafl.models.layers import LipschitzConv2d, LipschitzLinear, MaxMin, NormalizedLinear
from wafl.tasks.structured import make_task
from wafl.theory.networks.rounding import ARITHMETIC, rounding_of

DIGITS = 120
Exact = list[mpmath.mpf]
ACTIVATIONS: dict[type[nn.Module], Callable[[mpmath.mpf], mpmath.mpf]] = {
    nn.ReLU: lambda p: max(p, mpmath.mpf(0)),
    nn.Tanh: mpmath.tanh,
    nn.Sigmoid: lambda p: 1 / (1 + mpmath.exp(-p)),
}


def exact_outputs(model: nn.Module, x: Exact) -> Exact:
    for layer in model if isinstance(model, nn.Sequential) else [model]:
        if isinstance(layer, nn.Linear):
            rows = zip(layer.weight.tolist(), layer.bias.tolist(), strict=True)
            x = [sum((mpmath.mpf(w) * v for w, v in zip(row, x, strict=True)), mpmath.mpf(b)) for row, b in rows]
        else:
            x = [ACTIVATIONS[type(layer)](p) for p in x]
    return x


def exact_loss(outputs: Exact, label: int) -> mpmath.mpf:
    top = max(outputs)
    return top + mpmath.log(sum(mpmath.exp(s - top) for s in outputs)) - outputs[label]


def in_order(model: nn.Module, x: np.ndarray, order: np.random.Generator, dtype: type = np.float64) -> np.ndarray:
    """Sum the products of each output one after another, in a random order and with the bias at any place."""
    functions = {nn.ReLU: lambda p: np.maximum(p, 0), nn.Tanh: np.tanh, nn.Sigmoid: lambda p: 1 / (1 + np.exp(-p))}
    x = x.astype(dtype)
    for layer in model if isinstance(model, nn.Sequential) else [model]:
        if isinstance(layer, nn.Linear):
            sums = list[float]()
            for row, bias in zip(layer.weight.detach().numpy(), layer.bias.detach().numpy(), strict=True):
                terms = [*(dtype(w) * v for w, v in zip(row, x, strict=True)), dtype(bias)]
                total = dtype(0)
                for index in order.permutation(len(terms)):
                    total = dtype(total + terms[index])
                sums.append(total)
            x = np.array(sums, dtype)
        else:
            with np.errstate(over="ignore"):
                x = functions[type(layer)](x).astype(dtype)
    return x


def plain_loss(outputs: np.ndarray, label: int) -> float:
    shifted = outputs - outputs.max()
    return float(np.log(np.exp(shifted).sum()) - shifted[label])


def certified(
    model: nn.Module, x: Sequence[Sequence[float]], y: Sequence[int], radius: float, classes: int = 2, **options: object
) -> float:
    pair = np.asarray(x, dtype=np.float64), np.asarray(y)
    clients = wafl.Federation.from_arrays([pair], test_fraction=0.0, num_classes=classes)
    result = wafl.certify(model, clients, radii=[radius], achieved=False, **options)
    assert result.proven
    return result.best_proven(result[0])


def set_to(layer: nn.Module, weight: object, bias: object) -> None:
    assert isinstance(layer, nn.Linear)
    with torch.no_grad():
        layer.weight.copy_(torch.tensor(weight, dtype=torch.float64))
        layer.bias.copy_(torch.tensor(bias, dtype=torch.float64))


def steep_line() -> tuple[nn.Module, list[float]]:
    model = nn.Linear(1, 2).double()
    set_to(model, [[0.0], [1e8 / 3.0]], [0.0, -1e16 / 3.0])
    return model, [1e8]


def steep_tanh() -> tuple[nn.Module, list[float]]:
    model = nn.Sequential(nn.Linear(1, 1), nn.Tanh(), nn.Linear(1, 2)).double()
    set_to(model[0], [[1.0]], [0.0])
    set_to(model[2], [[0.0], [1e17]], [0.0, -1e17 * math.tanh(1.0)])
    return model, [1.0]


def far_hinge() -> tuple[nn.Module, list[float]]:
    model = nn.Sequential(nn.Linear(2, 1), nn.ReLU(), nn.Linear(1, 2)).double()
    set_to(model[0], [[1.0, 1.0]], [0.0])
    set_to(model[2], [[0.0], [10.0]], [0.0, -1e17])
    return model, [1e16, 0.0]


@pytest.mark.parametrize(
    ("case", "radius", "before"), [(steep_line, 1e-12, 0.4741), (steep_tanh, 4e-16, 20.7), (far_hinge, 0.3, 2.369)]
)
def test_what_rounding_makes_impossible_is_refused(
    case: Callable[[], tuple[nn.Module, list[float]]], radius: float, before: float
) -> None:
    """Once, ``before`` was certified, which is below the exact loss of a point inside the ball."""
    model, x = case()
    with mpmath.workdps(DIGITS):
        points = inside(model, np.array(x), 0, radius, 2, np.random.default_rng(0))
        assert max(exact_loss(exact_outputs(model, point), 0) for point in points) > 1.1 * before
    with pytest.raises(
        wafl.PreconditionError, match=r"rounding in float64 may change the loss by .* half of the bound"
    ):
        certified(model, [x, x], [0, 0], radius)


def test_a_width_that_is_lost_counts_with_the_steepest_slope() -> None:
    from wafl.theory.networks.activations import Hinge, SShaped

    center, width = torch.tensor([1e16, -1e16], dtype=torch.float64), torch.tensor([0.3, 0.3], dtype=torch.float64)
    for activation, steepest in ((Hinge(), 1.0), (SShaped(1.0, 1.0), 1.0), (SShaped(0.5, 0.5), 0.25)):
        _, high = activation.secants(center, activation.turn(center), width)
        assert high.tolist() == [steepest, steepest]
        assert activation.strip(center, width).slope.tolist() == [steepest, steepest]


def drawn(row: int) -> tuple[nn.Module, np.ndarray, float, np.random.Generator]:
    """Draw a model of extreme magnitude whose outputs nearly cancel at an example, and a radius."""
    random = np.random.default_rng([row, 49])
    inputs, hidden = int(random.integers(1, 4)), int(random.integers(1, 4))
    kinds = [None, nn.ReLU, nn.Tanh, nn.Sigmoid]
    kind = kinds[row % 4]
    x = random.normal(size=inputs) * 10.0 ** random.uniform(-6, 16 if row % 3 else 3)
    first = random.normal(size=(hidden if kind else 2, inputs)) * 10.0 ** random.uniform(-4, 8)
    size = max(float(np.abs(first @ x).max()), 1e-300)
    # A hidden layer that saturates nowhere, and one that loses all digits of its bias.
    if kind in (nn.Tanh, nn.Sigmoid) and row % 8 < 6:
        first *= random.uniform(0.1, 3.0) / size
    bias = -first @ x * (1.0 + random.normal(size=len(first)) * 10.0 ** random.uniform(-18, 0))
    if kind is None:
        model: nn.Module = nn.Linear(inputs, 2).double()
        set_to(model, first, bias)
    else:
        model = nn.Sequential(nn.Linear(inputs, hidden), kind(), nn.Linear(hidden, 2)).double()
        set_to(model[0], first, bias if row % 8 < 4 else 0.1 * bias)
        last = random.normal(size=(2, hidden)) * 10.0 ** random.uniform(-3, 17 if row % 5 == 0 else 4)
        inner = np.maximum(model[:2](torch.tensor(x)).detach().numpy(), 0.0)
        set_to(model[2], last, -last @ inner + random.normal(size=2))
    slope = max(float(np.abs(first).max()), 1e-300)
    return model, x, 10.0 ** random.uniform(-6, 1) / slope, random


ROWS, SHARES = 100, 5


@pytest.mark.parametrize("share", range(SHARES))
def test_extreme_magnitudes_are_refused_or_never_below_the_exact_loss_and_any_float64_one(share: int) -> None:
    kept = 0
    for row in range(share, ROWS, SHARES):
        model, x, radius, random = drawn(row)
        label, norm = row % 2, [2, math.inf, 1][row % 3]
        try:
            bound = certified(model, [x.tolist()] * 2, [label] * 2, radius, norm=norm)
        except wafl.PreconditionError:
            continue
        kept += 1
        with mpmath.workdps(DIGITS):
            for point in inside(model, x, label, radius, norm, random):
                exact = exact_loss(exact_outputs(model, point), label)
                assert exact <= mpmath.mpf(bound), (row, exact, bound)
                near = np.array([float(v) for v in point])
                if length([mpmath.mpf(v) - u for v, u in zip(near.tolist(), x.tolist(), strict=True)], norm) <= radius:
                    for _ in range(4):
                        computed = plain_loss(in_order(model, near, random), label)
                        assert computed <= bound, (row, computed, bound)
    assert kept >= ROWS // SHARES // 3, f"only {kept} of {ROWS // SHARES} rows are certified"


def length(move: Exact, norm: float) -> mpmath.mpf:
    sizes = [abs(v) for v in move]
    if norm == 2:
        return mpmath.sqrt(sum(v * v for v in sizes))
    return sum(sizes) if norm == 1 else max(sizes)


def inside(
    model: nn.Module, x: np.ndarray, label: int, radius: float, norm: float, random: np.random.Generator
) -> list[Exact]:
    """Return points of the ball: the center, and on the sphere along the exact gradient and at random."""
    center = [mpmath.mpf(v) for v in x.tolist()]
    step = mpmath.mpf(radius) / 10**30
    slope: Exact = []
    for index in range(len(center)):
        ends = [[*center[:index], center[index] + side * step, *center[index + 1 :]] for side in (-1, 1)]
        low, high = (exact_loss(exact_outputs(model, end), label) for end in ends)
        slope.append(high - low)
    directions = [slope, [mpmath.sign(v) for v in slope], *([mpmath.mpf(v) for v in random.normal(size=len(center))],)]
    largest = max(range(len(center)), key=lambda index: abs(slope[index]))
    directions.append([v if index == largest else mpmath.mpf(0) for index, v in enumerate(slope)])
    points = [center]
    for direction in directions:
        far = length(direction, norm)
        if far > 0:
            for sign in (-1, 1):
                move = [sign * v * mpmath.mpf(radius) / far for v in direction]
                points.append([c + m for c, m in zip(center, move, strict=True)])
    return points


def an_image_network(*layers: nn.Module) -> nn.Module:
    torch.manual_seed(1)
    return nn.Sequential(*layers).double()


NETWORKS: dict[str, Callable[[], nn.Module]] = {
    "linear": lambda: nn.Sequential(nn.Flatten(), nn.Linear(64, 3)).double(),
    "mlp": lambda: an_image_network(
        nn.Flatten(), nn.Linear(64, 32), nn.Tanh(), nn.Linear(32, 16), nn.SiLU(), nn.Linear(16, 3)
    ),
    "cnn": lambda: an_image_network(
        *(nn.Conv2d(1, 4, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(4, 4, 3, stride=2), nn.Sigmoid()),
        *(nn.Flatten(), nn.Linear(4, 3)),
    ),
    "pooled": lambda: an_image_network(
        nn.Conv2d(1, 4, 3, dilation=2), nn.AvgPool2d(2), nn.ReLU(), nn.Flatten(), nn.Linear(16, 3)
    ),
    "lipschitz": lambda: an_image_network(
        *(nn.PixelUnshuffle(2), LipschitzConv2d(4, 8), MaxMin(), nn.Flatten(), LipschitzLinear(128, 32), MaxMin()),
        NormalizedLinear(32, 3),
    ),
}


@pytest.mark.parametrize("scale", [1.0, 1e4])
@pytest.mark.parametrize("name", NETWORKS)
def test_the_error_of_float32_is_within_the_running_bound_and_its_growth(name: str, scale: float) -> None:
    """Float64 stands for exact arithmetic here: its own error is a billion times smaller."""
    model = NETWORKS[name]()
    generator = torch.Generator().manual_seed(3)
    x = scale * torch.randn(64, 1, 8, 8, generator=generator, dtype=torch.float64)
    task = make_task(model)
    rounding = rounding_of(task, task.initial())
    assert rounding is not None
    bound = rounding.errors(x, "float32")[-1]
    single = NETWORKS[name]().float()
    single.load_state_dict({key: value.float() for key, value in model.state_dict().items()})
    with torch.no_grad():
        actual = (single(x.float()).double() - model(x)).abs()
        assert bool((actual <= bound).all())
        assert scale > 1.0 or float((bound / actual.clamp_min(1e-300)).min()) < 1e4, "not far too large"
        move = 100.0 * scale * torch.randn(x.shape, generator=generator, dtype=torch.float64)
        far = move.flatten(1).norm(dim=1)[:, None]
        moved = (single((x + move).float()).double() - model(x + move)).abs()
        assert bool((moved <= bound + rounding.growth((1, 8, 8), 2, "float32", x) * far).all())
        steep = rounding.slopes((1, 8, 8), 2, "float32", x)[0]
        assert bool(((model(x + move) - model(x)).abs() <= steep * far).all())
    assert float((rounding.errors(x, "float64")[-1] / bound).max()) < 1e-8


def test_what_a_hidden_layer_loses_is_carried_to_the_outputs() -> None:
    """Its inputs cancel, so that its output is small and mostly rounding."""
    model = nn.Sequential(nn.Linear(2, 1), nn.ReLU(), nn.Linear(1, 2)).double()
    set_to(model[0], [[1.0, -1.0]], [0.0])
    set_to(model[2], [[1.0], [-1.0]], [0.0, 0.0])
    x = torch.tensor([[1e4 + 0.01, 1e4]], dtype=torch.float64)
    task = make_task(model)
    rounding = rounding_of(task, task.initial())
    assert rounding is not None
    with torch.no_grad():
        actual = (an_image_copy(model)(x.float()).double() - model(x)).abs()
    bound = rounding.errors(x, "float32")[-1]
    assert bool((actual > 1e-4).all())
    assert bool((actual <= bound).all())


@pytest.mark.parametrize("name", ["mlp", "smooth"])
def test_the_error_of_gradients_is_within_its_bound(name: str) -> None:
    model = {
        "mlp": NETWORKS["mlp"],
        "smooth": lambda: an_image_network(nn.Conv2d(1, 4, 3), nn.Sigmoid(), nn.Flatten(), nn.Linear(144, 3)),
    }[name]()
    x = torch.randn(8, 1, 8, 8, generator=torch.Generator().manual_seed(5), dtype=torch.float64)
    task = make_task(model)
    rounding = rounding_of(task, task.initial())
    assert rounding is not None
    assert rounding.smooth
    single = an_image_copy(model)
    for norm, order in ((2, 2), (math.inf, 1), (1, math.inf)):
        bound = rounding.slopes((1, 8, 8), norm, "float32", x, rounding.errors(x, "float32"))[1]
        for output in range(3):
            exact = torch.func.grad(lambda v, output=output: model(v)[:, output].sum())(x)
            computed = torch.func.grad(lambda v, output=output: single(v)[:, output].sum())(x.float()).double()
            off = torch.linalg.vector_norm((computed - exact).flatten(1), ord=order, dim=1)
            assert bool((off <= bound[:, output]).all())


def an_image_copy(model: nn.Module) -> nn.Module:
    return copy.deepcopy(model).float()


def near_30_million() -> tuple[nn.Module, list[list[float]]]:
    model = nn.Linear(2, 2).double()
    set_to(model, [[0.0, 0.0], [0.3, -0.3]], [0.0, 0.0])
    return model, [[3e7 + 1.0, 3e7], [3e7 + 3.0, 3e7 + 2.0]]


@pytest.mark.parametrize("radius", [0.1, 1.0])
def test_float32_near_30_million_is_refused(radius: float) -> None:
    """At r = 0.1, float64 is certified at 0.879, but float32 computes a loss of 1.313 inside the ball."""
    model, x = near_30_million()
    assert certified(model, x, [0, 0], radius) > 0.0
    with pytest.raises(wafl.PreconditionError, match=r"rounding in float32 may .* the radius adds .* dtype='float64'"):
        certified(model, x, [0, 0], radius, dtype="float32")


def test_float32_near_30_million_is_above_what_it_computes_in_a_large_ball() -> None:
    model, x = near_30_million()
    plain, bound = (certified(model, x, [0, 0], 1e4, dtype=dtype) for dtype in ("float64", "float32"))
    random, direction = np.random.default_rng(0), np.array([-1.0, 1.0]) / math.sqrt(2.0)
    for sign in (-1.0, 1.0):
        moved = [np.array(row) + sign * 1e4 * direction for row in x]
        computed = [plain_loss(in_order(model, row, random, np.float32), 0) for row in moved]
        assert np.mean(computed) <= bound
    assert plain < bound < 1.1 * plain


@pytest.mark.parametrize("name", NETWORKS)
def test_float32_at_attacked_points_stays_below(name: str) -> None:
    model = NETWORKS[name]()
    x = torch.rand(12, 1, 8, 8, generator=torch.Generator().manual_seed(2), dtype=torch.float64)
    y = torch.arange(12) % 3
    clients = wafl.Federation.from_arrays([(x.numpy(), y.numpy())], test_fraction=0.0, num_classes=3)
    plain = wafl.certify(model, clients, radii=[0.3], achieved=False)[0]
    wider = wafl.certify(model, clients, radii=[0.3], achieved=False, dtype="float32")
    assert plain.value < wider[0].value < 1.05 * plain.value
    assert wider.to_json()["dtype"] == "float32"
    assert "with the rounding of float32" in str(wider)
    single, moved = an_image_copy(model), x.clone()
    for _ in range(20):
        moved.requires_grad_()
        slope = torch.autograd.grad(nn.functional.cross_entropy(model(moved), y), moved)[0].flatten(1)
        moved = x + (0.3 * slope / slope.norm(dim=1, keepdim=True)).view_as(x)
    with torch.no_grad():
        assert float(nn.functional.cross_entropy(single(moved.float()), y).double()) <= wider[0].value


@pytest.mark.parametrize("loss", ["cross_entropy", "margin(1, 0.001)", "squared_error"])
@pytest.mark.parametrize("size", [0.0, 1e-6, 1.0, 30.0])
def test_the_rounding_of_the_loss_itself_counts_in_float32(loss: str, size: float) -> None:
    random, classes = np.random.default_rng(int(size)), 10
    model = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, classes))
    if loss == "squared_error":
        model = nn.Sequential(nn.Linear(3, classes))  # a network has no proof with this loss
    for value in model.parameters():
        value.data.copy_(size * torch.from_numpy(random.normal(size=tuple(value.shape))))
    x = random.normal(size=(20, 3))
    y = random.normal(size=(20, classes)) if loss == "squared_error" else np.arange(20) % classes
    clients = wafl.Federation.from_arrays([(x, y)], test_fraction=0.0)
    certificates = wafl.certify(model, clients, radii=[0.0], loss=loss, dtype="float32", achieved=False)
    with torch.no_grad():
        outputs, labels = model(torch.from_numpy(x).float()), torch.from_numpy(y)
        if loss == "squared_error":
            losses = (outputs - labels.float()).square().sum(1)
        elif loss == "cross_entropy":
            losses = functional.cross_entropy(outputs, labels, reduction="none")
        else:
            raised = (outputs - functional.one_hot(labels, classes)) / 0.001
            losses = 0.001 * functional.cross_entropy(raised, labels, reduction="none")
    assert certificates.certifies
    assert losses.double().mean() <= certificates[0].certified <= losses.double().mean() * (1 + 1e-4) + 1e-3 * size


def test_an_unknown_dtype_is_refused() -> None:
    model, x = near_30_million()
    with pytest.raises(ValueError, match="dtype='float16' must be one of 'float64', 'float32'"):
        certified(model, x, [0, 0], 1.0, dtype="float16")


def test_ordinary_values_grow_by_less_than_a_millionth(monkeypatch: pytest.MonkeyPatch) -> None:
    """Against the same values with a unit roundoff of 0."""
    from wafl.theory.certificates import soundness, upper
    from wafl.theory.networks import rounding

    def values() -> list[float]:
        numbers = list[float]()
        for name, make in NETWORKS.items():
            x = np.random.default_rng(7).normal(size=(6, 1, 8, 8))
            clients = wafl.Federation.from_arrays([(x, np.arange(6) % 3)], test_fraction=0.0, num_classes=3)
            for metric in ("loss", "error"):
                rows = wafl.certify(make(), clients, radii=[0.0, 0.1, 1.0], metric=metric, achieved=False).rows
                numbers += [number for row in rows for number in (row.value, row.simple)]
            assert name
        return numbers

    torch.manual_seed(0)
    with_rounding = values()
    torch.manual_seed(0)
    exact = rounding.Arithmetic(0.0, 0.0, 1e300, converts=False)
    monkeypatch.setitem(ARITHMETIC, "float64", exact)
    monkeypatch.setattr(upper, "UNIT", 0.0)
    monkeypatch.setattr(soundness, "UNIT", 0.0)
    for after, before in zip(with_rounding, values(), strict=True):
        assert before <= after <= before * (1.0 + 1e-6)


def test_a_squared_error_is_above_the_exact_one() -> None:
    random = np.random.default_rng(3)
    for row in range(20):
        scale = 10.0 ** random.uniform(-3, 7)
        model = nn.Linear(3, 1).double()
        weight, x = random.normal(size=(1, 3)), scale * random.normal(size=(4, 3))
        set_to(model, weight, random.normal(size=1))
        y = (x @ weight.T)[:, 0] + random.normal(size=4) * 10.0 ** random.uniform(-8, 1)
        clients = wafl.Federation.from_arrays([(x, y)], test_fraction=0.0)
        radius = 10.0 ** random.uniform(-4, 1)
        try:
            result = wafl.certify(model, clients, radii=[radius], achieved=False, loss="squared_error")
        except wafl.PreconditionError:
            continue
        with mpmath.workdps(DIGITS):
            residuals = [
                exact_outputs(model, [mpmath.mpf(v) for v in each])[0] - mpmath.mpf(target)
                for each, target in zip(x.tolist(), y.tolist(), strict=True)
            ]
            # The root of the mean squared error grows by ||w|| r, exactly.
            steep = mpmath.sqrt(sum(mpmath.mpf(w) ** 2 for w in weight[0].tolist()))
            root = mpmath.sqrt(sum(r * r for r in residuals) / 4) + steep * mpmath.mpf(radius)
            assert root**2 <= mpmath.mpf(result[0].value), row
            assert result[0].value <= float(root**2) * (1.0 + 1e-3) or scale > 1e3


class Scaled(nn.Module):
    """A chain of products with constants, whose roundings in float32 all go up."""

    def __init__(self) -> None:
        super().__init__()
        random, self.factors = np.random.default_rng(0), list[float]()
        rounded = exact = 1.0
        for _ in range(40):
            drawn = random.uniform(1.0, 1.001, 500)
            results = (np.float32(rounded) * drawn.astype(np.float32)).astype(np.float64)
            best = int((results / (exact * drawn)).argmax())
            self.factors.append(float(drawn[best]))
            rounded, exact = float(results[best]), exact * self.factors[-1]
        self.last = nn.Linear(1, 2).double()
        set_to(self.last, [[1000.0], [0.0]], [0.0, 0.0])

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for factor in self.factors:
            x = x * factor
        return self.last(x)


def test_float32_rounds_constants_and_products_with_them() -> None:
    model, one = Scaled(), torch.ones(1, 1, dtype=torch.float64)
    with torch.no_grad():
        # The other output is 0, so the loss of label 1 is the first output.
        exact, reached = float(model(one)[0, 0]), float(copy.deepcopy(model).float()(one.float())[0, 0])
    assert reached > (1.0 + 50.0 * 2.0**-24) * exact
    assert reached <= certified(model, [[1.0]], [1], 0.0, dtype="float32")


class Copied(nn.Module):
    """A sum of copies of one number, whose roundings in float32 all go up if it is added term by term."""

    def __init__(self, radius: float, count: int = 64) -> None:
        super().__init__()
        random, weights, self.total = np.random.default_rng(0), list[float](), np.float32(0.0)
        for _ in range(count):
            drawn = random.uniform(1.0, 1.0001, 500)
            sums = self.total + drawn.astype(np.float32) * np.float32(radius)
            best = int((sums - float(self.total) - drawn * radius).argmax())
            weights.append(float(drawn[best]))
            self.total = sums[best]
        self.last = nn.Linear(count, 2).double()
        set_to(self.last, [weights, [-weight for weight in weights]], [0.0, 0.0])

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.last(torch.cat([x] * self.last.in_features, dim=1))


def test_float32_rounds_copies_of_a_number_that_moves() -> None:
    model = Copied(1000.0)
    assert 2.0 * float(model.total) <= certified(model, [[0.0]], [1], 1000.0, dtype="float32")


class Difference(nn.Module):
    """A layer whose weights are a difference that float32 loses."""

    def __init__(self) -> None:
        super().__init__()
        self.one, self.other = (nn.Parameter(torch.tensor([[value], [1e8]])) for value in (1e8 + 3.0, 1e8))
        self.last = nn.Linear(2, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.last(functional.linear(x, self.one - self.other))


def test_weights_that_are_computed_have_no_bound_in_float32() -> None:
    model = Difference().double()
    assert certified(model, [[5.0]], [0], 1.0) > 0.0
    with pytest.raises(wafl.PreconditionError, match="computes weights from its parameters"):
        certified(model, [[5.0]], [0], 1.0, dtype="float32")
