"""Differential privacy: what is trained, embedded and on nodes, against a plain loop."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from tests.flower.conftest import Stage
from tests.oracles import flower_fakes as fakes
from wafl.base.errors import ConfigError
from wafl.cli.tables import comparison
from wafl.parts.messages import Query
from wafl.studies.folder import StudyFolder
from wafl.studies.pages.progress import read_lines
from wafl.train.clients import Engine
from wafl.train.privacy import noise
from wafl.train.privacy.accountant import epsilon_of, noise_for
from wafl.train.privacy.mechanism import PrivateClients
from wafl.train.trust.admission import Admitted

SIZES = (3, 8, 6, 5)
LAYOUT = [["c00", "c02"], ["c01", "c03"]]
EXPERIMENT: dict[str, Any] = {
    "name": "study",
    "data": {"source": "tests.oracles.flower_fakes:everyone"},
    "schedule": {"rounds": 3, "local_steps": 1, "batch_size": 8, "learning_rate": 0.5},
    "attack": {"kind": "none"},
    "flower": {"nodes": 2, "wait": 5.0, "round_timeout": 20.0},
    "methods": [{"method": "FedAvg", "client_weights": "uniform"}],
    "privacy": {"clip_norm": 0.4, "epsilon": 3.0, "delta": 1e-3},
}


@pytest.fixture
def stage(stage: Stage) -> Stage:
    return replace(stage, clients=fakes.make_clients(SIZES))


@pytest.fixture
def same_noise(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(noise, "gaussian", lambda count: torch.from_numpy(drawn(count)))


def drawn(count: int) -> np.ndarray[Any, Any]:
    return np.random.default_rng(7).standard_normal(count)


def reference(clients: Mapping[str, fakes.Client], rounds: int, clip: float, deviation: float) -> torch.Tensor:
    """Algorithm 1 of McMahan et al. for a linear model and one full batch, client by client."""
    weight = torch.zeros(3, 4, dtype=torch.float64)
    bias = torch.zeros(3, dtype=torch.float64)
    for _ in range(rounds):
        total = torch.zeros(15, dtype=torch.float64)
        for each in clients.values():
            x, y = torch.tensor(each["x"]).double(), torch.tensor(each["y"])
            wrong = torch.softmax(x @ weight.T + bias, 1) - torch.eye(3, dtype=torch.float64)[y]
            update = -0.5 * torch.cat([(wrong.T @ x / len(x)).flatten(), wrong.mean(0)])
            total += update * min(1.0, clip / float(update.norm()))
        step = total / len(clients) + deviation * torch.from_numpy(drawn(15))
        weight, bias = weight + step[:12].view(3, 4), bias + step[12:]
    return torch.cat([weight.flatten(), bias])


@pytest.mark.usefixtures("same_noise")
def test_clipped_updates_and_noise_are_those_of_a_plain_loop(stage: Stage) -> None:
    result = load_file(stage.embedded(EXPERIMENT) / "fedavg" / "params.safetensors")
    expected = reference(stage.clients, 3, 0.4, noise_for(3.0, 1e-3, 3) * 0.4 / len(SIZES))
    (weight,), (bias,) = ([value for value in result.values() if value.ndim == ndim] for ndim in (2, 1))
    trained = torch.cat([weight.flatten(), bias]).double()
    torch.testing.assert_close(trained, expected, rtol=0, atol=1e-5)
    assert not torch.allclose(expected, reference(stage.clients, 3, 0.4, 0.0), atol=0.1)
    assert not torch.allclose(reference(stage.clients, 3, 0.4, 0.0), reference(stage.clients, 3, 1e9, 0.0), atol=1e-3)


def test_nobody_can_draw_the_same_noise_again(stage: Stage) -> None:
    folders = [stage.embedded(EXPERIMENT, name) for name in ("one", "two")]
    one, two = (load_file(folder / "fedavg" / "params.safetensors") for folder in folders)
    assert not any(torch.equal(one[name], two[name]) for name in one)


def test_nothing_after_the_noise_sees_a_single_update(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every reply has the noisy mean in its place; the operating system draws 24 bytes for two numbers."""
    answers, drew, engine, urandom = list[Admitted](), list[int](), PrivateClients.engine, os.urandom

    def seen(self: PrivateClients, *args: Any) -> Engine:
        inner = engine(self, *args)

        def run(queries: Sequence[Query], runs: Sequence[int]) -> list[Admitted]:
            answers.extend(each := inner(queries, runs))
            return each

        return run

    def draws(count: int) -> bytes:
        drew.append(count)
        return urandom(count)

    monkeypatch.setattr(PrivateClients, "engine", seen)
    monkeypatch.setattr(os, "urandom", draws)
    stage.embedded(EXPERIMENT)
    assert [len(each.replies.params.unique(dim=0)) for each in answers] == [1, 1, 1]
    assert [count for count in drew if count == 24 * 8] == [192] * 3, "15 parameters in each of three rounds"


