"""Pages are made from numbers: their tables are what the numbers say."""

from __future__ import annotations

import pytest

from wafl.evidence.tables import filled, of_experiment, of_leaderboard


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


def test_only_the_marked_tables_of_a_page_change() -> None:
    page = "before\n<!-- table one -->\nold\n<!-- end -->\nafter\n"
    made = filled(page, {"one": "new"})
    assert made == "before\n<!-- table one -->\n\nnew\n\n<!-- end -->\nafter\n"
    assert filled(made, {"one": "new"}) == made
    with pytest.raises(ValueError, match="no numbers for the table 'one'"):
        filled(page, {})


def test_the_pages_are_what_their_numbers_say() -> None:
    from tools import evidence_pages

    for name, text in evidence_pages.pages().items():
        assert (evidence_pages.DOCS / name).read_text(encoding="utf-8") == text, "run tools/evidence_pages.py"
