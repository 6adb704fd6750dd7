"""Many runs, many attacks, many shares of attacked clients: one pass, one table."""

import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from statistics import fmean, stdev
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from wafl import models
from wafl.attacks import Attack, BoundedAttack, Function, same_but_size
from wafl.base.checks import check_seed
from wafl.base.conditions import CLEAN, attacked_clients, shorten
from wafl.base.files import write_whole
from wafl.base.shown import shows
from wafl.data.arguments import check_federation
from wafl.data.federation import Federation
from wafl.data.mistakes import what_is
from wafl.evaluation import evaluate as single
from wafl.evaluation.score import Score, entry, percent_or_loss
from wafl.objectives.surrogate import single_lane
from wafl.results.frames import to_csv, to_frame, to_html, varying
from wafl.results.run import Run
from wafl.tasks.problem import Problem

if TYPE_CHECKING:
    from wafl.report.plotting import Line


@dataclass(frozen=True)
class Row:
    """One run, with its seed and what varied in its sweep (``point``), under one attack on one share of the clients."""

    run: str
    attacked: float
    score: Score
    seed: int | None = None
    point: Mapping[str, Any] = field(default_factory=dict[str, Any])
    method: str = ""

    def values(self) -> dict[str, Any]:
        """The row as plain values, by column."""
        about = {"run": self.run, **self.point, "seed": self.seed, "attacked": self.attacked}
        return {**about, **self.score.summary()}


