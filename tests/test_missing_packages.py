"""A missing optional package is reported before any work: no tensor is computed, and no file is written."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from torch.utils._python_dispatch import TorchDispatchMode
from typer.testing import CliRunner

import wafl
from tests.promises.files import write_keys
from wafl.attacks.autoattack import AutoAttack
from wafl.cli.main import app
from wafl.config.read import read_experiment
from wafl.studies.study import Study

EXPERIMENT = """
name = "small"
[data]
dataset = "digits"
num_clients = 4
labels_per_client = 4
unseen = 0.25
[schedule]
rounds = 1
local_steps = 1
learning_rate = 0.1
[[methods]]
method = "WAFL"
radius = 0.1
[attack]
epsilon = 0.05
steps = 1
[evaluation]
attacked = [0.5]
"""


class NoTensors(TorchDispatchMode):
    """A block in which computing a tensor is an error."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        raise AssertionError(f"{func} was computed before the packages were checked")


class Case:
    """A small finished study, and its run, comparison and certificates in Python."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.file, self.study = folder, folder / "experiment.toml", folder / "study"
        self.file.write_text(EXPERIMENT)
        study = Study.create(read_experiment(self.file), self.study)
        study.run()
        assert study.plan.federation is not None
        self.clients, self.model, self.run = (
            study.plan.federation,
            self.study / "wafl",
            wafl.load_run(self.study / "wafl"),
        )
        self.comparison = wafl.compare([self.run], self.clients)
        self.certificates = wafl.certify(self.run, self.clients, radii=[0.1])
        self.key, self.public = write_keys(folder)
        self.promise = folder / "certificate.json"
        self.certificates.save(self.promise, key=self.key, points=2)
        self.score = wafl.evaluate(self.run, self.clients)
        self.data = folder / "empty"
        self.new = folder / "new"

    def files(self) -> dict[Path, int]:
        return {path: path.stat().st_mtime_ns for path in self.folder.rglob("*") if path.name != ".lock"}


@pytest.fixture(scope="module")
def case(tmp_path_factory: pytest.TempPathFactory) -> Case:
    return Case(tmp_path_factory.mktemp("case"))


REPORT, TRANSPORT, SIGN = ("report", "jinja2", "plotly"), ("transport", "ot"), ("sign", "cryptography")

COMMANDS: dict[str, tuple[tuple[str, ...], Callable[[Case], list[Any]]]] = {
    "report": (REPORT, lambda case: ["report", case.study, "-o", case.new]),
    "quick report": (REPORT, lambda case: ["report", case.study, "--quick", "-o", case.new]),
    "serve": (REPORT, lambda case: ["serve", case.folder]),
    "run --serve": (REPORT, lambda case: ["run", case.file, "--output", case.new, "--serve"]),
    "resume --serve": (REPORT, lambda case: ["resume", case.study, "--serve"]),
    "export onnx": (
        ("onnx", "onnxscript"),
        lambda case: ["export", case.model, "--format", "onnx", "--output", case.new],
    ),
    "evaluate": (("autoattack", "pyautoattack"), lambda case: ["evaluate", case.study, "--attack", "autoattack"]),
    "run autoattack": (
        ("autoattack", "pyautoattack"),
        lambda case: ["run", case.file, "--output", case.new, "--set", "attack.kind=autoattack"],
    ),
    "tune autoattack": (
        ("autoattack", "pyautoattack"),
        lambda case: ["tune", case.file, "--output", case.new, "--set", "attack.kind=autoattack"],
    ),
    "simulation": (
        ("flower", "flwr", "ray"),
        lambda case: ["run", case.file, "--output", case.new, "--set", "engine=flower-sim"],
    ),
    **{
        f"run {name}": (
            (name, name),
            lambda case, name=name: ["run", case.file, "--output", case.new, "--set", f"trackers.{name}=true"],
        )
        for name in ("tensorboard", "mlflow", "wandb")
    },
    "certify": (SIGN, lambda case: ["certify", case.model, "--sign", case.key, "-o", case.new / "a.json"]),
    "next-client": (SIGN, lambda case: ["next-client", case.model, "--sign", case.key, "-o", case.new / "a.json"]),
    "request": (SIGN, lambda case: ["request", case.model, "--invite", case.folder, "--sign", case.key]),
    "receipt": (
        SIGN,
        lambda case: ["receipt", case.file, "--model", case.model, "--data", case.study, "--sign", case.key],
    ),
    "verify": (SIGN, lambda case: ["verify", case.promise, "--model", case.model, "--key", case.public]),
    "audit": (
        SIGN,
        lambda case: ["audit", case.promise, "--model", case.model, "--data", case.study, "--key", case.public],
    ),
    "certify points": (TRANSPORT, lambda case: ["certify", case.model, "--points", "2", "-o", case.new / "a.json"]),
    "audit distances": (
        TRANSPORT,
        lambda case: ["audit", case.promise, "--model", case.model, "--data", case.study],
    ),
    "weights": (TRANSPORT, lambda case: ["weights", "-s", "digits"]),
    "fetch": (("data", "pooch", "requests"), lambda case: ["data", "fetch", "mnist", "--data-dir", case.data]),
    "fetch images": (("data", "PIL"), lambda case: ["data", "fetch", "mnist-m", "--data-dir", case.data]),
}
"""Commands that users type, with their extra and its packages."""

CALLS: dict[str, tuple[tuple[str, ...], Callable[[Case], Any]]] = {
    "run": (REPORT, lambda case: case.run.report(case.new)),
    "comparison": (REPORT, lambda case: case.comparison.report(case.new)),
    "certificates": (REPORT, lambda case: case.certificates.report(case.new)),
    "write_report": (REPORT, lambda case: wafl.write_report([case.run], case.clients, case.new)),
    "onnx": (("onnx", "onnxscript"), lambda case: case.run.export(f"{case.new}.onnx")),
    "sign": (SIGN, lambda case: wafl.verify(case.promise, model=case.run, data=case.clients, key=case.public)),
    "points": (TRANSPORT, lambda case: case.certificates.publish(points=2)),
    "audit": (TRANSPORT, lambda case: wafl.audit(case.promise, case.run, case.clients)),
    "nearest": (TRANSPORT, lambda case: wafl.weights.nearest(case.clients, case.clients)),
    "mixture": (TRANSPORT, lambda case: wafl.weights.mixture(case.clients, case.clients)),
    "cover": (TRANSPORT, lambda case: wafl.weights.cover(case.clients)),
    "barycenter": (TRANSPORT, lambda case: wafl.weights.barycenter(case.clients)),
    "bilevel": (TRANSPORT, lambda case: wafl.weights.bilevel(case.clients, [0.5, 0.5])),
    "distance": (TRANSPORT, lambda case: wafl.weights.distance(case.clients, case.clients)),
    "frame of a comparison": (("pandas", "pandas"), lambda case: case.comparison.to_pandas()),
    "frame of a score": (("pandas", "pandas"), lambda case: case.score.to_pandas()),
    "frame of a history": (("pandas", "pandas"), lambda case: case.run.history.to_pandas()),
    "AutoAttack": (("autoattack", "pyautoattack"), lambda case: AutoAttack(epsilon=0.1)),
    "load_dataset": (("data", "pooch"), lambda case: wafl.load_dataset("mnist", case.data)),
}


def missing(module: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Make a package impossible to import, with all modules of it that are loaded."""
    for name in [name for name in sys.modules if name == module or name.startswith(f"{module}.")]:
        monkeypatch.setitem(sys.modules, name, None)
    monkeypatch.setitem(sys.modules, module, None)


