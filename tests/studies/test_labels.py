"""Every table and figure names its test: the shift of unseen clients, and the attack with its norm, size and steps."""

from __future__ import annotations

import json
import shutil
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

import wafl
from wafl.cli.main import app
from wafl.cli.saved import seen_and_unseen
from wafl.report import plotting
from wafl.report.page import Figure, Section, Table
from wafl.studies.folder import StudyFolder
from wafl.studies.pages import figures, measured
from wafl.studies.pages.live import Pages
from wafl.studies.pages.shown import leaders_of, show_study
from wafl.studies.study import Study

EXPERIMENT = """
name = "noisy"
seeds = [0, 1]
[data]
dataset = "digits"
num_clients = 8
labels_per_client = 4
sizes = [30, 4]
unseen = 0.3
unseen_shift = "gaussian_noise"
unseen_severity = 0.3
[schedule]
rounds = 2
local_steps = 2
learning_rate = 0.1
[[methods]]
method = "WAFL"
radius = [0.1, 0.2]
[[methods]]
method = "FedAvg"
[attack]
epsilon = 0.15
steps = 3
[evaluation]
attacked = [0.4, 1.0]
certified = 0.05
"""
SHIFT, UNSEEN = "Gaussian noise, std 0.3", "unseen clients with Gaussian noise, std 0.3"
ATTACK = "l_inf PGD, epsilon 0.15, 3 steps"
FULL_SHIFT = "Gaussian noise, std 0.3 (pixels in [0, 1]), within [0, 1]"
FULL_ATTACK = "l_inf PGD, epsilon 0.15 (pixels in [0, 1]), 3 steps, within [0, 1]"


def invoke(*arguments: str | Path) -> str:
    result = CliRunner().invoke(app, [str(argument) for argument in arguments], env={"COLUMNS": "300"})
    assert result.exit_code == 0, result.output
    return result.output


