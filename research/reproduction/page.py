"""The tables about the paper's figures and tables, from their numbers in docs/reproduction.

Claims and the answers of pages are in docs/reproduction/claims.toml. In them, ``[[EXPERIMENT LABEL TEST SHARE]]``
stands for an accuracy with its interval, ``[[EXPERIMENT LABEL TEST SHARE over OTHER]]`` for the difference to another
line, paired by seed, in bold if its interval excludes 0, ``[[EXPERIMENT LABEL TEST fall]]`` for the accuracy that is
lost between no attacked client and the largest share (and ``over OTHER``), ``[[EXPERIMENT LABEL radius]]`` for an
achieved radius, and ``[[EXPERIMENT LABEL matching_gamma]]`` for the gamma whose moves are as long as the attack's. A
line that an experiment's file lists and its numbers lack is "not made".
"""

from __future__ import annotations

import json
import re
import textwrap
import tomllib
from collections import Counter
from collections.abc import Mapping, Sequence
from functools import cache
from statistics import fmean
from typing import Any

from research.experiment import ROOT
from research.markdown import folded, signed, table
from research.old_names import command
from research.reproduction.condition import of_condition
from research.reproduction.draw import attack_of
from research.reproduction.experiments import PROTOCOLS, Part, names, read
from research.reproduction.reproduce import digest
from research.statistics import Mean, diverged, mean_of

DOCS = ROOT / "docs"
TABLE_1 = {"weights by examples": 29.7, "equal weights": 41.6, "AFL": 42.5, "DRFA": 43.2, "WAFL": 46.7}
"""The last column of the paper's table 1: means over its three targets, for n_i/n, 1/m, AFL, DRFA and WAFL."""
WIDTH = 120
MANY = 12
"""The number of lines above which the page shows the best of each method, and folds the others."""


def page() -> dict[str, str]:
    """Return the tables by name: one per part of a figure or table, the verdicts, the claims, and how all was made."""
    numbers = {
        path.stem: json.loads(path.read_text(encoding="utf-8")) for path in (DOCS / "reproduction").glob("*.json")
    }
    tables = {
        name: of_experiment(each) + (f"\n\nThis table was {note}." if (note := earlier(name, each)) else "")
        for name, each in numbers.items()
    }
    answers = {f"answer-{each['page']}": "\n".join(_wrapped(each["text"])) for each in listed("answers", numbers)}
    claimed, added = listed("claims", numbers), listed("additions", numbers)
    return (
        tables
        | answers
        | {
            "verdict-counts": counts(claimed),
            "verdicts": table(
                ["claim", "verdict", "condition", "in short"], cells(claimed, "claim", "verdict", "condition", "short")
            ),
            "additions": table(["addition", "in short"], cells(added, "finding", "short")),
            "claims": "\n\n".join(map(claim, claimed)).replace("](", "](../"),
            "further": "\n\n".join(map(addition, added)).replace("](", "](../"),
            "domains-average": averages(numbers),
            "made": how(numbers),
        }
    )


def of_experiment(numbers: Mapping[str, Any]) -> str:
    """Return the table of an experiment as Markdown: the mean and interval of every method under every test."""
    if numbers["figure"] == "partition":
        rows = numbers["rows"]
        cells = [[f"{cell:.1f}" if isinstance(cell, float) else str(cell) for cell in row.values()] for row in rows]
        return table(list(rows[0]), cells)
    if numbers["figure"] == "condition":
        return of_condition(numbers["rows"])
    every = numbers["rows"]
    rows = [row for row in every if "test" in row]
    tests = list(dict.fromkeys((row["test"], row["attacked"]) for row in rows))
    heads = [test if share == 0 and len(tests) == 1 else f"{test}, {share:.0%}" for test, share in tests]
    radius = any(row.get("radius") is not None for row in rows)
    lines: list[list[str]] = []
    for label in dict.fromkeys(row["label"] for row in every):
        of_label = [row for row in rows if row["label"] == label]
        cells = [
            str(mean_of([row["accuracy"] for row in of_label if (row["test"], row["attacked"]) == test]))
            if of_label
            else "diverged"
            for test in tests
        ]
        radii = [row["radius"] for row in of_label if row.get("radius") is not None]
        lines.append([label, *cells, *([f"{mean_of(radii).value:.2f}" if radii else ""] if radius else [])])
    titles = ["accuracy (%)", *heads, *(["achieved radius"] if radius else [])]
    text = table(titles, lines)
    if len(lines) > MANY and len(tests) == 1:
        entries = {row["label"]: row["entry"] for row in every}
        best = {entries[line[0]]: line for line in sorted(lines, key=lambda line: float(line[1].split()[0]))}
        chosen = [line for line in lines if line in best.values()]
        text = f"The best of each method's settings:\n\n{table(titles, chosen)}\n\n{folded('All settings', text)}"
    notes = [caption(numbers)] if any(share for _, share in tests) else []
    notes += [f"Diverged: {label}: {reason}." for label, reason in diverged(numbers).items()]
    if left := numbers.get("unfinished"):
        notes.append(f"Not made: {', '.join(left)}.")
    return "\n\n".join([text, *filter(None, notes)])


