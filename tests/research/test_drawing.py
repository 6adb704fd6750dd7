"""A method has the same color in every figure: of evidence, of the library, and of README."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from research import drawing, front_page
from research.registered import attack_frontier, figures
from research.registration import registered
from research.reproduction import draw
from wafl.report import plotting

DOCS = Path(__file__).parents[2] / "docs"
NAMED = {"WAFL": "#D55E00", "FedAvg": "#000000", "FedPGM": "#0072B2"}


def line_colors(figure: Any) -> Mapping[str, str]:
    """Return the color of each line of a figure by its label; a line with error bars is labeled as a whole."""
    result: dict[str, str] = {}
    for axes in figure.axes:
        for handle, label in zip(*axes.get_legend_handles_labels(), strict=True):
            line = handle[0] if isinstance(handle, tuple) else handle
            result[label] = line.get_color()
    return result


def numbers(name: str) -> Any:
    return json.loads((DOCS / name).read_bytes())


def drawn(name: str) -> Any:
    if name == "front":
        return front_page.figure_of(json.loads(front_page.NUMBERS.read_bytes()))
    if name == "attack-frontier":
        return attack_frontier.figure_of(registered(name)[0], numbers(f"evidence/{name}.json")["data"])
    if name in figures.DRAWN:
        return figures.DRAWN[name](numbers(f"evidence/{name}.json")["rows"], registered(name)[0])
    kept = numbers(f"reproduction/{name}.json")
    panels = draw.FIGURES[kept["figure"]]
    assert panels is not None
    return draw.figure_of(kept, panels)


@pytest.mark.parametrize(
    "name",
    ["front", "attack-frontier", "certified-frontier", "fig-attacked-share-mnist-paper", "fig-convergence-mnist-fair"],
)
def test_a_method_has_its_color_in_each_figure(name: str) -> None:
    colors = line_colors(drawn(name))
    assert {"WAFL", "FedAvg"} <= {label.split(",")[0].split(" ")[0] for label in colors}
    for label, color in colors.items():
        method = label.split(",")[0].split(" ")[0]
        assert color == NAMED.get(method, color), f"{label} of {name}"


def test_figures_of_the_library_have_these_colors_too() -> None:
    curve = plotting.Curve([0.0, 1.0], [1.0, 2.0], None, proven=True, loss=1.0)
    figure = plotting.certificates_against_radius({"FedAvg": curve, "WAFL, radius 1": curve}, 2.0, "pixels")
    assert line_colors(figure) == {"FedAvg": NAMED["FedAvg"], "WAFL, radius 1": NAMED["WAFL"]}
    line = plotting.Line([0.0, 1.0], [1.0, 2.0])
    figure = plotting.measure_against_attacked(dict.fromkeys(NAMED, line), "accuracy (%)", "title")
    assert line_colors(figure) == NAMED


def test_a_name_without_a_color_is_an_error() -> None:
    assert drawing.method_color("random moves") == plotting.METHODS["moved"]
    with pytest.raises(ValueError, match="'guess' does not begin with a method's name"):
        drawing.method_color("guess")


def test_texts_are_large() -> None:
    with drawing.large():
        figure = drawn("fig-convergence-mnist-fair")
    figure.canvas.draw()
    (legend,) = figure.legends
    texts = [*legend.get_texts(), *figure.axes[0].get_xticklabels(), figure.axes[0].xaxis.label]
    assert min(text.get_fontsize() for text in texts) >= 12.0
    assert figure.get_figwidth() <= drawing.WIDTH
