"""The tables of docs/leaderboard.md, from the numbers of the leaderboard and its registration."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Any

from research.experiment import ROOT
from research.markdown import folded, table
from research.registration import registered
from research.significance import holm, resampled
from research.statistics import Mean

CONTROL, OURS = "FedAvg", "WAFL"
FIRST = (CONTROL, OURS, "WAFL, shape of clients", "WAFL, radius auto", "random moves")
"""The rows that are always in the short table."""
TITLES = {"clean": "as they are", "shift": "shifted"}
NOTHING = "Nothing is made yet."


@dataclass(frozen=True)
class Board:
    """The numbers, with their registration."""

    numbers: Mapping[str, Any]
    registration: Mapping[str, Any]

    def values(self, task: str, row: str, track: str, name: str) -> list[float | None]:
        """Return a number in every split; None where training diverged."""
        splits = self.numbers["results"][task][row]["splits"]
        return [None if split[track] is None else split[track].get(name) for split in splits]

    def metric(self, task: str) -> str:
        """Return the metric of a task."""
        common = self.registration["common"]["metric"]
        return self.registration["tasks"][task].get("metric", common)

    def value(self, task: str, row: str, track: str) -> float:
        """Return the mean over splits of the metric, where larger is better; minus infinity if a run diverged."""
        values = self.values(task, row, track, self.metric(task))
        sign = -1.0 if self.metric(task) == "loss" else 1.0
        return -math.inf if None in values else sign * fmean(value or 0.0 for value in values)

    @property
    def ranked(self) -> list[str]:
        """The methods that every data set has."""
        return [name for name, about in self.registration["methods"].items() if "measurements" not in about]

    @property
    def counted(self) -> list[str]:
        """The data sets that count: natural, each once, and complete."""
        return [
            task
            for task, rows in self.numbers["results"].items()
            if self.registration["tasks"][task].get("counted", True) and set(self.ranked) <= set(rows)
        ]

    def board(self, track: str) -> dict[str, dict[str, float]]:
        """Return the values of all methods on all counted data sets."""
        return {task: {row: self.value(task, row, track) for row in self.ranked} for task in self.counted}

    def differences(self, task: str, track: str) -> dict[str, tuple[Mean, float]]:
        """Return each method minus FedAvg, with its corrected interval and its p-value after Holm.

        Larger is better.
        """
        rows = self.numbers["results"][task]
        seen, unseen = self.numbers["clients"][task]
        sign, result = -1.0 if self.metric(task) == "loss" else 1.0, dict[str, tuple[Mean, float]]()
        control = self.values(task, CONTROL, track, self.metric(task)) if CONTROL in rows else [None]
        for row in (row for row in self.registration["methods"] if row in rows and row != CONTROL):
            values = self.values(task, row, track, self.metric(task))
            if None not in values and None not in control:
                pairs = zip(values, control, strict=True)
                result[row] = resampled([sign * ((one or 0.0) - (other or 0.0)) for one, other in pairs], unseen / seen)
        adjusted = holm([p for _, p in result.values()])
        return {row: (mean, p) for (row, (mean, _)), p in zip(result.items(), adjusted, strict=True)}


def page() -> dict[str, str]:
    """Return the tables of the page by name, from the committed numbers."""
    numbers = json.loads((ROOT / "docs" / "leaderboard.json").read_bytes())
    return tables(numbers, registered("natural")[0])


def tables(numbers: Mapping[str, Any], registration: Mapping[str, Any]) -> dict[str, str]:
    """Return each table of the page, by its name."""
    board = Board(numbers, registration)
    if not board.counted:
        return dict.fromkeys(("leaderboard-verdict", "leaderboard", "leaderboard-all", "leaderboard-data"), NOTHING)
    ranks = {track: average_ranks(board.board(track)) for track in TITLES}
    order = sorted(board.ranked, key=ranks["shift"].__getitem__)
    first = {*FIRST, *[row for row in order if row not in FIRST][: 8 - len(FIRST)]}
    return {
        "leaderboard-verdict": _verdict(board, ranks),
        "leaderboard": rank_table(board, ranks, [row for row in order if row in first]),
        "leaderboard-all": rank_table(board, ranks, order),
        "leaderboard-data": "\n\n".join(_of_data(board, task) for task in numbers["results"]) + left_out(numbers),
    }


def _verdict(board: Board, ranks: Mapping[str, Mapping[str, float]]) -> str:
    """Return the registered verdict, in words."""
    lines: list[str] = []
    for track in ("shift", "clean"):
        p, level = against(CONTROL, board.board(track)), board.registration["verdict"]["level"]
        better, worse = (
            [row for row in p if p[row] < level and (ranks[track][row] < ranks[track][CONTROL]) is ahead]
            for ahead in (True, False)
        )
        above, below = _counts(board, OURS, track)
        lines.append(
            f"- {'On shifted data, the primary track' if track == 'shift' else 'On data as they are'}, WAFL's average "
            f"rank is {ranks[track][OURS]:.1f} and FedAvg's is {ranks[track][CONTROL]:.1f}, of {len(board.ranked)} "
            f"methods on {len(board.counted)} data sets (p = {p[OURS]:.2g} after Holm's procedure). Significantly "
            f"ahead of FedAvg: {', '.join(better) or 'no method'}; significantly behind: "
            f"{', '.join(worse) or 'no method'}. {_single(above, below)}"
        )
    ours, p = ranks["shift"][OURS] < ranks["shift"][CONTROL], against(CONTROL, board.board("shift"))[OURS]
    sure = p < board.registration["verdict"]["level"]
    words = {(True, True): "is better than FedAvg's", (True, False): "is worse than FedAvg's"}
    verdict = words.get((sure, ours), "does not differ significantly from FedAvg's")
    return "\n".join([f"**Under a declared shift, WAFL's rank {verdict} on unseen people and places.**\n", *lines])


def _single(above: int, below: int) -> str:
    """Return a sentence about single data sets."""
    if not above and not below:
        return "On no single data set does WAFL differ significantly from FedAvg."
    better, worse = ({0: "no data set", 1: "one data set"}.get(each, f"{each} data sets") for each in (above, below))
    return f"WAFL is significantly better than FedAvg on {better} and significantly worse on {worse}."


def _counts(board: Board, row: str, track: str) -> tuple[int, int]:
    """Return the numbers of counted data sets on which a method is certainly above FedAvg, and below."""
    level = board.registration["verdict"]["level"]
    sure = [each[row][0].value for task in board.counted if row in (each := board.differences(task, track))
            and each[row][1] < level]  # fmt: skip
    return sum(value > 0.0 for value in sure), sum(value < 0.0 for value in sure)


def rank_table(board: Board, ranks: Mapping[str, Mapping[str, float]], rows: Sequence[str]) -> str:
    """Return the average ranks of methods on both tracks, against the control."""
    p = {track: against(CONTROL, board.board(track)) for track in TITLES}
    cells = [
        [
            row,
            *(
                cell
                for track in TITLES
                for cell in (
                    f"{ranks[track][row]:.1f}",
                    "" if row == CONTROL else f"{p[track][row]:.2g}",
                    "" if row == CONTROL else " / ".join(map(str, _counts(board, row, track))),
                )
            ),
        ]
        for row in rows
    ]
    heads = [cell for title in TITLES.values() for cell in (f"rank, {title}", "p", "above / below")]
    return table(["method", *heads], cells)


def _of_data(board: Board, task: str) -> str:
    """Return the table of a data set: registered rows, the metric on both tracks, and the clients' worst tenth."""
    rows, metric = board.numbers["results"][task], board.metric(task)
    differences, counted = {track: board.differences(task, track) for track in TITLES}, task in board.counted
    level, digits = board.registration["verdict"]["level"], 3 if metric == "loss" else 1

    def shown(row: str, track: str, name: str) -> str:
        values = [value for value in board.values(task, row, track, name) if value is not None]
        return f"{fmean(values):.{3 if name == 'loss' else 1}f}" if values else ""

    def over(row: str, track: str) -> str:
        if row not in differences[track]:
            return ""
        mean, p = differences[track][row]
        text = f"{mean.value:+.{digits}f} ± {mean.half:.{digits}f}"
        return f"**{text}**" if p < level and counted else text

    names = [name for name in dict.fromkeys((metric, "auc", "worst")) if shown(next(iter(rows)), "clean", name)]
    cells = [
        [row, *(cell for track in TITLES for cell in (*(shown(row, track, name) for name in names), over(row, track)))]
        for row in rows
    ]
    words = {"accuracy": "accuracy", "loss": "log-loss", "auc": "AUC", "worst": "worst tenth"}
    shorts = [*(words[name] for name in names), "minus FedAvg"]
    heads = [f"{word}, {title}" for title in TITLES.values() for word in shorts]
    seen, unseen = board.numbers["clients"][task]
    note = "" if counted else "; not counted"
    return folded(f"{task}: {seen} training clients, {unseen} unseen{note}", table(["", *heads], cells))