def caption(numbers: Mapping[str, Any]) -> str:
    """Describe the columns of a table: each attack with its norm, size and steps, and the meaning of ±."""
    attacks = [f"`{name}` is {attack_of(test)}" for name, test in numbers.get("tests", {}).items()]
    if not attacks:
        return ""
    seeds = len(numbers.get("seeds", []))
    half = f" ± is half the width of a 95% interval (Student's t) over {seeds} seeds." if seeds > 1 else " One seed."
    unit = f" Sizes are in units of {numbers['unit'].replace(' a pixel', ' of a pixel')}." if "unit" in numbers else ""
    return f"Attacks: {'; '.join(attacks)}.{unit} The percentage is the share of attacked clients.{half}"


def averages(numbers: Mapping[str, Any]) -> str:
    """Return the last column of table 1: means over the three targets, the paper's and ours.

    Under ``paper`` they belong to the settings that are best on each target, as in the paper. WAFL is the nearest
    source, in its ball where that was made for every target.
    """
    ours = {
        "ours, `paper`": ("tab-domains-{}-paper", "nearest-ball"),
        "ours, `fair`": ("tab-domains-{}-fair", "nearest"),
        "ours, `fair`, CNN": ("tab-domains-cnn-{}-fair", "nearest"),
    }
    lines: list[list[str]] = []
    for weights, printed in TABLE_1.items():
        cells = [f"{printed:.1f}"]
        for name, wafl in ours.values():
            names = {"weights by examples": "examples", "equal weights": "uniform", "WAFL": wafl}
            entry = names.get(weights, weights.lower())
            files = [numbers[name.format(target)] for target in ("usps", "svhn", "mnist")]
            cells.append(str(average([_best_by_seed(each["rows"], entry) for each in files])))
        lines.append([weights, *cells])
    return table(["method", "the paper", *ours], lines)


def average(targets: Sequence[Mapping[int, float]]) -> Mean:
    """Return the mean over targets of accuracies by seed, with its interval over the seeds."""
    return mean_of([fmean(target[seed] for target in targets) for seed in targets[0]])


def _best_by_seed(rows: Sequence[Mapping[str, Any]], entry: str) -> dict[int, float]:
    """Return the accuracies of a method's best setting."""
    of_label: dict[str, dict[int, float]] = {}
    for row in rows:
        if row["entry"] == entry and "accuracy" in row:
            of_label.setdefault(row["label"], {})[row["seed"]] = row["accuracy"]
    return max(of_label.values(), key=lambda values: fmean(values.values()))


def listed(kind: str, numbers: Mapping[str, Any]) -> list[dict[str, str]]:
    """Return the paper's ``claims`` or our ``additions``, with our numbers in place."""
    written = tomllib.loads((DOCS / "reproduction" / "claims.toml").read_text(encoding="utf-8"))[kind]
    return [{name: with_numbers(text, numbers) for name, text in each.items()} for each in written]


def _wrapped(text: str) -> list[str]:
    """Return the lines of a list of points, each point wrapped."""
    points = [" ".join(point.split()) for point in text.strip().split("\n\n")]
    return [
        line
        for point in points
        for line in textwrap.wrap(point, WIDTH, subsequent_indent="  ", break_on_hyphens=False, break_long_words=False)
    ]


def cells(items: Sequence[Mapping[str, str]], *keys: str) -> list[list[str]]:
    """Return one line of a table per item."""
    return [[item[key] for key in keys] for item in items]


def counts(claimed: Sequence[Mapping[str, str]]) -> str:
    """Return a sentence with the number of claims for each verdict."""
    number = Counter(item["verdict"] for item in claimed)
    judged = number["holds"] + number["partly"] + number["no"]
    return (
        f"Of the paper's {judged} claims, {number['holds']} hold, {number['partly']} hold in part, and {number['no']} "
        f"do not hold. The other {number['setting']} rows are settings, which claim nothing by themselves."
    )


def claim(item: Mapping[str, str]) -> str:
    """Return a claim's section, with the paper's numbers and ours; its links are written as from docs/."""
    verdict = {"holds": "Holds", "partly": "Holds in part", "no": "Does not hold", "setting": "A setting"}[
        item["verdict"]
    ]
    mark = "," if item["verdict"] == "holds" else ":"
    condition = f"{mark} {item['condition']}" if item["condition"] else ""
    return (
        f"## {item['claim']}\n\n**{verdict}{condition}.** {item['reason'].rstrip('.')}.\n\n"
        f"- The paper: {item['paper']}\n{_ours(item)}"
    )


