"""Lipschitz constants against dense searches: of linear models, of networks layer by layer, and estimates."""

import copy
import itertools
import json
import math
import pickle

import numpy as np
import pytest
import torch
from torch import nn

import wafl
from tests.oracles import objective as oracles
from tests.oracles import theory
from wafl.base.errors import PreconditionError
from wafl.models.layers import MaxMin
from wafl.tasks.losses import CrossEntropy, SquaredError
from wafl.tasks.structured import make_task
from wafl.theory import Constant, constants
from wafl.theory.constants import estimates
from wafl.theory.constants.layer_by_layer import ACTIVATIONS, loss_steepness

NAMES = ("L_z", "L_zz", "L_theta", "L_theta_theta", "L_theta_z", "max_loss")
NORMS = (1, 2, math.inf)
CLOSE = 0.99
"""What fraction of an exact constant the search must find."""
FEATURES = 3
BOX = (-0.5, 1.0)


def a_linear_model(outputs, has_bias, seed=0, features=FEATURES, size=1.0):
    rng = np.random.default_rng(seed)
    layer = nn.Linear(features, outputs, bias=has_bias).double()
    for value in layer.parameters():
        value.data = torch.from_numpy(size * rng.normal(size=tuple(value.shape)))
    return layer


def a_pair(loss, outputs, features=FEATURES, seed=0, count=12):
    """Examples inside the box, with every label."""
    rng = np.random.default_rng(seed)
    x = rng.uniform(*BOX, size=(count, features))
    if loss == "cross_entropy":
        return x, np.arange(count) % outputs
    return x, rng.normal(size=(count, outputs))


def domain_of(model, pair, loss, reach, params_radius):
    outputs, features = model.weight.shape
    theta = theory.flat_parameters(model)
    targets = None if loss == "cross_entropy" else (pair[1].min(0), pair[1].max(0))
    return theory.Domain(
        (features,),
        outputs,
        *BOX,
        reach,
        theta if params_radius is None else None,
        params_radius or 0.0,
        len(theta),
        targets,
    )


def hard_points(domain, outputs, features, loss, rng):
    """Where the search should also look: two classes that share the mass far out, and two opposite rows."""
    results = []
    for j, k in itertools.permutations(range(outputs), 2):
        for _ in range(4):
            if domain.theta is None:
                u, a = np.linalg.qr(rng.normal(size=(features, 2)))[0].T
                if rng.uniform() < 0.5:  # all coordinates alike, or a single one: what l_inf and l1 favor
                    u, a = np.ones(features) / math.sqrt(features), np.eye(features)[0] - np.eye(features)[1]
                elif rng.uniform() < 0.5:
                    u, a = np.eye(features)[:2]
                weight = np.zeros((outputs, features))
                weight[j], weight[k] = u + 0.02 * a, -u + 0.02 * a
                weight *= domain.params_radius / np.linalg.norm(weight)
                theta = np.zeros(domain.num_params)
                theta[: outputs * features] = weight.ravel()
                x = a * 1000.0
            else:
                theta = domain.theta
                weight, bias = theta[: outputs * features].reshape(outputs, features), theta[outputs * features :]
                wanted = np.zeros(outputs)
                wanted[[j, k]] = 30.0
                x = np.linalg.lstsq(weight, wanted - (bias if len(bias) else 0.0), rcond=None)[0]
            for far in (x, 100.0 * (weight[j] - weight[k])):
                results.append((theta, far, domain.labels(1, rng)[0]))
    return theory.Points(*(np.array(part) for part in zip(*results, strict=True))) if results else None


CASES = [
    pytest.param(loss, outputs, has_bias, radius, reach, id=f"{loss}-{outputs}-{has_bias}-{radius}-{reach}")
    for loss, outputs, has_bias, radius, reach in [
        ("cross_entropy", 2, True, None, 0.0),
        ("cross_entropy", 3, False, None, 0.3),
        ("cross_entropy", 3, True, None, 0.0),
        ("cross_entropy", 2, True, 1.5, 0.3),
        ("cross_entropy", 2, False, 1.5, 0.0),
        ("cross_entropy", 3, True, 1.5, 0.0),
        ("squared_error", 1, True, None, 0.0),
        ("squared_error", 1, False, None, 0.3),
        ("squared_error", 2, True, None, 0.3),
        ("squared_error", 1, True, 1.5, 0.3),
        ("squared_error", 2, False, 1.5, 0.0),
    ]
]


@pytest.mark.parametrize(("loss", "outputs", "has_bias", "params_radius", "reach"), CASES)
def test_no_search_finds_more_than_a_linear_models_constants_and_exact_ones_are_attained(
    loss, outputs, has_bias, params_radius, reach
):
    model = a_linear_model(outputs, has_bias, size=0.4 if params_radius else 1.0)
    pair = a_pair(loss, outputs)
    domain = domain_of(model, pair, loss, reach, params_radius)
    at = theory.linear_loss(loss, outputs, has_bias)
    for norm in NORMS:
        known = constants(model, pair, data_bounds=BOX, params_radius=params_radius, norm=norm, reach=reach, loss=loss)
        for name in NAMES if norm == 2 else NAMES[:2]:
            constant = getattr(known, name)
            assert constant.proven, name
            where = domain.over_all_inputs() if "over all inputs" in constant.why else domain
            starts = hard_points(where, outputs, FEATURES, loss, np.random.default_rng(1))
            result = theory.largest_found(
                theory.size_of(name, at, norm), where, starts=starts, draws=250, rounds=18, kept=8, children=10
            )
            assert result <= constant * (1.0 + 1e-9), (name, norm)
            if constant.kind == "exact":
                assert result >= CLOSE * constant, (name, norm)


