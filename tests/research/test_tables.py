"""Pages are made from numbers: their tables are what the numbers say."""

from __future__ import annotations

from typing import Any

import pytest

from research import pages
from research.leaderboard import page as leaderboard_page
from research.pages import filled
from research.registration import registered
from research.reproduction.page import TABLE_1, averages, how, of_experiment, with_numbers


def board(lead: float) -> dict[str, Any]:
    """Two data sets that count and one that does not, with a method that leads in the same way on both."""
    rows = {name: [50.0, 60.0, 55.0] for name in registered("natural")[0]["methods"]}
    rows["WAFL"] = [50.0 + lead, 60.0 + 1.01 * lead, 55.0 + 0.99 * lead]

    def row(values: list[float]) -> dict[str, Any]:
        scored = [{"loss": value / 100.0, "accuracy": value, "worst": value - 10.0} for value in values]
        return {"splits": [dict.fromkeys(("clean", "shift"), each) for each in scored]}

    names = ("smartwatch", "hospitals", "turned-digits")
    results = {name: {label: row(values) for label, values in rows.items()} for name in names}
    clients = {name: [8, 2] for name in names}
    return {"absent": {"femnist": "femnist"}, "unfinished": {}, "clients": clients, "results": results}


def test_the_leaderboard_counts_natural_data_and_marks_what_survives_holm() -> None:
    result = leaderboard_page.tables(board(3.0), registered("natural")[0])
    assert "| WAFL | 55.0" not in result["leaderboard-data"]
    assert "| WAFL | 58.0 | 48.0 | **+3.0 ± 0.1** | 58.0 | 48.0 | **+3.0 ± 0.1** |" in result["leaderboard-data"]
    assert "| WAFL | 58.0 | 48.0 | +3.0 ± 0.1 | 58.0 | 48.0 | +3.0 ± 0.1 |" in result["leaderboard-data"], "not counted"
    assert "0.580 | 48.0 | -0.030 ± 0.001" in result["leaderboard-data"].replace("**", ""), "a larger loss is worse"
    assert "on 2 data sets" in result["leaderboard-verdict"]
    assert (
        "significantly better than FedAvg on one data set and significantly worse on one data set"
        in result["leaderboard-verdict"]
    )
    assert "Not made: femnist (femnist was not there)." in result["leaderboard-data"]
    assert result["leaderboard"].count("\n") == 9, "at most eight rows"


def test_a_leaderboard_of_nothing_says_so() -> None:
    empty = {"absent": {}, "unfinished": {}, "clients": {}, "results": {}}
    assert set(leaderboard_page.tables(empty, registered("natural")[0]).values()) == {"Nothing is made yet."}


def test_an_experiments_table_has_every_test_and_names_what_is_missing() -> None:
    common = {"label": "wafl", "test": "l_inf", "radius": 2.0}
    rows = [{**common, "attacked": share, "accuracy": 80.0 - 50.0 * share} for share in (0.0, 0.8)]
    text = of_experiment({"figure": "attacked", "rows": rows, "unfinished": ["afl"]})
    assert "| wafl | 80.0 | 40.0 | 2.00 |" in text
    assert text.endswith("Not made: afl.")


def test_seeds_that_diverged_are_counted_and_left_out_of_the_mean() -> None:
    common = {"label": "wafl", "test": "clean", "attacked": 0.0}
    rows = [{**common, "seed": seed, "accuracy": 80.0 + seed} for seed in (0, 1)]
    lost = {"label": "wafl", "seed": 2, "diverged": "round 3: the loss is not finite"}
    text = of_experiment({"figure": "attacked", "rows": [*rows, lost]})
    assert "| wafl | 80.5 ± 6.4 |" in text
    assert text.endswith("Diverged: wafl (1 of 3 seeds): round 3: the loss is not finite.")


