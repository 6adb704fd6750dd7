"""Show the progress of each method of a study: rounds, pace, last numbers, failures, remaining work."""

from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from math import prod
from pathlib import Path
from statistics import fmean
from typing import Any

from wafl.base.describe import some
from wafl.base.errors import FolderError
from wafl.base.json_types import check_types, parsed_table
from wafl.config.experiment import Experiment
from wafl.config.method_keys import MethodTable
from wafl.report import charts
from wafl.report.page import Cell, Section, Table
from wafl.studies.folder import Status
from wafl.studies.pace import Lines, Pace, pace_of, point_of

LARGEST = 256 * 2**20
"""The maximum size in bytes of a file for a page."""


def read_lines(path: Path) -> list[dict[str, Any]]:
    """Return the rounds in ``metrics.jsonl``, without an incomplete last line and lines that are not rounds."""
    if not path.is_file():
        return []
    if path.stat().st_size > LARGEST:
        raise FolderError(f"{path} has more than {LARGEST >> 20} MiB: it is too large for a page")
    rows: list[dict[str, Any]] = []
    for line in path.read_bytes().splitlines():
        with suppress(ValueError):
            row = parsed_table(line)
            check_types(row, {"method": str, "round": int})
            rows.append(row)
    return rows


def labels_of(row: Mapping[str, Any], titles: Mapping[str, str]) -> str:
    """Return the name of a line's run: its method, and the swept values."""
    name = str(row["method"]) + "".join(f"-{key}={value}" for key, value in point_of(row).items() if key != "seed")
    return titles.get(name, name)


def titles_of(results: Mapping[str, Any], experiment: Experiment | None) -> dict[str, str]:
    """Return the titles of methods in tables, by their folders' names: WAFL, not wafl."""
    methods = experiment.methods if experiment is not None else []
    named = {each.label: each.method for each in methods if each.label == each.method.lower()}
    return named | {label.lower(): label for label in results.get("methods", {})}


def absent_in(row: Mapping[str, Any]) -> dict[int, str]:
    """Return the clients that were asked to train in a round but left out, each with the reason."""
    pairs: Any = row.get("excluded")
    absent: dict[int, str] = {}
    for pair in pairs if isinstance(pairs, list) else []:  # pyright: ignore[reportUnknownVariableType]
        match pair:
            case [int(client), str(why)] if not why.startswith("loss: "):
                absent[client] = why
            case _:
                pass
    return absent


@dataclass(frozen=True)
class MethodProgress:
    """A method's progress: done, testing, training, interrupted or to come; its pace; and its failures."""

    method: str
    stage: str
    pace: Pace
    failed: Sequence[str]

    @property
    def rounds(self) -> str:
        """The trained rounds of all rounds, as text."""
        return f"{self.pace.round:,} of {self.pace.rounds:,}"

    @property
    def share(self) -> float:
        """The finished fraction of training, from 0 to 1; it is 1 for a run that stopped early."""
        return 1.0 if self.stage == "done" else self.pace.round / max(1, self.pace.rounds)


def progress_of(
    experiment: Experiment,
    results: Mapping[str, Any],
    lines: Lines,
    status: Status,
    titles: Mapping[str, str],
    name: Callable[[int], str] = str,
) -> list[MethodProgress]:
    """Return the progress of each method of an experiment, in the order of training.

    ``name`` returns a client's name.
    """
    by_method: dict[str, list[Mapping[str, Any]]] = {}
    for row in lines:
        by_method.setdefault(row["method"], []).append(row)
    methods: list[MethodProgress] = []
    for method in experiment.methods:
        rows, rounds = by_method.get(method.label, []), method.rounds or experiment.schedule.rounds or 0
        title, count = titles.get(method.label, method.label), _count(rows[-1], method, experiment) if rows else 1
        pace, stage = pace_of(title, rounds, count, rows), "to come"
        if status == "finished" or method.label in results.get("done", ()):
            reached = max((row["round"] + ("diverged" not in row) for row in rows), default=0)
            pace = replace(pace, round=reached, seconds_left=None)
            stage, pace = "done", _tested(pace, {labels_of(row, titles) for row in rows}, results)
        elif status == "running" and all(each.stage == "done" for each in methods):
            stage = "training" if pace.round < rounds else "testing"
        elif rows:
            stage = "interrupted"
        methods.append(MethodProgress(method.method, stage, pace, _failed(rows, name)))
    return methods