def test_l_zz_is_called_exact_only_if_it_is_attained():
    """With more classes than features, no x may split the mass between the two farthest rows: a bound, not exact."""
    model = oracles.linear_model(np.array([[-1.0], [0.0], [1.0]]))
    known = constants(model, (np.linspace(-1, 1, 6)[:, None], np.arange(6) % 3)).L_zz
    x = np.linspace(-40, 40, 200001)[:, None]
    p = np.exp(x * [-1.0, 0.0, 1.0])
    p /= p.sum(1, keepdims=True)
    result = float((p @ [1.0, 0.0, 1.0] - (p @ [-1.0, 0.0, 1.0]) ** 2).max())
    assert result <= known
    assert known.kind == "bound" or result >= CLOSE * known


def test_l_zz_over_the_ball_is_called_exact_only_if_it_is_attained():
    """One feature and three classes: no x gives two opposite rows half of the mass each."""
    known = constants(
        nn.Linear(1, 3, bias=False), (np.array([[-1.0], [1.0], [0.5]]), np.arange(3)), params_radius=2.0
    ).L_zz
    domain = theory.Domain((1,), 3, -1.0, 1.0, params_radius=2.0, num_params=3, anywhere=True)
    result = theory.largest_found(theory.size_of("L_zz", theory.linear_loss("cross_entropy", 3, False)), domain)
    assert result <= known
    assert known.kind == "bound" or result >= CLOSE * known


@pytest.mark.parametrize("norm", NORMS)
def test_a_vector_common_to_all_rows_does_not_hide_their_differences(norm):
    """Softmax ignores a vector added to all rows; rounding in float64 must not spoil what is proven."""
    rng = np.random.default_rng(0)
    rows = rng.normal(size=(3, FEATURES))
    plain = constants(oracles.linear_model(rows), a_pair("cross_entropy", 3), norm=norm)
    moved = constants(oracles.linear_model(rows + 1e8), a_pair("cross_entropy", 3), norm=norm)
    assert moved.L_z == pytest.approx(plain.L_z, rel=1e-6)
    assert moved.L_zz == pytest.approx(plain.L_zz, rel=1e-6)


@pytest.mark.parametrize("label_cost", [0.1, 1.0, 30.0])
@pytest.mark.parametrize("loss", ["cross_entropy", "squared_error"])
@pytest.mark.parametrize("norm", NORMS)
def test_l_z_with_labels_is_lipschitz_in_the_joint_metric(loss, norm, label_cost):
    outputs = 3 if loss == "cross_entropy" else 2
    model, pair = a_linear_model(outputs, True), a_pair(loss, outputs)
    known = constants(model, pair, data_bounds=BOX, norm=norm, label_cost=label_cost, reach=0.2, loss=loss)
    domain = domain_of(model, pair, loss, 0.2, None)
    rng, at = np.random.default_rng(0), theory.size_of("max_loss", theory.linear_loss(loss, outputs, True))
    first = domain.draw(20000, rng)
    second = domain.draw(20000, rng)
    near = domain.nudge(first, 0.02, rng)
    relabeled = second.y if loss == "cross_entropy" else first.y + 0.01 * (second.y - first.y)
    best = 0.0
    for one, other in ((first, second), (first, near), (first, theory.Points(first.theta, first.x, relabeled))):
        gap = np.linalg.norm(one.x - other.x, ord=norm, axis=1)
        labels = ((one.y - other.y) ** 2).sum(1) / (2.0 if loss == "cross_entropy" else 1.0)
        distance = np.sqrt(gap**2 + label_cost * labels)
        rise = np.abs(at(one) - at(other))
        apart = distance > 1e-6
        best = max(best, float((rise[apart] / distance[apart]).max()))
    assert best <= known.L_z
    assert best >= 0.5 * known.L_z


@pytest.mark.slow
def test_a_networks_label_constant_is_what_one_unit_of_the_label_changes():
    """Two |residual| per unit of a target, at its farthest from the prediction; between classes, the widest gap."""
    torch.manual_seed(0)
    rng, outside = np.random.default_rng(0), 1e-9
    x = rng.normal(size=(40, 2))
    model = nn.Sequential(nn.Linear(2, 8), nn.Tanh(), nn.Linear(8, 1)).double()
    y = rng.uniform(-1, 1, size=(40, 1))
    still, moving = (constants(model, (x, y), loss="squared_error", label_cost=cost).L_z for cost in (math.inf, 0.5))
    ends = np.array([y.min(), y.max()])
    residual = np.abs(theory.plain_outputs(model, x) - ends).max()
    assert moving == pytest.approx(math.hypot(still, 2.0 * residual / math.sqrt(0.5)), rel=1e-6)
    rise = ((theory.plain_outputs(model, x) - ends) ** 2).max() - (residual - outside) ** 2
    assert rise / outside / math.sqrt(0.5) <= moving  # attained by moving one target alone
    classes = nn.Sequential(nn.Linear(2, 8), nn.Tanh(), nn.Linear(8, 3)).double()
    pair = x, np.arange(40) % 3
    still, moving = (constants(classes, pair, label_cost=cost).L_z for cost in (math.inf, 0.5))
    gap = np.ptp(theory.plain_outputs(classes, x), axis=1).max()
    assert moving == pytest.approx(math.hypot(still, gap / math.sqrt(0.5)), rel=1e-6)


