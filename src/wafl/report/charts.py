"""Build charts for Plotly as plain dictionaries, and strips of images as PNGs; the page chooses light or dark."""

import base64
import io
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from html import escape
from typing import Any

import numpy as np
from numpy.typing import NDArray

from wafl.base.describe import visible
from wafl.report.plotting import styles

Chart = dict[str, Any]
MOST_POINTS = 300
"""The maximum number of points of one line; more could not be distinguished."""
BLUE = "#0072B2"
SYMBOLS = ("circle", "square", "triangle-up", "triangle-down", "diamond", "cross", "x")


def shown(name: object) -> str:
    """Escape a name for Plotly, which interprets some HTML in its texts.

    >>> shown("<b>client</b>")
    '&lt;b&gt;client&lt;/b&gt;'
    """
    return escape(visible(str(name)), quote=False)


def on_lines(texts: Sequence[str]) -> str:
    """Return texts for Plotly, one per line."""
    return "<br>".join(map(shown, texts))


@dataclass(frozen=True)
class Curve:
    """A line: its name, its points, and the interval around it, if there is one."""

    name: str
    x: Sequence[float]
    y: Sequence[float]
    low: Sequence[float] | None = None
    high: Sequence[float] | None = None
    dash: bool = False
    of: str = ""
    """The line with the same color; by default itself."""


def colors(names: Iterable[str], methods: Mapping[str, str] | None = None) -> dict[str, str]:
    """Return the color of each name: the color of its method, which is the same in every figure."""
    unique = list(dict.fromkeys(names))
    families = [(methods or {}).get(name, name) for name in unique]
    return {name: style["color"] for name, style in zip(unique, styles(unique, families), strict=True)}


def lines(
    curves: Sequence[Curve],
    x: str,
    y: str,
    palette: Mapping[str, str] | None = None,
    *,
    log: bool = False,
    marks: bool = False,
    zero: bool = False,
    names: Mapping[float, str] | None = None,
) -> Chart:
    """Return a chart of lines with bars for intervals.

    ``log`` applies to the horizontal axis, and ``zero`` draws a line at 0. ``names`` are the names of x values in hover
    texts.
    """
    where = "%{customdata}" if names else f"{shown(x)} %{{customdata:.4~g}}"
    owners = [curve.of or curve.name for curve in curves]
    palette, order = palette or colors(owners), list(dict.fromkeys(owners))
    data: list[Any] = []
    every = [x for curve in curves if curve.low is not None for x in curve.x]
    dodge = 0.0 if log or not every else 0.004 * (max(every) - min(every))  # so that intervals do not cover each other
    for number, (curve, owner) in enumerate(zip(curves, owners, strict=True)):
        color, thin = palette.get(owner, BLUE), _thinned(len(curve.x))
        trace: Chart = {
            "type": "scatter",
            "mode": "lines+markers" if marks else "lines",
            "name": shown(curve.name),
            "x": [curve.x[index] + dodge * (number - (len(curves) - 1) / 2) for index in thin],
            "customdata": [shown(names[curve.x[index]]) if names else curve.x[index] for index in thin],
            "y": [curve.y[index] for index in thin],
            "line": {"color": color, "width": 2, "dash": "dash" if curve.dash else "solid"},
            "marker": {"color": color, "size": 7, "symbol": SYMBOLS[order.index(owner) % len(SYMBOLS)]},
            "hovertemplate": f"{shown(curve.name)}<br>{where}: <b>%{{y:.4~g}}</b><extra></extra>",
        }
        if curve.low is not None and curve.high is not None:
            trace["error_y"] = {
                "array": [curve.high[index] - curve.y[index] for index in thin],
                "arrayminus": [curve.y[index] - curve.low[index] for index in thin],
                "color": color,
            }
        data.append(trace)
    axis: Chart = {"title": {"text": on_lines(x.split("\n"))}, "zeroline": False}
    return _chart(data, {**axis, "type": "log"} if log else axis, {"title": {"text": shown(y)}, "zeroline": zero})


def strip(
    groups: Mapping[str, Sequence[tuple[str, float]]], y: str, palette: Mapping[str, str], unit: str, test: str
) -> Chart:
    """Return a chart with one column of points per group, each point a named value, over a box of the quartiles.

    Hover texts name the ``test``.
    """
    data: list[Any] = [
        {
            "type": "box",
            "name": shown(name),
            "y": [value for _, value in points],
            "text": [shown(client) for client, _ in points],
            "marker": {"color": palette.get(name, BLUE), "size": 6, "opacity": 0.75},
            "line": {"color": palette.get(name, BLUE), "width": 1},
            "hovertemplate": f"%{{text}}: <b>%{{y:.4~g}}{unit}</b><br>{shown(test)}<extra>{shown(name)}</extra>",
        }
        for name, points in groups.items()
    ]
    return _chart(data, {"automargin": True}, {"title": {"text": shown(y)}, "zeroline": False})


