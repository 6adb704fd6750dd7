"""An experiment file trains what the same calls of the library train."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
import torch

import wafl
from tests.config.commands import BASE, COMMON, clients
from wafl.base.errors import ConfigError
from wafl.config.plan import make_plan
from wafl.config.read import parse_experiment
from wafl.studies.study import Study
from wafl.train.trust.admission import Tolerance

__all__ = ["clients"]

INF = math.inf
ONE_STEP: dict[str, Any] = {"rounds": 2, "local_steps": 1, "batch_size": 16, "learning_rate": 0.1}
LAMBDA = [1.0, 0.0, 2.0, 1.0, 4.0]


@pytest.mark.parametrize(
    ("entry", "method", "grid", "schedule"),
    [
        (
            {"method": "WAFL", "gamma": 2.0, "norm": [1, "inf"], "steps": 3, "bounds": [0.0, 1.0]},
            wafl.WAFL(gamma=2.0, steps=3, bounds=(0.0, 1.0)), {"norm": [1.0, INF]}, COMMON,
        ),
        (
            {"method": "WAFL", "gamma": 2.0, "client_weights": "agnostic", "weights_step": [0.1, 0.2]},
            wafl.WAFL(gamma=2.0, client_weights=wafl.weights.agnostic(0.1)), {"weights_step": [0.1, 0.2]}, ONE_STEP,
        ),
        (
            {"method": "FedAvg", "rounds": 3, "local_epochs": 1, "cohort": [2, 5]},
            wafl.FedAvg(), {"cohort": [2, 5]},
            {"rounds": 3, "local_epochs": 1, "batch_size": 16, "learning_rate": 0.1},
        ),
        (
            {"method": "WAFL", "gamma": 2.0, "client_weights": {"kind": "cvar", "alpha": 0.3, "center": LAMBDA}},
            wafl.WAFL(gamma=2.0, client_weights=wafl.weights.cvar(0.3, center=wafl.weights.fixed(LAMBDA))), {}, COMMON,
        ),
        (
            {"method": "WAFL", "gamma": [1.0, 4.0], "server": {"kind": "adam", "rate": 0.02, "tau": 0.01},
             "local": {"kind": "prox", "mu": 0.3}, "clip_norm": 0.5},
            wafl.WAFL(server=wafl.servers.adam(0.02, tau=0.01), local=wafl.local.prox(0.3)),
            {"gamma": [1.0, 4.0]}, {**COMMON, "clip_norm": 0.5},
        ),
        (
            {"method": "FedAvg",
             "server": {"kind": "trimmed_mean", "trim": 0.3, "optimizer": {"kind": "sgd", "rate": 2}}},
            wafl.FedAvg(server=wafl.servers.trimmed_mean(0.3, optimizer=wafl.servers.sgd(2))), {}, COMMON,
        ),
    ],
    ids=lambda value: " ".join(map(str, value.values())) if isinstance(value, dict) and "method" in value else "",
)  # fmt: skip
@pytest.mark.filterwarnings("ignore::wafl.ConcavityWarning")
def test_a_list_is_a_sweep_whose_runs_equal_those_made_in_python(
    tmp_path: Path,
    clients: wafl.Federation,
    entry: dict[str, Any],
    method: wafl.Method,
    grid: dict[str, list[Any]],
    schedule: dict[str, Any],
) -> None:
    study = Study.create(parse_experiment({**BASE, "methods": [{**entry, "name": "m"}]}, "here"), tmp_path / "study")
    study.run()
    by_hand = wafl.sweep(wafl.models.mlr(clients), clients, method, {**grid, "seed": [0, 4]}, **schedule)
    folders = sorted(path.parent for path in (tmp_path / "study").rglob("run.json"))
    assert len(folders) == len(by_hand)
    for run in by_hand:
        point = dict(run.settings["sweep"])
        folder = (
            tmp_path / "study" / ("m" + "".join(f"-{key}={value}" for key, value in point.items() if key != "seed"))
        )
        saved = wafl.load_run(folder if point["seed"] == 0 else folder / "seed-4")
        assert saved.settings["schedule"] == run.settings["schedule"]
        assert saved.settings["method"] == run.settings["method"]
        assert all(torch.equal(value, saved.params[name]) for name, value in run.params.items())
        assert torch.equal(saved.client_weights, run.client_weights)
        assert saved.history.column("loss") == run.history.column("loss")
        options = {name: INF if value == "inf" else value for name, value in point.items() if name in method.options()}
        timing = {name: value for name, value in point.items() if name not in options}
        alone = wafl.fit(wafl.models.mlr(clients), clients, method.with_options(**options), **{**schedule, **timing})
        for name, value in alone.params.items():
            torch.testing.assert_close(saved.params[name], value, rtol=0, atol=1e-5)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::wafl.ConcavityWarning")
def test_the_order_of_a_sweep_is_that_of_the_keys_in_every_process() -> None:
    """Or a resume in another process would not find the runs and the checkpoint."""
    swept = {
        "restarts": [0, 1], "tolerance": [0.0, 0.1], "steps": [1, 2], "power": [1, 2], "norm": [1, 2],
        "gamma": [1.0, 2.0], "momentum": [0.0, 0.5], "learning_rate": [0.1, 0.2],
    }  # fmt: skip
    content = {**BASE, "seeds": [0], "methods": [{"method": "WAFL", **swept}]}
    (entry,) = make_plan(parse_experiment(content, "here")).entries
    assert list(entry.grid) == [
        "gamma", "norm", "power", "steps", "tolerance", "restarts", "learning_rate", "momentum",
    ]  # fmt: skip


def test_everything_in_a_file_reaches_the_plan(tmp_path: Path) -> None:
    content = {
        **BASE,
        "data": {"num_clients": 6, "dirichlet": 5.0, "preprocess": "symmetric", "test_fraction": 0.5, "seed": 3},
        "model": {"kind": "cnn", "channels": [2, 3], "seed": 5},
        "methods": [{"method": "FedAvg"}],
        "attack": {"kind": "pgd", "epsilon": 0.3, "norm": 2, "steps": 7, "step_size": 0.1},
        "faults": {"dropout": 0.1, "late": 0.2, "seed": 8},
        "tolerance": {"min_replies": 0.2, "attempts": 9, "outsized": 7.0},
    }
    plan = make_plan(parse_experiment(content, "here"))
    clients = wafl.load_dataset("digits").partition(
        num_clients=6, dirichlet=5.0, preprocess="symmetric", test_fraction=0.5, seed=3
    )
    assert torch.equal(plan.federation.train.x, clients.train.x)
    assert torch.equal(plan.federation.test.y, clients.test.y)
    expected = wafl.models.cnn(clients, channels=(2, 3), seed=5)
    assert all(
        torch.equal(one, other) for one, other in zip(plan.model.parameters(), expected.parameters(), strict=True)
    )
    assert plan.attack == wafl.PGD(epsilon=0.3, norm=2, steps=7, step_size=0.1, bounds=clients.bounds)
    assert plan.clients.faults is not None
    assert plan.clients.faults.rates() == {"dropout": 0.1, "late": 0.2, "nan": 0.0, "infinity": 0.0, "wrong_shape": 0.0}
    assert plan.clients.faults.seed == 8
    assert plan.clients.tolerance is not None
    assert plan.clients.tolerance == Tolerance(min_replies=0.2, attempts=9, outsized=7.0)


@pytest.mark.parametrize(
    ("attack", "expected"),
    [
        ({"kind": "none"}, None),
        ({"kind": "fgsm", "epsilon": 0.2}, wafl.FGSM(0.2, INF, (0.0, 1.0))),
        ({"kind": "wasserstein", "radius": 0.4}, wafl.WassersteinShift(0.4, 2, bounds=(0.0, 1.0))),
        ({"kind": "wasserstein", "norm": "inf", "bounds": "none"}, wafl.WassersteinShift(1.0, INF, bounds=None)),
        ({"bounds": [-1, 2.5], "norm": 2}, wafl.PGD(epsilon=0.1, norm=2, bounds=(-1.0, 2.5))),
        ({}, wafl.PGD(epsilon=0.1, steps=40, bounds=(0.0, 1.0))),
    ],
)
def test_an_attack_named_in_a_file_is_the_one_of_the_library(attack: dict[str, Any], expected: Any) -> None:
    experiment = parse_experiment({**BASE, "attack": attack, "methods": [{"method": "FedAvg"}]}, "here")
    assert make_plan(experiment).attack == expected


def test_a_method_may_have_a_schedule_of_its_own_without_a_shared_one() -> None:
    method = {"method": "FedAvg", "rounds": 3, "local_steps": 1}
    content = {"data": BASE["data"], "methods": [method]}
    assert make_plan(parse_experiment(content, "here")).entries[0].schedule == {"rounds": 3, "local_steps": 1}
    with pytest.raises(ConfigError, match=r"schedule\.rounds is missing"):
        make_plan(parse_experiment({**content, "methods": [{"method": "FedAvg", "local_steps": 1}]}, "here"))
    with pytest.raises(ConfigError, match="give one of labels_per_client, dirichlet, iid = true or by_group = true"):
        make_plan(parse_experiment({**content, "data": {"num_clients": 5}}, "here"))