NETWORKS = {
    "tanh": ((3,), lambda: [nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 3)]),
    "deep tanh": ((2,), lambda: [nn.Linear(2, 5), nn.Tanh(), nn.Linear(5, 4), nn.Tanh(), nn.Linear(4, 2)]),
    "sigmoid": ((3,), lambda: [nn.Linear(3, 4), nn.Sigmoid(), nn.Linear(4, 4), nn.Sigmoid(), nn.Linear(4, 3)]),
    "silu": ((2,), lambda: [nn.Linear(2, 5), nn.SiLU(), nn.Linear(5, 3), nn.SiLU(), nn.Linear(3, 3)]),
    "nested": ((2,), lambda: [nn.Sequential(nn.Linear(2, 4), nn.Tanh()), nn.Identity(), nn.Linear(4, 3)]),
    "linear layers": ((3,), lambda: [nn.Linear(3, 4), nn.Linear(4, 3)]),
    "relu": ((3,), lambda: [nn.Linear(3, 6), nn.ReLU(), nn.Linear(6, 3)]),
    "strided": (
        (1, 5, 5),
        lambda: [nn.Conv2d(1, 3, 3, stride=2, padding=1), nn.Tanh(), nn.Flatten(), nn.Linear(27, 3)],
    ),
    "dilated and averaged": (
        (1, 6, 6),
        lambda: [nn.Conv2d(1, 2, 3, dilation=2), nn.SiLU(), nn.AvgPool2d(2, stride=1), nn.Flatten(), nn.Linear(2, 2)],
    ),
    "grouped": (
        (2, 4, 4),
        lambda: [nn.Conv2d(2, 4, 3, padding="same", groups=2), nn.Sigmoid(), nn.Flatten(), nn.Linear(64, 3)],
    ),
    "pooled": (
        (1, 5, 5),
        lambda: [nn.Conv2d(1, 3, 2), nn.ReLU(), nn.MaxPool2d(3, stride=1), nn.Flatten(), nn.Linear(12, 3)],
    ),
    "sum pooling": ((1, 4, 4), lambda: [nn.AvgPool2d(2, divisor_override=1), nn.Flatten(), nn.Linear(4, 2)]),
    "border averages": (
        (1, 4, 4),
        lambda: [nn.AvgPool2d(3, padding=1, count_include_pad=False), nn.Flatten(), nn.Linear(4, 2)],
    ),
}

UNUSUAL = ("sum pooling", "border averages")


def a_network(name, size=1.0, seed=0):
    shape, layers = NETWORKS[name]
    model = nn.Sequential(*layers()).double()
    rng = np.random.default_rng(seed)
    for value in model.parameters():  # larger than torch's default, otherwise hardly anything bends
        scale = size / math.sqrt(max(value[0].numel(), 1)) if value.ndim > 1 else 0.3
        value.data = torch.from_numpy(2.0 * scale * rng.normal(size=tuple(value.shape)))
    return model, shape


def network_pair(model, shape, seed=0, count=10):
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(count, *shape))
    return x, np.arange(count) % model(torch.from_numpy(x)).shape[1]


def assert_no_search_finds_more(model, shape, norm, steepest, most_curved):
    outputs = len(theory.plain_outputs(model, np.zeros((1, *shape)))[0])
    domain = theory.Domain(shape, outputs, -2.0, 2.0, theta=theory.flat_parameters(model), anywhere=True)
    at = theory.network_loss(model)
    for label, bound in (("L_z", steepest), ("L_zz", most_curved)):
        if math.isfinite(bound):
            size = theory.size_of(label, at, norm)
            result = theory.largest_found(size, domain, draws=200, rounds=20, kept=5, children=8)
            assert result <= bound * (1.0 + 1e-9), label
            assert result > 0.0


@pytest.mark.parametrize("name", sorted(NETWORKS))
def test_no_search_finds_more_than_a_networks_bounds(name):
    model, shape = a_network(name)
    bounds = loss_steepness(model, CrossEntropy())
    if name in UNUSUAL and bounds is None:
        return  # no bound is as good as a correct one
    assert_no_search_finds_more(model, shape, 2, bounds.slope, bounds.bend)


@pytest.mark.slow
@pytest.mark.parametrize("norm", NORMS)
def test_a_networks_constants_hold_in_every_norm(norm):
    model, shape = a_network("tanh")
    known = constants(model, network_pair(model, shape), norm=norm)
    assert_no_search_finds_more(model, shape, norm, known.L_z, known.L_zz)
    if norm == 2:
        bounds = loss_steepness(model, CrossEntropy())
        assert (known.L_z, known.L_zz) == pytest.approx((bounds.slope, bounds.bend))


