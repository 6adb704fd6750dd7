"""Digits from a source that no client has: balls against random moves, decay and client weights, tuned alike.

    python -m research domains [--work FOLDER] [--processes 2] [--targets usps] [--families FedAvg AFL]
    python -m research domains [--work FOLDER] --done [--output docs/evidence/domains.json]

``experiments/registered/domains.toml`` defines training, tests and decision. The folder keeps one file per model, which
is not trained again; several machines can share the work by families. A row that chooses a rate at an edge extends the
rates of all: --ahead tries the extended rates at once, if the other rows are not in the folder. ``python -m research
domains-cnn`` (--model cnn) is ``experiments/registered/domains-cnn.toml``, which needs a GPU and its own folder.
"""

from __future__ import annotations

import argparse
import base64
import json
import warnings
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from functools import cache, partial
from pathlib import Path
from statistics import fmean
from typing import Any

import numpy as np
import torch

import wafl
from benchmarks import options
from research import jobs
from research.domains import task
from research.experiment import ROOT
from research.jobs import Kept
from research.markdown import first_shown, table
from research.registered.rates import chosen_rates
from research.registration import registered
from research.reproduction.placement import Placement, cost_matrix_of
from research.significance import holm
from wafl.base.errors import DivergedError
from wafl.methods import Method
from wafl.objectives.ball.cost_matrix import CostMatrix
from wafl.tuning.judging import Goal, hold_out

REGISTERED = {"mlr": "domains", "cnn": "domains-cnn"}
"""The registration of each model."""
RIVALS = ("FedAvg", "random moves", "AFL", "DRFA")
BALLS = ("round ball", "shaped ball")


@dataclass(frozen=True)
class Job:
    """One model: a family around a center, at a rate and a size; a trial trains without the fifth that judges."""

    target: str
    family: str
    center: str
    rate: float
    size: float
    seed: int
    trial: bool

    @property
    def file(self) -> str:
        """The name of the job's file."""
        what = "trial" if self.trial else f"test{self.seed}"
        return f"{self.target}-{self.family}-{self.center}-{self.rate:g}-{self.size:g}-{what}".replace(" ", "_")


def plan(model: str, smallest: bool) -> dict[str, Any]:
    """Return the registration; at its smallest, with its smoke settings."""
    content, _ = registered(REGISTERED[model])
    small = content.pop("smoke")
    if smallest:
        content |= small
        for family in content["families"].values():
            family["others"] = family["others"][:1]
            family["centers"] = [center for center in family["centers"] if center != "mixture"]
    return content


def name_of(target: str) -> str:
    """Return the name of a target's task."""
    return "turned_digits" if target == "digits" else f"to_{target}"


def method_of(job: Job, about: dict[str, Any]) -> Method:
    """Return the method of a job."""
    if job.family in ("AFL", "DRFA"):
        return wafl.METHODS[job.family](weights_step=job.size)
    given: dict[str, Any] = {"client_weights": wafl.weights.fixed(about["centers"][job.target][job.center])}
    if job.family == "FedAvg":
        return wafl.FedAvg(**given)
    if job.family == "random moves":
        return wafl.Moved(shifts=Placement(job.size), **given)
    if job.family == "shaped ball":
        nearest = max(range(2), key=about["centers"][job.target]["nearest"].__getitem__)
        given["cost_matrix"] = cost_matrix_around(job.target, nearest)
    return wafl.WAFL(radius=job.size, bounds=None, **about["families"][job.family].get("options", {}), **given)


@cache
def cost_matrix_around(target: str, source: int) -> CostMatrix:
    """Return the cost matrix of a source's images."""
    return cost_matrix_of(task(name_of(target)).clients.train.of(source)[0])


