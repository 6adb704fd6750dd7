"""The radius of a gamma against plain loops over clients and closed forms, and the gamma of a radius."""

import functools
import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import nn

import wafl
from tests.oracles import objective as oracles
from tests.oracles import theory
from wafl.theory import calibrate

NORMS = (1, 2, math.inf)
SIZES = (3, 6, 9)
WEIGHTS = (0.5, 0.2, 0.3)
GAMMAS = (0.3, 1.0, 5.0, 30.0)


@functools.cache
def a_case(name):
    rng = np.random.default_rng(0)
    x = rng.uniform(-1.0, 1.0, size=(sum(SIZES), 3))
    if name == "regression":
        model = oracles.linear_model(rng.normal(size=(1, 3)), rng.normal(size=1))
        return theory.Case(model, "squared_error", x, rng.normal(size=len(x)), SIZES, WEIGHTS)
    if name == "mlr":
        model = oracles.linear_model(rng.normal(size=(3, 3)), rng.normal(size=3))
    else:
        model = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 3)).double()
        for value in model.parameters():
            value.data = torch.from_numpy(rng.normal(size=tuple(value.shape)))
    return theory.Case(model, "cross_entropy", x, np.arange(len(x)) % 3, SIZES, WEIGHTS)


def calibrated(case, gammas=GAMMAS, **options):
    clients = wafl.Federation.from_arrays(case.pairs(), test_fraction=0.0, unit="meters")
    given = {"client_weights": wafl.weights.fixed(case.weights), "loss": case.loss, **options}
    return calibrate(case.model, clients, gammas=gammas, **given)


def limit_of(case):
    """The concavity limit of the regression: ``||w||^2``."""
    return float((case.model.weight.detach().numpy() ** 2).sum())


def means_by_hand(case, gamma, power=2, tolerance=1e-6, **options):
    """The root mean cost and the mean of phi, one client after another, weighted."""
    weights = np.array(case.weights) / sum(case.weights)
    cost = value = 0.0
    for weight, (x, y) in zip(weights, case.pairs(), strict=True):
        robust = wafl.robust_loss(
            case.model, x, y, gamma=gamma, loss=case.loss, steps=200, tolerance=tolerance, power=power, **options
        )
        cost += weight * robust.achieved_radius**power
        value += weight * float(robust.value.mean())
    return cost ** (1.0 / power), value


WAYS = [
    ("mlr", {}),
    ("mlr", {"norm": 1}),
    ("mlr", {"norm": math.inf}),
    ("mlr", {"label_cost": 0.5}),
    ("mlr", {"bounds": (-1.0, 1.0)}),
    ("mlr", {"power": 1, "bounds": (-1.0, 1.0)}),
    ("mlr", {"power": 1, "bounds": (-1.0, 1.0), "norm": math.inf}),
    ("regression", {}),
    ("regression", {"norm": math.inf}),
    ("regression", {"label_cost": 2.0}),
    ("tanh", {}),
]


@pytest.mark.parametrize(("name", "options"), WAYS, ids=str)
def test_radii_and_losses_agree_with_a_plain_loop_over_clients(name, options):
    case = a_case(name)
    gammas = GAMMAS if name != "regression" else tuple(5.0 * limit_of(case) * gamma for gamma in (1.0, 2.0, 10.0))
    result = calibrated(case, gammas, **options)
    assert result.gammas == gammas
    for gamma, radius, loss in zip(gammas, result.radii, result.losses, strict=True):
        # A regression's ascent stops within 1e-6 of the maximum that calibrate knows exactly.
        exact = name == "regression" and not options
        by_hand = means_by_hand(case, gamma, **options, **({"tolerance": 1e-12} if exact else {}))
        assert (radius, loss) == pytest.approx(by_hand, rel=1e-9, abs=1e-12)
    assert list(result.radii) == sorted(result.radii, reverse=True)
    assert list(result.losses) == sorted(result.losses, reverse=True)
    assert result.losses[-1] >= case.mean()


