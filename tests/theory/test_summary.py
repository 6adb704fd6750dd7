"""``wafl.theory.summarize`` and ``wafl theory``: every bound for a run, or the precondition that fails."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from typer.testing import CliRunner

import wafl
from wafl.cli.main import app
from wafl.theory import Bound, Concentration, Refusal, Summary, summarize

EXPERIMENT = """
methods = [{method = "WAFL", gamma = 5.0}, {method = "FedAvg"}]
schedule = {rounds = 2, local_steps = 1, learning_rate = 0.1}
data = {num_clients = 4, labels_per_client = 3, sizes = [20, 4]}
attack = {kind = "none"}
"""


@pytest.fixture(scope="module")
def clients() -> wafl.Federation:
    return wafl.load_dataset("digits").partition(num_clients=3, labels_per_client=10, sizes=(40, 4), seed=1)


@pytest.fixture(scope="module")
def run(clients: wafl.Federation) -> wafl.Run:
    method = wafl.WAFL(gamma=5.0, bounds=None)
    return wafl.fit(wafl.models.mlr(clients), clients, method, rounds=3, local_steps=2, learning_rate=0.1)


def reasons(summary: Summary) -> dict[str, str]:
    return {bound.name: bound.reason for bound in summary.bounds if isinstance(bound, Refusal)}


def test_only_the_rate_is_refused_when_everything_is_given_and_labels_move(
    run: wafl.Run, clients: wafl.Federation
) -> None:
    concentration = Concentration(2.0, 1.0, 3.0, 64)
    given = {"target_distance": 3.0, "target_examples": 100}
    summary = summarize(run, clients, gamma=60.0, label_cost=10.0, concentration=concentration, **given)
    rates = ["mean optimality gap", "mean optimality gap, sigma and Omega as measured"]
    assert list(reasons(summary)) == rates  # with moving labels phi_gamma is not smooth
    still = summarize(run, clients)
    assert "mean optimality gap" not in reasons(still)
    assert "label" in reasons(summarize(run, clients, concentration=concentration))["covering radius rho_n"]


def test_the_domain_includes_everything_within_the_adversarys_reach(run: wafl.Run, clients: wafl.Federation) -> None:
    summary = summarize(run, clients)
    assert summary.gamma == 5.0
    assert summary.here.reach == pytest.approx(float(summary.here.L_z) / 10.0)
    assert summary.ball is not None
    assert summary.ball.params_radius == pytest.approx(summary.here.params_norm)
    assert summary.radius == pytest.approx(summary.ball.L_z / 5.0)
    robust = wafl.robust_loss(run, *clients.train.of(0), gamma=5.0)
    moved = (robust.x_adv - clients.train.of(0)[0]).flatten(1).norm(dim=1)
    assert float(moved.max()) <= summary.here.reach


def test_an_objective_that_keeps_to_the_bounds_of_the_data_has_no_reach(clients: wafl.Federation) -> None:
    assert clients.bounds == (0.0, 1.0)
    run = wafl.fit(wafl.models.mlr(clients), clients, wafl.WAFL(gamma=5.0), rounds=1, local_steps=1)
    assert summarize(run, clients).here.reach == 0.0


def test_a_plain_run_gets_a_gamma_and_a_sampled_cohort_no_rate(clients: wafl.Federation) -> None:
    model = wafl.models.mlr(clients)
    run = wafl.fit(model, clients, wafl.FedAvg(), rounds=2, cohort=2, local_steps=1, learning_rate=0.1)
    summary = summarize(run, clients, radius=2.0)
    assert summary.ball is not None
    assert summary.gamma >= summary.ball.L_z / 2.0
    assert "cohort=2 of 3" in reasons(summary)["mean optimality gap"]
    assert "excess risk in the ball" not in reasons(summary)


@pytest.mark.parametrize(
    ("method", "schedule"),
    [
        ({"server": wafl.servers.averaging(wafl.servers.adam())}, {}),
        ({"local": wafl.local.prox(0.1)}, {}),
        ({}, {"server_learning_rate": 0.5}),
        ({}, {"momentum": 0.5}),
        ({}, {"clip_norm": 1.0}),
    ],
    ids=["server", "local step", "server_learning_rate", "momentum", "clip_norm"],
)
def test_the_rate_is_refused_unless_all_steps_are_plain(
    clients: wafl.Federation, method: dict[str, Any], schedule: dict[str, Any]
) -> None:
    model, changed = wafl.models.mlr(clients), replace(wafl.WAFL(gamma=5.0), **method)
    run = wafl.fit(model, clients, changed, rounds=1, local_steps=2, learning_rate=0.1, **schedule)
    assert "the theorem is about plain steps" in reasons(summarize(run, clients))["mean optimality gap"]


def test_a_regularized_run_has_a_rate(clients: wafl.Federation) -> None:
    """Weight decay counts into the loss, which stays convex; what is measured is below what L_theta bounds."""
    schedule = {"rounds": 2, "local_steps": 2, "learning_rate": 0.1}
    result = {}
    for decay in (0.0, 0.1):
        run = wafl.fit(wafl.models.mlr(clients), clients, wafl.WAFL(gamma=5.0), weight_decay=decay, **schedule)
        result[decay] = {bound.name: bound for bound in summarize(run, clients, params_radius=1.0).bounds}
    rates = {decay: bounds["mean optimality gap"] for decay, bounds in result.items()}
    assert isinstance(rates[0.1], Bound)
    assert isinstance(rates[0.0], Bound)
    assert rates[0.1].inputs["L"] == pytest.approx(rates[0.0].inputs["L"] + 0.1)
    measured = result[0.1]["mean optimality gap, sigma and Omega as measured"]
    assert isinstance(measured, Bound)
    assert measured.value < rates[0.1].value


def test_bounds_of_a_network_are_refused_because_nothing_is_proven() -> None:
    torch.manual_seed(0)
    clients = wafl.Federation.from_arrays([(torch.rand(8, 5), torch.arange(8) % 3) for _ in range(3)], bounds=(0, 1))
    model = torch.nn.Sequential(torch.nn.Linear(5, 4), torch.nn.ReLU(), torch.nn.Linear(4, 3))
    run = wafl.fit(model, clients, wafl.WAFL(gamma=5.0), rounds=1, local_steps=1)
    summary = summarize(run, clients)
    assert summary.ball is None
    assert "linear model" in reasons(summary)["excess risk in the ball"]


@pytest.fixture(scope="module")
def study(tmp_path_factory: pytest.TempPathFactory) -> Path:
    output = tmp_path_factory.mktemp("studies")
    (output / "few.toml").write_text(EXPERIMENT)
    result = CliRunner().invoke(app, ["run", str(output / "few.toml"), "--name", "few", "--output", str(output)])
    assert result.exit_code == 0, result.output
    return output / "few"


def test_the_command_prints_constants_bounds_and_certificates_and_saves_the_figure(study: Path, tmp_path: Path) -> None:
    options = ["--radii", "0.5", "--c1", "2", "--c2", "1", "--label-cost", "5", "--output", str(tmp_path / "new")]
    result = CliRunner().invoke(app, ["theory", str(study), *options], env={"COLUMNS": "160"})
    assert result.exit_code == 0, result.output
    for words in ("fedavg: Lipschitz constants", "wafl: Lipschitz constants", "L_theta_z", "certified is proven"):
        assert words in result.stdout
    assert (tmp_path / "new" / "certificates.png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--radii", "a"], "radii='a'"),
        (["--norm", "3"], "norm=3"),
        (["--c1", "2"], "--c2"),
        (["--data-bounds", "0"], "bounds=[0.0] must be two numbers (low, high)"),
        (["--params-radius", "0.000001"], "params_radius"),
    ],
)
def test_wrong_options_give_one_line_and_no_traceback(study: Path, options: list[str], message: str) -> None:
    result = CliRunner().invoke(app, ["theory", str(study / "wafl"), *options])
    assert result.exit_code == 2
    assert message in result.output
    assert "Traceback" not in result.output


def test_a_folder_without_a_run_is_refused(tmp_path: Path) -> None:
    result = CliRunner().invoke(app, ["theory", str(tmp_path)])
    assert result.exit_code == 2
    assert "contains no run" in result.output
