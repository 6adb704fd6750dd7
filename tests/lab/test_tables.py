"""Pages are made from numbers: their tables are what the numbers say."""

from __future__ import annotations

import pytest
from tools import evidence_pages
from tools.evidence_pages import filled, of_experiment, with_numbers

from wafl.lab.leaderboard.tables import of_leaderboard


def board() -> dict[str, object]:
    def row(*values: float) -> dict[str, object]:
        names = ("seen", "seen test", "unseen", "worst tenth", "disturbed")
        return {"splits": [{**dict.fromkeys(names, value), "attacked": None} for value in values]}

    results = {name: {"FedAvg": row(50.0, 60.0), "WAFL": row(53.0, 63.0)} for name in ("a", "b")}
    return {"what": {"a": "people", "b": "places"}, "absent": {}, "results": results}


def test_a_difference_without_doubt_is_bold_and_ranks_are_averaged() -> None:
    text = of_leaderboard(board())
    assert "| WAFL | 58.0 ± 63.5 | 58.0 ± 63.5 | 58.0 ± 63.5 | 58.0 ± 63.5 | 58.0 ± 63.5 | **+3.0 ± 0.0** |" in text
    assert "| WAFL | 1.0 | 1.0 | 1.0 |" in text
    assert "attacked" not in text, "a column without numbers is left out"


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
    with pytest.raises(SystemExit, match="there is no such number"):
        with_numbers("[[fig a l_2 0.8]]", made)
    listed = {"fig-norms-mnist-paper": {"rows": []}}
    assert with_numbers("[[fig-norms-mnist-paper wafl-l2-gamma=3 l_inf 0.8]]", listed) == "not made"
    with pytest.raises(SystemExit, match="there is no such number"):
        with_numbers("[[fig-norms-mnist-paper wafl-l3 l_inf 0.8]]", listed)


def test_only_the_marked_tables_of_a_page_change() -> None:
    page = "before\n<!-- table one -->\nold\n<!-- end -->\nafter\n"
    made = filled(page, {"one": "new"})
    assert made == "before\n<!-- table one -->\n\nnew\n\n<!-- end -->\nafter\n"
    assert filled(made, {"one": "new"}) == made
    with pytest.raises(ValueError, match="no numbers for the table 'one'"):
        filled(page, {})


def test_the_pages_are_what_their_numbers_say() -> None:
    for name, text in evidence_pages.pages().items():
        assert (evidence_pages.DOCS / name).read_text(encoding="utf-8") == text, "run tools/evidence_pages.py"