def test_the_radius_of_a_regression_agrees_with_its_closed_form():
    """At the maximum every example has moved by ``||w|| |r| / (gamma - ||w||^2)``."""
    case = a_case("regression")
    limit = limit_of(case)
    size = math.sqrt(limit * case.mean())
    result = calibrated(case, [1.1 * limit, 3.0 * limit, 100.0 * limit])
    for gamma, radius, loss in zip(result.gammas, result.radii, result.losses, strict=True):
        assert radius == pytest.approx(size / (gamma - limit), rel=1e-4)
        assert loss == pytest.approx(gamma / (gamma - limit) * case.mean(), rel=1e-4)


def test_a_regressions_radius_is_infinite_below_the_limit():
    case = a_case("regression")
    result = calibrated(case, [0.5 * limit_of(case)])
    assert result.radii == (math.inf,)
    assert result.losses == (math.inf,)


@pytest.mark.parametrize("sizes", [(9, 9), (3, 15)], ids=str)
def test_the_radius_with_power_1_and_no_bounds_is_zero_or_infinite(sizes):
    case = replace(a_case("mlr"), sizes=sizes, weights=sizes)
    steep = theory.farthest_rows(case.model.weight.detach().numpy(), 2)
    result = calibrated(case, [0.5 * steep, 1.01 * steep], power=1)
    assert result.radii == (math.inf, 0.0)
    assert result.losses[0] == math.inf
    assert result.losses[1] == pytest.approx(case.mean(), rel=1e-12)


def test_clients_with_hundreds_of_examples_report_all_of_them():
    rng = np.random.default_rng(0)
    sizes = (300, 1, 520)
    x = rng.normal(size=(sum(sizes), 2))
    model = oracles.linear_model(rng.normal(size=(1, 2)))
    case = theory.Case(model, "squared_error", x, rng.normal(size=len(x)), sizes, (1.0, 2.0, 3.0))
    gamma = 3.0 * limit_of(case)
    expected = math.sqrt(limit_of(case) * case.mean()) / (gamma - limit_of(case))
    assert calibrated(case, [gamma]).radii[0] == pytest.approx(expected, rel=1e-4)


@pytest.mark.parametrize("norm", NORMS)
@pytest.mark.parametrize("radius", [1e-8, 1e-3, 0.2, 1.0, 30.0, 1e5])
def test_the_gamma_for_a_radius_achieves_it(norm, radius):
    """The grid spans radii from 0.03 to 3: most of these lie far outside."""
    case = a_case("mlr")
    gamma = calibrated(case, norm=norm).gamma_for(radius)
    assert means_by_hand(case, gamma, norm=norm)[0] == pytest.approx(radius, rel=1e-4)


@pytest.mark.parametrize("options", [{"label_cost": 0.5}, {"bounds": (-1.0, 1.0)}], ids=str)
def test_the_gamma_for_a_radius_achieves_it_with_moving_labels_and_with_bounds(options):
    case = a_case("mlr")
    for radius in (0.05, 0.5):
        gamma = calibrated(case, **options).gamma_for(radius)
        assert means_by_hand(case, gamma, **options)[0] == pytest.approx(radius, rel=1e-4)


@pytest.mark.parametrize("radius", [1e-6, 0.1, 3.0, 10.0, 100.0, 1000.0])
def test_the_gamma_for_a_radius_of_a_regression_agrees_with_its_closed_form(radius):
    case = a_case("regression")
    limit = limit_of(case)
    size = math.sqrt(limit * case.mean())
    gamma = calibrated(case, [2.0 * limit, 10.0 * limit]).gamma_for(radius)
    assert gamma > limit
    assert size / (gamma - limit) == pytest.approx(radius, rel=1e-4)


@pytest.mark.parametrize("options", [{"norm": norm} for norm in NORMS], ids=str)
def test_where_the_radius_jumps_gamma_is_the_smallest_that_stays_below_it(options):
    """With ``power=1`` each example stays or goes to the bounds, so the mean cost has steps."""
    case = a_case("mlr")
    options = {"power": 1, "bounds": (-1.0, 1.0), **options}
    result = calibrated(case, **options)
    for radius in (0.2, 0.7):
        gamma = result.gamma_for(radius)
        assert means_by_hand(case, gamma, **options)[0] <= radius
        assert means_by_hand(case, gamma * (1.0 - 3e-6), **options)[0] > radius