def bars(
    names: Sequence[str],
    series: Mapping[str, Sequence[float]],
    value: str,
    palette: Mapping[str, str] | None = None,
    *,
    stacked: bool = False,
) -> Chart:
    """Return a chart with one bar per name and series; the bars of a name are side by side, or ``stacked``."""
    palette = palette or colors(series)
    data: list[Any] = [
        {
            "type": "bar",
            "name": shown(label),
            "x": [shown(name) for name in names],
            "y": list(values),
            "marker": {"color": palette.get(label, BLUE)},
            "hovertemplate": f"%{{x}}: <b>%{{y:.4~g}}</b><extra>{shown(label)}</extra>",
        }
        for label, values in series.items()
    ]
    chart = _chart(data, {"type": "category", "automargin": True}, {"title": {"text": shown(value)}})
    chart["layout"]["barmode"] = "stack" if stacked else "group"
    return chart


def heatmap(
    rows: Sequence[Sequence[float | None]], across: Sequence[str], down: Sequence[str], what: str, y: str = ""
) -> Chart:
    """Return a chart of colored squares; ``rows`` go down, with the first on top."""
    trace: Chart = {
        "type": "heatmap",
        "z": [list(row) for row in rows],
        "x": [shown(name) for name in across],
        "y": [shown(name) for name in down],
        "colorbar": {"title": {"text": shown(what), "side": "right"}, "thickness": 12, "outlinewidth": 0},
        "hovertemplate": f"%{{y}}, %{{x}}: <b>%{{z:.4~g}}</b><extra>{shown(what)}</extra>",
    }
    ticks: Chart = {"type": "category", "automargin": True, "showgrid": False}
    falling = {**ticks, "title": {"text": shown(y)}, "autorange": "reversed"}
    return _chart([trace], ticks, falling, height=min(720, max(280, 120 + 18 * len(down))))


def _chart(data: list[Any], xaxis: Chart, yaxis: Chart, height: int = 380) -> Chart:
    return {"data": data, "layout": {"xaxis": xaxis, "yaxis": yaxis, "height": height}}


def _thinned(count: int) -> list[int]:
    """Return the indices of the drawn points of a line: all, or evenly spaced, always with both ends."""
    if count <= MOST_POINTS:
        return list(range(count))
    return sorted({round(step * (count - 1) / (MOST_POINTS - 1)) for step in range(MOST_POINTS)})


MOST_SIDE = 64
"""The approximate number of pixels per side to which larger images are reduced."""
GAP = 0.06
"""The gap between two images, as a fraction of their width."""

Array = NDArray[np.floating]


def image_shape(shape: tuple[int, ...]) -> bool:
    """Return whether examples of this shape can be shown: gray ``[H, W]``, ``[1, H, W]``, or color ``[3, H, W]``."""
    sides = shape[-2:]
    return len(shape) in (2, 3) and (len(shape) == 2 or shape[0] in (1, 3)) and min(sides) >= 4


def image_strip(images: Array, low: float, high: float) -> str:
    """Return a PNG of images ``[N, ...]`` side by side, as a data URI; ``low`` is black and ``high`` white."""
    pixels = np.clip((_color(images) - low) / max(high - low, 1e-12), 0.0, 1.0)
    return _png(_side_by_side(pixels, np.ones((*pixels.shape[:-1], 1))))


def image_difference(shifted: Array, original: Array) -> str:
    """Return a PNG of differences side by side: increases are blue, decreases orange, and no change is clear."""
    delta = _color(shifted - original).mean(-1)
    opacity = np.clip(np.abs(delta) / max(float(np.abs(delta).max()), 1e-12), 0.0, 1.0)[..., None]
    blue, orange = np.array([0.0, 0.45, 0.70]), np.array([0.84, 0.37, 0.0])
    tint = np.where(delta[..., None] >= 0, blue, orange)
    return _png(_side_by_side(np.broadcast_to(tint, (*delta.shape, 3)), opacity))


def _color(images: Array) -> Array:
    """Return images as ``[N, H, W, 3]``, reduced if they are large."""
    if images.ndim == 3:
        images = images[:, None]
    step = max(1, max(images.shape[-2:]) // MOST_SIDE)
    images = images[:, :, ::step, ::step]
    return np.moveaxis(np.broadcast_to(images, (len(images), 3, *images.shape[2:])), 1, -1)


def _side_by_side(pixels: Array, alpha: Array) -> Array:
    """Return one image ``[H, N (W + gap), 4]`` with transparent gaps."""
    both = np.concatenate([pixels, alpha], axis=-1)
    gap = max(1, round(GAP * both.shape[2]))
    padded = np.pad(both, ((0, 0), (0, 0), (0, gap), (0, 0)))
    return np.concatenate(list(padded), axis=1)[:, :-gap]


def _png(pixels: Array) -> str:
    from PIL import Image  # matplotlib needs this package too, and it loads far faster

    file = io.BytesIO()
    Image.fromarray(np.round(255 * pixels).astype(np.uint8)).save(file, format="png")
    return "data:image/png;base64," + base64.b64encode(file.getvalue()).decode()
