"""The second attack frontier: a rate per size, TRADES, and AutoAttack along all lines (``attack-frontier-2.toml``).

    python -m research attack-frontier-2 [--work FOLDER] [--device cuda] [--processes 8] [--data mnist]
    python -m research attack-frontier-2 [--work FOLDER] --done [--output docs/evidence/attack-frontier-2.json]

The folder keeps one file per model. Until the registration is committed, the draft in ``experiments/drafts`` is read,
and only ``--smallest`` runs: results of a draft would not count.
"""

from __future__ import annotations

import json
import time
import warnings
from collections.abc import Callable, Sequence
from dataclasses import asdict
from functools import cache, partial
from statistics import fmean
from typing import Any

import torch

import wafl
from benchmarks import options
from research import jobs
from research.jobs import Kept
from research.markdown import table
from research.registered.attack_frontier import NORMS, Job, add_options, attacks, few, points, signed
from research.registered.hulls import ahead
from research.registered.resnet import ResNet18
from research.registration import registered_or_draft, require_registered
from research.significance import holm, resampled
from research.statistics import mean_of
from wafl.attacks.autoattack import AutoAttack
from wafl.base.errors import DivergedError
from wafl.base.norms import norm_name
from wafl.tuning.judging import hold_out

NAME = "attack-frontier-2"
OURS = ("attack", "model", "partitions")
"""The keys of a data set, without the keys of its partition."""


def plan(smallest: bool) -> dict[str, Any]:
    """Return what the file says; at its smallest, with what it has for that."""
    about, _ = registered_or_draft(NAME)
    small = about.pop("smoke")
    if smallest:
        sizes = small.pop("sizes")
        for family in about["families"].values():
            family["sizes"] = {"digits": sizes[family["size"]]}
        about |= small
    return about


@cache
def clients_of(data: str, partition: int, smallest: bool) -> wafl.Federation:
    """Return the clients of a partition."""
    given = {name: value for name, value in plan(smallest)["data"][data].items() if name not in OURS}
    return wafl.load_dataset(data).partition(**given, seed=partition)


def method_of(about: dict[str, Any], job: Job) -> tuple[wafl.Method, dict[str, Any]]:
    """Return the method of a model, and what its size changes in the schedule."""
    family = about["families"][job.family]
    given: dict[str, Any] = dict(family.get("options", {}))
    if given.get("epsilon") == "attack":
        given["epsilon"] = about["data"][job.data]["attack"][str(given["norm"])]
    if given.get("norm") == "inf":
        given["norm"] = float("inf")
    schedule = {family["size"]: job.size} if family["method"] == "FedAvg" else {}
    if not schedule:
        given[family["size"]] = job.size
    return wafl.METHODS[family["method"]](**given), schedule


def model_of(about: dict[str, Any], job: Job, clients: wafl.Federation) -> torch.nn.Module:
    """Return the untrained network, the same for every method on a partition."""
    kind = about["data"][job.data]["model"]
    if kind != "resnet18":
        return {"cnn": wafl.models.cnn, "mlr": wafl.models.mlr}[kind](clients)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(job.partition)
        return ResNet18(clients.input_shape[0], clients.num_classes or 0)


def work(job: Job, smallest: bool, device: str) -> dict[str, Any]:
    """Train one model, and return its accuracies; a trial is judged by PGD on the clients that it did not see."""
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    about, began = plan(smallest), time.perf_counter()
    clients = judges = clients_of(job.data, job.partition, smallest)
    method, changed = method_of(about, job)
    schedule: dict[str, Any] = {**about["schedule"], **changed, "learning_rate": job.rate}
    if job.trial:
        split = hold_out(clients, "clients", about["trials"]["share"], about["trials"]["seed"])
        clients, judges = split.train, split.judges
        schedule["rounds"] = about["trials"]["rounds"][job.data]
    result: dict[str, dict[str, float]] = {}
    try:
        run = wafl.fit(model_of(about, job, clients), clients, method, seed=job.partition, device=device, **schedule)
        if not run.diverged:
            run = run.to(device)
            tests = attacks(about, job.data)
            result["pgd"] = scores(run, judges, {norm: tests[norm] for norm in against(about, job)})
            count = about["test"]["autoattack_examples"]
            if count and not job.trial:
                some = few(judges, count)
                sizes = about["data"][job.data]["attack"]
                full = {
                    norm: AutoAttack(epsilon=sizes[norm], norm=NORMS[norm], queries=about["test"]["queries"])
                    for norm in against(about, job)
                }
                result["autoattack"] = scores(run, some, full)
    except DivergedError:
        pass
    seconds = time.perf_counter() - began
    print(f"{job.file}: {result} in {seconds:.1f} s", flush=True)
    return {"job": asdict(job), "accuracy": result, "seconds": seconds}


def against(about: dict[str, Any], job: Job) -> list[str]:
    """Return the norms of the attacks that a family is compared under."""
    return about["families"][job.family]["against"]


def scores(run: wafl.Run, judges: wafl.Federation, tests: dict[str, Any]) -> dict[str, float]:
    """Return the clean accuracy and those under attack, in percent."""
    every = {"clean": None, **tests}
    return {name: 100.0 * (wafl.evaluate(run, judges, attack=each).accuracy or 0.0) for name, each in every.items()}


def judged(job: Job, kept: Kept) -> float:
    """Return what a trial is chosen by: the mean of the clean accuracy and those under PGD; 0 if it diverged."""
    result = kept.results[job.file]["accuracy"] if kept.has(job.file) else {}
    return fmean(result["pgd"].values()) if result else 0.0