def test_the_gamma_for_a_radius_does_not_depend_on_the_grid():
    case = a_case("mlr")
    grids = [GAMMAS, GAMMAS[::-1], (1e-3,), (1e4,), (1.0, 1.0)]
    gammas = [calibrated(case, grid).gamma_for(0.3) for grid in grids]
    assert gammas == pytest.approx([gammas[0]] * len(grids), rel=2e-6)


def test_a_radius_that_no_gamma_reaches_is_refused():
    case = a_case("mlr")
    room = calibrated(case, bounds=(-1.0, 1.0))
    farthest = math.sqrt(case.share @ ((np.abs(case.x) + 1.0) ** 2).sum(1))
    with pytest.raises(ValueError, match=rf"radius={2 * farthest:g} cannot be reached: even at no cost .* the bounds"):
        room.gamma_for(2 * farthest)
    flat = replace(case, model=oracles.linear_model(np.zeros((3, 3))))
    with pytest.raises(ValueError, match=r"radius=0.1 cannot be reached: .* move by only 0 \(the loss is flat"):
        calibrated(flat).gamma_for(0.1)


@pytest.mark.parametrize("norm", NORMS)
def test_the_size_of_an_attack_is_the_root_mean_square_of_its_moves(norm):
    case = a_case("mlr")
    result = calibrated(case, norm=norm)
    for attack in (wafl.PGD(0.3), wafl.PGD(0.3, norm=2, steps=7), wafl.FGSM(0.2)):
        moved = attack(case.model, case.x, case.y).numpy()
        expected = math.sqrt(case.share @ theory.cost(moved - case.x, norm))
        assert result.size_of(attack) == pytest.approx(expected, rel=1e-9)
    assert calibrated(case, norm=math.inf).size_of(wafl.FGSM(0.2)) == pytest.approx(0.2, rel=1e-9)
    mean = calibrated(case, norm=norm, power=1, bounds=(-1.0, 1.0)).size_of(wafl.FGSM(0.2))
    moved = wafl.FGSM(0.2)(case.model, case.x, case.y).numpy()
    assert mean == pytest.approx(case.share @ np.linalg.norm(moved - case.x, ord=norm, axis=1), rel=1e-9)


def test_the_size_of_a_shift_of_the_whole_population_is_its_radius():
    case = a_case("mlr")
    assert calibrated(case).size_of(wafl.WassersteinShift(0.25)) == pytest.approx(0.25, rel=1e-4)


def test_the_size_of_a_random_attack_does_not_depend_on_how_examples_are_chunked():
    rng = np.random.default_rng(0)
    x = rng.normal(size=(2100, 3))
    case = replace(a_case("mlr"), x=x, y=np.arange(2100) % 3, sizes=(2000, 100), weights=(1.0, 5.0))
    attack = wafl.PGD(0.3, norm=2, step_size=0.05, steps=2, random_start=True)
    moved = attack(case.model, case.x, case.y, seed=3).numpy()
    expected = math.sqrt(case.share @ theory.cost(moved - case.x, 2))
    assert expected < 0.299  # otherwise the start would not matter
    assert calibrated(case, [1.0], seed=3).size_of(attack) == pytest.approx(expected, rel=1e-9)


@pytest.mark.parametrize(
    ("norm", "attack"), [(2, wafl.PGD(0.3)), (math.inf, wafl.PGD(0.1)), (1, wafl.PGD(0.2, norm=2))]
)
def test_the_gamma_that_matches_an_attack_moves_examples_equally_far(norm, attack):
    case = a_case("mlr")
    gamma = calibrated(case, norm=norm).gamma_matching(attack)
    moved = attack(case.model, case.x, case.y).numpy()
    wanted = math.sqrt(case.share @ theory.cost(moved - case.x, norm))
    assert means_by_hand(case, gamma, norm=norm)[0] == pytest.approx(wanted, rel=1e-4)


