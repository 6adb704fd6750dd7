"""Results in a notebook: frames, pictures, short texts, and tables."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest
import torch

import wafl
from wafl.report.plotting import COLORS, METHODS, PALETTE, method_colors, sequence, styles
from wafl.results.history import History

PNG = b"\x89PNG"


@pytest.fixture(scope="module")
def clients() -> wafl.Federation:
    generator = torch.Generator().manual_seed(0)
    pairs = [(torch.rand(12, 3, generator=generator), torch.arange(12) % 2) for _ in range(3)]
    return wafl.Federation.from_arrays(pairs)


@pytest.fixture(scope="module")
def runs(clients: wafl.Federation) -> wafl.Runs:
    grid = {"gamma": [1.0, 5.0], "seed": [0, 1]}
    return wafl.sweep(wafl.models.mlr(clients), clients, wafl.WAFL(), grid, rounds=2, cohort=2, local_steps=1)


def test_a_sweep_is_a_list_whose_rows_carry_what_varied(runs: wafl.Runs, tmp_path: Path) -> None:
    assert isinstance(runs, list)
    frame = runs.to_pandas()
    assert frame[["gamma", "seed"]].values.tolist() == [[1.0, 0], [1.0, 1], [5.0, 0], [5.0, 1]]
    assert frame["final_loss"].tolist() == [run.history[-1].loss for run in runs]
    assert repr(runs) == "Runs(4 of WAFL: gamma=1.0, 5.0; seed=0, 1)"
    assert "<td>5</td>" in runs._repr_html_()
    runs.plot(tmp_path / "runs.png")
    assert (tmp_path / "runs.png").read_bytes().startswith(PNG)


def test_a_history_has_one_row_per_round(runs: wafl.Runs, tmp_path: Path) -> None:
    history = runs[0].history
    frame = history.to_pandas()
    assert frame["round"].tolist() == [0, 1]
    assert frame["loss"].tolist() == history.column("loss")
    assert len(repr(history)) < 80
    assert history._repr_html_().count("<tr>") == 3
    history.plot(tmp_path / "history.png")
    assert (tmp_path / "history.png").read_bytes().startswith(PNG)


def test_a_history_without_rounds_says_that_there_is_nothing_to_draw() -> None:
    with pytest.raises(ValueError, match="no round to draw"):
        History().plot()


def test_a_score_has_one_row_per_client_and_draws_the_worst_first(
    runs: wafl.Runs, clients: wafl.Federation, tmp_path: Path
) -> None:
    score = wafl.evaluate(runs[0], clients, attack=wafl.PGD(epsilon=0.1), attacked=0.4)
    frame = score.to_pandas()
    assert frame["accuracy"].tolist() == [client.accuracy for client in score.per_client]
    assert score._repr_html_().count("<tr>") == 4
    axes = score.plot(tmp_path / "score.png").axes[0]
    assert axes.get_ylabel() == "accuracy (%)"
    heights = {bar.get_x(): bar.get_height() for bar in axes.patches}
    assert list(dict(sorted(heights.items())).values()) == sorted(heights.values())


def test_accuracy_against_a_swept_parameter_is_one_call(
    runs: wafl.Runs, clients: wafl.Federation, tmp_path: Path
) -> None:
    comparison = wafl.compare(runs, clients, attacks=[None, wafl.PGD(epsilon=0.1)], attacked=[0.5])
    frame = comparison.to_pandas()
    assert frame[["run", "gamma", "seed"]].values.tolist()[::4] == [
        ["WAFL (gamma=1.0)", 1.0, 0], ["WAFL (gamma=5.0)", 5.0, 0]
    ]  # fmt: skip
    figure = comparison.plot(tmp_path / "gamma.png", against="gamma")
    (axes,) = figure.axes
    assert axes.get_xlabel() == "gamma"
    assert [line.get_xdata().tolist() for line in axes.lines] == [[1.0, 5.0]] * 2
    assert len(axes.collections) == 2, "a band over the seeds for each test"
    for gamma, shown in zip((1.0, 5.0), axes.lines[0].get_ydata(), strict=True):
        rows = [row for row in comparison.rows if row.point["gamma"] == gamma and row.score.attack == "none"]
        assert shown == pytest.approx(50.0 * sum(row.score.accuracy for row in rows))
    with pytest.raises(ValueError, match=r"against='radius' is not a number.*gamma"):
        comparison.plot(against="radius")
    assert len(repr(comparison)) < 100


def test_what_is_printed_is_the_table_of_the_command_line(runs: wafl.Runs, clients: wafl.Federation) -> None:
    comparison = wafl.compare(runs, clients, attacks=[None, wafl.PGD(epsilon=0.1)], attacked=[0.5], unseen=clients)
    text = str(comparison)
    for word in ("clean data", "PGD", "WAFL", "worst", "±", "unseen clients", "over 2 seeds"):
        assert word in text
    assert "\x1b" not in text
    score = wafl.evaluate(runs[0], clients)
    assert "worst" in str(score)
    assert "\n" not in repr(score)
    assert "\n" not in repr(comparison)


def test_a_frame_has_what_varies_unless_all_is_wanted(runs: wafl.Runs, clients: wafl.Federation) -> None:
    comparison = wafl.compare(runs, clients)
    assert "unit" not in comparison.to_pandas()
    assert comparison.to_pandas(all=True)["unit"].nunique() == 1
    assert set(runs.to_pandas(all=True)) - set(runs.to_pandas()) == {"rounds", "diverged", "final_replies"}
    assert "attacked" in wafl.evaluate(runs[0], clients).to_pandas(all=True)


def test_a_method_has_one_color_and_its_sweep_is_a_sequence_of_it() -> None:
    alone, *_ = styles(["FedAvg", "WAFL"])
    first, second, third = styles(["WAFL (gamma=1.0)", "fedavg", "wafl-gamma=2.0"])
    assert alone["color"] == second["color"] == METHODS["fedavg"]
    assert [first["color"], third["color"]] == sequence(METHODS["wafl"], 2)
    assert styles(["mine", "WAFL"])[0]["color"] not in (METHODS["wafl"], None)
    assert styles(["mine"])[0]["color"] in COLORS
    assert len(set(METHODS.values())) == len(METHODS) == len(wafl.METHODS)


def test_any_number_of_methods_have_colors_of_their_own_and_a_new_one_changes_none() -> None:
    names = [*wafl.METHODS, *(f"New{number}" for number in range(100))]
    colors = method_colors(names)
    assert len(set(colors.values())) == len(colors) == len(names)
    assert all(re.fullmatch("#[0-9A-F]{6}", color) for color in colors.values())
    assert list(method_colors(names[:33]).items()) == list(colors.items())[:33]
    assert list(METHODS.values()) == list(PALETTE[: len(METHODS)])


def test_pandas_is_asked_for_only_where_it_is_needed(runs: wafl.Runs, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pandas", None)
    with pytest.raises(ValueError, match=r"to_pandas needs the package pandas: pip install 'wafl-learn\[pandas\]'"):
        runs.to_pandas()
