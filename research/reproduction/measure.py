"""Saved runs under several attacks: accuracy and loss of every run, seed by seed."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from research.reproduction.condition import curvatures
from wafl.attacks import Attack as ModelAttack
from wafl.base.bounds import DATA
from wafl.base.files import write_whole
from wafl.config.experiment import Attack
from wafl.config.plan import Entry, make_attack
from wafl.data.federation import Federation
from wafl.evaluation.compare import compare
from wafl.results.run import Run
from wafl.results.saved import load_run
from wafl.studies.study import Study
from wafl.theory.calibration import calibrate
from wafl.train.embedded import find_device

LAST = 0.25
"""The share of the last rounds over which an achieved radius is averaged."""


def measured(
    study: Study,
    entry: Entry,
    tests: Mapping[str, Any],
    target: Federation | None,
    *,
    match: bool = False,
    condition: bool = False,
) -> list[dict[str, Any]]:
    """Return a finished method's results in a study: one row per run, test and share of attacked clients.

    The attacked clients are drawn by the run's seed, so methods are compared on the same ones. ``tests`` are attacks by
    name, as in an experiment file, each with its shares ``attacked`` (none is clean data), and ``seeds`` if only some
    of them are tested. ``target`` are clients to test on instead of the study's own. With ``match``, rows have the
    gamma at which a linear model's examples move as far as the first attack moves them; with ``condition``, the
    curvature of the loss (see ``condition.py``).
    """
    rows: list[dict[str, Any]] = []
    labels, seeds = study.labels(entry), len(study.plan.experiment.seeds)
    for index, point in enumerate(study.points(entry)):
        run = load_run(study.run_folder(entry, point), model=study.plan.model)
        run = run.to(find_device(study.plan.experiment.device))
        about = {"label": labels[index // seeds], "entry": entry.name, "method": entry.method.name, **point}
        if run.diverged:
            rows.append({**about, "diverged": run.diverged})
            continue
        about |= {"radius": achieved_radius(run), "rounds": len(run.history)}
        clients = target or study.plan.federation
        assert clients is not None
        if match and study.plan.experiment.model.kind == "mlr":
            about["matching_gamma"] = matching_gamma(run, clients, next(iter(tests.values())))
        if condition:
            about |= curvatures(run, clients)
        kept = study.run_folder(entry, point) / "tested.json"
        for name, test in tests.items():
            if point["seed"] in test.get("seeds", [point["seed"]]):
                rows += [{**about, **row} for row in _tested_once(kept, run, clients, name, test)]
    return rows


def _tested_once(kept: Path, run: Run, clients: Federation, name: str, test: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return the rows of one test of a run, stored in a file, since some attacks take minutes."""
    known = json.loads(kept.read_text(encoding="utf-8")) if kept.is_file() else {}
    key = json.dumps([name, test], sort_keys=True)
    if key not in known:
        known[key] = _tested(run, clients, name, test)
        write_whole(kept, json.dumps(known, indent=1).encode())
    return known[key]


def _tested(run: Run, clients: Federation, name: str, test: Mapping[str, Any]) -> list[dict[str, Any]]:
    attack = _attack(test)
    attack = None if attack is None else attack.within(clients.bounds)
    shares = test.get("attacked", [0.0]) if attack is not None else [0.0]
    seed = run.settings["schedule"]["seed"]
    table = compare({"run": run}, clients, attacks=attack, attacked=shares, seed=seed)
    return [
        {
            "test": name,
            "attacked": share,
            "accuracy": None if row.score.accuracy is None else 100.0 * row.score.accuracy,
            "loss": row.score.loss,
            "worst_tenth": 100.0 * row.score.worst_tenth,
        }
        for share, row in zip(shares, table.rows, strict=True)
    ]


def _attack(test: Mapping[str, Any]) -> ModelAttack | None:
    return make_attack(Attack(**{key: value for key, value in test.items() if key not in ("attacked", "seeds")}))


def matching_gamma(run: Run, clients: Federation, test: Mapping[str, Any]) -> float:
    """Return the gamma whose moves are as long as an attack's, at this model: the blue line of the paper's figure 3."""
    attack = _attack(test)
    assert attack is not None
    bounds = None if test.get("bounds") == "none" else DATA
    return calibrate(run, clients, gammas=[0.1], split="test", steps=40, bounds=bounds).gamma_matching(attack)


def achieved_radius(run: Run) -> float | None:
    """Return the mean achieved radius of the last rounds, or None if the method moves no example."""
    radii = [value for value in run.history.column("achieved_radius") if value is not None]
    last = radii[-max(1, round(LAST * len(radii))) :]
    return sum(last) / len(last) if last else None