@pytest.mark.parametrize("norm", [2, math.inf])
def test_layers_without_slack_attain_their_bounds(norm):
    """With all coordinates alike and opposite rows, each step of the bound is an equality."""
    model = nn.Sequential(nn.Linear(FEATURES, 1), nn.Linear(1, 2)).double()
    model[0].weight.data.fill_(0.7)
    model[1].weight.data = torch.tensor([[1.5], [-1.5]], dtype=torch.float64)
    known = constants(model, network_pair(model, (FEATURES,)), norm=norm)
    domain = theory.Domain((FEATURES,), 2, -2.0, 2.0, theta=theory.flat_parameters(model), anywhere=True)
    for label in ("L_z", "L_zz"):
        result = theory.largest_found(theory.size_of(label, theory.network_loss(model), norm), domain)
        assert CLOSE * getattr(known, label) <= result <= getattr(known, label) * (1.0 + 1e-9), label


def test_an_activation_used_twice_bends_twice():
    """In ``tanh(100 tanh(0.01 x))`` it is the second tanh that bends."""
    tanh = nn.Tanh()
    model = nn.Sequential(nn.Linear(1, 1), tanh, nn.Linear(1, 1), tanh, nn.Linear(1, 2)).double()
    for index, (weight, bias) in {
        0: ([[0.01]], [0.0]),
        2: ([[100.0]], [0.0]),
        4: ([[0.05], [-0.05]], [-5.0, 5.0]),
    }.items():
        model[index].weight.data = torch.tensor(weight, dtype=torch.float64)
        model[index].bias.data = torch.tensor(bias, dtype=torch.float64)
    x = np.linspace(-4, 4, 4001)
    slope = theory.slopes_on_a_line(lambda x: theory.plain_losses(model, x[:, None], np.zeros(len(x), dtype=int)), x)
    curvature = np.abs(np.diff(slope) / np.diff(x)).max()
    bounds = loss_steepness(model, CrossEntropy())
    assert bounds is None or curvature <= bounds.bend


def test_a_linear_layer_used_twice_is_not_taken_for_one():
    layer = nn.Linear(2, 2, bias=False).double()
    layer.weight.data = torch.tensor([[3.0, 0.0], [0.0, -3.0]], dtype=torch.float64)
    known = constants(nn.Sequential(layer, layer), (np.zeros((4, 2)), np.arange(4) % 2))
    assert known.L_z.kind == "estimate" or known.L_z >= 9.0 * math.sqrt(2.0) * (1.0 - 1e-9)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["silu", "strided"])
def test_a_smooth_network_has_bounds_and_reports_what_the_search_found(name):
    model, shape = a_network(name)
    known = constants(model, network_pair(model, shape))
    for constant in (known.L_z, known.L_zz):
        assert constant.kind == "bound"
        assert constant.proven
        assert 0.0 < constant.estimate <= constant
    for constant in (known.L_theta, known.L_theta_theta, known.L_theta_z, known.max_loss):
        assert constant.kind == "estimate"
    assert not known.convex


@pytest.mark.parametrize("name", ["relu", "pooled"])
def test_a_network_with_kinks_has_no_proven_l_zz(name):
    model, shape = a_network(name)
    known = constants(model, network_pair(model, shape))
    assert known.L_z.kind == "bound"
    assert known.L_zz.kind == "estimate"
    assert not known.L_zz.proven
    assert known.smoothness(float(known.L_zz) + 1.0).kind == "estimate"


@pytest.mark.slow
def test_a_network_that_cannot_be_bounded_by_layers_has_estimates():
    x = np.random.default_rng(0).normal(size=(6, 2))
    regression = nn.Sequential(nn.Linear(2, 3), nn.Tanh(), nn.Linear(3, 1))
    softmaxed = nn.Sequential(nn.Linear(2, 3), nn.Softmax(-1), nn.Linear(3, 2))
    ends_in_tanh = nn.Sequential(nn.Linear(2, 2), nn.Tanh())
    for model, loss in (
        (regression, "squared_error"),
        (softmaxed, "cross_entropy"),
        (ends_in_tanh, "cross_entropy"),
    ):
        y = np.arange(6) % 2 if loss == "cross_entropy" else np.linspace(-1, 1, 6)
        known = constants(model, (x, y), loss=loss)
        assert {getattr(known, name).kind for name in NAMES} == {"estimate"}


