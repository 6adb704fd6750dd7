"""README: its figure and numbers come from the committed evidence, and its code prints what it shows."""

from __future__ import annotations

import hashlib
import json
import re
from pathlib import Path
from statistics import fmean
from typing import Any

import numpy as np
import pytest
from PIL import Image
from tools.notebook import with_outputs

from research import front_page
from research.promises import distances
from research.statistics import mean_of
from wafl.report.plotting import METHODS

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text(encoding="utf-8")
FAMILIES = {"WAFL": ["wafl-inf"], "FedPGM": ["fedpgm-inf"], "FedAvg": ["decay", "smoothing"]}


@pytest.fixture(scope="module")
def numbers() -> dict[str, Any]:
    return json.loads((ROOT / "docs" / "evidence" / "attack-frontier.json").read_bytes())


@pytest.fixture(scope="module")
def axes(numbers: dict[str, Any]) -> Any:
    (only,) = front_page.figure_of(numbers).axes
    return only


def accuracy(numbers: dict[str, Any], family: str, size: float, test: str, data: str = "cifar10") -> float:
    """Compute the mean accuracy over partitions of one family's size."""
    rows = [row for row in numbers["data"][data]["rows"] if (row["family"], row["size"]) == (family, size)]
    assert len(rows) == 5
    return fmean(row["accuracy"][test] for row in rows)


@pytest.mark.parametrize("method", FAMILIES)
def test_a_line_connects_means_over_partitions(method: str, numbers: dict[str, Any], axes: Any) -> None:
    (line,) = (line for line in axes.lines if line.get_label() == method)
    sizes = {(row["family"], row["size"]) for row in numbers["data"]["cifar10"]["rows"]}
    means = [
        tuple(accuracy(numbers, family, size, test) for test in ("clean", "inf"))
        for family, size in sizes
        if family in FAMILIES[method]
    ]
    corners = list(zip(*line.get_data(), strict=True))
    assert all(any(corner == pytest.approx(mean) for mean in means) for corner in corners)
    clean, attacked = np.array(means).T
    assert max(corners)[0] == pytest.approx(max(clean))
    assert (attacked <= np.interp(clean, *line.get_data()) + 1e-9).all(), "no model is above its method's line"
    assert line.get_color() == METHODS[method.lower()]


def test_a_cross_is_a_model_under_autoattack(numbers: dict[str, Any], axes: Any) -> None:
    crosses = {
        (line.get_color(), *(float(value[0]) for value in line.get_data()))
        for line in axes.lines
        if line.get_marker() == "X" and line.get_color() != "gray"
    }
    expected = {
        (METHODS[method.lower()], row["accuracy"]["clean"], row["accuracy"]["inf"])
        for method, families in FAMILIES.items()
        for row in numbers["data"]["cifar10"]["autoattack"]
        if row["family"] in families
    }
    assert crosses == expected
    assert {f"{attacked:.1f}" for _, _, attacked in expected} <= {text.get_text() for text in axes.texts}


def test_the_lead_in_the_figure_follows_the_numbers(numbers: dict[str, Any]) -> None:
    changed = json.loads(json.dumps(numbers))
    for row in changed["data"]["cifar10"]["compared"]:
        row["means"] = [7.0, 7.0, 7.0, 7.0, 8.0]
    for given, lead in ((numbers, "+11.4 ± 0.4 points"), (changed, "+7.2 ± 0.6 points")):
        (axes,) = front_page.figure_of(given).axes
        assert any(lead in text.get_text() for text in axes.texts)


def test_the_committed_figure_is_of_the_committed_numbers() -> None:
    source = ROOT / "docs" / "evidence" / "attack-frontier.json"
    digest = hashlib.sha256(source.read_bytes()).hexdigest()
    with Image.open(ROOT / "docs" / "images" / "front.png") as image:
        assert image.info["Source"] == f"{source.name} {digest}", "run python -m research front-page"


def test_the_readme_is_short_and_in_order() -> None:
    assert len(README.splitlines()) <= 90
    titles = re.findall(r"^## (.+)$", README, re.MULTILINE)
    heads = [
        "Install",
        "An example in eight lines",
        "Clean accuracy versus accuracy under attack",
        "When to use it, and when not",
    ]
    assert titles[:4] == heads
    assert titles[4].startswith("The paper")
    assert "docs/images/front.png" in README.partition("## Clean")[2].partition("## When")[0]
    (code,) = re.findall(r"```python\n(.*?)```", README, re.DOTALL)
    assert len([line for line in code.splitlines() if line]) == 8
    assert {"make demo", "make test"} <= set(re.findall(r"^    (make \w+) ", README, re.MULTILINE))