def test_every_rule_for_client_weights_and_the_test_part_are_used():
    case = a_case("regression")
    gamma = 4.0 * limit_of(case)
    for rule, weights in (
        (None, SIZES),
        (wafl.weights.uniform(), (1, 1, 1)),
        (wafl.weights.fixed([0, 3, 1]), (0, 3, 1)),
    ):
        weighted = replace(case, weights=weights)
        expected = math.sqrt(limit_of(case) * weighted.mean()) / (gamma - limit_of(case))
        assert calibrated(weighted, [gamma], client_weights=rule).radii[0] == pytest.approx(expected, rel=1e-4)
    clients = wafl.Federation.from_arrays(case.pairs(), test_fraction=0.34)
    result = calibrate(case.model, clients, gammas=[gamma], split="test", loss="squared_error")
    held_out = replace(case, x=clients.test.x.numpy(), y=clients.test.y.numpy(), sizes=(1, 2, 3), weights=(1, 2, 3))
    expected = math.sqrt(limit_of(case) * held_out.mean()) / (gamma - limit_of(case))
    assert result.radii[0] == pytest.approx(expected, rel=1e-4)


def test_a_run_brings_its_own_loss_and_weights():
    case = a_case("regression")
    clients = wafl.Federation.from_arrays(case.pairs(), test_fraction=0.0)
    method = wafl.FedAvg(client_weights=wafl.weights.fixed(WEIGHTS))
    run = wafl.fit(nn.Linear(3, 1), clients, method, loss="squared_error", rounds=2, local_steps=1)
    trained = replace(case, model=run.model.double())
    gamma = 4.0 * limit_of(trained)
    expected = math.sqrt(limit_of(trained) * trained.mean()) / (gamma - limit_of(trained))
    assert calibrate(run, clients, gammas=[gamma]).radii[0] == pytest.approx(expected, rel=1e-4)


def test_a_calibration_prints_its_table_and_no_tensor():
    result = calibrated(a_case("mlr"))
    header, *rows, ball = str(result).splitlines()
    assert header.split() == ["gamma", "radius", "loss"]
    shown = [[float(word) for word in row.split()] for row in rows]
    assert shown == [
        pytest.approx(point, rel=1e-3) for point in zip(result.gammas, result.radii, result.losses, strict=True)
    ]
    assert ball.startswith("l2 ball, meters")
    assert "tensor" not in repr(result)


def test_the_figure_shows_the_calibration(tmp_path):
    result = calibrated(a_case("mlr"), norm=math.inf)
    figure = result.plot(tmp_path / "radius.png")
    content = (tmp_path / "radius.png").read_bytes()
    assert content[:8] == b"\x89PNG\r\n\x1a\n"
    assert len(content) > 5000
    (axes,) = figure.axes
    assert axes.get_ylabel() == "achieved radius, l_inf (meters)"
    assert tuple(axes.lines[0].get_xdata()) == result.gammas
    assert tuple(axes.lines[0].get_ydata()) == result.radii
    assert result.plot().axes


def test_bad_input_is_refused_with_the_value_and_the_range():
    case = a_case("mlr")
    with pytest.raises(ValueError, match="gammas is empty: give at least one"):
        calibrated(case, [])
    for gamma in (0.0, -1.0, math.nan, math.inf):
        with pytest.raises(ValueError, match=f"gamma={gamma} must be positive and finite"):
            calibrated(case, [1.0, gamma])
    result = calibrated(case, [1.0])
    for radius in (0.0, -1.0, math.nan, math.inf):
        with pytest.raises(ValueError, match=f"radius={radius} must be positive and finite"):
            result.gamma_for(radius)
    with pytest.raises(ValueError, match="norm=3 must be 1, 2 or inf"):
        calibrated(case, norm=3)
    with pytest.raises(ValueError, match="power=3 must be 1 or 2"):
        calibrated(case, power=3)
    with pytest.raises(ValueError, match=r"label_cost=0.0 must be positive"):
        calibrated(case, label_cost=0.0)
    with pytest.raises(ValueError, match=r"examples lie outside bounds=\(0.0, 1.0\): widen"):
        calibrated(case, bounds=(0.0, 1.0))
    with pytest.raises(ValueError, match="4 client weights for 3 clients"):
        calibrated(case, client_weights=wafl.weights.fixed([1, 1, 1, 1]))
    with pytest.raises(ValueError, match="client 0 has no test examples: use split='train'"):
        calibrated(case, split="test")
    with pytest.raises(ValueError, match="seed=-1"):
        calibrated(case, seed=-1)
