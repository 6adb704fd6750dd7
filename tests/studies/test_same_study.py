"""A study goes on with the data, model and code that it was begun with, or not at all."""

from __future__ import annotations

import shutil
import sys
import warnings
from collections.abc import Callable, Generator
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from tests.config.commands import assert_one_line
from tests.studies.commands import Rounds, contents, interrupt, invoke
from wafl.base.errors import FolderError, VersionWarning
from wafl.base.files import sealed, unsealed
from wafl.cli.main import app
from wafl.config.read import parse_experiment
from wafl.studies.folder import StudyFolder
from wafl.studies.study import Study

USER_MODULE = """
import numpy as np
import torch
import wafl
from torch import nn


def data():
    draw = np.random.default_rng(0)
    parts = []
    for client in range(5):
        x = draw.normal(size=(24, 3)).astype("float32")
        y = (x[:, 0] > 0).astype("int64")
        parts.append((x[:16], y[:16], x[16:], y[16:]))
    return wafl.Federation.from_arrays(parts, num_classes=2)


def build(clients):
    return nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 2))

"""
MODULE = "mine_of_same_study"


@pytest.fixture
def modules(tmp_path: Path) -> Generator[Path]:
    """A folder with your own data and model."""
    folder = tmp_path / "own"
    folder.mkdir()
    (folder / f"{MODULE}.py").write_text(USER_MODULE)
    yield folder
    sys.modules.pop(MODULE, None)


def create(modules: Path, path: Path, **changes: Any) -> Study:
    about = {
        "data": {"source": f"{MODULE}:data"},
        "model": {"kind": f"{MODULE}:build"},
        "schedule": {"rounds": 2, "local_steps": 1, "learning_rate": 0.1},
        "methods": [{"method": "FedAvg"}, {"method": "WAFL", "gamma": 2.0, "steps": 2}],
        "attack": {"kind": "none"},
        **changes,
    }
    return Study.create(parse_experiment(about, "here"), path, modules)


def edit(modules: Path, old: str, new: str) -> None:
    """Change the module, as another process would find it."""
    file = modules / f"{MODULE}.py"
    assert file.read_text().count(old) == 1
    file.write_text(file.read_text().replace(old, new))
    sys.modules.pop(MODULE, None)


CHANGES = {
    "labels flipped": ("(x[:, 0] > 0)", "(x[:, 0] <= 0)", "training examples and test examples"),
    "one label of one training example": ("y[:16],", "np.r_[1 - y[:1], y[1:16]],", "training examples"),
    "one test example": ("x[16:],", "np.nextafter(x[16:], np.float32(9)),", "test examples"),
    "an activation": ("nn.ReLU()", "nn.Tanh()", "model"),
    "the start": ("return nn.Sequential(", "torch.rand(1)\n    return nn.Sequential(", "starting parameters"),
}


@pytest.fixture(scope="module")
def begun(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path, Path]:
    """Your own module, a study of it that was stopped between two methods, and a finished one."""
    folder = tmp_path_factory.mktemp("begun")
    modules, half, whole = (folder / name for name in ("own", "half", "whole"))
    modules.mkdir()
    (modules / f"{MODULE}.py").write_text(USER_MODULE)
    interrupt(create(modules, half), "wafl", 1)
    shutil.rmtree(half / "checkpoint")
    create(modules, whole).run()
    return modules, half, whole


@pytest.mark.parametrize("change", CHANGES)
def test_a_study_is_not_resumed_tested_or_certified_with_another_data_set_or_model(
    begun: tuple[Path, Path, Path], change: str
) -> None:
    """Also between two methods, where no checkpoint would notice."""
    old, new, what = CHANGES[change]
    modules, half, whole = begun
    (modules / f"{MODULE}.py").write_text(USER_MODULE)
    edit(modules, old, new)
    for command, folder in (("resume", half), ("resume", whole), ("evaluate", whole), ("theory", whole)):
        before = contents(folder)
        options = ["--attack", "none"] if command == "evaluate" else []
        result = invoke(command, folder, "--trust", *options)
        assert_one_line(
            result,
            f"{folder} was begun with other {what}:",
            "Put back what was there",
            "wafl run",
            "Nothing was changed",
        )
        assert contents(folder) == before