def left_out(numbers: Mapping[str, Any]) -> str:
    """Return a sentence about missing data sets and unfinished rows, if there are any."""
    absent = [f"{name} ({what} was not there)" for name, what in numbers["absent"].items()]
    left = [
        f"{', '.join(rows)} on {name}" if name in numbers["results"] else f"{name} (not finished)"
        for name, rows in numbers["unfinished"].items()
    ]
    return f"\n\nNot made: {'; '.join(absent + left)}." if absent or left else ""


def average_ranks(board: Mapping[str, Mapping[str, float]]) -> dict[str, float]:
    """Return each method's rank, 1 being the highest value, averaged over data sets; equal values share their ranks.

    The board contains, by data set, the value of each method; every data set must have the same methods.
    """
    from scipy.stats import rankdata

    methods = list(next(iter(board.values())))
    ranks = [rankdata([-row[method] for method in methods]) for row in board.values()]
    return {method: fmean(float(row[index]) for row in ranks) for index, method in enumerate(methods)}


def against(control: str, board: Mapping[str, Mapping[str, float]]) -> dict[str, float]:
    """Return p-values of each method's average rank against the control's, adjusted by Holm.

    Demsar, "Statistical comparisons of classifiers over multiple data sets", JMLR 2006, section 3.2.2.
    """
    from scipy.stats import norm

    ranks = average_ranks(board)
    error = math.sqrt(len(ranks) * (len(ranks) + 1) / (6.0 * len(board)))
    others = [method for method in ranks if method != control]
    p = [2.0 * float(norm.sf(abs(ranks[method] - ranks[control]) / error)) for method in others]
    return dict(zip(others, holm(p), strict=True))