def pairs(cases: dict[str, tuple[tuple[str, ...], Any]]) -> list[Any]:
    return [
        pytest.param(extra, module, call, id=f"{name}-{module}")
        for name, ((extra, *modules), call) in cases.items()
        for module in modules
    ]


@pytest.mark.parametrize(("extra", "module", "words"), pairs(COMMANDS))
def test_a_command_ends_before_it_computes_or_writes(
    extra: str, module: str, words: Callable[[Case], list[Any]], case: Case, monkeypatch: pytest.MonkeyPatch
) -> None:
    missing(module, monkeypatch)
    before = case.files()
    with NoTensors():
        done = CliRunner().invoke(app, [str(word) for word in words(case)])
    assert done.exit_code == 2, (done.output, done.exception)
    assert f"needs the package {module}: pip install 'wafl-learn[{extra}]'" in " ".join(done.output.split())
    assert case.files() == before


@pytest.mark.parametrize(("extra", "module", "call"), pairs(CALLS))
def test_a_call_ends_before_it_computes_or_writes(
    extra: str, module: str, call: Callable[[Case], Any], case: Case, monkeypatch: pytest.MonkeyPatch
) -> None:
    missing(module, monkeypatch)
    before = case.files()
    with (
        NoTensors(),
        pytest.raises(ValueError, match=rf"needs the package {module}: pip install 'wafl-learn\[{extra}\]"),
    ):
        call(case)
    assert case.files() == before
