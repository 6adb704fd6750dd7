"""Clean against attacked accuracy along five sizes of each method: ``experiments/registered/attack-frontier.toml``.

    python -m research attack-frontier [--work FOLDER] [--device cuda] [--processes 3] [--data mnist]
    python -m research attack-frontier [--work FOLDER] --done [--output docs/evidence/attack-frontier.json]

The folder keeps one file per model, which is not trained again. --done trains nothing, lists what is missing, and
writes numbers, table and figure of the rest. Use a GPU: a model takes 12 seconds there, and minutes elsewhere.
"""

from __future__ import annotations

import argparse
import json
import time
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from functools import cache, partial
from pathlib import Path
from statistics import fmean
from typing import Any

import torch

import wafl
from benchmarks import options
from research import drawing, jobs
from research.experiment import ROOT
from research.jobs import Kept
from research.markdown import first_shown, table
from research.registered.hulls import ahead, upper_hull
from research.registered.rates import chosen_rates
from research.registration import registered
from research.significance import holm, resampled
from research.statistics import Mean, mean_of
from wafl.attacks.autoattack import AutoAttack
from wafl.base.errors import DivergedError
from wafl.base.norms import norm_name
from wafl.tuning.judging import hold_out

NAME = "attack-frontier"
NORMS = {"inf": float("inf"), "2": 2.0}
FAMILIES = {
    "wafl-inf": "WAFL, l_inf",
    "wafl-2": "WAFL, l2",
    "fedpgm-inf": "FedPGM, l_inf",
    "fedpgm-2": "FedPGM, l2",
    "decay": "FedAvg, weight decay",
    "smoothing": "FedAvg, label smoothing",
    "moved": "random moves",
}
"""The names of the registration's families in the table."""
SHOWN = 3.0
"""The number of points below the hulls at which the figure begins."""


@dataclass(frozen=True)
class Job:
    """One model: a family's size, at a rate, on a partition; ``trial`` trains without the fifth that judges."""

    data: str
    family: str
    size: float
    rate: float
    partition: int
    trial: bool

    @property
    def file(self) -> str:
        """The name of the job's file."""
        what = "trial" if self.trial else f"test{self.partition}"
        return f"{self.data}-{self.family}-{self.size:g}-{self.rate:g}-{what}"


@dataclass(frozen=True)
class Attacked(Job):
    """The same model, trained again for AutoAttack."""

    @property
    def file(self) -> str:
        """The name of the job's file."""
        return f"{super().file}.autoattack"


def plan(smallest: bool) -> dict[str, Any]:
    """Return the registration; at its smallest, with its smoke settings."""
    content, _ = registered(NAME)
    small = content.pop("smoke")
    if smallest:
        sizes = small.pop("sizes")
        for family in content["families"].values():
            family["sizes"] = {"digits": sizes[family["size"]]}
        content |= small
    return content


@cache
def clients_of(data: str, partition: int, smallest: bool) -> wafl.Federation:
    """Return the clients of a partition."""
    given = {name: value for name, value in plan(smallest)["data"][data].items() if name != "attack"}
    return wafl.load_dataset(data).partition(**given, seed=partition)


def attacks(about: dict[str, Any], data: str) -> dict[str, wafl.PGD]:
    """Return the PGD attacks of a data set, by norm."""
    sizes, steps = about["data"][data]["attack"], about["test"]["steps"]
    return {name: wafl.PGD(sizes[name], norm=norm, steps=steps) for name, norm in NORMS.items()}


def autoattacks(about: dict[str, Any], job: Job) -> dict[str, AutoAttack]:
    """Return AutoAttack in full, in the norms in which the model's family is compared."""
    sizes = about["data"][job.data]["attack"]
    return {
        norm: AutoAttack(epsilon=sizes[norm], norm=NORMS[norm]) for norm in about["families"][job.family]["against"]
    }


def few(clients: wafl.Federation, count: int) -> wafl.Federation:
    """Return this number of the clients' test examples, evenly spaced in their order, at one client."""
    rows = torch.arange(count) * len(clients.test.y) // count
    x, y = clients.test.x[rows].numpy(), clients.test.y[rows].numpy()
    return wafl.Federation.from_arrays([(x, y, x, y)], bounds=clients.bounds, num_classes=clients.num_classes)


