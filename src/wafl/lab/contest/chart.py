"""How many times as long as wafl each contestant takes, as bars."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from wafl.report.plotting import COLORS


def chart(contests: Sequence[Mapping[str, Any]], path: Path) -> None:
    """Draw one panel per work, with one bar per contestant and a line from its lowest to its highest turn."""
    from matplotlib.figure import Figure

    figure: Any = Figure(figsize=(7.0, 1.0 + 1.9 * len(contests)), layout="constrained")
    panels: Any = figure.subplots(len(contests), squeeze=False)
    for axes, contest in zip(panels[:, 0], contests, strict=True):
        rows = {name: row["ratio"] for name, row in contest["rows"].items() if "failed" not in row}
        names, middle = list(rows)[::-1], [row["median"] for row in rows.values()][::-1]
        low = [row["median"] - row["lowest"] for row in rows.values()][::-1]
        high = [row["highest"] - row["median"] for row in rows.values()][::-1]
        colors = [COLORS[0] if name == "wafl" else "#999999" for name in names]
        axes.barh(names, middle, xerr=[low, high], color=colors, height=0.6)
        for place, value in enumerate(middle):
            axes.text(value, place + 0.32, f" {value:.2f}", va="bottom", fontsize=8)
        axes.set_xscale("log")
        axes.margins(y=0.18)
        axes.set_title(f"{contest['kind']}, {contest['clients']} clients", fontsize=10)
    panels[-1, 0].set_xlabel(f"times as long as wafl ({contests[0]['clock']} time, logarithmic)")
    figure.savefig(path, dpi=150)
