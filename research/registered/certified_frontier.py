"""Certified against clean error along the sizes of each method: whose frontier is lowest?

    python -m research certified-frontier [--only mnist smartwatch ...] [--processes N] [--work FOLDER]
        [--tables FOLDER] [--output docs/evidence/certified-frontier.json] [--smallest]

``experiments/registered/certified-frontier.toml`` defines training, tests and decision. For each task and norm, the
table has the mean gap between a rival's frontier and WAFL's, in points of certified error at the same clean error, with
95% intervals; positive is WAFL ahead, and bold is significant after Holm.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Mapping, Sequence
from statistics import fmean
from typing import Any

import wafl
from benchmarks import options
from research.registered import splits as shared
from research.registered.hulls import ahead
from research.registered.splits import Gap, Pair, Point, Rows, table
from research.registration import registered
from wafl.base.errors import OptimumWarning
from wafl.base.norms import typical_length

NAME = "certified-frontier"
RIVALS: tuple[str, ...] = ("FedAvg with decay", "FedPGM", "random moves")
OURS = "WAFL"
NORMED = ("FedPGM", OURS)
"""The methods that are trained in the norm of the ball in which they are judged."""
OPTION = {RIVALS[0]: "weight_decay", "FedPGM": "epsilon", "random moves": "noise", OURS: "radius"}
NORMS = {"2": 2.0, "inf": math.inf}
LEVELS = (0.25, 0.5, 0.75)


def main(argv: Sequence[str] | None = None) -> None:
    """Run the command."""
    parser = options.make_parser(__doc__)
    shared.add_options(parser, NAME)
    given = options.read(parser, argv)
    about, stamp = registered(NAME)
    if given.smallest:
        smoke = about.pop("smoke")
        about |= {"splits": smoke["splits"], "images": smoke["images"], "balls": [about["primary_ball"]]}
        about |= {kind: about[kind] | smoke[kind] for kind in KINDS}
        about["sizes"] = {method: sizes[:1] for method, sizes in about["sizes"].items()}
        about["network"][RIVALS[0]] = about["network"][RIVALS[0]][:1]
    jobs = [
        {"kind": kind, "task": task, "method": method, "norm": norm, "split": split, "about": about}
        for kind in KINDS
        for task in about[kind]["tasks"]
        if task in (given.only or [task])
        for method in (OURS, *RIVALS)
        for norm in (about[kind]["norms"] if method in NORMED else ["any"])
        for split in range(about["splits"])
    ]
    # What takes longest is begun first: images, and of these the norm inf.
    jobs.sort(key=lambda job: (job["task"] not in IMAGES, job["norm"] != "inf", job["kind"] != "network"))
    print(report(shared.rows_of(measure, jobs, stamp, given), about))


def page() -> dict[str, str]:
    """Return the table of the page, from its committed numbers."""
    return shared.reported(NAME, report)


def measure(kind: str, task: str, method: str, norm: str, split: int, about: Mapping[str, Any]) -> Rows:
    """Return clean and certified errors of one method on one split, by size."""
    train, test, classes = data_of(task, split, about)
    x, _ = shared.joined(train)
    spread, features = math.sqrt(float((x**2).sum(1).mean())), x.shape[1]
    decays = (kind, method) == ("linear", RIVALS[0])
    unit = shared.curvature(train) if decays else spread * typical_length(NORMS.get(norm, 2.0), features)
    clients, tested = shared.federation(train, classes), shared.federation(test, classes)
    sizes = [*([0.0] if method == RIVALS[0] else []), *(about["sizes"] | about[kind])[method]]
    key = {"kind": kind, "task": task, "method": method, "norm": norm, "split": split}
    key |= {"spread": spread, "ratio": len(test) / len(train) if task not in IMAGES else 0.0}
    runs, far = KINDS[kind](clients, train, method, NORMS.get(norm, 2.0), [size * unit for size in sizes], split, about)
    rows: Rows = []
    for size, run in zip(sizes, runs, strict=True):
        if run.diverged:
            rows.append({**key, "size": size, "diverged": run.diverged})
            continue
        result: dict[str, Any] = {**key, "size": size, "far": far}
        for each in about[kind]["norms"] if norm == "any" else [norm]:
            radii = [share * spread * typical_length(NORMS[each], features) for share in about["balls"]]
            asked: dict[str, Any] = {"norm": NORMS[each], "metric": "error", "achieved": False}
            errors = wafl.certify(run.model, tested, radii=[0.0, *radii], **asked)
            result |= {"clean": errors[0].value, each: [row.value for row in errors.rows[1:]]}
        rows.append(result)
    return rows


IMAGES = ("mnist", "digits")


def data_of(task: str, split: int, about: Mapping[str, Any]) -> tuple[list[Pair], list[Pair], int]:
    """Return the examples of the training clients, of the tested clients, and the number of classes."""
    if task not in IMAGES:
        train, test, classes = shared.people(task, about["unseen"], split)
        return *shared.prepared(train, test, scale=True), classes
    whole, every = wafl.load_dataset(task), slice(split, None, about["splits"])
    everything = whole.x_train, whole.y_train, whole.x_test, whole.y_test
    x, y, x_test, y_test = (each[every][: about["images"]] for each in everything)
    of_label = y.argsort(stable=True).tensor_split(about["clients"])
    pixels = [each.flatten(1).double().numpy() / whole.max_value for each in (x, x_test)]
    train = [(pixels[0][rows], y[rows].numpy()) for rows in of_label]
    return *shared.prepared(train, [(pixels[1], y_test.numpy())], scale=False), 10


def linear(
    clients: wafl.Federation, train: Sequence[Pair], method: str, norm: float, sizes: Sequence[float], seed: int,
    about: Mapping[str, Any],
) -> tuple[Sequence[wafl.Run], int]:  # fmt: skip
    """Train linear models to their optimum, one for each size; return them and the number away from it."""
    here = about["linear"]
    schedule = shared.to_optimum(shared.curvature(train), here["rounds"])
    trained, grid = method_of(method, sizes[-1], norm, here), {OPTION[method]: sizes}
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", OptimumWarning)
        runs = wafl.sweep(wafl.models.mlr(clients), clients, trained, grid, seed=seed, check_optimum=True, **schedule)
    return runs, sum(issubclass(each.category, OptimumWarning) for each in caught)


def network(
    clients: wafl.Federation, train: Sequence[Pair], method: str, norm: float, sizes: Sequence[float], seed: int,
    about: Mapping[str, Any],
) -> tuple[Sequence[wafl.Run], int]:  # fmt: skip
    """Train 1-Lipschitz networks, one for each size; their optimum is unknown."""
    here, runs = about["network"], list[wafl.Run]()
    schedule: dict[str, Any] = {"rounds": here["rounds"], "local_steps": 1, "batch_size": here["batch"], "seed": seed}

    def rate(number: int) -> float:
        return here["learning_rate"] * shared.falling(number / here["rounds"])

    for size in sizes:
        model = wafl.models.lipschitz(clients, width=here["width"], depth=here["depth"], seed=seed)
        loss = wafl.MarginLoss(size if method == RIVALS[0] else 0.0, here["temperature"])
        trained = method_of(method, size, norm, here)
        runs.append(wafl.fit(model, clients, trained, learning_rate=rate, loss=loss, **schedule))
    return runs, 0


KINDS = {"network": network, "linear": linear}
"""The training of each kind of model; the first takes longest."""


def method_of(name: str, size: float, norm: float, here: Mapping[str, Any]) -> wafl.Method:
    """Return the method at a size; FedAvg's size is an option of its schedule, or of its loss."""
    if name == RIVALS[0]:
        return wafl.FedAvgM()
    given: dict[str, Any] = {OPTION[name]: size, "bounds": None, "server": wafl.servers.momentum()}
    if name == "random moves":
        return wafl.Moved(**given)
    make = wafl.FedPGM if name == "FedPGM" else wafl.WAFL
    return make(**given, norm=norm, steps=here["steps"][name])


