"""The tables of the second leaderboard, from its numbers and its registration."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from statistics import fmean
from typing import Any

from research.experiment import ROOT
from research.leaderboard.page import CONTROL, NOTHING, TITLES, Board, against, average_ranks, left_out, rank_table
from research.markdown import folded, table
from research.registration import registered

CRITERIA = {
    "scaled": "log-loss with a temperature",
    "loss": "log-loss",
    "accuracy": "accuracy",
}
"""The metrics that choose a setting; each is also shown for the setting that it chose."""

COLUMNS = (("scaled", "loss"), ("loss", "loss"), ("accuracy", "loss"), ("accuracy", "accuracy"))
"""The numbers of a method on a data set: the criterion that chose the setting, and the number of its view."""


def page() -> dict[str, str]:
    """Return the tables of the page by name, from the committed numbers if there are any."""
    path = ROOT / "docs" / "evidence" / "natural-2.json"
    return tables(json.loads(path.read_bytes()), registered("natural-2")[0]) if path.is_file() else {}


def tables(numbers: Mapping[str, Any], registration: Mapping[str, Any]) -> dict[str, str]:
    """Return each table of the page, by its name."""
    views = {by: view(numbers, registration, by) for by in CRITERIA}
    primary = views["scaled"]
    data = "\n\n".join(_of_data(views, numbers, task) for task in numbers["results"]) or NOTHING
    parts = {"leaderboard-2-data": data + left_out(numbers)}
    if not primary.counted:
        return {**dict.fromkeys(("leaderboard-2-verdict", "leaderboard-2", "leaderboard-2-off"), NOTHING), **parts}
    others = [folded(f"The same by {words}", _ranks(views[by])) for by, words in CRITERIA.items() if by != "scaled"]
    return {
        "leaderboard-2-verdict": _verdict(primary),
        "leaderboard-2": "\n\n".join([_ranks(primary), *others]),
        "leaderboard-2-off": _off(primary, numbers),
        **parts,
    }


def view(numbers: Mapping[str, Any], registration: Mapping[str, Any], criterion: str) -> Board:
    """Return the numbers of the settings that a criterion chose, with that criterion as the metric of all data sets."""
    metric = "accuracy" if criterion == "accuracy" else "loss"

    def renamed(scores: Mapping[str, Any] | None) -> dict[str, Any] | None:
        return None if scores is None else {**scores, metric: scores[criterion]}

    results = {
        task: {
            row: {
                "splits": [{track: renamed(of[criterion]) for track, of in split.items()} for split in each["splits"]]
            }
            for row, each in rows.items()
        }
        for task, rows in numbers["results"].items()
    }
    common = {**registration["common"], "metric": metric}
    return Board({**numbers, "results": results}, {**registration, "common": common})


def _ranks(board: Board) -> str:
    """Return the table of average ranks, the best on shifted data first."""
    ranks = {track: average_ranks(board.board(track)) for track in TITLES}
    return rank_table(board, ranks, sorted(board.ranked, key=ranks["shift"].__getitem__))


def _verdict(board: Board) -> str:
    """Return the registered verdict, in words."""
    verdict, lines = board.registration["verdict"], list[str]()
    for track, title in TITLES.items():
        values = board.board(track)
        ranks, p = average_ranks(values), against(CONTROL, values)
        sure = [row for row in p if p[row] < verdict["level"]]
        ahead, behind = ([row for row in sure if (ranks[row] < ranks[CONTROL]) is side] for side in (True, False))
        ours = "; ".join(f"{row} has {ranks[row]:.1f} (p = {p[row]:.2g})" for row in verdict["ours"] if row in p)
        lines.append(
            f"- On data {title}, by log-loss with a temperature, FedAvg has the average rank {ranks[CONTROL]:.1f} of "
            f"{len(board.ranked)} methods on {len(board.counted)} data sets; {ours}. Significantly ahead of FedAvg: "
            f"{', '.join(ahead) or 'none'}; behind: {', '.join(behind) or 'none'}."
        )
    return "\n".join(lines)


def _off(board: Board, numbers: Mapping[str, Any]) -> str:
    """Return on how many counted data sets the chosen size is off, and on how many it is the largest."""
    cells: list[list[str]] = []
    for row in board.ranked:
        cells.append([row])
        for track in TITLES:
            for by in CRITERIA:
                chosen = [numbers["results"][task][row]["chosen"][track][by] for task in board.counted]
                cells[-1].append(f"{sum(each['off'] for each in chosen)} / {sum(each['top'] for each in chosen)}")
    heads = [f"{words}, {title}" for title in TITLES.values() for words in CRITERIA.values()]
    return table([f"off / largest, of {len(board.counted)}", *heads], cells)


def _of_data(views: Mapping[str, Board], numbers: Mapping[str, Any], task: str) -> str:
    """Return the tables of a data set, one per track."""
    primary, rows, counted = views["scaled"], numbers["results"][task], task in views["scaled"].counted
    level, parts = primary.registration["verdict"]["level"], list[str]()
    for track, title in TITLES.items():
        differences, cells = primary.differences(task, track), list[list[str]]()
        for row in rows:
            over = ""
            if row in differences:
                mean, p = differences[row]
                over = f"{mean.value:+.3f} ± {mean.half:.3f}"
                over = f"**{over}**" if p < level and counted else over
            shown = [
                _mean(views[by].values(task, row, track, name), 1 if name == "accuracy" else 3) for by, name in COLUMNS
            ]
            chosen = rows[row]["chosen"][track]["scaled"]
            size = "off" if chosen["off"] else f"{chosen['size']:g}"
            cells.append([row, shown[0], over, *shown[1:], size, f"{chosen['temperature']:.2f}"])
        heads = [
            "with a temperature",
            "over FedAvg",
            "without",
            "chosen by accuracy",
            "accuracy",
            "size",
            "temperature",
        ]
        parts.append(table([f"log-loss, {title}", *heads], cells))
    seen, unseen = numbers["clients"][task]
    note = "" if counted else "; not counted"
    return folded(f"{task}: {seen} clients train, {unseen} are unseen{note}", "\n\n".join(parts))


def _mean(values: Sequence[float | None], digits: int) -> str:
    kept = [value for value in values if value is not None]
    return f"{fmean(kept):.{digits}f}" if kept else ""
