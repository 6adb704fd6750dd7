"""An exported model gives the outputs of its run, for raw examples, in programs that do not know this package."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors import safe_open
from torch import Tensor, nn
from typer import Typer
from typer.testing import CliRunner

import wafl
from wafl.cli.commands import saved_runs as command
from wafl.cli.commands.saved_runs import export
from wafl.data.preprocessing import Preprocessing
from wafl.results.export import FORMATS, export_model
from wafl.tasks.layout import Layout

app = Typer()
app.command()(export)


class Own(nn.Module):
    """Your own model: a skip connection, a buffer, two names for one parameter, a view by batch size."""

    def __init__(self, clients: wafl.Federation) -> None:
        super().__init__()
        self.first = nn.Linear(64, 64)
        self.again = self.first
        self.last = nn.Linear(64, clients.num_classes or 1)
        self.register_buffer("gain", torch.tensor([0.5]))

    def forward(self, x: Tensor) -> Tensor:
        x = x.view(x.shape[0], -1)
        x = x + torch.tanh(self.again(self.first(x))) * self.gain
        return self.last(x)


@cache
def make_clients(preprocess: str) -> wafl.Federation:
    if preprocess != "none":
        return wafl.load_dataset("digits").partition(num_clients=20, labels_per_client=3, preprocess=preprocess)
    rng = np.random.default_rng(0)
    return wafl.Federation.from_arrays((rng.random((9, 1, 8, 8), np.float32), np.arange(9)) for _ in range(4))


def make_run(clients: wafl.Federation, kind: str, **options: Any) -> wafl.Run:
    torch.manual_seed(0)
    model = {
        "mlr": lambda: wafl.models.mlr(clients),
        "cnn": lambda: wafl.models.cnn(clients, channels=(2, 3)),
        "own": lambda: Own(clients),
    }[kind]()
    options = {"rounds": 1, "local_steps": 1, "batch_size": 4, "learning_rate": 0.1, **options}
    return wafl.fit(model, clients, wafl.FedAvg(), **options)


def exported(run: wafl.Run, clients: wafl.Federation, folder: Path, format: Any) -> Path:
    return export_model(run, folder / f"model.{format}", format, clients.train.prepare, clients.input_shape)


def outputs(path: Path, raw: Tensor, module: nn.Module | None = None) -> Tensor:
    """Computed from the file alone."""
    if path.suffix == ".pt2":
        return torch.export.load(path).module()(raw)
    if path.suffix == ".onnx":
        import onnxruntime

        session = onnxruntime.InferenceSession(path)
        return torch.from_numpy(session.run(["outputs"], {"raw": raw.numpy()})[0])
    with safe_open(path, "pt") as file:
        about = json.loads(file.metadata()["wafl"])
        tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    shift, scale = tensors.pop("shift"), tensors.pop("scale")
    model = module or wafl.models.build(about["model"])
    model.load_state_dict({name.removeprefix("model."): value for name, value in tensors.items()})
    with torch.no_grad():
        return model((raw - shift) / scale)


def raw_examples(clients: wafl.Federation, count: int) -> tuple[Tensor, Tensor]:
    """Examples as the data set holds them, as floats, and the same examples prepared."""
    raw = clients.test.raw[:count]
    return raw.float(), clients.test.prepare(raw, torch.float32)


@pytest.mark.parametrize("format", FORMATS)
@pytest.mark.parametrize(
    ("kind", "preprocess"),
    [
        *(("mlr", name) for name in ("none", "unit", "symmetric", "zscore")),
        ("cnn", "none"),
        ("cnn", "zscore"),
        ("own", "symmetric"),
    ],
)
def test_an_exported_model_gives_the_outputs_of_the_run(
    kind: str, preprocess: str, format: str, tmp_path: Path
) -> None:
    clients = make_clients(preprocess)
    run = make_run(clients, kind)
    path = exported(run, clients, tmp_path, format)
    assert [file.name for file in tmp_path.iterdir()] == [f"model.{format}"]
    for count in (1, 2, len(clients.test.y)):
        raw, x = raw_examples(clients, count)
        got = outputs(path, raw, Own(clients) if kind == "own" else None)
        torch.testing.assert_close(got, run.outputs(x), rtol=1e-5, atol=1e-5)
        assert not got.requires_grad
        assert len(got) == count


def test_exporting_does_not_change_the_run(tmp_path: Path) -> None:
    clients = make_clients("unit")
    run = make_run(clients, "cnn")
    before = {name: value.clone() for name, value in run.params.items()}
    exported(run, clients, tmp_path, "pt2")
    assert run.module.training
    assert all(value.requires_grad for value in run.module.parameters())
    assert all(torch.equal(value, before[name]) for name, value in run.module.named_parameters())


@pytest.mark.parametrize("format", FORMATS)
def test_a_regression_in_float64_is_exported_in_float64(format: str, tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    clients = wafl.Federation.from_arrays((rng.random((9, 5)), rng.random(9)) for _ in range(3))
    model = wafl.models.mlr(clients).double()
    run = wafl.fit(model, clients, wafl.FedAvg(), rounds=1, local_steps=1, loss="squared_error")
    path = exported(run, clients, tmp_path, format)
    raw = torch.from_numpy(rng.random((4, 5)))
    if format == "safetensors":
        with safe_open(path, "pt") as file:
            assert file.get_tensor("model.1.weight").dtype == torch.float64
    else:
        torch.testing.assert_close(outputs(path, raw), run.outputs(raw), rtol=1e-12, atol=1e-12)


def read_about(path: Path) -> dict[str, Any]:
    if path.suffix == ".pt2":
        extra = {"wafl.json": ""}
        torch.export.load(path, extra_files=extra)
        return json.loads(extra["wafl.json"])
    if path.suffix == ".onnx":
        import onnxruntime

        return json.loads(onnxruntime.InferenceSession(path).get_modelmeta().custom_metadata_map["wafl"])
    with safe_open(path, "pt") as file:
        return json.loads(file.metadata()["wafl"])


@pytest.mark.parametrize("format", FORMATS)
def test_an_exported_file_describes_its_model(format: str, tmp_path: Path) -> None:
    clients = make_clients("zscore")
    path = exported(make_run(clients, "cnn"), clients, tmp_path, format)
    assert read_about(path) == {
        "method": "FedAvg",
        "model": {"name": "cnn", "input_shape": [1, 8, 8], "num_outputs": 10, "channels": [2, 3]},
        "num_classes": 10,
        "input_shape": [1, 8, 8],
        "dtype": "float32",
        "preprocessing": "zscore",
        "unit": "standard deviations a pixel, over the training examples",
        "bounds": None,
    }


READER = """
import sys, warnings
warnings.simplefilter("error")
sys.modules["wafl"] = None  # it is not to be had
import numpy as np
raw = np.load("raw.npy")