@pytest.mark.usefixtures("same_noise")
def test_nodes_give_the_embedded_numbers_and_the_same_epsilon(stage: Stage) -> None:
    here = stage.embedded(EXPERIMENT)
    grid = stage.train(EXPERIMENT, stage.grid(EXPERIMENT, LAYOUT))
    params = [(folder / "fedavg" / "params.safetensors").read_bytes() for folder in (here, stage.study)]
    assert params[0] == params[1]
    assert all(seen.query["query"].get("clipping_norm") == 0.4 for seen in grid.seen if seen.kind == "train")
    assert not any("agreement" in row for each in (here, stage.study) for row in read_lines(StudyFolder(each).metrics))
    other = StudyFolder(stage.study).read_results()
    spent = StudyFolder(here).read_results()["methods"]["FedAvg"]["privacy"]
    assert other["methods"]["FedAvg"]["privacy"] == spent
    assert spent["epsilon"] == pytest.approx(3.0, rel=1e-6)
    assert "FedAvg: epsilon 3 at delta 0.001 for the model of one seed" in str(comparison(other).renderables[1])


def test_what_was_spent_counts_the_rounds_of_the_client_that_took_part_most_often(stage: Stage) -> None:
    changes = {"schedule": {**EXPERIMENT["schedule"], "rounds": 4, "cohort": 2}, "seeds": [0, 1]}
    given = {"clip_norm": 0.4, "noise_multiplier": 2.0}
    study = StudyFolder(stage.embedded({**EXPERIMENT, **changes, "privacy": given}))
    counts = np.zeros((2, 4))
    for row in read_lines(study.metrics):
        counts[row["seed"], row["cohort"]] += 1
    spent = study.read_results()["methods"]["FedAvg"]["privacy"]
    assert spent["epsilon"] == epsilon_of(1e-5, 2.0, int(counts.max()))
    assert spent["epsilon_of_all_seeds"] == epsilon_of(1e-5, 2.0, int(counts.sum(0).max()))
    assert spent["epsilon_of_all_seeds"] > spent["epsilon"]


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"methods": [{"method": "FedAvg"}]}, r"fedavg weights its clients: set client_weights = 'uniform'"),
        ({"methods": [{"method": "DRFA"}]}, r"weights its clients"),
        (
            {"methods": [{"method": "WAFL", "radius": 0.3, "client_weights": "uniform"}]},
            r"wafl finds gamma from the clients' costs: give gamma, not radius",
        ),
        (
            {"methods": [{"method": "SCAFFOLD", "client_weights": "uniform"}]},
            r"has clients send more than their updates \(control\)",
        ),
        (
            {"methods": [{"method": "FedAvg", "client_weights": "uniform", "server": {"kind": "median"}}]},
            r"needs each client's model",
        ),
        (
            {"methods": [{"method": "WAFL", "gamma": 1.0, "cost_matrix": "clients", "client_weights": "uniform"}]},
            r"cost_matrix='clients' needs the class means of clients, which are not private",
        ),
        ({"tune": {}}, r"tune looks at clients without noise"),
    ],
)
def test_what_would_leak_more_than_the_noisy_mean_is_refused(changes: dict[str, Any], words: str, stage: Stage) -> None:
    with pytest.raises((ValueError, ConfigError), match=words):
        stage.embedded({**EXPERIMENT, **changes}, "study")
    assert not stage.study.exists()


def test_partial_sums_are_refused_with_privacy(stage: Stage) -> None:
    experiment = {**EXPERIMENT, "flower": {**EXPERIMENT["flower"], "partial_sums": True}}
    with pytest.raises(ConfigError, match=r"privacy: .*leave flower.partial_sums out"):
        stage.train(experiment, stage.grid(experiment, LAYOUT))