def gaps(theirs: Sequence[Point], ours: Sequence[Point]) -> list[float] | None:
    """Return the points by which their frontier is above ours: on average, and at three levels.

    None without overlap.
    """
    right, others = ([(-clean, -certified) for clean, certified in points] for points in (ours, theirs))
    return [100.0 * gap for gap in ahead(right, others, LEVELS)] or None


def report(rows: Rows, about: Mapping[str, Any]) -> str:
    """Return the verdict, the primary table, and one of other balls and levels, as Markdown."""
    level, balls = about["verdict"]["level"], about["balls"]
    cases = list(dict.fromkeys((row["kind"], row["task"]) for row in rows))
    primary: list[list[str]] = []
    others: list[list[str]] = []
    counts = {"ahead": 0, "behind": 0, "undecided": 0}
    for kind, task in cases:
        cells: list[str] = []
        for norm in NORMS:
            for ball in balls if norm in about[kind]["norms"] else []:
                comparisons = {rival: compared(rows, kind, task, norm, rival, balls.index(ball)) for rival in RIVALS}
                judged = dict(zip(RIVALS, shared.holm([each[0] for each in comparisons.values()]), strict=True))
                if ball == about["primary_ball"]:
                    cells += [judged[rival].marked(level) for rival in RIVALS]
                    for gap in judged.values():
                        side = "ahead" if gap.mean > 0 else "behind"
                        counts[side if gap.p < level else "undecided"] += 1
                for rival, (_, levels, left_out) in comparisons.items():
                    name = [f"{task}, {kind}", norm, f"{ball:g}", rival, judged[rival].marked(level)]
                    others.append([*name, *(f"{each:+.2f}" for each in levels), str(left_out)])
            cells += [""] * (len(RIVALS) if norm not in about[kind]["norms"] else 0)
        primary.append([f"{task}, {kind}", *cells])
    heads = [f"l_{norm}: {rival}" for norm in NORMS for rival in RIVALS]
    reached = counts["ahead"] == sum(counts.values())
    jobs = {(row["kind"], row["task"], row["method"], row["norm"], row["split"]): row.get("far", 0) for row in rows}
    diverged = sum("diverged" in row for row in rows)
    parts = [
        f"The goal is {'' if reached else 'not '}reached. Of {sum(counts.values())} comparisons, WAFL is ahead in "
        f"{counts['ahead']} and behind in {counts['behind']}, and {counts['undecided']} are undecided. Of {len(rows)} "
        f"models, {sum(jobs.values())} did not reach their optimum and {diverged or 'none'} diverged.",
        table(["rival less WAFL, points", *heads], primary),
        table(["task", "norm", "radius", "rival", "on average", "at 1/4", "at 1/2", "at 3/4", "left out"], others),
    ]
    return "\n\n".join(parts)