@pytest.mark.slow
@pytest.mark.parametrize(("name", "seed"), [("deep tanh", 1), ("sigmoid", 2), ("strided", 3), ("relu", 4)])
def test_estimates_are_the_largest_norms_at_the_examples(name, seed):
    model, shape = a_network(name, seed=seed)
    x, y = network_pair(model, shape, seed, count=34)
    task = make_task(model)
    params, inputs, labels = task.initial(), torch.from_numpy(x), torch.from_numpy(y)
    at = theory.network_loss(model)
    points = theory.Points(np.repeat(params.numpy()[None], len(x), 0), x, np.eye(int(y.max()) + 1)[y])

    def dense(label, norm=2):
        return float(theory.size_of(label, at, norm)(points).max())

    for norm in NORMS:
        slope = estimates.largest_slope(task, params, inputs, labels, norm)
        assert slope == pytest.approx(dense("L_z", norm), rel=1e-9)
    assert estimates.largest_param_slope(task, params, inputs, labels) == pytest.approx(dense("L_theta"), rel=1e-9)
    result = {
        "L_zz": estimates.largest_curvature(task, params, inputs, labels, 2),
        "L_theta_theta": estimates.largest_param_curvature(task, params, inputs, labels),
        "L_theta_z": estimates.largest_mixed(task, params, inputs, labels),
    }
    for label, value in result.items():
        assert value == pytest.approx(dense(label), rel=1e-3), label
        assert value <= dense(label) * (1.0 + 1e-9), label
    for norm in (1, math.inf) if math.prod(shape) < 6 else (1,):
        curvature = estimates.largest_curvature(task, params, inputs, labels, norm)
        assert 0.5 * dense("L_zz", norm) <= curvature <= dense("L_zz", norm) * (1.0 + 1e-9)


def slope_of(layer, features):
    """What ``loss_steepness`` says about one layer: the last layer's farthest rows are 2 apart."""
    last = nn.Linear(features, 2, bias=False).double()
    last.weight.data.zero_()
    last.weight.data[0, 0], last.weight.data[1, 0] = 1.0, -1.0
    result = loss_steepness(nn.Sequential(layer, nn.Flatten(), last), CrossEntropy())
    return None if result is None else result.slope / 2.0


def dense_matrix(layer, shape):
    """What a linear layer does to each unit vector, minus what it does to zero."""
    units = torch.eye(math.prod(shape), dtype=torch.float64).view(-1, *shape)
    with torch.no_grad():
        return (layer(units) - layer(torch.zeros(1, *shape, dtype=torch.float64))).flatten(1).numpy()


CONVOLUTIONS = [
    {"kernel_size": kernel, "stride": stride, "padding": padding, "dilation": dilation, "groups": groups}
    for kernel, stride, padding, dilation, groups in [
        (1, 1, 0, 1, 1), (3, 1, 0, 1, 1), (3, 1, 1, 1, 2), (3, 2, 1, 1, 1), (3, 3, 0, 1, 1), (2, 2, 1, 1, 2),
        (3, 4, 2, 1, 1), (3, 1, 2, 2, 1), (3, 2, 2, 2, 2), (2, 3, 1, 3, 1), ((3, 2), (1, 2), (1, 0), (1, 1), 1),
        ((2, 3), (2, 1), (0, 2), (2, 1), 2), (3, 1, "same", 1, 1), (3, 1, "valid", 2, 1),
    ]
]  # fmt: skip


@pytest.mark.parametrize("options", CONVOLUTIONS, ids=str)
def test_the_bound_of_a_convolution_is_above_the_norm_of_its_matrix(options):
    shape = (2, 7, 8)
    for seed in range(3):
        torch.manual_seed(seed)
        layer = nn.Conv2d(2, 4, **options).double()
        matrix = dense_matrix(layer, shape)
        norm = float(np.linalg.norm(matrix, ord=2))
        assert norm <= slope_of(layer, matrix.shape[1]) * (1.0 + 1e-9)
    # A kernel without sign changes attains it on a large image, if no dilation loosens the count of patches.
    if options["dilation"] == 1 and options["kernel_size"] in (2, 3) and options["stride"] in (1, 3):
        layer.weight.data.fill_(1.0)
        matrix = dense_matrix(layer, (2, 20, 20))
        assert float(np.linalg.norm(matrix, ord=2)) >= 0.9 * slope_of(layer, matrix.shape[1])


@pytest.mark.parametrize(
    "layer",
    [
        nn.AvgPool2d(2), nn.AvgPool2d(3, stride=1), nn.AvgPool2d(3, stride=2, padding=1), nn.AvgPool2d((2, 3), (1, 2)),
        pytest.param(nn.AvgPool2d(2, divisor_override=1), id="sums"),
        pytest.param(nn.AvgPool2d(3, stride=3, padding=1, count_include_pad=False), id="border averages"),
    ],
    ids=str,
)  # fmt: skip
def test_the_bound_of_average_pooling_is_above_the_norm_of_its_matrix(layer):
    matrix = dense_matrix(layer, (1, 7, 8))
    bound = slope_of(layer, matrix.shape[1])
    assert bound is None or float(np.linalg.norm(matrix, ord=2)) <= bound * (1.0 + 1e-9)


@pytest.mark.parametrize(
    "layer",
    [nn.MaxPool2d(2), nn.MaxPool2d(3, stride=1), nn.MaxPool2d(3, stride=2, padding=1), nn.MaxPool2d(2, 1, dilation=2)],
    ids=str,
)
def test_max_pooling_moves_no_farther_than_its_bound(layer):
    torch.manual_seed(0)
    x = torch.randn(3000, 1, 6, 6, dtype=torch.float64)
    peak = torch.zeros_like(x)
    peak[:, :, 2, 3] = 10.0 * torch.rand(3000, 1, dtype=torch.float64)
    for move in (torch.randn_like(x), 1e-3 * torch.randn_like(x), peak):
        before, after = layer(x).flatten(1), layer(x + move).flatten(1)
        ratio = float(((after - before).norm(dim=1) / move.flatten(1).norm(dim=1)).max())
        assert ratio <= slope_of(layer, before.shape[1]) * (1.0 + 1e-9)


