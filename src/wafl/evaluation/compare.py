"""Compare many runs under many attacks on many shares of clients: one pass, one table."""

import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import fmean, stdev
from typing import TYPE_CHECKING, Any

from wafl import models
from wafl.attacks import Attack, Function
from wafl.base.checks import check_seed
from wafl.base.conditions import CLEAN, attacked_clients, shorten
from wafl.base.files import write_whole
from wafl.base.shown import shows
from wafl.data.arguments import check_federation
from wafl.data.federation import Federation
from wafl.data.mistakes import what_is
from wafl.evaluation.evaluate import check_attack, check_share, scores_of
from wafl.evaluation.score import Score, percent_or_loss, score_tables
from wafl.results.frames import to_csv, to_frame, to_html, varying
from wafl.results.run import Run

if TYPE_CHECKING:
    from wafl.report.plotting import Line


@dataclass(frozen=True)
class Row:
    """One run, with its seed and its sweep's varied values (``point``), under one attack on a share of the clients."""

    run: str
    attacked: float
    score: Score
    seed: int | None = None
    point: Mapping[str, Any] = field(default_factory=dict[str, Any])
    method: str = ""

    def values(self) -> dict[str, Any]:
        """Return the row as plain values, by column."""
        about = {"run": self.run, **self.point, "seed": self.seed, "attacked": self.attacked}
        return {**about, **self.score.summary()}


