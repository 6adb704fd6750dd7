"""``metrics.jsonl`` exported as CSV and Parquet holds the same values."""

from __future__ import annotations

import csv
import json
import math
import sys
from pathlib import Path
from typing import Any

import pytest
from typer import Typer
from typer.testing import CliRunner

from wafl.cli.commands.saved_runs import export
from wafl.config.read import parse_experiment
from wafl.studies.metrics import export_metrics
from wafl.studies.study import Study

EXPERIMENT = {
    "seeds": [0, 1],
    "data": {"num_clients": 20, "labels_per_client": 3},
    "schedule": {"rounds": 3, "cohort": 5, "local_steps": 1},
    "evaluation": {"every": 2},
    "attack": {"kind": "none"},
    "faults": {"dropout": 0.3},
    "methods": [{"method": "FedAvg"}, {"method": "WAFL", "gamma": [1.0, 2.0]}],
}


@pytest.fixture(scope="module")
def study(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("study") / "few"
    Study.create(parse_experiment(EXPERIMENT, "here"), folder).run()
    return folder


def read_metrics(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def as_text(value: Any) -> str:
    """A value as CSV holds it."""
    return "" if value is None else json.dumps(value) if isinstance(value, list) else str(value)


def read_csv(path: Path) -> list[dict[str, str]]:
    with path.open(newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


def read_parquet(path: Path) -> list[dict[str, Any]]:
    from pyarrow import parquet

    return parquet.read_table(path).to_pylist()


def write(folder: Path, *lines: str) -> Path:
    (folder / "metrics.jsonl").write_text("".join(f"{line}\n" for line in lines))
    return folder


def test_csv_holds_every_round(study: Path, tmp_path: Path) -> None:
    expected = read_metrics(study / "metrics.jsonl")
    assert len(expected) == 3 * 2 + 3 * 4
    path = export_metrics(study, tmp_path / "rounds.csv")
    names = list(dict.fromkeys(name for row in expected for name in row))
    assert {"method", "seed", "gamma", "round", "loss", "accuracy", "cohort", "excluded"} <= set(names)
    assert read_csv(path) == [{name: as_text(row.get(name)) for name in names} for row in expected]
    assert [float(row["loss"]) for row in read_csv(path)] == [row["loss"] for row in expected]


def test_parquet_holds_every_round(study: Path, tmp_path: Path) -> None:
    expected = read_metrics(study / "metrics.jsonl")
    rows = read_parquet(export_metrics(study, tmp_path / "rounds.parquet"))
    assert any(row["excluded"] for row in expected)
    for row, wanted in zip(rows, expected, strict=True):
        for name, value in row.items():
            assert (json.loads(value) if name in ("cohort", "excluded") else value) == wanted.get(name)
    assert {type(row["loss"]) for row in rows} == {float}
    assert {type(row["round"]) for row in rows} == {int}


def test_values_of_every_type_survive_the_export(tmp_path: Path) -> None:
    first = {"name": 'a, "b"\nc', "norm": 2, "loss": 1, "odd": math.nan, "few": None, "yes": True}
    second = {"norm": "inf", "loss": 0.1 + 0.2, "late": math.inf, "list": [[1, "late"]]}
    write(tmp_path, json.dumps(first), json.dumps(second))
    one, two = read_csv(export_metrics(tmp_path, tmp_path / "rounds.CSV"))
    assert one == {
        "name": 'a, "b"\nc',
        "norm": "2",
        "loss": "1",
        "odd": "nan",
        "few": "",
        "yes": "True",
        "late": "",
        "list": "",
    }
    assert (float(two["loss"]), two["late"], two["list"]) == (0.1 + 0.2, "inf", '[[1, "late"]]')
    one, two = read_parquet(export_metrics(tmp_path, tmp_path / "rounds.parquet"))
    assert (one["norm"], two["norm"]) == ("2", "inf")
    assert (one["loss"], two["loss"]) == (1.0, 0.1 + 0.2)
    assert math.isnan(one["odd"])
    assert (two["odd"], one["few"], one["yes"], two["late"]) == (None, None, True, math.inf)


@pytest.mark.parametrize("damage", ['{"round": 1, "lo', "", "[1, 2]", "\ufffd\x00", "3"])
def test_a_damaged_line_is_refused_with_its_number(tmp_path: Path, damage: str) -> None:
    write(tmp_path, '{"round": 0}', damage, '{"round": 2}')
    with pytest.raises(ValueError, match=r"metrics.jsonl, line 2 is damaged: .*wafl resume"):
        export_metrics(tmp_path, tmp_path / "rounds.csv")
    assert not (tmp_path / "rounds.csv").exists()


def test_bytes_that_are_not_text_are_refused_as_damage(tmp_path: Path) -> None:
    (tmp_path / "metrics.jsonl").write_bytes(b'{"round": 0}\n{"round": \xff\xfe}\n')
    with pytest.raises(ValueError, match="line 2 is damaged"):
        export_metrics(tmp_path, tmp_path / "rounds.csv")


def test_a_missing_or_empty_source_and_a_taken_or_unknown_target_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(FileNotFoundError, match=r"has no metrics.jsonl"):
        export_metrics(tmp_path, tmp_path / "rounds.csv")
    write(tmp_path)
    with pytest.raises(ValueError, match="is empty: no round has ended yet"):
        export_metrics(tmp_path, tmp_path / "rounds.csv")
    write(tmp_path, '{"round": 0}')
    with pytest.raises(ValueError, match=r"has no known format: end its name with .csv or .parquet"):
        export_metrics(tmp_path, tmp_path / "rounds.xlsx")
    (tmp_path / "rounds.csv").write_text("precious")
    with pytest.raises(FileExistsError, match="exists already"):
        export_metrics(tmp_path, tmp_path / "rounds.csv")
    assert (tmp_path / "rounds.csv").read_text() == "precious"
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(ValueError, match=r"needs the package pyarrow: pip install 'wafl-learn\[parquet\]'"):
        export_metrics(tmp_path, tmp_path / "rounds.parquet")
    assert export_metrics(tmp_path, tmp_path / "new" / "other.csv").exists()


@pytest.mark.parametrize("suffix", ["csv", "parquet"])
def test_the_command_exports_metrics_and_does_not_overwrite_them(study: Path, tmp_path: Path, suffix: str) -> None:
    app = Typer()
    app.command()(export)
    path = tmp_path / f"rounds.{suffix}"
    for code, word in ((0, "Written"), (2, "exists already")):
        result = CliRunner().invoke(app, [str(study), "--metrics", str(path)])
        assert result.exit_code == code, result.output
        assert word in result.output
    assert len(read_csv(path) if suffix == "csv" else read_parquet(path)) == 18


def test_a_finished_study_whose_metrics_changed_is_refused(study: Path, tmp_path: Path) -> None:
    """Each change leaves valid JSON."""
    lines = (study / "metrics.jsonl").read_text().splitlines(keepends=True)
    changed = {
        "a digit": [lines[0].replace('"round": 0', '"round": 7'), *lines[1:]],
        "a line gone": lines[1:],
        "a line twice": [*lines, lines[-1]],
        "two lines swapped": [lines[1], lines[0], *lines[2:]],
    }
    for name, text in changed.items():
        folder = tmp_path / name
        folder.mkdir()
        for file in ("about.json", "config.toml", "results.json"):
            (folder / file).write_bytes((study / file).read_bytes())
        (folder / "metrics.jsonl").write_text("".join(text))
        with pytest.raises(ValueError, match=r"metrics.jsonl is damaged: wafl resume .* restores it"):
            export_metrics(folder, tmp_path / f"{name}.csv")
        assert not (tmp_path / f"{name}.csv").exists()