def test_a_comment_or_a_move_of_the_data_changes_nothing(modules: Path, tmp_path: Path) -> None:
    interrupt(create(modules, tmp_path / "study"), "wafl", 1)
    edit(modules, "def data():", "# words\ndef data():")
    edit(modules, "range(5)", "range(0, 5)")
    assert Study.resume(tmp_path / "study", trust=True).run()["finished"]


def test_the_unseen_clients_are_compared_too(modules: Path, tmp_path: Path) -> None:
    data = {"source": f"{MODULE}:data", "unseen": 0.2}
    folder = create(modules, tmp_path / "study", data=data).folder
    rewrite(folder, lambda about: about["fingerprint"].update({"examples of the unseen clients": "0"}))
    with pytest.raises(FolderError, match="begun with other examples of the unseen clients: one table"):
        Study.resume(folder.path, trust=True)


def rewrite(folder: StudyFolder, change: Callable[[dict[str, Any]], Any]) -> None:
    about = unsealed(folder.about.read_bytes())
    change(about)
    folder.about.write_bytes(sealed(about))


SMALL: dict[str, Any] = {
    "data": {"num_clients": 4, "iid": True},
    "schedule": {"rounds": 1, "local_steps": 1},
    "methods": [{"method": "FedAvg"}, {"method": "AFL"}],
    "attack": {"kind": "none"},
}


def test_a_data_set_made_again_from_its_recipe_is_compared(tmp_path: Path) -> None:
    Study.create(parse_experiment(SMALL, "here"), tmp_path / "study").run()
    assert invoke("evaluate", tmp_path / "study", "--attack", "none").exit_code == 0
    folder = StudyFolder(tmp_path / "study")
    rewrite(folder, lambda about: about["fingerprint"].update({"test examples": "0"}))
    for command in (["evaluate", folder.path], ["evaluate", folder.path / "afl"], ["theory", folder.path]):
        assert_one_line(invoke(*command), f"{folder.path} was begun with other test examples")


def test_a_study_of_an_earlier_version_without_digests_is_read(tmp_path: Path) -> None:
    Study.create(parse_experiment(SMALL, "here"), tmp_path / "study").run()
    rewrite(StudyFolder(tmp_path / "study"), lambda about: about.pop("fingerprint"))
    assert invoke("evaluate", tmp_path / "study", "--attack", "none").exit_code == 0
    assert invoke("resume", tmp_path / "study").exit_code == 0


@pytest.mark.parametrize("package", ["torch", "wafl-learn"])
def test_another_version_warns_that_bits_may_differ(tmp_path: Path, package: str) -> None:
    study = Study.create(parse_experiment(SMALL, "here"), tmp_path / "study")
    rewrite(study.folder, lambda about: about["packages"].update({package: "0.0.1"}))
    with pytest.warns(VersionWarning, match=f"begun with {package} 0.0.1, and this is .*: what comes now may differ"):
        Study.resume(study.folder.path).run()
    with warnings.catch_warnings():
        warnings.simplefilter("always")
        result = CliRunner().invoke(app, ["evaluate", str(study.folder.path), "--attack", "none"])
    assert result.exit_code == 0
    assert f"Warning: {study.folder.path} was begun with {package} 0.0.1" in result.stderr


def test_evaluate_says_which_methods_are_not_finished(tmp_path: Path) -> None:
    methods = [*SMALL["methods"], {"method": "DRFA"}]
    study = Study.create(parse_experiment({**SMALL, "methods": methods}, "here"), tmp_path / "study")
    with pytest.raises(KeyboardInterrupt):
        study.run([Rounds(study, "afl", 1)])
    result = invoke("evaluate", tmp_path / "study", "--attack", "none")
    assert result.exit_code == 0
    assert f"Note: afl, drfa are not finished: wafl resume {tmp_path / 'study'} trains them" in result.stderr
    Study.resume(tmp_path / "study").run()
    assert "not finished" not in invoke("evaluate", tmp_path / "study", "--attack", "none").stderr