def compared(rows: Rows, kind: str, task: str, norm: str, rival: str, ball: int) -> tuple[Gap, tuple[float, ...], int]:
    """Return the mean gap to a rival over splits, the gaps at three levels, and the number of omitted splits."""
    here = [row for row in rows if (row["kind"], row["task"]) == (kind, task) and norm in row]
    splits = sorted({row["split"] for row in here})
    differences = [gaps(*(_points(here, split, method, norm, ball) for method in (rival, OURS))) for split in splits]
    known = [each for each in differences if each is not None]
    if not known:
        return Gap(0.0, math.inf, 1.0), (math.nan,) * len(LEVELS), len(differences)
    ratio = fmean(row["ratio"] for row in here)
    average, *levels = zip(*known, strict=True)
    return shared.corrected(average, ratio), tuple(fmean(each) for each in levels), len(differences) - len(known)


def _points(rows: Rows, split: int, method: str, norm: str, ball: int) -> list[Point]:
    """Return the errors of a method's sizes; the smallest, 0, is FedAvg."""
    wanted = (row for row in rows if row["split"] == split and (row["method"] == method or row["size"] == 0.0))
    return [(row["clean"], row[norm][ball]) for row in wanted if row["norm"] in (norm, "any")]


if __name__ == "__main__":
    main()