def work(job: Job, name: str, smallest: bool, device: str) -> dict[str, Any]:
    """Train one model; return the score of a trial, and which of the target's images a tested model gets right."""
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    about, domain = plan(name, smallest), task(name_of(job.target))
    trials = about["trials"]
    split = hold_out(domain.clients, "examples", trials["share"], trials["seed"]) if job.trial else None
    clients = domain.clients if split is None else split.train
    schedule: dict[str, Any] = {**about["afl" if job.family == "AFL" else "schedule"], "learning_rate": job.rate}
    if job.family == "FedAvg":
        schedule["weight_decay"] = job.size
    result: dict[str, Any] = {}
    try:
        method = method_of(job, about)
        model = wafl.models.mlr(clients) if name == "mlr" else wafl.models.cnn(clients)
        run = wafl.fit(model, clients, method, seed=job.seed, device=device, **schedule)
        if not run.diverged and split is not None:
            result["judged"] = 100.0 * Goal(split, attack=Placement(1.0), attacked=(1.0,)).value(run.to("cpu"))
        if not run.diverged:
            with torch.no_grad():
                guessed = run.to("cpu").model(domain.target.test.x).argmax(1)
            right = (guessed == domain.target.test.y).numpy()
            result |= {
                "target": 100.0 * float(right.mean()),
                "right": base64.b85encode(np.packbits(right).tobytes()).decode(),
            }
    except DivergedError:
        pass
    print(job.file, {name: value for name, value in result.items() if name != "right"}, flush=True)
    return {"job": asdict(job), "found": result}


def read(job: Job, kept: Kept) -> dict[str, Any]:
    """Return the scores of a job; none if it diverged or is not finished."""
    return kept.results[job.file]["found"] if kept.has(job.file) else {}


def judged(job: Job, kept: Kept) -> float:
    """Return the score of a trial."""
    return read(job, kept).get("judged", 0.0)


def rows_of(about: dict[str, Any], target: str, families: Sequence[str]) -> list[tuple[str, str]]:
    """Return the rows of a target: families and centers."""
    known = (*about["centers"][target], "learned")
    return [
        (family, center) for family in families for center in about["families"][family]["centers"] if center in known
    ]


def one_target(
    about: dict[str, Any],
    target: str,
    families: Sequence[str],
    kept: Kept,
    train: Callable[[Job], dict[str, Any]],
    at_once: bool = False,
) -> list[dict[str, Any]]:
    """Run trials and tests of the rows of a target; return what was chosen, its scores, and the accuracies by seed."""
    trials, rows = about["trials"], rows_of(about, target, families)
    first = {row: about["families"][row[0]]["first"] for row in rows}

    def do(jobs: Sequence[Job]) -> None:
        kept.run(train, {job.file: job for job in jobs})

    def trial(row: tuple[str, str], rate: float, size: float) -> Job:
        return Job(target, *row, rate, size, trials["seed"], True)

    def first_trial(row: tuple[str, str], rate: float) -> Job:
        return trial(row, rate, first[row])

    score = partial(judged, kept=kept)
    if at_once:
        edges = trials["rates"][0] / 2.0, 2.0 * trials["rates"][-1]
        do([first_trial(row, rate) for row in rows for rate in edges])
    rates, best = chosen_rates(rows, first_trial, score, trials, do)
    sizes = {row: [first[row], *about["families"][row[0]]["others"]] for row in rows}
    do([trial(row, best[row], size) for row in rows for size in sizes[row]])
    chosen = {row: max((trial(row, best[row], size) for size in sizes[row]), key=score) for row in rows}
    tests = {row: [Job(target, *row, job.rate, job.size, seed, False) for seed in about["test"]["seeds"]]
             for row, job in chosen.items()}  # fmt: skip
    do([job for jobs in tests.values() for job in jobs])
    results: list[dict[str, Any]] = []
    for row, job in chosen.items():
        tried = [first_trial(row, rate) for rate in rates] + [trial(row, best[row], size) for size in sizes[row]]
        known = max((read(each, kept).get("target", 0.0) for each in tried), default=0.0)
        values = [tested for each in tests[row] if "target" in (tested := read(each, kept))]
        results.append({
            "family": row[0], "center": row[1], "rate": job.rate, "size": job.size, "judged": judged(job, kept),
            "best by the target": known, "target": [each["target"] for each in values],
            "right": [each["right"] for each in values],
        })  # fmt: skip
    return results