import onnxruntime
session = onnxruntime.InferenceSession("model.onnx")
onnx = [session.run(None, {"raw": part})[0] for part in (raw[:1], raw)]
assert "torch" not in sys.modules

import torch
model = torch.export.load("model.pt2").module()
pt2 = [model(torch.from_numpy(part)).numpy() for part in (raw[:1], raw)]
np.savez("found.npz", onnx_one=onnx[0], onnx_many=onnx[1], pt2_one=pt2[0], pt2_many=pt2[1])
"""


@pytest.mark.processes
@pytest.mark.slow
def test_a_fresh_process_without_wafl_predicts_the_same(tmp_path: Path) -> None:
    clients = make_clients("zscore")
    run = make_run(clients, "cnn", rounds=20)
    run.save(tmp_path)
    raw, x = raw_examples(clients, 50)
    np.save(tmp_path / "raw.npy", raw.numpy())
    for kind in ("onnx", "pt2"):
        assert f"model.{kind}" in invoke(tmp_path, "--format", kind)
    subprocess.run([sys.executable, "-I", "-c", READER], check=True, cwd=tmp_path)
    with np.load(tmp_path / "found.npz") as file:
        predicted = dict(file)
    for kind in ("onnx", "pt2"):
        many, one = predicted[f"{kind}_many"], predicted[f"{kind}_one"]
        np.testing.assert_allclose(many, run.outputs(x).numpy(), rtol=1e-5, atol=1e-5)
        np.testing.assert_allclose(one, run.outputs(x[:1]).numpy(), rtol=1e-5, atol=1e-5)
        assert (many.argmax(-1) == run.predict(x).numpy()).all()
        assert len(set(many.argmax(-1))) > 1


# What is refused


def test_an_unknown_format_or_a_wrong_shape_is_refused(tmp_path: Path) -> None:
    clients = make_clients("zscore")
    run = make_run(clients, "cnn")
    with pytest.raises(ValueError, match="format='tflite' is unknown: use one of safetensors, pt2, onnx"):
        exported(run, clients, tmp_path, "tflite")
    with pytest.raises(ValueError, match=r"input_shape=\(64,\) does not fit the preprocessing's shift: \(1, 8, 8\)"):
        export_model(run, tmp_path / "model", "pt2", clients.train.prepare, (64,))
    with pytest.raises(ValueError, match=r"the model does not take examples of input_shape=\(3, 8, 8\)"):
        export_model(run, tmp_path / "model", "pt2", Preprocessing(), (3, 8, 8))
    assert not list(tmp_path.iterdir())


def test_onnx_without_its_package_names_the_extra(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    clients = make_clients("unit")
    monkeypatch.setitem(sys.modules, "onnxscript", None)
    with pytest.raises(
        ValueError, match=r"format='onnx' needs the package onnxscript: pip install 'wafl-learn\[onnx\]'"
    ):
        exported(make_run(clients, "mlr"), clients, tmp_path, "onnx")


class Branching(nn.Module):
    """It looks at values, so it cannot be traced."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(64, 10)

    def forward(self, x: Tensor) -> Tensor:
        y = self.layer(x.flatten(1))
        return y if float(y.sum()) > 0 else y * 1.0


