"""An attack with a budget for the whole distribution: WAFL, FedPGM and FedAvg under the worst W_2 shift, with a CNN.

    python -m research attack-budget [--work FOLDER] [--device cuda] [--processes 8] [--data mnist]
        [--output docs/evidence/attack-budget.json] [--smallest]

What is trained, tested and decided is in ``experiments/drafts/attack-budget.toml``. The folder keeps a file per model.
"""

from __future__ import annotations

import json
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from functools import partial
from typing import Any

import torch

import wafl
from benchmarks import options
from research import jobs
from research.markdown import table
from research.registered.attack_frontier import Job, add_options, few, signed
from research.registration import registered_or_draft, require_registered
from research.significance import holm, resampled
from wafl.attacks import WassersteinShift
from wafl.base.errors import DivergedError
from wafl.tuning.judging import hold_out

NAME = "attack-budget"
OURS = ("partitions", "radii")
"""The keys of a data set, without the keys of its partition."""
NUMBERS = ("clean", "accuracy", "loss")
Rows = list[dict[str, Any]]


def plan(smallest: bool) -> tuple[dict[str, Any], dict[str, str]]:
    """Return what the file says, at its smallest with what it has for that, and its stamp."""
    if not smallest:
        require_registered(NAME)
    about, stamp = registered_or_draft(NAME)
    small = about.pop("smoke")
    if smallest:
        sizes = small.pop("sizes")
        for method in about["methods"].values():
            method["sizes"] = {"digits": sizes[method["size"]]}
        about |= small
    return about, stamp


def work(job: Job, about: Mapping[str, Any], device: str) -> dict[str, dict[str, float]]:
    """Train one model, and return its clean accuracy, and its accuracy and loss under the worst shift, by radius.

    The result is empty if training diverged.
    """
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    data, method = about["data"][job.data], about["methods"][job.family]
    given = {name: value for name, value in data.items() if name not in OURS}
    clients = judges = wafl.load_dataset(job.data).partition(**given, seed=job.partition)
    if job.trial:
        split = hold_out(clients, "clients", about["trials"]["share"], about["trials"]["seed"])
        clients, judges = split.train, split.judges
    schedule: dict[str, Any] = {**about["schedule"], "learning_rate": job.rate}
    own = {method["size"]: job.size}
    in_schedule = method["size"] == "weight_decay"
    made = wafl.METHODS[job.family](**method.get("options", {}), **({} if in_schedule else own))
    schedule |= own if in_schedule else {}
    try:
        run = wafl.fit(wafl.models.cnn(clients), clients, made, seed=job.partition, device=device, **schedule)
    except DivergedError:
        return {}
    if run.diverged:
        return {}
    tested = about["trials" if job.trial else "test"]
    some, run = few(judges, tested["examples"]), run.to(device)
    clean = wafl.evaluate(run, some).accuracy or 0.0
    result: dict[str, dict[str, float]] = {}
    for radius in data["radii"]:
        score = wafl.evaluate(run, some, attack=WassersteinShift(radius, **tested["attack"]))
        attacked = 100.0 * (score.accuracy or 0.0)
        result[f"{radius:g}"] = {"clean": 100.0 * clean, "accuracy": attacked, "loss": score.loss}
    return result


def rows_of(about: Mapping[str, Any], data: str, kept: jobs.Kept, device: str) -> Rows:
    """Run the trials, then the tests of the chosen models; return the results of each method, radius and partition."""
    names, trials = list(about["methods"]), about["trials"]
    radii = [f"{radius:g}" for radius in about["data"][data]["radii"]]
    tried = {
        name: [
            Job(data, name, size, rate, trials["partition"], True)
            for size in about["methods"][name]["sizes"][data]
            for rate in trials["rates"]
        ]
        for name in names
    }
    do = partial(work, about=about, device=device)
    judged = kept.run(do, {job.file: job for some in tried.values() for job in some})
    if len(judged) < sum(map(len, tried.values())):
        return []

    def score(job: Job, radius: str) -> float:
        return judged[job.file].get(radius, {}).get("accuracy", 0.0)

    best = {(name, radius): max(tried[name], key=lambda job: score(job, radius)) for name in names for radius in radii}
    tests = {
        (name, radius, partition): Job(data, name, job.size, job.rate, partition, False)
        for (name, radius), job in best.items()
        for partition in about["data"][data]["partitions"]
    }
    results = kept.run(do, {job.file: job for job in tests.values()})
    nothing = {"clean": 0.0, "accuracy": 0.0, "loss": None}
    return [
        {**asdict(job), "method": name, "radius": radius, **results[job.file].get(radius, nothing)}
        for (name, radius, _), job in tests.items()
        if job.file in results
    ]


def compared(about: Mapping[str, Any], rows: Rows) -> Rows:
    """Return WAFL's accuracy less each rival's by radius, paired by partition, with Holm's correction."""
    found = {(row["method"], row["radius"], row["partition"]): row["accuracy"] for row in rows}
    ours, *rivals = about["methods"]
    lines: Rows = []
    for radius in dict.fromkeys(row["radius"] for row in rows):
        for rival in rivals:
            differences = [
                value - found[rival, radius, partition]
                for (name, at, partition), value in found.items()
                if (name, at) == (ours, radius) and (rival, radius, partition) in found
            ]
            mean, p = resampled(differences, 0.0)
            lines.append({"radius": radius, "rival": rival, "mean": mean, "p": p})
    return [{**line, "p": p} for line, p in zip(lines, holm([line["p"] for line in lines]), strict=True)]


def shown(about: Mapping[str, Any], results: Mapping[str, Rows]) -> str:
    """Return the comparisons, then every model, as Markdown."""
    verdicts, every = list[list[str]](), list[list[str]]()
    for data, rows in results.items():
        for line in compared(about, rows):
            ahead = signed(line["mean"], line["p"] < about["verdict"]["level"])
            verdicts.append([data, line["radius"], line["rival"], ahead])
        for row in rows:
            about_it = [row["method"], f"{row['size']:g}", f"{row['rate']:g}", str(row["partition"])]
            numbers = ["" if row[name] is None else f"{row[name]:.2f}" for name in NUMBERS]
            every.append([data, row["radius"], *about_it, *numbers])
    heads = ["data", "radius", "method", "size", "rate", "partition", "clean", "accuracy", "loss"]
    return "\n\n".join([table(["data", "radius", "rival", "WAFL's lead in points"], verdicts), table(heads, every)])


def main(argv: Sequence[str] | None = None) -> None:
    """Run the experiment."""
    parser = options.make_parser(__doc__)
    add_options(parser, NAME)
    given = options.read(parser, argv)
    about, stamp = plan(given.smallest)
    kept = jobs.kept(given, stamp)
    results = {data: rows_of(about, data, kept, given.device) for data in given.data or about["data"]}
    print(shown(about, results))
    if given.output is not None:
        given.output.write_text(json.dumps({"registered": stamp, "data": results}, indent=1) + "\n")


if __name__ == "__main__":
    main()
