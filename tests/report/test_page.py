"""The page: what it holds, what it keeps out, and how large it is."""

from __future__ import annotations

import base64
import gzip
import io
import json
import math
import re
from pathlib import Path

import numpy as np
import pytest
from matplotlib.image import imread
from scipy import stats

from tests.report.reader import Reader
from wafl.report import charts, sections
from wafl.report.page import (
    Cell,
    Code,
    Conditions,
    Figure,
    Note,
    Page,
    Reading,
    Section,
    Stop,
    Study,
    Table,
    Walk,
    Walks,
    as_html,
    plotly_script,
    write_page,
)
from wafl.report.page import Tested as Row

EVIL = '<script>alert("x")</script>'


def page(name: str = "study") -> Page:
    curve = charts.Curve(name, [0.0, 1.0], [math.nan, 2.0])
    walk = Walk(name, [Stop(name, 0.5, {name: Reading(0.5, "%", name)})], charts.lines([curve], name, name))
    blocks = [
        Table([name], [[Cell(name, small=name)]], name),
        Figure({name: charts.lines([curve], name, name), "bars": charts.bars([name], {name: [1.0]}, name)}, name),
        Figure({"strip": charts.strip({name: [(name, 1.0)]}, name, {}, "%", name)}),
        Figure({"heat": charts.heatmap([[1.0]], [name], [name], name)}),
        Walks([walk], name),
        Code(name, name, folded=True),
        Note(name),
    ]
    study = Study(name, [Section(name, name, blocks)], "running", {name: name}, [(name, name, name)])
    return Page(name, [study, study], [Section(name, name, [Note(name)])])


def test_names_stay_text_everywhere_on_the_page() -> None:
    plain, evil = Reader(as_html(page())), Reader(as_html(page(EVIL)))
    assert [tag for tag, _ in plain.tags] == [tag for tag, _ in evil.tags], "a name became a tag"
    texts = json.dumps(evil.charts())
    assert "alert" in texts
    assert "<script" not in texts, "Plotly would read tags in names"


def test_a_page_fetches_nothing_and_holds_plotly_once(tmp_path: Path) -> None:
    text = write_page(page(), tmp_path / "new" / "page.html").read_text()
    assert len(text) < 3_000_000, "the limit of a whole report is 6 MB"
    reader = Reader(text)
    links = [attrs.get(key) or "" for _, attrs in reader.tags for key in ("src", "href", "action")]
    assert all(link == "" or link.startswith(("#", "data:")) for link in links)
    assert "default-src 'none'" in text
    (packed,) = [text for kind, text in reader.scripts if kind == "text/plain"]
    assert gzip.decompress(base64.b64decode(packed)) == plotly_script()


def test_a_live_page_asks_its_server_for_the_scripts() -> None:
    sources = [
        attrs["src"] for tag, attrs in Reader(as_html(page(), live=True)).tags if tag == "script" and "src" in attrs
    ]
    assert sources == ["/plotly.js"]


def test_numbers_that_json_cannot_say_are_gaps() -> None:
    drawn = Reader(as_html(page())).charts()[0]
    assert drawn["data"][0]["y"] == [None, 2.0]


def test_intervals_are_those_of_student() -> None:
    values = [1.0, 4.0, 2.5, 3.0]
    expected = stats.t.interval(0.95, 3, loc=np.mean(values), scale=stats.sem(values))
    assert sections.interval(values) == pytest.approx(expected)
    assert sections.interval(values[:2]) is None


def test_a_long_line_is_thinned_out_and_keeps_its_ends() -> None:
    chart = charts.lines([charts.Curve("loss", list(range(10_001)), list(range(10_001)))], "x", "y")
    x = chart["data"][0]["x"]
    assert (x[0], x[-1]) == (0, 10_000)
    assert len(x) <= charts.MOST_POINTS


def test_the_table_of_methods_emphasizes_the_best_and_sorts_by_means() -> None:
    rows = [
        Row("WAFL", "WAFL", [90.0, 92.0, 91.0], {0.4: [80.0]}, [70.0], 1.5),
        Row("FedAvg", "FedAvg", [93.0, 93.0, 93.0], {0.4: [60.0]}, [50.0], 0.5, diverged=1),
    ]
    (table,) = sections.methods(rows, "accuracy", Conditions()).blocks
    assert table.columns == ["method", "clean", "40% attacked", "worst client", "seconds", "diverged"]
    assert [[cell.best for cell in row[1:4]] for row in table.rows] == [[False, True, True], [True, False, False]]
    assert [row[1].order for row in table.rows] == [91.0, 93.0]
    (losses,) = sections.methods(rows, "loss", Conditions()).blocks
    assert losses.rows[0][1].best, "the lowest loss is the best"


def test_rows_that_read_the_same_are_tied_and_one_alone_is_not_the_best() -> None:
    rows = [Row(name, name, [value]) for name, value in (("A", 97.21), ("B", 97.24), ("C", 97.1))]
    (table,) = sections.methods(rows, "accuracy", Conditions()).blocks
    assert [row[1].best for row in table.rows] == [True, True, False]
    (alone,) = sections.methods(rows[:1], "accuracy", Conditions()).blocks
    assert not alone.rows[0][1].best
    assert "best" not in alone.caption


def test_differences_from_fedavg_are_paired_by_seed() -> None:
    rows = [
        Row("WAFL", "WAFL", [90.0, 92.0], {0.4: [80.0, 70.0]}),
        Row("FedAvg", "FedAvg", [80.0, 92.0], {0.4: [60.0, 60.0]}),
    ]
    figure = sections.attacked(rows, "accuracy", Conditions(attack="PGD")).blocks[0]
    wafl, fedavg = figure.views["minus FedAvg"]["data"]
    assert wafl["y"] == [5.0, 15.0]
    assert fedavg["y"] == [0.0, 0.0]


def test_strips_show_pixels_side_by_side() -> None:
    pixels = np.array([[[0.0, 1.0], [0.5, 0.0]], [[1.0, 1.0], [0.0, 0.25]]]).repeat(4, 1).repeat(4, 2)
    drawn = decoded(charts.image_strip(pixels, 0.0, 1.0))
    assert drawn.shape == (8, 17, 4)
    assert drawn[:, :8, 0] == pytest.approx(pixels[0], abs=1 / 255)
    assert drawn[:, 9:, 0] == pytest.approx(pixels[1], abs=1 / 255)
    assert not drawn[:, 8, 3].any(), "the gap is clear"
    change = decoded(charts.image_difference(pixels, np.zeros_like(pixels)))
    assert change[:, :8, 3] == pytest.approx(pixels[0], abs=1 / 255)


def decoded(uri: str) -> np.ndarray:
    match = re.fullmatch(r"data:image/png;base64,(.*)", uri)
    assert match is not None
    return imread(io.BytesIO(base64.b64decode(match[1])), format="png")