def compared(about: dict[str, Any], target: str, rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Compare the best ball in trials with each rival's best row: the difference, its interval and p-value."""
    labels = task(name_of(target)).target.test.y

    def best(families: Sequence[str]) -> dict[str, Any] | None:
        return max((row for row in rows if row["family"] in families and row["right"]), key=lambda row: row["judged"],
                   default=None)  # fmt: skip

    def share_right(row: dict[str, Any]) -> np.ndarray:
        bits = [np.unpackbits(np.frombuffer(base64.b85decode(each), np.uint8))[: len(labels)] for each in row["right"]]
        return 100.0 * np.mean(bits, axis=0)

    ball, comparisons = best(BALLS), list[dict[str, Any]]()
    if ball is None:
        return []
    drawn = np.random.default_rng(0).multinomial(
        len(labels), np.full(len(labels), 1 / len(labels)), about["verdict"]["draws"]
    )
    for rival in RIVALS:
        if (row := best([rival])) is not None:
            gap = share_right(ball) - share_right(row)
            means = drawn @ gap / len(labels)
            low, high = np.quantile(means, [0.025, 0.975])
            p = min(1.0, 2.0 * (1 + min((means <= 0).sum(), (means >= 0).sum())) / (1 + len(means)))
            sides = {"ball": [ball["family"], ball["center"]], "rival": [rival, row["center"]]}
            comparisons.append(
                {**sides, "ahead": float(gap.mean()), "low": float(low), "high": float(high), "p": float(p)}
            )
    for each, p in zip(comparisons, holm([each["p"] for each in comparisons]), strict=True):
        each["holm"] = p
    return comparisons


def shown(results: dict[str, Any]) -> str:
    """Return the verdicts and the accuracies as Markdown."""
    made = {row["rival"][0] for each in results.values() for row in each["compared"]}
    rivals, level = [name for name in RIVALS if name in made], registered("domains")[0]["verdict"]["level"]
    verdicts, rows = list[list[str]](), list[list[str]]()
    for target, each in results.items():
        ahead_of = {
            row["rival"][0]: f"{row['ahead']:+.1f} [{row['low']:+.1f}, {row['high']:+.1f}]" for row in each["compared"]
        }
        ball = ", ".join(each["compared"][0]["ball"]) if each["compared"] else "not made"
        decided = {row["rival"][0] for row in each["compared"] if row["holm"] < level}
        leads = [f"**{ahead_of[name]}**" if name in decided else ahead_of.get(name, "") for name in rivals]
        verdicts.append([target, ball, *leads])
        rows.append([target, "always the same label", "", "", "", "", f"{each['majority']:.1f}", ""])
        for row in sorted(each["rows"], key=lambda row: -row["judged"]):
            mean = f"{fmean(row['target']):.1f}" if row["target"] else "not made"
            cells = [f"{row['rate']:g}", f"{row['size']:g}", f"{row['judged']:.1f}", mean]
            rows.append([target, row["family"], row["center"], *cells, f"{row['best by the target']:.1f}"])
    about = ["target", "row", "center", "rate", "size", "judged", "target, mean of seeds", "best by the target"]
    return "\n\n".join([table(["target", "ball", *(f"over {name}" for name in rivals)], verdicts), table(about, rows)])


def main(argv: Sequence[str] | None = None) -> None:
    """Run the command."""
    parser = options.make_parser(__doc__)
    jobs.add_options(parser, "domains")
    parser.add_argument("--output", type=Path, help="write the numbers to this file")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--model", choices=list(REGISTERED), default="mlr")
    parser.add_argument("--targets", nargs="+", help="of the registered targets; by default all")
    parser.add_argument("--families", nargs="+", help="of the registered families; by default all")
    parser.add_argument("--ahead", action="store_true", help="try the rates of an extension at once")
    given = options.read(parser, argv)
    about = plan(given.model, given.smallest)
    kept = jobs.kept(given, registered(REGISTERED[given.model])[1])
    results = {target: whole(about, target, given, kept) for target in given.targets or about["targets"]}
    print(shown(results))
    if given.output is not None:
        for each in results.values():
            for row in each["rows"]:
                del row["right"]
        content = {"registered": registered(REGISTERED[given.model])[1], "targets": results}
        given.output.write_text(json.dumps(content, indent=1) + "\n")


def page() -> dict[str, str]:
    """Return the tables of the page, from the committed numbers of both models."""
    files = {name: ROOT / "docs" / "evidence" / f"{name}.json" for name in REGISTERED.values()}
    return {name: first_shown(shown(json.loads(file.read_bytes())["targets"])) for name, file in files.items()}


def whole(about: dict[str, Any], target: str, given: argparse.Namespace, kept: Kept) -> dict[str, Any]:
    """Return the results of a target, with the comparisons."""
    families = given.families or list(about["families"])
    train = partial(work, name=given.model, smallest=given.smallest, device=given.device)
    rows = one_target(about, target, families, kept, train, given.ahead)
    counts = torch.bincount(task(name_of(target)).target.test.y)
    majority = 100.0 * float(counts.max() / counts.sum())
    return {"majority": majority, "rows": rows, "compared": compared(about, target, rows)}


if __name__ == "__main__":
    main()