def test_a_claim_states_accuracies_differences_by_seed_and_divergence() -> None:
    def rows(label: str, *values: float) -> list[dict[str, object]]:
        common = {"label": label, "test": "l_inf", "attacked": 0.8, "radius": 2.0}
        return [{**common, "seed": seed, "accuracy": value} for seed, value in enumerate(values)]

    made = {"fig": {"rows": [*rows("a", 12.0, 23.0), *rows("b", 10.0, 20.0), {"label": "c", "diverged": "why"}]}}
    assert with_numbers("[[fig a l_inf 0.8]]", made) == "17.5 ± 69.9"
    assert with_numbers("[[fig a l_inf 0.8 over b]]", made) == "+2.5 ± 6.4"
    assert with_numbers("[[fig a radius]], [[fig c l_inf 0.8]]", made) == "2.00, diverged"
    clean = [{**row, "attacked": 0.0, "accuracy": 80.0} for row in made["fig"]["rows"][:2]]
    clean += [{**row, "label": "b"} for row in clean]
    whole = {"fig": {"rows": [*made["fig"]["rows"], *clean]}}
    assert with_numbers("[[fig a l_inf fall]]", whole) == "62.5 ± 69.9"
    assert with_numbers("[[fig a l_inf fall over b]]", whole) == "-2.5 ± 6.4"
    with pytest.raises(SystemExit, match="there is no such number"):
        with_numbers("[[fig a l_2 0.8]]", made)
    listed = {"fig-norms-mnist-paper": {"rows": []}}
    assert with_numbers("[[fig-norms-mnist-paper wafl-l2-gamma=3 l_inf 0.8]]", listed) == "not made"
    with pytest.raises(SystemExit, match="there is no such number"):
        with_numbers("[[fig-norms-mnist-paper wafl-l3 l_inf 0.8]]", listed)


def test_averages_over_targets_are_those_of_a_plain_loop() -> None:
    """Under the paper's protocol the best setting on each target counts; means over targets come before intervals."""
    entries = ("examples", "uniform", "afl", "drfa", "nearest", "nearest-ball")
    values = {"usps": [60.0, 61.0], "svhn": [10.0, 12.0], "mnist": [50.0, 50.0]}

    def rows(target: str) -> list[dict[str, Any]]:
        good = [
            {"entry": each, "label": f"{each}-rate=1", "seed": seed, "accuracy": value}
            for each in entries
            for seed, value in enumerate(values[target])
        ]
        return good + [{**row, "label": f"{row['entry']}-rate=2", "accuracy": row["accuracy"] - 5.0} for row in good]

    files = ("tab-domains-{}-paper", "tab-domains-{}-fair", "tab-domains-cnn-{}-fair")
    text = averages({name.format(target): {"rows": rows(target)} for name in files for target in values})
    mean = (60.0 + 10.0 + 50.0) / 3.0, (61.0 + 12.0 + 50.0) / 3.0  # 40 and 41: 40.5, and 12.7062 times half the gap
    assert mean == (40.0, 41.0)
    assert [line.split(" | ")[1:] for line in text.splitlines()[2:]] == [
        [f"{printed}", "40.5 ± 6.4", "40.5 ± 6.4", "40.5 ± 6.4 |"] for printed in TABLE_1.values()
    ]


def test_only_the_marked_tables_of_a_page_change() -> None:
    page = "before\n<!-- table one -->\nold\n<!-- end -->\nafter\n"
    made = filled(page, {"one": "new"})
    assert made == "before\n<!-- table one -->\n\nnew\n\n<!-- end -->\nafter\n"
    assert filled(made, {"one": "new"}) == made
    with pytest.raises(ValueError, match="no numbers for the table 'one'"):
        filled(page, {})


def test_the_pages_are_what_their_numbers_say() -> None:
    for name, text in pages.pages().items():
        assert (pages.DOCS / name).read_text(encoding="utf-8") == text, "run python -m research pages"


def test_recorded_commands_are_text_beside_those_of_today() -> None:
    about = {"packages": {"wafl-learn": "0.1", "torch": "2"}, "python": "3", "seeds": [0]}
    made = about | {"machine": {"cores": 2, "processor": "arm", "gpu": None}, "digest": ""}
    text = how({"fig": made | {"command": "wafl reproduce tab-domains --protocol paper"}})
    assert (
        "| wafl reproduce tab-domains --protocol paper | `python -m research reproduce table-1 --protocol paper` |"
        in text
    )
