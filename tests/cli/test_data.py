"""``wafl data``: list the data sets, download one, look at one."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner, Result

from wafl.cli.commands.data import data_app
from wafl.data.named import sources
from wafl.data.named.sources import SOURCES


@pytest.fixture(autouse=True)
def _alone(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """No network, no data folder of this user, and a terminal of the usual width."""

    def refuse(*_: Any) -> Path:
        raise sources.DownloadError("  http://nowhere: no connection")

    monkeypatch.setattr("wafl.data.named.cache.download", refuse)
    monkeypatch.delenv("WAFL_DATA", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("COLUMNS", "100")
    monkeypatch.chdir(tmp_path)


def wafl_data(*arguments: str) -> Result:
    return CliRunner().invoke(data_app, arguments)


def save(folder: Path, name: str, num_train: int = 124, num_test: int = 62, **more: Any) -> Path:
    source = SOURCES[name]
    arrays: dict[str, Any] = dict(more)
    for part, count in (("train", num_train), ("test", num_test)):
        labels = np.arange(count) % source.num_classes
        shape = (count, *(1 for _ in source.image_shape))
        arrays[f"x_{part}"] = np.broadcast_to(labels.reshape(shape) * 3, (count, *source.image_shape)).astype(np.uint8)
        arrays[f"y_{part}"] = labels.astype(np.uint8)
    folder.mkdir(exist_ok=True)
    np.savez_compressed(folder / f"{name}.npz", **arrays)
    return folder / f"{name}.npz"


def row(text: str, name: str) -> str:
    return next(" ".join(line.split()) for line in text.splitlines() if line.split()[:1] == [name])


def test_list_says_what_is_here_and_what_is_not(tmp_path: Path) -> None:
    folder = tmp_path / "data"
    size = save(folder, "mnist").stat().st_size
    result = wafl_data("list", "--data-dir", str(folder))
    assert result.exit_code == 0, result.output
    assert f"Data folder: {folder}" in result.stdout
    assert row(result.stdout, "digits") == "digits in scikit-learn 1,437 360 CC BY 4.0"
    assert row(result.stdout, "mnist") == f"mnist mnist.npz {size / 1e6:.1f} MB 124 62 CC BY-SA 3.0"
    assert row(result.stdout, "fashion-mnist") == "fashion-mnist no † (31 MB) (60,000) (10,000) MIT"
    assert row(result.stdout, "svhn") == "svhn no † (246 MB) (73,257) (26,032) non-commercial use only"
    assert row(result.stdout, "femnist") == "femnist bring your own none stated"
    assert "† Downloading these is untested; what arrives is checked against its published MD5." in result.stdout


def test_list_names_other_layouts_and_shows_a_broken_file_without_stopping(tmp_path: Path) -> None:
    for name in ("usps.bz2", "usps.t.bz2", "cifar10.npz"):
        (tmp_path / name).write_bytes(b"what it is does not matter here")
    batches = tmp_path / "MNIST" / "raw"
    batches.mkdir(parents=True)
    for file in SOURCES["mnist"].files:
        (batches / file.name).write_bytes(b"")
    result = wafl_data("list", "--data-dir", str(tmp_path))
    assert result.exit_code == 0, result.output
    assert row(result.stdout, "usps").startswith("usps usps.bz2, usps.t.bz2 0.0 MB 7,291 2,007")
    assert row(result.stdout, "mnist").startswith("mnist MNIST/raw 0.0 MB 60,000 10,000")
    assert row(result.stdout, "cifar10").startswith("cifar10 cifar10.npz (broken) 0.0 MB")


def test_listing_a_missing_folder_does_not_create_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WAFL_DATA", str(tmp_path / "later"))
    result = wafl_data("list")
    assert result.exit_code == 0, result.output
    assert f"Data folder: {tmp_path / 'later'}" in result.stdout
    assert not (tmp_path / "later").exists()


def test_fetch_says_where_it_is_its_license_and_what_to_cite(tmp_path: Path) -> None:
    path = save(tmp_path, "svhn")
    result = wafl_data("fetch", "svhn", "--data-dir", str(tmp_path))
    assert result.exit_code == 0, result.output
    assert f"svhn: here already, 124 + 62 images, {path}" in result.stdout
    assert "License: non-commercial use only. Cite: Netzer" in result.stdout
    assert "nothing to download" in wafl_data("fetch", "digits").stdout


@pytest.mark.parametrize("command", ["fetch", "show"])
@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("mnsit", "Error: unknown data set 'mnsit': did you mean 'mnist'?"),
        ("mnist", "could not be downloaded:\n  http://nowhere: no connection"),
        ("femnist", "there is no file to download for it"),
    ],
)
def test_errors_are_plain_words_and_leave_no_file(command: str, name: str, message: str, tmp_path: Path) -> None:
    result = wafl_data(command, name, "--data-dir", str(tmp_path / "data"))
    assert result.exit_code == 2
    assert message in result.stderr
    assert "Traceback" not in result.output
    assert not list(tmp_path.iterdir())


def test_show_prints_statistics(tmp_path: Path) -> None:
    save(tmp_path, "mnist", 130, 20)
    result = wafl_data("show", "mnist", "--data-dir", str(tmp_path))
    assert result.exit_code == 0, result.output
    assert "Dataset(mnist, 130 training and 20 test images of shape (1, 28, 28))" in result.stdout
    assert row(result.stdout, "7") == "7 13 2"


def test_show_counts_writers(tmp_path: Path) -> None:
    save(tmp_path / "data", "femnist", 124, 62, u_train=np.arange(124) % 3, u_test=np.arange(62) % 3)
    result = wafl_data("show", "femnist", "--data-dir", str(tmp_path / "data"))
    assert result.exit_code == 0, result.output
    assert "3 clients with 61 to 63 examples each" in result.stdout
    assert [row(result.stdout, label) for label in "0Gm"] == ["0 2 1", "G 2 1", "m 2 1"]
