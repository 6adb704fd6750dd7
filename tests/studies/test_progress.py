"""How far a study is, as its page and the list of studies tell it: from its folder, while it trains and afterwards."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from wafl.config.read import parse_experiment
from wafl.report.page import Cell, Study
from wafl.studies.folder import StudyFolder
from wafl.studies.pages.shown import list_of, show_study, summary_of

EXPERIMENT: dict[str, Any] = {
    "name": "three",
    "seeds": [0, 1],
    "data": {"dataset": "digits", "num_clients": 3, "iid": True},
    "schedule": {"rounds": 10, "local_steps": 1},
    "methods": [{"method": "FedAvg"}, {"method": "WAFL", "gamma": [0.5, 5.0], "rounds": 20}, {"method": "DRFA"}],
}


def spread(value: float) -> dict[str, Any]:
    return {"mean": value, "std": 0.0, "seeds": [value, value]}


def row(clean: float, worst: float = 50.0) -> dict[str, Any]:
    return {"clean": spread(clean), "attacked": {"0.4": spread(40.0)}, "worst_client": spread(worst), "seconds": 1.0}


def results(done: Sequence[str], methods: dict[str, Any], *, finished: bool = False) -> dict[str, Any]:
    text = {"clients": "3 clients", "unit": "pixels", "attack": "PGD", "seeds": [0, 1], "measure": "accuracy"}
    return {**text, "done": list(done), "methods": methods, "finished": finished}


def line(method: str, number: int, **more: Any) -> dict[str, Any]:
    swept = {key: more.pop(key) for key in ("gamma_", "seed") if key in more}
    point = {key.rstrip("_"): value for key, value in swept.items()}
    return {"method": method, **point, "round": number, "loss": 2.0, "seconds": 0.25, **more}


def fedavg(rounds: int = 10) -> list[dict[str, Any]]:
    return [line("fedavg", number, seed=seed) for number in range(rounds) for seed in (0, 1)]


def wafl(rounds: int) -> list[dict[str, Any]]:
    return [
        line("wafl", number, gamma_=gamma, seed=seed, achieved_radius=0.1 * gamma)
        for number in range(rounds)
        for gamma in (0.5, 5.0)
        for seed in (0, 1)
    ]


@pytest.fixture
def folder(tmp_path: Path) -> StudyFolder:
    return StudyFolder.create(tmp_path / "three", parse_experiment(EXPERIMENT, "here"))


def write(folder: StudyFolder, lines: Sequence[dict[str, Any]], collected: dict[str, Any] | None = None) -> None:
    folder.metrics.write_text("".join(json.dumps(each) + "\n" for each in lines))
    if collected is not None:
        folder.write_results(collected)


def table(study: Study) -> dict[str, dict[str, Cell]]:
    """The table of progress: by method and column."""
    section = study.sections[0]
    assert section.title == "Progress"
    return {cells[0].text: dict(zip(section.blocks[0].columns, cells, strict=True)) for cells in section.blocks[0].rows}


def test_a_study_in_training_tells_everything_about_each_method(folder: StudyFolder) -> None:
    lines = [*fedavg(), *wafl(4)]
    lines[-6]["accuracy"] = 0.75  # of one run, a round ago
    lines[-1] |= {"cohort": [0, 1, 2], "excluded": [[1, "dropped out"], [2, "loss: late"]]}
    write(folder, lines, results(["fedavg"], {"FedAvg": row(90.0)}))
    with folder.locked():
        study = show_study(folder.path)
    rows = table(study)
    assert {method: cells["stage"].text for method, cells in rows.items()} == {
        "FedAvg": "done",
        "WAFL": "training",
        "DRFA": "to come",
    }
    now = rows["WAFL"]
    assert (now["round"].text, now["round"].part) == ("4 of 20", 0.2)
    assert now["rounds/s"].value == 1.0, "four runs side by side, a quarter of a second each"
    assert now["time left"].text == "0:00:16"
    assert now["loss"].value == 2.0
    assert now["radius"].value == pytest.approx(0.275), "the mean over the runs"
    assert now["accuracy"].text == "75.0%"
    assert now["who failed"].text == "client 1 (1 round)"
    assert (rows["FedAvg"]["accuracy"].text, rows["FedAvg"]["round"].part) == ("90.0%", 1.0)
    assert rows["DRFA"]["round"].text == "0 of 10"
    lead = study.sections[0].lead
    assert lead.startswith("WAFL: training, round 4 of 20, 1 rounds/s, 0:00:16 left")
    assert lead.endswith("To come: DRFA.")
    assert study.facts["rounds"] == "FedAvg 10, WAFL 4 of 20, DRFA 0 of 10"


def test_stages_follow_the_training(folder: StudyFolder) -> None:
    def stages() -> list[str]:
        return [cells["stage"].text for cells in table(show_study(folder.path)).values()]

    assert stages() == ["to come"] * 3
    with folder.locked():
        assert stages() == ["training", "to come", "to come"]
        write(folder, fedavg())
        assert stages() == ["testing", "to come", "to come"]
    write(folder, fedavg(3))
    assert stages() == ["interrupted", "to come", "to come"]


def test_runs_that_ended_are_not_waited_for_and_those_that_have_not_begun_are(folder: StudyFolder) -> None:
    """One run diverges, one stops early; runs of other shapes come only after the first."""
    ended = {"method": "fedavg", "seed": 1, "round": 2, "diverged": "round 2: NaN"}
    write(folder, [*fedavg(2), ended, *[line("fedavg", number, seed=0) for number in range(2, 6)]])
    rows = table(show_study(folder.path))
    assert rows["FedAvg"]["round"].text == "8 of 10", "one run has 6 of 10, the other is over"
    assert rows["FedAvg"]["who failed"].text == "the run of seed 1 diverged"
    write(folder, [each for each in wafl(20) if each["gamma"] == 0.5])
    assert table(show_study(folder.path))["WAFL"]["round"].text == "10 of 20"


def test_nothing_is_best_while_there_is_one_and_ties_are_ties(folder: StudyFolder) -> None:
    def highlights(**methods: dict[str, Any]) -> list[tuple[str, str, str]]:
        finished = len(methods) == 3
        write(folder, [], results([name.lower() for name in methods], methods, finished=finished))
        return list(show_study(folder.path).highlights)

    alone = highlights(FedAvg=row(90.0))
    assert alone[0] == ("on clean data", "90.0%", "FedAvg")
    assert "best" not in str(alone)
    two = highlights(FedAvg=row(90.0), WAFL=row(91.0))
    assert two[0] == ("best so far on clean data", "91.0%", "WAFL")
    three = highlights(FedAvg=row(90.0), WAFL=row(91.0), DRFA=row(80.0))
    assert three[0] == ("best on clean data", "91.0%", "WAFL")
    assert three[2] == ("best for the worst client on clean data", "50.0%", "FedAvg, WAFL, DRFA")


def test_a_finished_study_says_its_rounds_by_method_where_they_differ(folder: StudyFolder) -> None:
    lines = [*fedavg(), *wafl(20), *(line("drfa", number, seed=seed) for number in range(7) for seed in (0, 1))]
    rows = {"FedAvg": row(90.0), "wafl-gamma=0.5": row(91.0), "wafl-gamma=5.0": row(92.0), "DRFA": row(80.0)}
    write(folder, lines, results(["fedavg", "wafl", "drfa"], rows, finished=True))
    study = show_study(folder.path)
    assert study.facts["rounds"] == "FedAvg 10, WAFL 20, DRFA 7 of 10", "DRFA stopped early"
    assert "Progress" not in [section.title for section in study.sections]


def test_the_list_has_a_bar_and_the_last_numbers_of_every_study(folder: StudyFolder, tmp_path: Path) -> None:
    write(folder, [*fedavg(), *wafl(4)], results(["fedavg"], {"FedAvg": row(90.0)}))
    (tmp_path / "garbage").mkdir()
    for name in ("config.toml", "about.json", "results.json"):
        (tmp_path / "garbage" / name).write_bytes(b"[[")
    with folder.locked():
        result = [summary_of(path, "/") for path in (folder.path, tmp_path / "garbage")]
    (listed,) = list_of(result).blocks
    running, garbage = (dict(zip(listed.columns, cells, strict=True)) for cells in listed.rows)
    assert running["state"].text == "running"
    assert running["progress"].part == pytest.approx((10 + 4) / (10 + 20 + 10))
    assert running["progress"].small == "WAFL, training: round 4 of 20"
    assert (running["time left"].text, running["loss"].text, running["radius"].text) == ("0:00:16", "2", "0.275")
    assert running["best, clean"].text == "90.0% FedAvg"
    assert garbage["state"].text == "damaged"
    assert "results.json" in garbage["progress"].small


@pytest.mark.parametrize("value", [1e308, -1.0, "many", None, float("nan"), True])
def test_numbers_of_strangers_do_not_end_the_page(folder: StudyFolder, value: Any) -> None:
    lines = [line("fedavg", number, seed=0, seconds=value, achieved_radius=value) for number in (0, 10**30, -5)]
    write(folder, lines)
    assert table(show_study(folder.path))["FedAvg"]["round"].text.endswith(" of 10")
    assert summary_of(folder.path, "/").cells["progress"].text == "0 of 3 methods"