@dataclass(frozen=True)
class Comparison:
    """A table of scores in the order of runs, attacks and shares: what :func:`compare` returns."""

    rows: list[Row]
    data: str = ""
    """The data set and its clients, in words."""
    model: str = ""
    """The model, in words."""

    def to_pandas(self, *, all: bool = False) -> Any:
        """A ``pandas.DataFrame`` (``wafl-learn[pandas]``) of the rows, with columns that differ, or ``all``."""
        return to_frame(lambda: self._values(all))

    def _values(self, all: bool = False) -> list[dict[str, Any]]:
        rows = [row.values() for row in self.rows]
        return rows if all else varying(rows, keep=("run", "accuracy", "loss"))

    def plot(self, path: str | os.PathLike[str] | None = None, *, against: str | None = None) -> Any:
        """A matplotlib figure of the accuracy in percent (for a regression, the loss); saved if given a path.

        Lines are means over seeds, with standard deviations. The horizontal axis is the share of attacked clients, with
        one line per run; or the swept number that ``against`` names, such as ``"gamma"``, with one line per test.
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
        """By method: one line per test, each with the values of all seeds by the parameter."""
        known = sorted({key for row in self.rows for key in row.point})
        if not all(isinstance(row.point.get(name), int | float) for row in self.rows):
            raise ValueError(f"against={name!r} is no number that runs were swept over: they have {known or 'none'}")
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
        """The attacks of the table in words, each once."""
        return list(dict.fromkeys(row.score.attack for row in self.rows if row.score.attack != "none"))

    def _repr_html_(self) -> str:
        return to_html(repr(self), self._values())

    def __rich__(self) -> Any:
        from wafl.evaluation.tables import score_tables

        tested: dict[str, dict[str, dict[float, list[Score]]]] = {}
        for row in self.rows:
            shares = tested.setdefault(row.score.attack, {}).setdefault(row.run, {})
            shares.setdefault(row.attacked, []).append(row.score)
        return score_tables(
            {
                attack: {run: {share: entry(each) for share, each in shares.items()} for run, shares in runs.items()}
                for attack, runs in tested.items()
            }
        )

    def __str__(self) -> str:
        from wafl.evaluation.tables import as_text

        return as_text(self.__rich__())

    def __repr__(self) -> str:
        runs, attacks = ({getattr(row, name) for row in self.rows} for name in ("run", "attacked"))
        return f"Comparison({len(self.rows)} rows: {len(runs)} runs, {len(attacks)} shares of attacked clients)"

    def report(self, path: str | os.PathLike[str] = "report.html") -> Path:
        """Write a page with the table, figures and each client (needs ``wafl-learn[report]``); returns the file."""
        from wafl.report.page import Page, Study, check_page_packages, write_page

        check_page_packages()
        facts = {"unit": self.rows[0].score.unit, "runs": str(len({row.run for row in self.rows}))}
        return write_page(Page("WAFL report", [Study("comparison", self.sections(), facts=facts)]), Path(path))

    def sections(self) -> list[Any]:
        """The sections of a page about the comparison."""
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
    """The scores of every run under every attack, for every share of attacked clients.

    Runs of one model, and attacks that differ only in size, are lanes of one pass; attacks that move each example by
    itself move it once, whatever the number of shares. Each row equals what :func:`wafl.evaluate` returns.

    Args:
        runs: trained models by name, or several seeds of one model by name; a sequence is named by methods, and by
            what varied in a sweep.
        clients: whose test examples to use.
        attacks: attacks or shifts, or None for clean data; one or several, also your own functions.
        attacked: shares of the clients to attack, each in [0, 1].
        unseen: clients that took no part in training, as in :func:`wafl.evaluate`.
        seed: what the attacked clients and random attacks are drawn from.
        progress: whether to show how far it is; by default on a terminal and in notebooks.
    """
    if isinstance(runs, Federation):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise TypeError("the runs and the clients are swapped: call compare(runs, clients)")
    check_federation("compare(runs, clients)", clients)
    check_seed(seed)
    for share in attacked:
        single.check_share(share)
    named = _named(runs)
    if not named:
        raise ValueError("there are no runs to compare")
    given = list(attacks) if isinstance(attacks, Sequence) and not isinstance(attacks, str) else [attacks]
    every = [single.check_attack(attack, clients) for attack in given]
    tested = [run for _, run in named]
    test, *others = (
        _scores(tested, population, every, attacked, seed) for population in single.populations(clients, unseen)
    )
    rows: list[Row] = []
    for position, score in sorted(test.items()):
        if others:
            score = replace(score, train=others[0][position], unseen=others[1][position])
        name, run = named[position[0]]
        share = attacked[position[2]] if every[position[1]] is not None else 0.0
        rows.append(Row(name, share, score, run.settings.get("schedule", {}).get("seed"), run.point, run.method))
    kinds = dict.fromkeys(models.title(run.module) for run in tested)
    return Comparison(rows, clients.title, ", ".join(kinds))


def _line(points: Mapping[float, Sequence[float]]) -> "Line":
    """Return means by x, and standard deviations if every x has several values."""
    from wafl.report.plotting import Line

    ordered = sorted(points)
    several = all(len(points[x]) > 1 for x in ordered)
    std = [stdev(points[x]) for x in ordered] if several else None
    return Line(ordered, [fmean(points[x]) for x in ordered], std)


Position = tuple[int, int, int]
"""Which run, which attack, which share."""


def _scores(
    runs: Sequence[Run], clients: Federation, attacks: Sequence[Attack | None], attacked: Sequence[float], seed: int
) -> dict[Position, Score]:
    present = single.present_clients(clients)
    x, y = clients.test.of(present[0])
    problems = [single_lane(run, x, y, num_classes=clients.num_classes)[0] for run in runs]
    scores: dict[Position, Score] = {}
    for group in _same_model(problems):
        stacked = Problem(problems[group[0]].task, torch.cat([problems[run].params for run in group]))
        clean = single.examine(stacked, clients, None, seed)
        whole = _whole_population(stacked, clients, attacks, seed)
        for index, attack in enumerate(attacks):
            for turn, share in enumerate(attacked if attack is not None else (0.0,)):
                victims = set(single.draw_attacked(present, share, seed)) if attack is not None else set[int]()
                losses, correct = clean
                if attack is not None and victims:
                    chosen = single.rows_of(clients, sorted(victims))
                    moved = _part(whole[index], chosen) if attack.pointwise else single.examine(
                        stacked, clients, attack, seed, chosen
                    )  # fmt: skip
                    losses, correct = single.overlay(clean, chosen, moved)
                for lane, run in enumerate(group):
                    right = None if correct is None else correct[lane]
                    about = clients, present, victims, attack, seed
                    scores[run, index, turn] = single.make_score(losses[lane], right, *about)
    return scores


def _whole_population(
    problem: Problem, clients: Federation, attacks: Sequence[Attack | None], seed: int
) -> dict[int, single.Measured]:
    """Every example under every attack that moves examples one by one; attacks that differ in size share a pass."""
    measured: dict[int, single.Measured] = {}
    groups: list[list[int]] = []
    for position, attack in enumerate(attacks):
        if attack is None or not attack.pointwise:
            continue
        mates = next((group for group in groups if same_but_size(attacks[group[0]], attack)), [])
        if not mates:
            groups.append(mates)
        mates.append(position)
    for group in groups:
        bounded = [attack for position in group if isinstance(attack := attacks[position], BoundedAttack)]
        if len(bounded) < len(group):  # a shift, alone in its group
            measured[group[0]] = single.examine(problem, clients, attacks[group[0]], seed)
            continue
        runs = len(problem.params)
        lanes = Problem(problem.task, problem.params.repeat(len(group), 1))
        losses, correct = single.examine(lanes, clients, bounded[0].beside(bounded[1:], runs), seed)
        for index, position in enumerate(group):
            part = slice(index * runs, (index + 1) * runs)
            measured[position] = losses[part], None if correct is None else correct[part]
    return measured


def _part(measured: single.Measured, rows: Tensor) -> single.Measured:
    return measured[0][:, rows], None if measured[1] is None else measured[1][:, rows]


def _named(runs: Mapping[str, Run | Sequence[Run]] | Sequence[Run]) -> list[tuple[str, Run]]:
    """Every run with its name, in order; the seeds of a sweep are runs of one name."""
    given = runs.items() if isinstance(runs, Mapping) else [("", run) for run in runs]
    named = [(name, run) for name, one in given for run in (one if isinstance(one, Sequence) else [one])]
    for _, run in named:
        if not isinstance(run, Run):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise TypeError(f"runs holds {what_is(run)}: compare runs, which wafl.fit and wafl.sweep return")
    if isinstance(runs, Mapping):
        return named
    unique = len({(run.name, run.point.get("seed")) for run in runs}) == len(runs)
    return [(run.name if unique else f"{run.name} {index}", run) for index, run in enumerate(runs)]


def _same_model(problems: Sequence[Problem]) -> list[list[int]]:
    """Groups of runs whose parameters can be lanes of one model; a user's own model is a group by itself."""
    groups: dict[Any, list[int]] = {}
    for index, problem in enumerate(problems):
        spec = models.spec(problem.task.module)
        frozen = problem.task.frozen_digest() if spec is not None else index
        shape = (str(spec), problem.output_loss, problem.params.dtype, len(problem.params[0]), frozen)
        groups.setdefault(shape, []).append(index)
    return list(groups.values())