@dataclass(frozen=True)
class Comparison:
    """A table of scores in the order of runs, attacks and shares, the result of :func:`compare`."""

    rows: list[Row]
    data: str = ""
    """The data set and its clients, in words."""
    model: str = ""
    """The model, in words."""

    def to_pandas(self, *, all: bool = False) -> Any:
        """Return a ``pandas.DataFrame`` (``wafl-learn[pandas]``) of the rows, with columns that differ, or ``all``."""
        return to_frame(lambda: self._values(all))

    def _values(self, all: bool = False) -> list[dict[str, Any]]:
        rows = [row.values() for row in self.rows]
        return rows if all else varying(rows, keep=("run", "accuracy", "loss"))

    def plot(self, path: str | os.PathLike[str] | None = None, *, against: str | None = None) -> Any:
        """Plot the accuracy in percent (for regression, the loss).

        Lines are means over seeds, with standard deviations. The horizontal axis is the share of attacked clients, with
        one line per run. With ``against``, it is a swept number such as ``"gamma"``, with one line per test. If
        ``path`` is given, the figure is saved there.
        """
        from wafl.report.plotting import measure_against_attacked, measure_against_parameter

        file = None if path is None else Path(path)
        measure = "loss" if self.rows[0].score.accuracy is None else "accuracy (%)"
        if against is not None:
            return measure_against_parameter(
                self._by_parameter(against), against, measure, "; ".join(self._attacks()) or "clean data", file
            )
        tests = self._attacks()
        if len(tests) > 1:
            raise ValueError(f"there are {len(tests)} attacks ({'; '.join(tests)}): compare under one, or set against=")
        lines: dict[str, dict[float, list[float]]] = {}
        for row in self.rows:
            lines.setdefault(row.run, {}).setdefault(100.0 * row.attacked, []).append(percent_or_loss(row.score))
        methods = list({row.run: row.method or row.run for row in self.rows}.values())
        drawn = {run: _line(points) for run, points in lines.items()}
        return measure_against_attacked(drawn, measure, tests[0] if tests else "clean data", file, methods)

    def _by_parameter(self, name: str) -> "dict[str, dict[str, Line]]":
        """Return, by method, one line per test, with the values of all seeds by the parameter."""
        known = sorted({key for row in self.rows for key in row.point})
        if not all(isinstance(row.point.get(name), int | float) for row in self.rows):
            raise ValueError(
                f"against={name!r} is not a number that the runs were swept over; "
                f"they were swept over {', '.join(known) or 'nothing'}"
            )
        values: dict[str, dict[str, dict[float, list[float]]]] = {}
        several = len(self._attacks()) > 1
        for row in self.rows:
            attack = row.score.attack
            clean = attack == "none" or row.attacked == 0
            test = CLEAN if clean else attacked_clients(row.attacked, shorten(attack) if several else "")
            points = values.setdefault(row.method, {}).setdefault(test, {})
            points.setdefault(float(row.point[name]), []).append(percent_or_loss(row.score))
        return {method: {test: _line(points) for test, points in tests.items()} for method, tests in values.items()}

    def _attacks(self) -> list[str]:
        """Return the attacks of the table in words, each once."""
        return list(dict.fromkeys(row.score.attack for row in self.rows if row.score.attack != "none"))

    def _repr_html_(self) -> str:
        return to_html(repr(self), self._values())

    def __rich__(self) -> Any:
        tested: dict[str, dict[str, dict[float, list[Score]]]] = {}
        for row in self.rows:
            shares = tested.setdefault(row.score.attack, {}).setdefault(row.run, {})
            shares.setdefault(row.attacked, []).append(row.score)
        return score_tables(tested)

    def __str__(self) -> str:
        from wafl.evaluation.tables import as_text

        return as_text(self.__rich__())

    def __repr__(self) -> str:
        runs, attacks = ({getattr(row, name) for row in self.rows} for name in ("run", "attacked"))
        return f"Comparison({len(self.rows)} rows: {len(runs)} runs, {len(attacks)} shares of attacked clients)"

    def report(self, path: str | os.PathLike[str] = "report.html") -> Path:
        """Write a page with the table, figures and each client (needs ``wafl-learn[report]``); return the file."""
        from wafl.report.page import Page, Study, check_page_packages, write_page

        check_page_packages()
        facts = {"unit": self.rows[0].score.unit, "runs": str(len({row.run for row in self.rows}))}
        return write_page(Page("WAFL report", [Study("comparison", self.sections(), facts=facts)]), Path(path))

    def sections(self) -> list[Any]:
        """Return the sections of a page about the comparison."""
        from wafl.report import sections
        from wafl.report.page import Conditions, Tested

        measure = "loss" if self.rows[0].score.accuracy is None else "accuracy"
        attacks = self._attacks()
        tested: list[Tested] = []
        tests: dict[str, dict[str, list[tuple[str, float]]]] = {}
        methods = {row.run: row.method or row.run for row in self.rows}
        for name, method in methods.items():
            rows = [row for row in self.rows if row.run == name]
            clean = [row.score for row in rows if row.score.attack == "none" or row.attacked == 0]
            shares: dict[float, list[float]] = {}
            for row in rows:
                if row.score.attack != "none" and row.score.attack == attacks[0] and row.attacked > 0:
                    shares.setdefault(row.attacked, []).append(percent_or_loss(row.score))
            worst = [percent_or_loss(score.worst_client) for score in clean]
            tested.append(Tested(name, method, [percent_or_loss(score) for score in clean], shares, worst))
        for row in self.rows:
            plain = row.score.attack == "none"
            parts = {"clean data" if plain else attacked_clients(row.attacked, shorten(row.score.attack)): row.score}
            if plain and row.score.unseen is not None:
                parts[row.score.name_of_unseen] = row.score.unseen
            for test, score in parts.items():
                points = [(client.name, percent_or_loss(client)) for client in score.per_client]
                tests.setdefault(test, {}).setdefault(row.run, points)
        shifts = (row.score.unseen.shift for row in self.rows if row.score.unseen is not None)
        conditions = Conditions(self.data, self.model, "; ".join(attacks), next(shifts, ""))
        blocks = [
            sections.methods(tested, measure, conditions),
            sections.attacked(tested, measure, conditions) if attacks else None,
            sections.by_client(tests, methods, measure, conditions),
        ]
        return [section for section in blocks if section is not None]

    def save(self, folder: str | os.PathLike[str]) -> None:
        """Write ``comparison.csv`` and ``comparison.json`` to the folder."""
        records = [row.values() for row in self.rows]
        path = Path(folder)
        path.mkdir(parents=True, exist_ok=True)
        write_whole(path / "comparison.csv", to_csv(records))
        write_whole(path / "comparison.json", json.dumps(records, indent=1).encode())