class Moody(Branching):
    """It is a different function in eval mode."""

    def forward(self, x: Tensor) -> Tensor:
        y = self.layer(x.flatten(1))
        return y if self.training else y + 1.0


def with_model(run: wafl.Run, model: nn.Module) -> wafl.Run:
    return replace(run, module=model, layout=Layout.of(model), params=dict(model.named_parameters()))


def test_a_model_that_cannot_be_traced_is_refused_with_a_remedy(tmp_path: Path) -> None:
    clients = make_clients("unit")
    run = with_model(make_run(clients, "mlr"), Branching())
    with pytest.raises(ValueError, match=r"torch.export cannot trace this model.*'safetensors' needs no tracing"):
        exported(run, clients, tmp_path, "pt2")
    path = exported(run, clients, tmp_path, "safetensors")
    raw, x = raw_examples(clients, 5)
    assert torch.equal(outputs(path, raw, Branching()), run.outputs(x))


def test_a_model_is_exported_as_it_is_in_evaluation(tmp_path: Path) -> None:
    clients = make_clients("unit")
    run = with_model(make_run(clients, "mlr"), Moody())
    raw, x = raw_examples(clients, 5)
    path = exported(run, clients, tmp_path, "safetensors")
    assert torch.equal(outputs(path, raw, Moody().eval()), run.outputs(x))


# The command


@pytest.fixture(scope="module")
def study(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("study")
    clients = make_clients("zscore")
    for kind in ("mlr", "cnn"):
        make_run(clients, kind).save(folder / kind)
    return folder


def invoke(*arguments: str | Path, code: int = 0) -> str:
    result = CliRunner().invoke(app, list(map(str, arguments)))
    assert result.exit_code == code, result.output
    return result.output


def test_the_command_exports_a_model(study: Path, tmp_path: Path) -> None:
    path = tmp_path / "new" / "mine.safetensors"
    assert str(path) in invoke(study / "cnn", "--format", "safetensors", "--output", path).replace("\n", "")
    clients = make_clients("zscore")
    raw, x = raw_examples(clients, 7)
    assert torch.equal(outputs(path, raw), wafl.load_run(study / "cnn").outputs(x))


def test_a_run_saved_from_python_is_exported_by_itself_and_by_the_command(tmp_path: Path) -> None:
    clients = make_clients("zscore")
    run = make_run(clients, "mlr")
    assert FORMATS == command.FORMATS
    assert run.export(tmp_path / "mine.pt2") == tmp_path / "mine.pt2"
    run.save(tmp_path / "saved")
    assert "model.pt2" in invoke(tmp_path / "saved", "--format", "pt2")
    raw = clients.test.raw.float()
    for file in (tmp_path / "mine.pt2", tmp_path / "saved/model.pt2"):
        got = torch.export.load(file).module()(raw)
        torch.testing.assert_close(got, run.outputs(clients.test.x), rtol=1e-5, atol=1e-5)
    with pytest.raises(ValueError, match=r"must end in \.safetensors, \.pt2, \.onnx"):
        run.export(tmp_path / "model.tflite")


def test_probabilities_are_those_of_the_outputs() -> None:
    clients = make_clients("unit")
    run = make_run(clients, "mlr")
    probabilities = run.predict_proba(clients.test.x)
    torch.testing.assert_close(probabilities, run.outputs(clients.test.x).softmax(-1))
    with pytest.raises(ValueError, match="no probabilities"):
        replace(run, num_classes=None).predict_proba(clients.test.x)


def test_the_command_refuses_what_it_cannot_export(study: Path, tmp_path: Path) -> None:
    assert "model.pt2" in invoke(study / "mlr", "--format", "pt2")
    assert "exists already" in invoke(study / "mlr", "--format", "pt2", code=2)
    assert "--format tflite is unknown" in invoke(study / "mlr", "--format", "tflite", code=2)
    assert "Missing option '--format'" in invoke(study / "mlr", code=2)
    assert "is a study with several runs: pass one" in invoke(study, "--format", "pt2", code=2)
    assert "is not a folder" in invoke(study / "none", "--format", "pt2", code=2)
