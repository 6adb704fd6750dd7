"""The section of a page about prediction sets: its numbers are the sets' numbers."""

import pytest

import wafl
from tests.theory.population import MODEL, world
from wafl.report import sections
from wafl.studies.pages.shown import ORDER


def test_the_section_has_the_promise_and_the_numbers_of_the_sets():
    calibration, others = world(19, 8, seed=1), world(4, 10, seed=2)
    sets = {
        str(coverage): wafl.prediction_sets(MODEL, calibration, coverage=coverage, about="example")
        for coverage in (0.6, 0.8)
    }
    section = sections.prediction_sets([each.row(label, others) for label, each in sets.items()], "unseen clients")
    assert section.title in ORDER
    figure, table = section.blocks
    for (label, each), cells in zip(sets.items(), table.rows, strict=True):
        measured = each.evaluate(others)
        assert [cell.text for cell in cells[:2]] == [label, each.statement]
        assert float(cells[3].text) == pytest.approx(100.0 * measured.mean, abs=0.05)
        assert float(cells[4].text) == pytest.approx(measured.size, rel=0.01)
        assert cells[5].text == str(sum(measured.full))
    points = {trace["name"]: trace["y"] for trace in figure.views["labels covered"]["data"]}
    assert points["0.8"] == [100.0 * value for value in sets["0.8"].evaluate(others).covered]
    assert "Each row holds by itself" in table.caption