def _count(row: Mapping[str, Any], method: MethodTable, experiment: Experiment) -> int:
    """Return the number of runs of a line's method: one per combination of swept values."""
    schedule, table = experiment.schedule.model_dump(exclude_none=True), method.model_dump(exclude_none=True)
    values: dict[str, Any] = {**schedule, **table, **table.get("options", {}), "seed": experiment.seeds}
    return prod(len(values[key]) for key in point_of(row) if isinstance(values.get(key), list))


def _tested(pace: Pace, labels: Collection[str], results: Mapping[str, Any]) -> Pace:
    """Return the pace of a finished method, with its final test on clean data in place of earlier tests."""
    rows = [row for label, row in results["methods"].items() if label in labels and "clean" in row]
    mean = fmean(row["clean"]["mean"] for row in rows) if rows else None
    if mean is None or results["measure"] != "accuracy":
        return replace(pace, test_loss=mean)
    return replace(pace, accuracy=mean / 100.0, test_loss=None)


def _failed(lines: Lines, name: Callable[[int], str]) -> list[str]:
    """Return the runs that diverged, and the clients that were left out, the most frequent first."""
    diverged = [f"the run of seed {row.get('seed')} diverged" for row in lines if "diverged" in row]
    absent = Counter(client for row in lines for client in absent_in(row))
    return diverged + [f"{name(client)} ({times} round{'s' * (times != 1)})" for client, times in absent.most_common()]


COLUMNS: dict[str, Callable[[MethodProgress], Cell]] = {
    "stage": lambda each: Cell(each.stage),
    "round": lambda each: Cell(each.rounds, each.share, part=each.share),
    "rounds/s": lambda each: _number("{:.3g}", each.pace.rounds_per_second),
    "time left": lambda each: Cell(each.pace.left, each.pace.seconds_left or 0.0),
    "loss": lambda each: _number("{:.4g}", each.pace.loss),
    "radius": lambda each: _number("{:.3g}", each.pace.achieved_radius),
    "accuracy": lambda each: _number("{:.1%}", each.pace.accuracy),
    "test loss": lambda each: _number("{:.4g}", each.pace.test_loss),
    "who failed": lambda each: Cell(some(each.failed[:1]), small=some(each.failed[1:], 3)),
}
"""The cells of a method in a table, by column."""


def progress_section(methods: Sequence[MethodProgress]) -> Section | None:
    """Return the section of an unfinished study: current work, remaining work, and each method's progress."""
    if all(each.stage == "done" for each in methods):
        return None
    families = {each.pace.method: each.method for each in methods}
    palette = charts.colors(families, families)
    columns = {"method": [Cell(each.pace.method, color=palette[each.pace.method]) for each in methods]}
    columns |= {column: [make(each) for each in methods] for column, make in COLUMNS.items()}
    now = [
        f"{each.pace.method}: {each.stage}, round {each.rounds}"
        + (f", {each.pace.numbers}." if each.pace.numbers else ".")
        for each in methods
        if each.stage not in ("done", "to come")
    ]
    coming = [each.pace.method for each in methods if each.stage == "to come"]
    lead = " ".join([*now, *([f"To come: {some(coming)}."] if coming else [])])
    return Section("Progress", lead, [Table.of(columns)])


def _number(text: str, value: float | None) -> Cell:
    return Cell("", "") if value is None else Cell(text.format(value), value)


def rounds_in_words(reached: Mapping[str, tuple[int, int]]) -> str:
    """Describe the number of trained rounds, by method if they differ.

    ``reached`` contains the trained and the total rounds of each method.
    """
    texts = {method: f"{now:,}" if now >= end else f"{now:,} of {end:,}" for method, (now, end) in reached.items()}
    if len(set(texts.values())) == 1:
        return next(iter(texts.values()))
    return ", ".join(f"{method} {text}" for method, text in texts.items())