def trained(job: Job, about: dict[str, Any], smallest: bool, device: str) -> tuple[wafl.Run, wafl.Federation]:
    """Return the model and the clients that judge it."""
    clients = clients_of(job.data, job.partition, smallest)
    if job.trial:
        split = hold_out(clients, "examples", about["trials"]["share"], about["trials"]["seed"])
        clients, judges = split.train, split.judges
    else:
        judges = clients
    family = about["families"][job.family]
    given: dict[str, Any] = dict(family.get("options", {}))
    schedule: dict[str, Any] = {**about["schedule"], "learning_rate": job.rate}
    target = schedule if family["method"] == "FedAvg" else given
    target[family["size"]] = job.size
    if given.get("norm") == "inf":
        given["norm"] = float("inf")
    method = wafl.METHODS[family["method"]](**given)
    model = wafl.models.cnn(clients) if not smallest else wafl.models.mlr(clients)
    return wafl.fit(model, clients, method, seed=job.partition, device=device, **schedule), judges


def work(job: Job, smallest: bool, device: str) -> dict[str, Any]:
    """Train one model and return its accuracies; one that diverged has none."""
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    about, began = plan(smallest), time.perf_counter()
    result: dict[str, float] = {}
    try:
        run, judges = trained(job, about, smallest, device)
        if not run.diverged:
            run = run.to(device)
            tests = attacks(about, job.data)
            if isinstance(job, Attacked):
                judges, tests = few(judges, about["test"]["autoattack_examples"]), autoattacks(about, job)
            for name, attack in {"clean": None, **tests}.items():
                result[name] = 100.0 * (wafl.evaluate(run, judges, attack=attack).accuracy or 0.0)
    except DivergedError:
        pass
    seconds = time.perf_counter() - began
    print(f"{job.file}: {result} in {seconds:.1f} s", flush=True)
    return {"job": asdict(job), "accuracy": result, "seconds": seconds}


def read(job: Job, kept: Kept) -> dict[str, float] | None:
    """Return the accuracies of a job: None if it is not finished, empty if it diverged."""
    return kept.results[job.file]["accuracy"] if kept.has(job.file) else None


def judged(job: Job, kept: Kept) -> float:
    """Return the criterion of a trial: the mean of the clean accuracy and the accuracies under both attacks."""
    result = read(job, kept)
    return fmean(result.values()) if result else 0.0


