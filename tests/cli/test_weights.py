"""``wafl weights`` on small data files: its numbers equal the library's."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

import wafl
from wafl.cli.main import app


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Three data sets of flat images, each with its own brightness."""
    path = tmp_path_factory.mktemp("data")
    for name, brightness in (("mnist", 20), ("usps", 60), ("svhn", 200)):
        rng = np.random.default_rng(brightness)
        shape = (32, 32, 3) if name == "svhn" else (28, 28) if name == "mnist" else (16, 16)
        arrays = {}
        for part in ("train", "test"):
            noise = rng.integers(-15, 16, (40, *([1] * len(shape))))
            arrays[f"x_{part}"] = np.broadcast_to(brightness + noise, (40, *shape)).astype(np.uint8)
            arrays[f"y_{part}"] = (np.arange(40) % 10).astype(np.uint8)
        np.savez_compressed(path / f"{name}.npz", **arrays)
    return path


def invoke(folder: Path, *arguments: str) -> str:
    options = ["weights", "--data-dir", str(folder), "--size", "4", *arguments]
    result = CliRunner().invoke(app, options, env={"COLUMNS": "140"})
    assert result.exit_code == 0, result.output
    return result.stdout


def test_nearest_and_mixture_equal_those_of_the_library(folder: Path) -> None:
    text = invoke(folder, "-s", "mnist", "-s", "svhn", "-t", "usps", "--sample", "30")
    task = wafl.domains(["mnist", "svhn"], "usps", data_dir=folder, size=4)
    for rule in (wafl.weights.nearest, wafl.weights.mixture):
        result = rule(task.clients, task.target, sample=30)
        assert f"{result.rule}: W_2 = {result.radius:.3f}, W_2^2 = {result.value:.2f} (exact" in text
    shares = wafl.weights.mixture(task.clients, task.target, sample=30).weights
    for name, nearest, mixture in zip(("mnist", "svhn"), (1.0, 0.0), shares, strict=True):
        assert re.search(rf"{name} .* {nearest:.3f} +{mixture:.3f}", text)
    assert "pixels in [0, 1]" in text


def test_without_a_target_the_sources_are_covered(folder: Path) -> None:
    text = invoke(folder, "-s", "mnist", "-s", "usps", "-s", "svhn")
    assert "cover: W_2 =" in text
    assert "barycenter: W_2 =" in text


def test_label_aware_distances_equal_those_of_the_library(folder: Path) -> None:
    options = ("--label-aware", "--sample", "30")
    text = invoke(folder, "-s", "mnist", "-s", "svhn", "-t", "usps", *options)
    task = wafl.domains(["mnist", "svhn"], "usps", data_dir=folder, size=4)
    result = wafl.weights.nearest(task.clients, task.target, sample=30, label_aware=True)
    assert f"nearest: W_2 = {result.radius:.3f}, W_2^2 = {result.value:.2f} (exact" in text


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("-s", "mnist", "-t", "mnist"), "must be distinct"),
        (("-s", "mnist", "-t", "usps", "--preprocess", "log"), "unknown preprocessing 'log'"),
    ],
)
def test_bad_input_is_one_clear_line(folder: Path, arguments: tuple[str, ...], message: str) -> None:
    result = CliRunner().invoke(app, ["weights", "--data-dir", str(folder), *arguments], env={"COLUMNS": "140"})
    assert result.exit_code == 2
    assert message in result.output
