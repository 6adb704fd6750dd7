"""What every named method must do, whatever its parts: sweeps, resumes, experiment files, and any other part."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

import wafl
from wafl import objectives, weights
from wafl.callbacks import Callback, Moment
from wafl.config.read import parse_experiment
from wafl.local import LOCAL_STEPS
from wafl.servers import AGGREGATES, OPTIMIZERS, Server
from wafl.studies.study import Study
from wafl.train.checkpoint.checkpoint import Checkpoint
from wafl.tuning.space import Candidate, Interval, make_space

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore::wafl.base.errors.TrainingWarning")]

SCHEDULE: dict[str, Any] = {"rounds": 4, "local_steps": 2, "batch_size": 8, "learning_rate": 0.1}


def schedule(name: str) -> dict[str, Any]:
    return {**SCHEDULE, "local_steps": 1} if name == "AFL" else SCHEDULE


@pytest.fixture(scope="module")
def clients() -> wafl.Federation:
    return wafl.load_dataset("digits").partition(num_clients=4, labels_per_client=4, seed=0)


def same(one: wafl.Run, other: wafl.Run) -> bool:
    alike = all(torch.equal(one.params[name], other.params[name]) for name in one.params)
    return alike and torch.equal(one.client_weights, other.client_weights)


@pytest.mark.parametrize("name", wafl.METHODS)
def test_a_sweep_gives_the_runs_one_by_one(name: str, clients: wafl.Federation) -> None:
    """Over what is searched by default of the method, or over the learning rate."""
    method, model, options = wafl.METHODS[name](), wafl.models.mlr(clients), schedule(name)
    space = make_space(Candidate(name, method, options), {}, 64)
    option, dimension = next(each for each in space.items() if isinstance(each[1], Interval))
    values = [dimension.at(share, {}) for share in (0.35, 0.65)]
    rest = {key: value for key, value in options.items() if key != option}
    runs = wafl.sweep(model, clients, method, {option: values, "seed": [0, 3]}, **rest)
    index = 0
    for value in values:
        for seed in (0, 3):
            single = method if option == "learning_rate" else method.with_options(**{option: value})
            changed = {**rest, "learning_rate": value} if option == "learning_rate" else options
            assert same(runs[index], wafl.fit(model, clients, single, seed=seed, **changed)), (option, value, seed)
            index += 1
    assert not same(runs[0], runs[2]), f"{option} matters"


class Stop(Callback):
    def on_round(self, moment: Moment) -> None:
        if moment.record.round == 2:
            raise KeyboardInterrupt


@pytest.mark.parametrize("name", wafl.METHODS)
def test_a_resumed_run_has_the_bits_of_a_whole_one(name: str, clients: wafl.Federation, tmp_path: Path) -> None:
    method, model, options = wafl.METHODS[name](), wafl.models.mlr(clients), schedule(name)
    with pytest.raises(KeyboardInterrupt):
        wafl.fit(model, clients, method, checkpoint=Checkpoint(tmp_path), callbacks=[Stop()], **options)
    resumed = wafl.fit(model, clients, method, checkpoint=Checkpoint(tmp_path), **options)
    assert same(resumed, wafl.fit(model, clients, method, **options))


@pytest.mark.parametrize("name", wafl.METHODS)
def test_an_experiment_file_trains_what_python_does(name: str, clients: wafl.Federation, tmp_path: Path) -> None:
    experiment = {
        "seeds": [2],
        "data": {"dataset": "digits", "num_clients": 4, "labels_per_client": 4, "seed": 0},
        "schedule": schedule(name),
        "attack": {"kind": "none"},
        "evaluation": {},
        "methods": [{"method": name}],
    }
    study = Study.create(parse_experiment(experiment, "here"), tmp_path / "study")
    study.run()
    saved = wafl.load_run(tmp_path / "study" / name.lower())
    again = wafl.fit(wafl.models.mlr(clients), clients, wafl.METHODS[name](), seed=2, **schedule(name))
    assert same(saved, again)


def quick(method: wafl.Method) -> wafl.Method:
    return method.with_options(**{name: 2 for name in ("steps", "samples") if name in method.options()})


ADVERSARIES = {
    **{name: quick(preset()).objective for name, preset in wafl.METHODS.items() if preset().objective is not None},
    "by radius": objectives.wasserstein(radius=0.3),
    "shaped": objectives.wasserstein(1.0, cost_matrix="clients"),
}
RULES = {name: kind() for name, kind in weights.RULES.items()}


def works_with_few(server: Server) -> bool:
    """Whether the server works with the four clients of these tests, or with the ones that a rule leaves."""
    try:
        server.check(2)
    except ValueError:
        return False
    return True


SERVERS = [
    *(server for server in (kind() for kind in AGGREGATES.values()) if works_with_few(server)),
    *(kind() for kind in OPTIMIZERS.values()),
]
STEPS = [kind() for name, kind in LOCAL_STEPS.items() if name != "gradient_control"]
"""What works with any rule: gradient_control needs one that asks before it trains."""


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("objective", ADVERSARIES)
def test_every_objective_works_with_every_rule_and_with_any_server_and_local_step(
    objective: str, rule: str, clients: wafl.Federation
) -> None:
    """What a rule is told are the losses of the objective, and servers and local steps see parameters alone."""
    first = list(RULES).index(rule) + list(ADVERSARIES).index(objective)
    server, step = SERVERS[first % len(SERVERS)], STEPS[first % len(STEPS)]
    method = wafl.Method("any", ADVERSARIES[objective], RULES[rule], server, step)
    options = {**SCHEDULE, "local_steps": 1} if rule == "agnostic" else SCHEDULE
    run = wafl.fit(wafl.models.mlr(clients), clients, method, **{**options, "rounds": 2})
    assert not run.diverged
    assert float(run.params["1.weight"].abs().max()) > 1e-4
    assert float(run.client_weights.sum()) == pytest.approx(1.0)