def middle(family: dict[str, Any], data: str) -> float:
    """Return the middle size of a family."""
    return family["sizes"][data][len(family["sizes"][data]) // 2]


def sizes_at(about: dict[str, Any], data: str, rates: dict[str, float], partition: int, trial: bool) -> Iterator[Job]:
    """Yield the jobs of all families and sizes at these rates."""
    for name, family in about["families"].items():
        for size in family["sizes"][data]:
            yield Job(data, name, size, rates[name], partition, trial)


def everything(
    about: dict[str, Any], data: str, kept: Kept, smallest: bool = False, device: str = "cpu"
) -> dict[str, Any]:
    """Run the trials, then the tests, and return what is finished of them."""

    def do(jobs: Sequence[Job]) -> None:
        kept.run(partial(work, smallest=smallest, device=device), {job.file: job for job in jobs})

    def trial(name: str, rate: float) -> Job:
        return Job(data, name, middle(about["families"][name], data), rate, about["trials"]["partition"], True)

    score = partial(judged, kept=kept)
    _, rates = chosen_rates(list(about["families"]), trial, score, about["trials"], do)
    trials = list(sizes_at(about, data, rates, about["trials"]["partition"], True))
    do(trials)
    tests = [job for partition in about["test"]["partitions"] for job in sizes_at(about, data, rates, partition, False)]
    do(tests)
    best = {name: max((job for job in trials if job.family == name), key=score).size for name in about["families"]}
    first = about["test"]["partitions"][0] if about["test"]["autoattack_examples"] else None
    chosen = [Attacked(**asdict(job)) for job in tests if job.partition == first and job.size == best[job.family]]
    do(chosen)
    rows, points = ([{**asdict(job), "accuracy": read(job, kept)} for job in jobs] for jobs in (tests, chosen))
    return {"rates": rates, "chosen": best, "rows": rows, "autoattack": [each for each in points if each["accuracy"]]}


def points(rows: list[dict[str, Any]], families: list[str], norm: str, partition: int) -> list[tuple[float, float]]:
    """Return the clean and attacked accuracy of every size of these families on a partition."""
    mine = [row["accuracy"] for row in rows if row["family"] in families and row["partition"] == partition]
    return [(each["clean"], each[norm]) for each in mine]


def whole(results: dict[str, Any]) -> list[int]:
    """Return the partitions on which every model is trained; the others do not count."""
    undone = {row["partition"] for row in results["rows"] if row["accuracy"] is None}
    return sorted({row["partition"] for row in results["rows"]} - undone)


def compared(about: dict[str, Any], data: str, results: dict[str, Any]) -> list[dict[str, Any]]:
    """Return differences and p-values of WAFL's hull and every rival's, under each attack, on finished partitions."""
    rows = [row for row in results["rows"] if row["accuracy"]]
    table: list[dict[str, Any]] = []
    for norm in NORMS:
        against: list[dict[str, Any]] = []
        for rival in [name for name in about["names"] if name != "WAFL"]:
            both = [
                [family for family in about["names"][name] if norm in about["families"][family]["against"]]
                for name in ("WAFL", rival)
            ]
            pairs = [[points(rows, mine, norm, index) for mine in both] for index in whole(results)]
            gaps = [gap for ours, theirs in pairs if ours and theirs and (gap := ahead(ours, theirs))]
            means = [gap[0] for gap in gaps]
            p = resampled(means, 0.0)[1] if len(means) > 1 else 1.0
            levels = [[gap[index] for gap in gaps] for index in (1, 2, 3)]
            against.append({"attack": norm, "rival": rival, "means": means, "levels": levels, "p": p})
        for row, p in zip(against, holm([row["p"] for row in against]), strict=True):
            table.append({**row, "holm": p})
    return table


def shown(results: dict[str, Any]) -> str:
    """Return the verdicts as Markdown, then missing jobs, the levels, and the chosen points under AutoAttack."""
    rivals = list(dict.fromkeys(row["rival"] for each in results.values() for row in each["compared"]))
    level = registered(NAME)[0]["verdict"]["level"]
    verdicts, levels, points, missing = list[list[str]](), list[list[str]](), list[list[str]](), list[str]()
    for data, each in results.items():
        left = sum(row["accuracy"] is None for row in each["rows"])
        if left:
            places = f"{len(whole(each))} of {len({row['partition'] for row in each['rows']})} partitions"
            models = f"{left} of {len(each['rows'])} models are not trained"
            missing.append(f"{data} is not finished: {places} are complete, and {models}.")
        for norm in NORMS:
            mine = [row for row in each["compared"] if row["attack"] == norm and row["means"]]
            ahead_of = {row["rival"]: signed(mean_of(row["means"]), row["holm"] < level) for row in mine}
            verdicts += [[f"{data}, {norm_name(NORMS[norm])}", *(ahead_of[name] for name in rivals)]] if mine else []
            for row in mine:
                above = [f"{sum(gap > 0 for gap in level)} of {len(level)}" for level in row["levels"]]
                levels.append([f"{data}, {norm_name(NORMS[norm])}", row["rival"], p_text(row["holm"]), *above])
        for row in each["autoattack"]:
            cells = [f"{row['accuracy'][name]:.1f}" if name in row["accuracy"] else "" for name in ("clean", *NORMS)]
            points.append([data, FAMILIES[row["family"]], f"{row['size']:g}", *cells])
    return "\n\n".join([
        table(["data, attack", *(f"over {name}" for name in rivals)], verdicts), *missing,
        table(["data, attack", "rival", "p, Holm", "above at 1/4", "at 1/2", "at 3/4 of the shared range"], levels),
        table(["data", "method", "size", "clean", "AutoAttack, l_inf", "AutoAttack, l2"], points),
    ])  # fmt: skip


def p_text(p: float) -> str:
    """Format a p-value."""
    return f"{p:.3f}" if p >= 0.001 else "< 0.001"


def signed(mean: Mean, decided: bool) -> str:
    """Format a difference with its interval, in bold if it is decided."""
    text = f"{mean.value:+.1f}" + ("" if mean.half is None else f" ± {mean.half:.1f}")
    return f"**{text}**" if decided else text


def draw(about: dict[str, Any], results: dict[str, Any], path: Path) -> None:
    """Draw points and hulls of the partitions' means, if there are any, and save the figure."""
    some = {data: each for data, each in results.items() if whole(each)}
    if some:
        with drawing.large():
            figure_of(about, some).savefig(path, dpi=130, metadata={"Software": None})


def figure_of(about: dict[str, Any], some: dict[str, Any]) -> Any:
    """Draw one panel per data set and attack; each panel counts the points far below."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(drawing.WIDTH, 3.8 * len(some) + 0.4), layout="constrained")
    for line, (data, each) in zip(figure.subplots(len(some), 2, squeeze=False), some.items(), strict=True):
        for axis, norm in zip(line, NORMS, strict=True):
            all_of, hulls = list[tuple[float, float]](), list[tuple[float, float]]()
            for name, families in about["names"].items():
                color = drawing.method_color(name)
                shown = means(about, data, each, [f for f in families if norm in about["families"][f]["against"]], norm)
                axis.scatter(*zip(*shown, strict=True), color=color, s=40)
                hull = upper_hull(shown)
                axis.plot(*zip(*hull, strict=True), color=color, label=name)
                all_of, hulls = [*all_of, *shown], [*hulls, *hull]
            left, low = (min(values) - SHOWN for values in zip(*hulls, strict=True))
            right, high = (max(values) + SHOWN / 6.0 for values in zip(*all_of, strict=True))
            axis.set(xlim=(left, right), ylim=(low, high))
            if outside := sum(clean < left or attacked < low for clean, attacked in all_of):
                axis.text(0.98, 0.02, f"{outside} further below", transform=axis.transAxes, ha="right")
            size = about["data"][data]["attack"][norm]
            axis.set_title(f"{data}, {norm_name(NORMS[norm])} attack of {size:g}")
            axis.spines[["top", "right"]].set_visible(False)
    figure.supxlabel("clean accuracy (%)")
    figure.supylabel("attacked accuracy (%)")
    handles, labels = figure.axes[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside upper center", ncols=len(labels), frameon=False)
    return figure


def means(
    about: dict[str, Any], data: str, results: dict[str, Any], families: list[str], norm: str
) -> list[tuple[float, float]]:
    """Return the clean and attacked accuracy of every size, as means over whole partitions."""
    places, all_of = whole(results), list[tuple[float, float]]()
    for family in families:
        for size in about["families"][family]["sizes"][data]:
            mine = [row for row in results["rows"] if row["family"] == family and row["size"] == size]
            rows = [row["accuracy"] for row in mine if row["partition"] in places and row["accuracy"]]
            if rows:
                all_of.append((fmean(row["clean"] for row in rows), fmean(row[norm] for row in rows)))
    return all_of


def add_options(parser: argparse.ArgumentParser, name: str) -> None:
    """Add the options of an experiment that trains models on registered data sets and keeps them."""
    jobs.add_options(parser, name)
    parser.add_argument("--output", type=Path, help="write the numbers to this file")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--data", nargs="+", help="of the registered data sets; by default all")


def main(argv: Sequence[str] | None = None) -> None:
    """Run the command."""
    parser = options.make_parser(__doc__)
    add_options(parser, NAME)
    given = options.read(parser, argv)
    about = plan(given.smallest)
    kept = jobs.kept(given, registered(NAME)[1])
    results = {data: one_data(about, data, given, kept) for data in given.data or about["data"]}
    print(shown(results))
    if given.output is not None:
        given.output.parent.mkdir(parents=True, exist_ok=True)
        content = {"registered": registered(NAME)[1], "data": results}
        given.output.write_text(json.dumps(content, indent=1) + "\n")
        draw(about, results, given.output.with_suffix(".png"))


def redraw() -> None:
    """Draw the figure of the page again, from its committed numbers."""
    path = ROOT / "docs" / "evidence" / f"{NAME}.json"
    draw(registered(NAME)[0], json.loads(path.read_bytes())["data"], path.with_suffix(".png"))


def page() -> dict[str, str]:
    """Return the table of the page, from its committed numbers."""
    numbers = json.loads((ROOT / "docs" / "evidence" / f"{NAME}.json").read_bytes())
    return {NAME: first_shown(shown(numbers["data"]))}


def one_data(about: dict[str, Any], data: str, given: argparse.Namespace, kept: Kept) -> dict[str, Any]:
    """Return the results of a data set, with the comparisons."""
    results = everything(about, data, kept, given.smallest, given.device)
    return results | {"compared": compared(about, data, results)}


if __name__ == "__main__":
    main()