@pytest.fixture(scope="module")
def printed(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    folder = tmp_path_factory.mktemp("labels")
    (folder / "experiment.toml").write_text(EXPERIMENT)
    return folder / "noisy", invoke("run", folder / "experiment.toml", "--output", folder)


@pytest.fixture(scope="module")
def study(printed: tuple[Path, str]) -> Path:
    return printed[0]


@pytest.fixture(scope="module")
def comparison(study: Path) -> wafl.Comparison:
    run = wafl.load_run(study / "fedavg")
    seen, unseen = seen_and_unseen({"fedavg": run}, study, None)
    attacks = [None, wafl.PGD(epsilon=0.15, steps=3)]
    return wafl.compare({"FedAvg": run}, seen, attacks=attacks, attacked=[0.4], unseen=unseen)


def by_title(sections: list[Section]) -> dict[str, Section]:
    return {section.title: section for section in sections}


def test_the_terminal_names_the_shift_and_the_attack(printed: tuple[Path, str]) -> None:
    text = " ".join(printed[1].split())
    assert FULL_SHIFT in text
    assert FULL_ATTACK in text


def test_the_page_names_them_in_headings_axes_hover_texts_and_captions(study: Path) -> None:
    page = show_study(study)
    sections = by_title(list(page.sections))
    (table,) = sections["Methods"].blocks
    assert isinstance(table, Table)
    assert {"40% attacked", "all attacked", UNSEEN} < set(table.columns)
    for text in (
        FULL_ATTACK, FULL_SHIFT, "mean over 2 seeds", "Data: digits, 6 clients.", "Model: linear model (mlr).",
        "at least this accuracy for every distribution within W_2 distance 0.05 (l2, pixels in [0, 1])",
    ):  # fmt: skip
        assert text in table.caption, text
    (figure,) = sections["Under attack"].blocks
    assert isinstance(figure, Figure)
    assert FULL_ATTACK in figure.caption
    for chart in figure.views.values():
        assert chart["layout"]["xaxis"]["title"]["text"] == f"attacked clients (%)<br>{ATTACK}"
        assert chart["data"][0]["customdata"] == ["clean", f"40% attacked: {ATTACK}", f"all attacked: {ATTACK}"]
        assert chart["data"][0]["hovertemplate"].startswith("wafl-radius=0.1<br>%{customdata}: ")
    drawn, numbers = sections["Seen and unseen"].blocks
    assert isinstance(drawn, Figure)
    assert isinstance(numbers, Table)
    assert UNSEEN in numbers.columns
    assert FULL_SHIFT in numbers.caption
    (chart,) = drawn.views.values()
    assert chart["data"][0]["customdata"][-1] == UNSEEN
    assert chart["layout"]["xaxis"]["ticktext"][-1].replace("<br>", " ") == UNSEEN
    assert (page.facts["attack"], page.facts["shift of unseen clients"]) == (FULL_ATTACK, FULL_SHIFT)
    assert [what for what, _, _ in page.highlights] == [
        "best on clean data",
        f"best on {UNSEEN}",
        f"best with all attacked: {ATTACK}",
        "best for the worst client on clean data",
    ]


def test_a_report_names_them_client_by_client(study: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(measured, "MOST_EXAMPLES", 20)
    monkeypatch.setattr(measured, "MOST_MOVED", 20)
    monkeypatch.setattr(measured, "SIZES", (0.0, 0.1))
    invoke("report", study, "-o", tmp_path / "page.html")
    text = (tmp_path / "page.html").read_text()
    assert f"<span>{UNSEEN}</span>" in text
    assert f"<span>all attacked: {ATTACK}</span>" in text
    assert "found with at most 50 ascent steps from each example. One seed." in text
    assert "unseen clients<" not in text.replace("<dt>shift of unseen clients</dt>", "")
    assert 'unseen clients"' not in text


def test_the_live_page_and_the_list_of_studies_name_them(study: Path) -> None:
    listed = Pages(study.parent).page("/")
    assert listed is not None
    assert f"on {UNSEEN}" in listed
    assert f"with all attacked: {ATTACK}" in listed
    live = Pages(study).page("/")
    assert live is not None
    assert FULL_SHIFT in live
    assert f"(with all attacked: {ATTACK})" in " ".join(invoke("runs", study.parent).split())


def test_a_study_without_a_shift_or_attack_says_that_unseen_clients_are_clean(study: Path, tmp_path: Path) -> None:
    """Earlier versions wrote no ``shift``."""
    other = shutil.copytree(study, tmp_path / "other")
    results = json.loads((other / "results.json").read_text())
    plain = {name: value for name, value in results.items() if name not in ("checksum", "shift", "radius")}
    plain["attack"] = None
    for row in plain["methods"].values():
        row["attacked"] = {}
    StudyFolder(other).write_results(plain)
    (table,) = by_title(list(show_study(other).sections))["Methods"].blocks
    assert isinstance(table, Table)
    assert "unseen clients, clean" in table.columns
    assert [each.test for each in leaders_of(plain)][1:] == [
        "on unseen clients, clean", "for the worst client on clean data"
    ]  # fmt: skip


def test_figures_of_a_study_name_them(study: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    drawn: dict[str, Any] = {}
    monkeypatch.setattr(plotting, "_finish", lambda figure, path, **_: drawn.setdefault(path.name, figure))
    results = json.loads((study / "results.json").read_text())
    for name, draw in figures._figures(Study.resume(study), results).items():
        partial(draw, path=tmp_path / name)()
    assert drawn["accuracy.png"].axes[0].get_title() == f"{FULL_ATTACK}\nbars: ± standard deviation over seeds"
    assert FULL_ATTACK in drawn["accuracy-radius.png"].get_suptitle()
    ticks = [tick.get_text() for tick in drawn["unseen.png"].axes[0].get_xticklabels()]
    assert ticks[-1].replace("\n", " ") == UNSEEN


def test_scores_and_comparisons_name_them(comparison: wafl.Comparison, tmp_path: Path) -> None:
    clean, attacked = (row.score for row in comparison.rows)
    assert clean.conditions == "clean"
    assert clean.unseen is not None
    assert clean.unseen.conditions == FULL_SHIFT
    assert clean.name_of_unseen == UNSEEN
    assert attacked.attacked is not None
    share = len(attacked.attacked.per_client) / len(attacked.per_client)
    assert attacked.conditions == f"{share:.0%} attacked: {FULL_ATTACK}"
    assert attacked.name_of_unseen.startswith(f"{UNSEEN}, ")
    assert attacked.name_of_unseen.endswith(f" attacked: {ATTACK}")
    text = str(comparison)
    assert f"unseen clients with {FULL_SHIFT}" in " ".join(text.split())
    assert f"unseen clients with {FULL_SHIFT}, attacked: {FULL_ATTACK}" in " ".join(text.split())
    comparison.save(tmp_path)
    assert {row["unseen_shift"] for row in json.loads((tmp_path / "comparison.json").read_text())} == {FULL_SHIFT}
    assert comparison.plot().axes[0].get_title() == FULL_ATTACK
    axes = attacked.plot().axes[0]
    assert axes.get_title() == f"{share:.0%} attacked: {ATTACK}"
    assert attacked.name_of_unseen in [text.get_text() for text in axes.get_legend().get_texts()]
    tests = by_title(comparison.sections())["Client by client"].blocks[0]
    assert isinstance(tests, Figure)
    assert list(tests.views) == ["clean data", UNSEEN, f"40% attacked: {ATTACK}"]
    assert UNSEEN in tests.views[UNSEEN]["data"][0]["hovertemplate"]


def test_the_model_card_names_them(study: Path, tmp_path: Path) -> None:
    invoke("export", study / "fedavg", "--format", "card", "--output", tmp_path / "card")
    text = (tmp_path / "card" / "README.md").read_text()
    full = "all attacked: l_inf PGD, epsilon 0.1 (pixels in [0, 1]), 40 steps, within [0, 1]"
    assert "| that trained, on held-out examples | clean |" in text
    assert f"| that trained, on held-out examples | {full} |" in text
    assert f"| that never trained | {FULL_SHIFT} |" in text
    assert f"| that never trained | {FULL_SHIFT}; {full} |" in text
    assert f'"config": "test data: {FULL_SHIFT}"' in text