def test_the_points_of_the_readme_are_the_numbers(numbers: dict[str, Any]) -> None:
    text = " ".join(README.split())
    leads = {(row["rival"], row["attack"]): mean_of(row["means"]) for row in numbers["data"]["cifar10"]["compared"]}
    assert f"is {leads['FedAvg', 'inf']} points more accurate than tuned FedAvg under PGD in l_inf (8/255), and" in text
    assert f"{leads['FedAvg', '2']} points in l2 (0.25)" in text
    lead = f"{leads['FedPGM', 'inf']} points in l_inf and {leads['FedPGM', '2']} points in l2"
    assert f"WAFL's lead over FedPGM under PGD is {lead}." in text
    ball, plain = (
        [accuracy(numbers, family, size, test) for test in ("clean", "inf")]
        for family, size in (("wafl-inf", 75.0), ("decay", 0.0))
    )
    cost, gain = re.findall(r"With gamma 75, WAFL is ([\d.]+) ± [\d.]+ points less .*? and ([\d.]+) ±", text)[0]
    assert float(cost) == pytest.approx(plain[0] - ball[0], abs=0.05)
    assert float(gain) == pytest.approx(ball[1] - plain[1], abs=0.05)


@pytest.mark.parametrize("family", ["wafl-inf", "wafl-2", "fedpgm-inf", "fedpgm-2", "decay"])
def test_a_single_accuracy_in_the_readme_is_under_autoattack(family: str, numbers: dict[str, Any]) -> None:
    (row,) = (row for row in numbers["data"]["cifar10"]["autoattack"] if row["family"] == family)
    for norm in ("inf", "2") if family == "decay" else (family.rpartition("-")[2],):
        kept = row["accuracy"][norm] / 100.0
        half = 1.96 * (kept * (1.0 - kept) / 1000.0) ** 0.5
        assert f"{100.0 * kept:.1f} ± {100.0 * half:.1f}%" in " ".join(README.split())


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::wafl.ConcavityWarning")
def test_the_figure_and_the_terminal_are_written(tmp_path: Path) -> None:
    front_page.main(["--rounds", "1", "--folder", str(tmp_path)])
    assert (tmp_path / "front.png").stat().st_size > 20_000
    terminal = (tmp_path / "terminal.svg").read_text(encoding="utf-8")
    assert "FedAvg" in terminal
    assert "url(" not in terminal.replace("url(#", ""), "a page must open without a network"


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::wafl.ConcavityWarning")
def test_promises_by_distance_are_issued_and_opened(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    distances.main(["--smallest", "--output", str(tmp_path / "front.json")])
    made = json.loads((tmp_path / "front.json").read_bytes())
    assert {row["radius"] for row in made["rows"]} == {0.0, 0.1}
    assert "| 0.1 |" in capsys.readouterr().out


def test_the_table_of_distances_has_the_mean_promise_and_the_quantile() -> None:
    row = {"method": "WAFL", "radius": 0.1}
    rows = [{**row, "promised": 0.2, "happened": [0.5, 0.1]}, {**row, "promised": 0.3, "happened": [0.3, 0.4]}]
    made = distances.table_of({"methods": ["WAFL"], "radii": [0.1], "confidence": 0.6, "rows": rows})
    assert made.splitlines()[-1] == "| 0.1 | 25.0 | 40.0 |"


@pytest.mark.slow
@pytest.mark.parametrize("page", ["README.md", "docs/tutorial.md"])
def test_the_lines_of_a_page_print_what_stands_below_them(
    page: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    printed = (ROOT / page).read_text(encoding="utf-8")
    result, number = with_outputs(printed), re.compile(r"\d+\.\d+")
    assert number.sub("", result) == number.sub("", printed), "run .venv/bin/python tools/notebook.py --run"
    expected = [float(each) for each in number.findall(printed)]
    assert [float(each) for each in number.findall(result)] == pytest.approx(expected, rel=2e-3)


@pytest.mark.slow
def test_the_numbers_of_fedavg_in_the_readme_are_printed_by_the_same_lines(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    (code,) = re.findall(r"```python\n(.*?)```", README, re.DOTALL)
    (decay,) = re.findall(r"`(weight_decay=[\d.]+)`, the same lines print", " ".join(README.split()))
    fedavg, count = re.subn(r"wafl\.WAFL\(.*?\)\), ", f"wafl.FedAvg(), {decay}, ", code)
    assert count == 1
    exec(fedavg, {})
    printed = re.findall(r"[\d.]+%", capsys.readouterr().out)
    assert "the same lines print {}, {} and {}.".format(*printed) in " ".join(README.split())
