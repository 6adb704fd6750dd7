"""Models, data, methods and parts that an experiment file takes from your own functions."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Generator
from pathlib import Path
from typing import Any

import pytest
import torch

import wafl
from tests.config.commands import (
    BASE,
    COMMON,
    STARTER,
    as_toml,
    assert_one_line,
    check,
    clients,
    invoke,
    one_command,
    write,
)
from wafl.config.read import parse_experiment
from wafl.studies.study import Study

__all__ = ["clients", "one_command"]


MODULE = """
import torch
import wafl


def make_clients():
    generator = torch.Generator().manual_seed(0)
    x = torch.rand(4, 12, 3, generator=generator)
    return wafl.Federation.from_arrays([(x[i], (torch.arange(12) + i) % 3) for i in range(4)], bounds=(0.0, 1.0))


def build(clients):
    model = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.Tanh(), torch.nn.Linear(4, 3))
    generator = torch.Generator().manual_seed(7)
    for value in model.parameters():
        value.data = torch.rand(value.shape, generator=generator)
    return model


def nothing(*_):
    return 3


number = 3
"""
OWN_FILE = """
name = "own"
data.source = "{module}:make_clients"
model.kind = "{module}:build"
schedule = {{rounds = 2, local_steps = 1, learning_rate = 0.1}}
methods = [{{method = "FedAvg"}}]
attack.steps = 2
"""


@pytest.fixture
def own_module(tmp_path: Path, request: pytest.FixtureRequest) -> Generator[tuple[Path, str], None, None]:
    """A folder with a module, whose name no other test uses, and an experiment next to it."""
    module = "mine_" + re.sub(r"\W", "_", request.node.name)
    folder = tmp_path / "experiment"
    folder.mkdir()
    (folder / f"{module}.py").write_text(MODULE)
    (folder / "exp.toml").write_text(OWN_FILE.format(module=module))
    yield folder / "exp.toml", module
    sys.modules.pop(module, None)


def test_a_module_next_to_the_file_provides_model_and_data(
    own_module: tuple[Path, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    path, module = own_module
    before = list(sys.path)
    assert invoke("run", str(path.relative_to(tmp_path))).exit_code == 0
    assert sys.path == before, "imports look elsewhere again"
    mine = sys.modules[module]
    clients, model = mine.make_clients(), mine.build(None)
    run = wafl.fit(model, clients, wafl.FedAvg(), rounds=2, local_steps=1, learning_rate=0.1)
    saved = wafl.load_run(tmp_path / "runs" / "own" / "fedavg", model=model)
    assert all(torch.equal(value, saved.params[name]) for name, value in run.params.items())


@pytest.mark.parametrize("key", ["data.source", "model.kind"])
@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("no_such_module:make", "cannot be imported: No module named 'no_such_module'"),
        ("{module}:no_such_function", "cannot be imported: "),
        ("{module}:number", "is not a function"),
        ("{module}:nothing", "returned int, not a "),
        (".{module}:make", ""),
    ],
)
def test_a_function_that_provides_no_model_or_data_is_one_line(
    own_module: tuple[Path, str], key: str, name: str, message: str
) -> None:
    path, module = own_module
    wanted = {"data.source": "wafl.Federation", "model.kind": "torch.nn.Module"}[key]
    name = name.format(module=module)
    result = check(path, f"{key}={name}")
    assert_one_line(result, key, name, message + (wanted if message.endswith("not a ") else ""))


def test_a_model_that_does_not_fit_the_data_is_one_line(own_module: tuple[Path, str]) -> None:
    path, _ = own_module
    result = check(path, "data={num_clients=5, iid=true}")
    assert_one_line(result, "the model does not take examples of shape (1, 8, 8)")


# -- Your own methods and parts -------------------------------------------------------------------------------


PARTS_MODULE = """
from dataclasses import dataclass

import wafl


def strong(strength=1.0, norm="2", steps=3):
    objective = wafl.objectives.wasserstein(gamma=1 / strength, norm=float(norm), steps=steps)
    return wafl.Method("strong", objective, wafl.weights.uniform())


@dataclass(frozen=True)
class Half(wafl.servers.Server):
    keep: float = 0.5

    def initial_memory(self, params):
        return {"last": params.clone()}

    def step(self, update, memory):
        return self.keep * update.start + (1 - self.keep) * update.params.mean(0), {"last": update.start}


def server(keep):
    return Half(keep)


def local(mu=0.1):
    return wafl.local.prox(mu)


def rule():
    return wafl.weights.fixed([1.0, 2.0, 3.0, 4.0, 5.0])


def nothing():
    return 3
