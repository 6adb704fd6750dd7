"""Natural data: files in the formats of their packages, and the packages' own files."""

from __future__ import annotations

import itertools
from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas
import pytest
import torch
from typer.testing import CliRunner

import wafl
from wafl.cli.main import app
from wafl.data.named import natural
from wafl.data.named.natural import (
    NATURAL,
    STATISTICS,
    WINDOW,
    read_frame,
    read_hospitals,
    read_smartwatch,
    read_states,
)

SENSORS = np.random.default_rng(0).normal(size=(3, 2 * WINDOW + 7, 6))


# -- Files in the packages' formats ---------------------------------------------------------------------------


def test_the_columns_of_a_data_frame_are_those_that_pandas_wrote(tmp_path: Path) -> None:
    frame = pandas.DataFrame(
        {"a": np.arange(4), "b": np.arange(4) / 3, "c": np.arange(4) * 2, "d": np.array(list("wxyz"), dtype=object)}
    )
    frame["d"] = frame["d"].astype(object)
    frame.columns = frame.columns.astype(object)
    frame.to_pickle(tmp_path / "frame", compression="xz")
    columns = read_frame(tmp_path / "frame")
    assert list(columns) == list("abcd")
    for name in columns:
        np.testing.assert_array_equal(columns[name], frame[name].to_numpy())


def save_watch(path: Path) -> None:
    content = {"X": list(SENSORS), "y": np.array([1, 0, 1]), "subject": np.array([2, 10, 2]), "y_labels": ["A", "B"]}
    np.save(path, np.array(content, dtype=object), allow_pickle=True)


def test_a_recording_is_cut_into_windows_with_the_statistics_of_each_axis(tmp_path: Path) -> None:
    save_watch(tmp_path / "watch.npy")
    table = read_smartwatch(tmp_path / "watch.npy", NATURAL["smartwatch"].features)
    assert list(table.y) == ["B", "B", "A", "A", "B", "B"]
    assert list(table.who) == ["subject 2"] * 2 + ["subject 10"] * 2 + ["subject 2"] * 2
    assert table.x.shape == (6, 6 * len(STATISTICS))
    values = [[float(v) for v in SENSORS[1, WINDOW : 2 * WINDOW, axis]] for axis in range(6)]
    mean = [sum(v) / WINDOW for v in values]
    wanted = [
        *mean,
        *((sum((a - m) ** 2 for a in v) / WINDOW) ** 0.5 for v, m in zip(values, mean, strict=True)),
        *(min(v) for v in values),
        *(max(v) for v in values),
        *(sum(abs(b - a) for a, b in itertools.pairwise(v)) / (WINDOW - 1) for v in values),
    ]
    np.testing.assert_allclose(table.x[3], wanted, rtol=0, atol=1e-12)


@pytest.fixture
def watch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> wafl.Dataset:
    """The data set smartwatch from a small file of our own."""
    save_watch(tmp_path / "watch.npy")
    source = replace(NATURAL["smartwatch"], num_clients=2, num_examples=6, classes=("A", "B"))
    monkeypatch.setattr(natural.NaturalSource, "find", lambda *_: tmp_path / "watch.npy")
    monkeypatch.setattr("wafl.data.named.natural.require", lambda *_, **__: None)
    monkeypatch.setitem(NATURAL, "smartwatch", source)
    return wafl.load_dataset("smartwatch")


def test_people_are_the_clients_unless_said_otherwise(watch: wafl.Dataset) -> None:
    clients = watch.partition(test_fraction=0)
    assert clients.names == ("subject 2", "subject 10")
    assert clients.num_examples == [4, 2]
    assert clients.num_classes == 2
    assert clients.bounds is None
    assert clients.unit == "standard deviations a feature, over the training examples"
    torch.testing.assert_close(clients.train.x.mean(0), torch.zeros(30), rtol=0, atol=1e-5)
    assert watch.partition(3, iid=True).num_clients == 3
    seen, _ = watch.partition().hold_out(0.5)
    assert seen.unit == clients.unit
    assert clients.recipe is not None
    again = wafl.load_dataset(clients.recipe["dataset"]).partition(**clients.recipe["partition"])
    assert torch.equal(again.train.x, clients.train.x)


def test_what_measurements_do_not_have_is_refused(watch: wafl.Dataset) -> None:
    for options, words in (
        ({"preprocess": "unit"}, "smartwatch has no pixels: use preprocess='zscore', not 'unit'"),
        ({"split": "standard"}, "no separate test examples: use split='per_client'"),
        ({"skew": [wafl.shifts.rotation(severity=0.1)]}, "no pixels, which shifts need: leave skew out"),
        ({"num_clients": 3}, "num_clients=3 is more than the 2 groups of smartwatch"),
    ):
        with pytest.raises(ValueError, match=words):
            watch.partition(**options)
    with pytest.raises(ValueError, match="is a regression and has no labels to spread: use by_group or iid"):
        replace(watch, num_classes=None).partition(2, dirichlet=1.0)
    with pytest.raises(ValueError, match="smartwatch has measurements, and domains are made of images"):
        wafl.domains(["smartwatch"], target="digits")


def test_an_experiment_names_natural_data_and_nothing_else(watch: wafl.Dataset, tmp_path: Path) -> None:
    (tmp_path / "e.toml").write_text(
        'seeds = [0]\n[data]\ndataset = "smartwatch"\n[schedule]\nrounds = 2\nlocal_steps = 1\nlearning_rate = 0.1\n'
        '[attack]\nkind = "none"\n[[methods]]\nmethod = "WAFL"\n'
    )
    result = CliRunner().invoke(app, ["run", str(tmp_path / "e.toml"), "--output", str(tmp_path / "runs")])
    assert result.exit_code == 0, result.output
    again = CliRunner().invoke(app, ["evaluate", str(tmp_path / "runs" / "experiment"), "--epsilon", "0.1"])
    assert again.exit_code == 0, again.output