@shows("compare")
def compare(
    runs: Mapping[str, Run | Sequence[Run]] | Sequence[Run],
    clients: Federation,
    *,
    attacks: Sequence[Attack | Function | None] | Attack | Function | None = None,
    attacked: Sequence[float] = (1.0,),
    unseen: Federation | None = None,
    seed: int = 0,
    progress: bool | None = None,
) -> Comparison:
    """Evaluate every run under every attack, for every share of attacked clients.

    An attack that moves each example separately moves it only once, whatever the number of shares. Each row equals the
    result of :func:`wafl.evaluate`.

    See Also:
        :func:`wafl.evaluate`, :func:`wafl.sweep`

    Args:
        runs: trained models by name, or several seeds of one model by name. Runs in a sequence are named by their
            methods and by the varied values of a sweep.
        clients: the clients with the test examples.
        attacks: one or several attacks, shifts or functions of your own; None means clean data.
        attacked: shares of the clients to attack, each in [0, 1].
        unseen: clients that took no part in training, as in :func:`wafl.evaluate`.
        seed: the seed of the attacked clients and of random attacks.
        progress: whether to show progress; by default on a terminal and in notebooks.
    """
    if isinstance(runs, Federation):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise TypeError("the runs and the clients are swapped: call compare(runs, clients)")
    check_federation("compare(runs, clients)", clients)
    check_seed(seed)
    for share in attacked:
        check_share(share)
    named = _named(runs)
    if not named:
        raise ValueError("there are no runs to compare")
    given = list(attacks) if isinstance(attacks, Sequence) and not isinstance(attacks, str) else [attacks]
    every = [check_attack(attack, clients) for attack in given]
    shares = [share for attack in every for share in (attacked if attack is not None else (0.0,))]
    rows: list[Row] = []
    for name, run in named:
        trained_with = run.settings.get("schedule", {}).get("seed")
        scores = scores_of(run, clients, unseen, every, attacked, seed)
        for share, score in zip(shares, scores, strict=True):
            rows.append(Row(name, share, score, trained_with, run.point, run.method))
    kinds = dict.fromkeys(models.title(run.module) for _, run in named)
    return Comparison(rows, clients.title, ", ".join(kinds))


def _line(points: Mapping[float, Sequence[float]]) -> "Line":
    """Return means by x, and standard deviations if every x has several values."""
    from wafl.report.plotting import Line

    ordered = sorted(points)
    several = all(len(points[x]) > 1 for x in ordered)
    std = [stdev(points[x]) for x in ordered] if several else None
    return Line(ordered, [fmean(points[x]) for x in ordered], std)


def _named(runs: Mapping[str, Run | Sequence[Run]] | Sequence[Run]) -> list[tuple[str, Run]]:
    """Return every run with its name, in order; the seeds of a sweep are runs with the same name."""
    given = runs.items() if isinstance(runs, Mapping) else [("", run) for run in runs]
    named = [(name, run) for name, one in given for run in (one if isinstance(one, Sequence) else [one])]
    for _, run in named:
        if not isinstance(run, Run):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise TypeError(f"runs contains {what_is(run)}: pass runs, which wafl.fit and wafl.sweep return")
    if isinstance(runs, Mapping):
        return named
    unique = len({(run.name, run.point.get("seed")) for run in runs}) == len(runs)
    return [(run.name if unique else f"{run.name} {index}", run) for index, run in enumerate(runs)]