"""


@pytest.fixture
def parts(tmp_path: Path, request: pytest.FixtureRequest) -> Generator[tuple[Path, str], None, None]:
    """A folder with a module of methods and parts, and its name."""
    module = "parts_" + re.sub(r"\W", "_", request.node.name)
    (tmp_path / f"{module}.py").write_text(PARTS_MODULE)
    yield tmp_path, module
    sys.modules.pop(module, None)


def trained(folder: Path, source: Path, method: dict[str, Any]) -> dict[str, wafl.Run]:
    """The runs of a study with one method, by their folders."""
    Study.create(parse_experiment({**BASE, "methods": [method]}, "here"), folder, source).run()
    return {str(path.parent.relative_to(folder)): wafl.load_run(path.parent) for path in folder.rglob("run.json")}


def assert_same(one: wafl.Run, other: wafl.Run) -> None:
    assert all(torch.equal(value, one.params[name]) for name, value in other.params.items())
    assert one.history.column("loss") == other.history.column("loss")
    assert torch.equal(one.client_weights, other.client_weights)


@pytest.mark.filterwarnings("ignore::wafl.ConcavityWarning")
def test_your_own_method_trains_what_its_function_returns_and_a_list_of_arguments_is_a_sweep(
    parts: tuple[Path, str], clients: wafl.Federation
) -> None:
    folder, module = parts
    options = {"strength": [0.5, 2.0], "norm": ["1", "inf"], "steps": 2}
    entry = {"method": f"{module}:strong", "options": options, "learning_rate": [0.1, 0.2]}
    runs = trained(folder / "study", folder, entry)
    strong = sys.modules[module].strong
    assert len(runs) == 16
    for strength in (0.5, 2.0):
        for norm in ("1", "inf"):
            method = strong(strength, norm, steps=2)
            grid = {"learning_rate": [0.1, 0.2], "seed": [0, 4]}
            for run in wafl.sweep(wafl.models.mlr(clients), clients, method, grid, **COMMON):
                point = run.settings["sweep"]
                name = f"strong-strength={strength}-norm={norm}-learning_rate={point['learning_rate']}"
                saved = runs[name + ("" if point["seed"] == 0 else "/seed-4")]
                assert_same(saved, run)
                assert saved.settings["sweep"] == {"strength": strength, "norm": norm, **point}
    rows = [json.loads(line) for line in (folder / "study" / "metrics.jsonl").read_text().splitlines()]
    assert {(row["method"], row["strength"], row["norm"]) for row in rows} == {
        ("strong", strength, norm) for strength in (0.5, 2.0) for norm in ("1", "inf")
    }


def test_your_own_server_local_step_and_client_weights_are_used(
    parts: tuple[Path, str], clients: wafl.Federation
) -> None:
    folder, module = parts
    runs = trained(
        folder / "study",
        folder,
        {
            "method": "WAFL",
            "gamma": 2.0,
            "server": {"kind": f"{module}:server", "options": {"keep": 0.25}},
            "local": {"kind": f"{module}:local"},
            "client_weights": f"{module}:rule",
        },
    )
    mine = sys.modules[module]
    method = wafl.WAFL(gamma=2.0, server=mine.Half(0.25), local=wafl.local.prox(0.1), client_weights=mine.rule())
    for run in wafl.sweep(wafl.models.mlr(clients), clients, method, {"seed": [0, 4]}, **COMMON):
        assert_same(runs["wafl" if run.settings["sweep"]["seed"] == 0 else "wafl/seed-4"], run)


@pytest.mark.parametrize(
    ("method", "message"),
    [
        ({"method": "{module}:none"}, "none.method = '{module}:none' cannot be imported"),
        ({"method": "{module}:nothing"}, "returned int, not a wafl.Method"),
        ({"method": "{module}:wafl"}, "names a function of wafl: name your own"),
        ({"method": "{module}:strong", "options": {"strenght": 1}}, "unexpected keyword argument 'strenght'"),
        ({"method": "{module}:strong", "options": {"strength": [1.0, 1.0]}}, "has a value twice"),
        ({"method": "{module}:strong", "options": {"norm": ["a/b"]}}, "a sweep is a list of numbers or plain words"),
        ({"method": "{module}:strong", "options": {"seed": [1, 2]}}, "options.seed cannot be swept under this name"),
        ({"method": "WAFL", "server": {"kind": "{module}:server"}}, "missing a required argument: 'keep'"),
        ({"method": "WAFL", "server": {"kind": "{module}:nothing"}}, "wafl: server=3 does not implement Server"),
        ({"method": "WAFL", "client_weights": "{module}:nothing"}, "client_weights=3 does not implement ClientWeights"),
        ({"method": "FedAdam", "server_learning_rate": 0.5}, "server_learning_rate=0.5"),
    ],
    ids=lambda value: str(value) if isinstance(value, dict) else "",
)  # fmt: skip
def test_your_own_method_or_part_that_cannot_be_used_is_one_line(
    tmp_path: Path, parts: tuple[Path, str], method: dict[str, Any], message: str
) -> None:
    _, module = parts
    text = STARTER[: STARTER.index("[[methods]]")] + "[attack]\nsteps = 1\n[[methods]]\n"
    lines = (f"{name} = {as_toml(value)}" for name, value in method.items())
    path = write(tmp_path, text + "\n".join(lines).replace("{module}", module))
    assert_one_line(check(path), message.replace("{module}", module))