def test_layers_with_rounded_up_sizes_or_circular_padding_get_no_bound():
    assert slope_of(nn.MaxPool2d(2, ceil_mode=True), 4) is None
    assert slope_of(nn.AvgPool2d(2, ceil_mode=True), 4) is None
    assert slope_of(nn.Conv2d(1, 1, 3, padding=1, padding_mode="circular"), 4) is None


ALONE = [kind for kind in ACTIVATIONS if kind not in (MaxMin, nn.PixelUnshuffle)]
"""Activations of one number; tests/models tries the others."""


@pytest.mark.parametrize("kind", sorted(ALONE, key=lambda kind: kind.__name__), ids=lambda kind: kind.__name__)
def test_activations_have_the_slope_and_curvature_of_the_table(kind):
    first, second = ACTIVATIONS[kind]
    layer = kind()
    x = torch.cat([torch.linspace(-30, 30, 600001), torch.logspace(-8, 3, 2001)]).double().requires_grad_()
    (slope,) = torch.autograd.grad(layer(x[:, None]).sum(), x, create_graph=True)
    steepest = float(slope.detach().abs().max())
    assert first * (1.0 - 1e-3) <= steepest <= first
    if math.isfinite(second):
        bend = torch.autograd.grad(slope.sum(), x)[0].abs().max() if slope.requires_grad else torch.zeros(())
        assert second * (1.0 - 1e-3) <= float(bend) <= second
    else:  # the slope jumps
        assert float(slope.detach().max() - slope.detach().min()) == 1.0


GAMMAS_ABOVE = (1.05, 1.5, 10.0)


@pytest.mark.parametrize("ratio", GAMMAS_ABOVE)
@pytest.mark.parametrize(("loss", "outputs", "has_bias"), [("cross_entropy", 3, True), ("squared_error", 1, False)])
def test_the_gradient_of_phi_is_lipschitz_with_the_smoothness(loss, outputs, has_bias, ratio):
    """Parameters in the ball, data in the box; maximizers from the library, to many digits; gradients by autograd."""
    radius, features = 1.0, 2
    x, y = a_pair(loss, outputs, features, count=8)
    model = a_linear_model(outputs, has_bias, features=features, size=0.2)
    x[:4] = np.array(list(itertools.product(BOX, BOX)))
    first = constants(model, (x, y), data_bounds=BOX, params_radius=radius, loss=loss)
    gamma = ratio * first.concavity_limit
    known = constants(model, (x, y), data_bounds=BOX, params_radius=radius, reach=first.reach_of(gamma), loss=loss)
    smoothness = known.smoothness(gamma)
    assert smoothness.kind == "bound"
    assert known.learning_rate_cap(gamma) == pytest.approx(1.0 / (3.0 * smoothness), rel=1e-12)
    at = theory.linear_loss(loss, outputs, has_bias)
    labels = torch.from_numpy(np.eye(outputs)[y] if loss == "cross_entropy" else y)
    rng = np.random.default_rng(0)

    def gradients(theta):
        split = outputs * features
        model.weight.data = torch.from_numpy(theta[:split].reshape(outputs, features))
        if has_bias:
            model.bias.data = torch.from_numpy(theta[split:])
        robust = wafl.robust_loss(model, x, y, gamma=gamma, loss=loss, steps=5000, tolerance=1e-12)
        assert bool(robust.converged.all())
        moved = np.linalg.norm(robust.x_adv.numpy() - x, axis=1).max()
        assert moved <= first.reach_of(gamma) * (1.0 + 1e-9)
        slope = torch.func.vmap(torch.func.grad(at, 0), in_dims=(None, 0, 0))
        return slope(torch.from_numpy(theta), robust.x_adv, labels).numpy()

    for turn in range(25):
        one = rng.normal(size=known.num_params)
        one *= radius * (1.0 if turn % 2 else rng.uniform()) / np.linalg.norm(one)
        other = one + 10.0 ** rng.uniform(-4, 0) * rng.normal(size=known.num_params)
        other *= min(1.0, radius / np.linalg.norm(other))
        change = np.linalg.norm(gradients(one) - gradients(other), axis=1).max() / np.linalg.norm(one - other)
        assert change <= smoothness


@pytest.mark.parametrize("ratio", GAMMAS_ABOVE)
def test_the_smoothness_of_the_squared_error_is_attained(ratio):
    """For one output without a bias, phi is ``gamma r^2 / (gamma - ||w||^2)``: its Hessian can be searched."""
    pair = a_pair("squared_error", 1, 2)
    model, options = a_linear_model(1, False, features=2, size=0.2), {"data_bounds": BOX, "loss": "squared_error"}
    first = constants(model, pair, params_radius=1.0, **options)
    gamma = ratio * first.concavity_limit
    known = constants(model, pair, params_radius=1.0, reach=first.reach_of(gamma), **options).smoothness(gamma)

    def phi(theta, x, y):
        return gamma * (theta @ x - y).square().sum() / (gamma - theta @ theta)

    domain = domain_of(model, pair, "squared_error", 0.0, 1.0)
    result = theory.largest_found(theory.size_of("L_theta_theta", phi), domain)
    assert CLOSE * known <= result <= known * (1.0 + 1e-9)