def test_a_file_with_other_numbers_is_not_taken_for_the_data_set(
    watch: wafl.Dataset, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(NATURAL, "smartwatch", replace(NATURAL["smartwatch"], num_clients=3))
    with pytest.raises(ValueError, match="6 examples with 30 features of 2 subjects, not 6 with 30 of 3"):
        wafl.load_dataset("smartwatch")


def test_hospitals_and_states_are_columns_of_their_tables(monkeypatch: pytest.MonkeyPatch) -> None:
    features = {name: NATURAL[name].features for name in ("hospitals", "states")}
    frame = {name: np.arange(3) + len(name) for names in features.values() for name in names}
    frame |= {"died": np.array([0, 1, 0]), "provnum": np.array([30001, 30001, 32000])}
    frame |= {"fatal": np.array([5, 2, 4]), "pop": np.array([1e4, 2e4, 4e4]), "state": np.array(["al", "al", "wy"])}
    monkeypatch.setattr(natural, "read_frame", lambda _: frame)
    hospitals, states = read_hospitals(Path(), features["hospitals"]), read_states(Path(), features["states"])
    assert list(hospitals.y) == ["lived", "died", "lived"]
    assert hospitals.who == ["hospital 030001", "hospital 030001", "hospital 032000"]
    assert hospitals.x[:, 0].tolist() == [3, 4, 5]
    assert states.y.tolist() == [5, 1, 1]
    assert states.who == ["AL", "AL", "WY"]


@pytest.mark.parametrize("name", NATURAL)
def test_a_package_that_is_missing_is_named_with_the_remedy(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, NATURAL[name].module, None)
    with pytest.raises(ValueError, match=rf"the data set {name} needs the package .*wafl-learn\[natural\]"):
        wafl.load_dataset(name)


def test_a_file_that_users_bring_is_asked_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("wafl.data.named.natural.require", lambda *_, **__: None)
    monkeypatch.setattr("wafl.data.named.natural.DEBIAN", tmp_path / "debian")
    with pytest.raises(FileNotFoundError, match=r"needs Vowel.rda, which is neither in .*give the folder with"):
        wafl.load_dataset("mlbench-vowel", tmp_path)


def test_list_says_which_natural_data_are_here(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def find(source: natural.NaturalSource, _: Path) -> Path | None:
        return tmp_path if source.name == "smartwatch" else None

    monkeypatch.setattr(natural.NaturalSource, "find", find)
    monkeypatch.setattr("wafl.cli.commands.data.find_spec", lambda name: None if name == "parselmouth" else object())
    result = CliRunner(env={"COLUMNS": "100"}).invoke(app, ["data", "list", "--data-dir", str(tmp_path)])
    assert result.exit_code == 0, result.output
    lines = [" ".join(line.split()) for line in result.stdout.splitlines()]
    assert "smartwatch in seglearn 10 subjects 1,149 7 classes BSD-3-Clause" in lines
    assert "pols no ‡ 75 speakers 900 12 classes GPL-3.0" in lines
    assert "mlbench-vowel no: Vowel.rda 15 speakers 990 11 classes GPL-2.0" in lines
    assert "‡ pip install 'wafl-learn[natural]'" in lines


# -- The packages' own files ----------------------------------------------------------------------------------


@pytest.mark.data
@pytest.mark.parametrize("name", [name for name, source in NATURAL.items() if not source.brought])
def test_the_packages_give_what_the_list_says(name: str) -> None:
    source = NATURAL[name]
    pytest.importorskip(source.module)
    data = wafl.load_dataset(name)
    clients = data.partition()
    assert clients.num_clients == source.num_clients
    assert sum(clients.num_examples) == source.num_examples
    assert clients.input_shape == (len(source.features),)
    if source.classes:
        assert bool((clients.label_counts().sum(0) > 0).all())


@pytest.mark.data
def test_praats_tables_are_read_cell_by_cell() -> None:
    call = pytest.importorskip("parselmouth").praat.call
    table = call("Create formant table (Pols & Van Nierop 1973)")
    source = NATURAL["pols"]
    ours = source.load(Path())
    for row in range(0, 900, 97):
        assert ours.x[row].tolist() == [float(call(table, "Get value...", row + 1, name)) for name in source.features]
        assert ours.y[row] == call(table, "Get value...", row + 1, "Vowel")


@pytest.mark.data
def test_mlbenchs_file_is_read_from_the_folder_that_is_given(tmp_path: Path) -> None:
    """A file of the same form, written by the package that reads it."""
    rdata = pytest.importorskip("rdata")
    source = NATURAL["mlbench-vowel"]
    rows = np.arange(990)
    frame = pandas.DataFrame({f"V{column}": rows / column for column in range(2, 11)})
    frame.insert(0, "V1", pandas.Categorical([str(row // 66) for row in rows]))
    frame["Class"] = pandas.Categorical([source.classes[row % 11] for row in rows])
    frame.index = pandas.RangeIndex(1, 991)
    rdata.write_rda(tmp_path / "Vowel.rda", {"Vowel": frame})
    table = source.load(tmp_path)
    np.testing.assert_allclose(table.x[500], [500 / column for column in range(2, 11)])
    assert table.y[500] == source.classes[500 % 11]
    assert table.who[500] == "speaker 7"
    (tmp_path / "Vowel.rda").write_bytes(b"not a file of R")
    with pytest.raises(ValueError, match=r"Vowel.rda is not mlbench's file"):
        source.load(tmp_path)