def addition(item: Mapping[str, str]) -> str:
    """Return the section of something that the paper does not have."""
    return f"### {item['finding']}\n\n{item['short']}. {item['reason'].rstrip('.')}.\n\n{_ours(item)}"


def _ours(item: Mapping[str, str]) -> str:
    return f"- Ours, `paper`: {item['ours_paper']}\n- Ours, `fair`: {item['ours_fair']}"


def with_numbers(text: str, numbers: Mapping[str, Any]) -> str:
    """Return a text with the numbers that it requests in double brackets."""

    def number(match: re.Match[str]) -> str:
        experiment, label, *where = match[1].split()
        rows = [row for row in numbers[experiment]["rows"] if row.get("label") == label]
        if not rows and re.sub("-[a-z_]+=.*", "", label.lower()) in in_file(experiment):
            return "not made"
        if rows and all("diverged" in row for row in rows):
            return "diverged"
        if where in (["radius"], ["matching_gamma"]):
            by_seed = {row["seed"]: row[where[0]] for row in rows if where[0] in row}
            digits = ".2f" if where == ["radius"] else ".2g"
            return f"{mean_of(list(by_seed.values())).value:{digits}}" if by_seed else "not made"
        values = _fall(rows, where[0]) if where[1:2] == ["fall"] else _by_seed(rows, where[:2])
        if not values:
            raise SystemExit(f"[[{match[1]}]]: there is no such number")
        if where[2:3] == ["over"]:
            *elsewhere, name = where[3].split(":")
            others = [row for row in numbers[(*elsewhere, experiment)[0]]["rows"] if row.get("label") == name]
            other = _fall(others, where[0]) if where[1] == "fall" else _by_seed(others, where[:2])
            return signed(mean_of([values[seed] - other[seed] for seed in values]))
        return str(mean_of(list(values.values())))

    return re.sub(r"\[\[(.+?)\]\]", number, text)


@cache
def parts() -> dict[str, Part]:
    """Return the current content of the experiments' files, by the name of the numbers."""
    every = (part for name in names() for protocol in PROTOCOLS for part in read(name, protocol, "full"))
    return {part.label: part for part in every}


def in_file(label: str) -> set[str]:
    """Return the methods in the file of an experiment, including those without numbers."""
    return {method.label for method in parts()[label].experiment.methods} if label in parts() else set()


def earlier(label: str, numbers: Mapping[str, Any]) -> str:
    """Return a note if the file of an experiment has changed since its numbers were made."""
    same = label in parts() and digest(parts()[label]) == numbers["digest"]
    return "" if same else "made with an earlier version of its file"


def _by_seed(rows: Sequence[Mapping[str, Any]], where: Sequence[str]) -> dict[int, float]:
    """Return the accuracies under a test at a share."""
    tested = [row for row in rows if "test" in row]
    return {row["seed"]: row["accuracy"] for row in tested if [row["test"], f"{row['attacked']:g}"] == list(where)}


def _fall(rows: Sequence[Mapping[str, Any]], test: str) -> dict[int, float]:
    """Return the accuracies that a test takes from no attacked client to the largest share."""
    shares = sorted({row["attacked"] for row in rows if row.get("test") == test})
    first, last = (_by_seed(rows, [test, f"{share:g}"]) for share in (shares[0], shares[-1]))
    return {seed: first[seed] - last[seed] for seed in first}


def how(numbers: Mapping[str, Any]) -> str:
    """Return the command that made each file, today's command, and the machine.

    Methods that another command or machine added have a separate row.
    """
    rows: list[list[str]] = []
    for name, each in sorted(numbers.items()):
        for maker in (each, *each.get("added", ())):
            only = f" ({', '.join(maker['methods'])})" if "methods" in maker else ""
            machine = maker["machine"]
            version = maker["packages"]["wafl-learn"] or "from source"
            rows.append(
                [
                    f"[{name}]({name}.json){only}" + (f", {note}" if (note := earlier(name, each)) else ""),
                    maker["command"],
                    f"`{command(maker['command'])}`",
                    ", ".join(map(str, each["seeds"])),
                    f"wafl {version}, torch {maker['packages']['torch']}, Python {maker['python']}",
                    f"{machine['cores']} cores, {machine['processor']}, {machine['gpu'] or 'no GPU'}",
                ]
            )
    return table(["numbers", "recorded command", "today's command", "seeds", "versions", "machine"], rows)