@pytest.mark.parametrize("norm", NORMS)
@pytest.mark.parametrize("ratio", [0.3, *GAMMAS_ABOVE])
def test_no_maximizer_of_the_cross_entropy_leaves_the_reach(norm, ratio):
    model, (x, y) = a_linear_model(3, True), a_pair("cross_entropy", 3)
    known = constants(model, (x, y), norm=norm)
    gamma = ratio * known.L_zz / 2.0
    robust = wafl.robust_loss(model, x, y, gamma=gamma, norm=norm, steps=1000, restarts=2)
    moved = np.linalg.norm(robust.x_adv.numpy() - x, axis=1).max()
    assert 0.0 < moved <= known.reach_of(gamma) * (1.0 + 1e-9)


@pytest.mark.parametrize("norm", NORMS)
@pytest.mark.parametrize("ratio", GAMMAS_ABOVE)
def test_no_maximizer_of_the_squared_error_leaves_the_reach(norm, ratio):
    """``(r + <w, d>)^2 - gamma ||d||^2`` is largest at a d of length ``||w||_* |r| / (gamma - ||w||_*^2)``."""
    model, (x, y) = a_linear_model(1, True), a_pair("squared_error", 1)
    known = constants(model, (x, y), data_bounds=BOX, norm=norm, loss="squared_error")
    weight, bias = model.weight.detach().numpy()[0], float(model.bias.detach())
    steep = np.linalg.norm(weight, ord=oracles.dual_order(norm))
    gamma = ratio * steep**2
    corners = np.array(list(itertools.product(BOX, repeat=FEATURES)))
    residual = max(float(np.abs(corners @ weight + bias - target).max()) for target in (y.min(), y.max()))
    length = steep * residual / (gamma - steep**2)
    in_l2 = length * (math.sqrt(FEATURES) if math.isinf(norm) else 1.0)
    assert in_l2 <= known.reach_of(gamma) * (1.0 + 1e-9)


def test_the_reach_of_the_squared_error_is_infinite_below_the_limit():
    model, pair = a_linear_model(1, True), a_pair("squared_error", 1)
    for norm in NORMS:
        known = constants(model, pair, norm=norm, loss="squared_error")
        assert known.reach_of(0.99 * known.L_zz / 2.0) == math.inf, norm


def test_the_domain_is_the_bounds_or_without_them_the_span_of_all_examples():
    rng = np.random.default_rng(0)
    x, y = rng.uniform(-1, 2, size=(40, 2)), np.arange(40) % 2
    model = a_linear_model(2, True, features=2)
    spanned = wafl.Federation.from_arrays([(x, y)])
    bounded = wafl.Federation.from_arrays([(x, y)], bounds=(-3.0, 4.0))
    assert constants(model, spanned).data_bounds == pytest.approx((x.min(), x.max()))
    assert constants(model, (x, y)).data_bounds == pytest.approx((x.min(), x.max()))
    assert constants(model, bounded).data_bounds == (-3.0, 4.0)
    assert constants(model, bounded, data_bounds=(-5.0, 5.0)).data_bounds == (-5.0, 5.0)
    assert constants(model, bounded).L_theta_theta == pytest.approx((2 * 4.0**2 + 1) / 2)
    assert constants(model, bounded, reach=1.0).L_theta_theta == pytest.approx(((math.sqrt(2) * 4.0 + 1) ** 2 + 1) / 2)


def test_constants_accept_a_run_a_float32_model_and_images():
    rng = np.random.default_rng(0)
    clients = wafl.Federation.from_arrays([(rng.uniform(size=(8, 1, 2, 2)), np.arange(8) % 2) for _ in range(2)])
    model = nn.Sequential(nn.Flatten(), nn.Linear(4, 2))
    run = wafl.fit(model, clients, wafl.FedAvg(), rounds=1, local_epochs=1)
    known = constants(run, clients)
    assert known.input_dim == 4
    assert known.num_params == 10
    assert known.convex
    theta = theory.flat_parameters(run.model)
    assert known.params_norm == pytest.approx(np.linalg.norm(theta), rel=1e-12)
    assert known.L_z == pytest.approx(np.linalg.norm(theta[:4] - theta[4:8]), rel=1e-12)
    assert constants(run.model, clients) == known
    # The run of a regression brings its own loss.
    targets = wafl.Federation.from_arrays([(rng.uniform(size=(8, 2)), rng.normal(size=8))])
    regression = wafl.fit(nn.Linear(2, 1), targets, wafl.FedAvg(), loss="squared_error", rounds=1, local_epochs=1)
    weight = theory.flat_parameters(regression.model)[:2]
    assert constants(regression, targets).L_zz == pytest.approx(2.0 * weight @ weight, rel=1e-12)