def rates_of(
    rows: Sequence[tuple[str, float]],
    trial: Callable[[tuple[str, float], float], Job],
    score: Callable[[Job], float],
    grid: Sequence[float],
    extensions: int,
    do: Callable[[Sequence[Job]], object],
) -> dict[tuple[str, float], float]:
    """Return the best rate of every row. A row whose best is at an edge of its grid tries half or twice that rate."""
    grids, best = {row: list(grid) for row in rows}, dict[tuple[str, float], float]()
    for left in reversed(range(extensions + 1)):
        do([trial(row, rate) for row in rows for rate in grids[row]])
        best = {row: max(grids[row], key=lambda rate, row=row: score(trial(row, rate))) for row in rows}
        if left:
            for row, rates in grids.items():
                if best[row] == rates[0]:
                    rates.insert(0, rates[0] / 2.0)
                elif best[row] == rates[-1]:
                    rates.append(2.0 * rates[-1])
    return best


def everything(about: dict[str, Any], data: str, kept: Kept, smallest: bool, device: str) -> dict[str, Any]:
    """Run the trials, then the tests, and return what is finished of them."""

    def do(some: Sequence[Job]) -> None:
        kept.run(partial(work, smallest=smallest, device=device), {job.file: job for job in some})

    def trial(row: tuple[str, float], rate: float) -> Job:
        return Job(data, *row, rate, about["trials"]["partition"], True)

    rows = [(name, size) for name, family in about["families"].items() for size in family["sizes"][data]]
    grid, score = about["trials"]["rates"][data], partial(judged, kept=kept)
    rates = rates_of(rows, trial, score, grid, about["trials"]["extensions"], do)
    tests = [
        Job(data, *row, rates[row], partition, False) for partition in about["data"][data]["partitions"] for row in rows
    ]
    do(tests)
    made = [{**asdict(job), "accuracy": kept.results[job.file]["accuracy"]} for job in tests if kept.has(job.file)]
    return {"rows": made, "missing": len(tests) - len(made)}


def compared(about: dict[str, Any], data: str, results: dict[str, Any], by: str) -> list[dict[str, Any]]:
    """Return WAFL's hull against every rival's, under each attack, on partitions that are whole."""
    whole = len({(row["family"], row["size"]) for row in results["rows"]})
    partitions = [
        index for index in about["data"][data]["partitions"]
        if sum(row["partition"] == index for row in results["rows"]) == whole
    ]  # fmt: skip
    rows = [{**row, "accuracy": row["accuracy"][by]} for row in results["rows"] if by in row["accuracy"]]
    lines: list[dict[str, Any]] = []
    for norm in NORMS:
        families = {
            name: [family for family in members if norm in about["families"][family]["against"]]
            for name, members in about["names"].items()
        }
        ours = [row for row in rows if norm in row["accuracy"]]
        some: list[dict[str, Any]] = []
        for rival in list(families)[1:]:
            pairs = [[points(ours, families[name], norm, index) for name in ("WAFL", rival)] for index in partitions]
            means = [gap[0] for mine, theirs in pairs if mine and theirs and (gap := ahead(mine, theirs))]
            p = resampled(means, 0.0)[1] if len(means) > 2 else 1.0
            some.append({"attack": norm, "by": by, "rival": rival, "means": means, "p": p})
        for row, p in zip(some, holm([row["p"] for row in some]), strict=True):
            lines.append({**row, "holm": p})
    return lines


def shown(about: dict[str, Any], results: dict[str, Any]) -> str:
    """Return the verdicts under AutoAttack and under PGD, then every point with its rate, as Markdown."""
    rivals, level = list(about["names"])[1:], about["verdict"]["level"]
    names = {"autoattack": "AutoAttack", "pgd": "PGD"}
    verdicts, every = list[list[str]](), list[list[str]]()
    for data, each in results.items():
        for by, name in names.items():
            for norm, size in about["data"][data]["attack"].items():
                mine = [row for row in each["compared"] if (row["by"], row["attack"]) == (by, norm)]
                cells = [
                    signed(mean_of(row["means"]), row["holm"] < level) if row["means"] else "no overlap" for row in mine
                ]
                verdicts.append([data, f"{name}, {norm_name(NORMS[norm])}, {size:g}", *cells])
        for row in each["rows"]:
            found = [row["accuracy"].get(by, {}) for by in names]
            cells = [f"{of[name]:.1f}" if name in of else "" for of in found for name in ("clean", *NORMS)]
            every.append([data, str(row["partition"]), row["family"], f"{row['size']:g}", f"{row['rate']:g}", *cells])
    heads = [f"{name}: {column}" for name in names.values() for column in ("clean", "l_inf", "l2")]
    return "\n\n".join([
        table(["data", "attack", *(f"over {name}" for name in rivals)], verdicts),
        table(["data", "partition", "family", "size", "rate", *heads], every),
    ])  # fmt: skip


def main(argv: Sequence[str] | None = None) -> None:
    """Run the experiment, or list what is missing."""
    parser = options.make_parser(__doc__)
    add_options(parser, NAME)
    given = options.read(parser, argv)
    about, stamp = plan(given.smallest), registered_or_draft(NAME)[1]
    if not given.smallest:
        require_registered(NAME)
    kept, results = jobs.kept(given, stamp), dict[str, Any]()
    for data in given.data or about["data"]:
        made = everything(about, data, kept, given.smallest, given.device)
        gaps = [line for by in ("autoattack", "pgd") for line in compared(about, data, made, by)]
        results[data] = {**made, "compared": gaps}
    print(shown(about, results))
    if given.output is not None:
        given.output.write_text(json.dumps({"registered": stamp, "data": results}, indent=1) + "\n")


if __name__ == "__main__":
    main()