def test_a_constant_is_a_float_that_keeps_its_reason():
    constant = Constant(2.0, "bound", "by layers", estimate=1.5)
    for copied in (constant, copy.deepcopy(constant), pickle.loads(pickle.dumps(constant))):
        assert copied == 2.0
        assert (copied.kind, copied.why, copied.estimate, copied.proven) == ("bound", "by layers", 1.5, True)
    assert repr(constant) == "2 (bound: by layers)"
    assert json.dumps(constant) == "2.0"
    assert type(constant / 2) is float
    assert not Constant(1.0, "estimate", "search").proven
    assert not Constant(math.inf, "exact", "unbounded").proven


def test_bad_input_is_refused_with_the_value_the_range_and_the_remedy():
    model, pair = a_linear_model(3, True), a_pair("cross_entropy", 3)
    known = constants(model, pair, data_bounds=BOX)
    limit = f"{known.L_zz / 2.0:.4g}"
    for gamma in (known.concavity_limit, 0.5 * known.concavity_limit, -1.0, math.nan):
        for method in (known.smoothness, known.learning_rate_cap):
            with pytest.raises(PreconditionError, match=rf"gamma={gamma:g} .*limit .*{limit}: raise gamma, or shrink"):
                method(gamma)
    for norm in (1, math.inf):
        with pytest.raises(PreconditionError, match=f"norm={norm}.*norm 2"):
            constants(model, pair, norm=norm).smoothness(100.0)
        assert constants(model, pair, norm=norm).concavity_limit == math.inf
    size = known.params_norm
    with pytest.raises(ValueError, match=rf"params_radius={0.5 * size:g} .*norm {size:.4g}: give at least that"):
        constants(model, pair, params_radius=0.5 * size)
    for radius in (0.0, -1.0, math.nan, math.inf):
        with pytest.raises(ValueError, match=f"params_radius={radius} must be positive and finite"):
            constants(model, pair, params_radius=radius)
    low, high = pair[0].min(), pair[0].max()
    with pytest.raises(
        ValueError, match=rf"lie in \[{low:g}, {high:g}\], outside data_bounds=\(0.0, 1.0\): widen them"
    ):
        constants(model, pair, data_bounds=(0.0, 1.0))
    with pytest.raises(ValueError, match="low < high"):
        constants(model, pair, data_bounds=(1.0, -1.0))
    network = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 3))
    with pytest.raises(PreconditionError, match="params_radius=100 needs a linear model with cross-entropy or squared"):
        constants(network, pair, params_radius=100.0)
    with pytest.raises(ValueError, match="norm=3 must be 1, 2 or inf"):
        constants(model, pair, norm=3)
    for label_cost in (0.0, -1.0, math.nan):
        with pytest.raises(ValueError, match=f"label_cost={label_cost} must be positive"):
            constants(model, pair, label_cost=label_cost)
    for reach in (-0.1, math.inf, math.nan):
        with pytest.raises(ValueError, match=f"reach={reach} must be finite and at least 0"):
            constants(model, pair, reach=reach)


@pytest.mark.parametrize(
    ("model", "loss", "labels"),
    [
        (nn.Linear(2, 3), "cross_entropy", np.arange(12) % 3),
        (nn.Linear(3, 2), "cross_entropy", np.arange(12) % 3),
        (nn.Linear(3, 1), "squared_error", np.arange(12) % 3),
        (nn.Linear(3, 3), "cross_entropy", np.linspace(0, 1, 12)),
        (nn.Linear(3, 2), "squared_error", np.linspace(0, 1, 12)),
    ],
    ids=["too few features", "too few outputs", "classes as targets", "targets as classes", "too many outputs"],
)
def test_a_model_that_does_not_suit_the_data_is_refused(model, loss, labels):
    x, _ = a_pair("cross_entropy", 3)
    with pytest.raises(ValueError, match=r"model|loss"):
        constants(model, (x, labels), loss=loss)


@pytest.mark.parametrize("norm", NORMS)
def test_slopes_are_the_farthest_rows_and_curvature_is_the_norm_of_the_hessian(norm):
    rng = np.random.default_rng(3)
    weight = rng.normal(size=(2, 4, 3))
    slopes = CrossEntropy().slopes(torch.from_numpy(weight), norm).numpy()
    for lane, label in itertools.product(range(2), range(4)):
        assert slopes[lane, label] == pytest.approx(oracles.steepest(weight[lane], label, norm), rel=1e-12)
    curvature = SquaredError().curvature(torch.from_numpy(weight), norm)
    hessian = torch.from_numpy(2.0 * weight.transpose(0, 2, 1) @ weight)
    dense = theory.operator_norm(hessian, norm)
    assert bool((dense <= curvature * (1.0 + 1e-12)).all())
    if norm != math.inf:
        torch.testing.assert_close(curvature, dense, rtol=1e-12, atol=0.0)
    one = torch.from_numpy(weight[:, :1])
    torch.testing.assert_close(
        SquaredError().curvature(one, norm), theory.operator_norm(2.0 * one.mT @ one, norm), rtol=1e-12, atol=0.0
    )
