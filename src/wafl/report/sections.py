"""Build the sections of a page from plain numbers and names; the caller omits sections without numbers."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean, stdev
from textwrap import wrap
from typing import Any

from wafl.base.conditions import CLEAN, attacked_clients, shorten, unseen_clients
from wafl.report import charts
from wafl.report.charts import Curve
from wafl.report.page import Block, Cell, Code, Conditions, Figure, Section, Table, Tested

MOST_LINES = 40
MOST_CLIENTS = 60
"""The maximum number of client bars in one figure; other clients are only in tables and points."""
QUANTITIES = {
    "accuracy": "accuracy (%)",
    "attacked_accuracy": "accuracy under attack (%)",
    "test_loss": "test loss",
    "attacked_loss": "loss under attack",
    "loss": "training loss",
    "achieved_radius": "achieved radius",
    "agreement": "agreement: length of the mean update over mean length",
    "gamma": "gamma",
}
"""The names of the quantities that are drawn by round."""


@dataclass(frozen=True)
class SetRow:
    """Prediction sets on a page: their promise, and their coverage, client by client."""

    label: str
    promise: str
    threshold: float
    covered: Sequence[tuple[str, float]]
    coverage: float
    size: float
    full: int


def methods(tested: Sequence[Tested], measure: str, conditions: Conditions) -> Section:
    """Return the section with the table of methods, with intervals over seeds."""
    shares = sorted({share for row in tested for share in row.attacked})
    palette = charts.colors([row.name for row in tested], {row.name: row.method for row in tested})
    picks: dict[str, Any] = {"clean": lambda row: row.clean}
    picks |= {attacked_clients(share): lambda row, share=share: row.attacked.get(share, ()) for share in shares}
    others = unseen_clients(shorten(conditions.shift))
    caveat = next((row.caveat for row in tested if row.caveat), "")
    bound = "estimate" if caveat else "certified"
    picks |= {bound: lambda row: row.certified, others: lambda row: row.unseen, "worst client": lambda row: row.worst}
    picks = {name: pick for name, pick in picks.items() if any(pick(row) for row in tested)}
    best = {
        name: best_number([fmean(pick(row)) for row in tested if pick(row)], measure) for name, pick in picks.items()
    }
    unit = "Accuracy in percent" if measure == "accuracy" else "Loss"
    about = [
        "Clean and worst client: test data of the clients that trained.",
        f"Attacked: {conditions.attack}." if shares and conditions.attack else "",
        f"{bound.capitalize()}: {conditions.certified}." if bound in picks and conditions.certified else "",
        f"Shift of unseen clients: {conditions.shift}." if others in picks and conditions.shift else "",
    ]
    emphasis = " The best of each column is emphasized." if any(best.values()) else ""
    words = " ".join(filter(None, about)) + conditions.words("data", "model")
    caption = f"{unit}, {over_seeds(tested)}. {words}{emphasis} Press a heading to sort."
    columns = {
        "method": [Cell(row.label, color=palette.get(row.name, "")) for row in tested],
        "study": [Cell(row.study) for row in tested],
        **{name: [_mean(pick(row), measure, best[name]) for row in tested] for name, pick in picks.items()},
        "seconds": [Cell("" if row.seconds is None else f"{row.seconds:.1f}", row.seconds) for row in tested],
        "diverged": [Cell(str(row.diverged or ""), row.diverged) for row in tested],
    }
    lead = "Which method stays accurate under attack, and its cost on clean data."
    return Section("Methods", f"{caveat} {lead}" if caveat else lead, [Table.of(columns, caption)])


def over_seeds(tested: Sequence[Tested]) -> str:
    """Describe the seeds of a mean and its interval."""
    seeds = max((len(row.clean) for row in tested), default=0)
    if seeds < 2:
        return "one seed"
    return f"mean over {seeds} seeds" + (", with the 95% interval of that mean (Student's t)" if seeds > 2 else "")


def attacked(tested: Sequence[Tested], measure: str, conditions: Conditions) -> Section | None:
    """Return the section of accuracy or loss by the share of attacked clients, and of the gain over FedAvg."""
    rows = [row for row in tested if row.clean and row.attacked]
    if not rows:
        return None
    palette = charts.colors([row.name for row in tested], {row.name: row.method for row in tested})
    unit = unit_of(measure)
    curves = [_curve(row.name, {0.0: row.clean, **row.attacked}) for row in rows]
    shares = {share for row in rows for share in row.attacked}
    names = {0.0: CLEAN, **{100.0 * each: attacked_clients(each, shorten(conditions.attack)) for each in shares}}
    axis = "\n".join(["attacked clients (%)", *([shorten(conditions.attack)] if conditions.attack else [])])
    views = {unit: charts.lines(curves, axis, unit, palette, marks=True, names=names)}
    base = next((row for row in rows if row.label.lower() == "fedavg"), None)
    if base is not None and len(rows) > 1:
        views = {f"minus {base.label}": _differences(rows, base, unit, palette, axis, names), **views}
    more = " The first view shows what each method gains over FedAvg, paired by seed." if len(views) > 1 else ""
    bars = " Bars are the intervals." if any(len(row.clean) > 2 for row in rows) else ""
    caption = f"Each point: {over_seeds(rows)}.{bars}{conditions.words('attack', 'data', 'model')}{more}"
    return Section("Under attack", "Results when a share of the clients is attacked.", [Figure(views, caption)])


def _differences(
    rows: Sequence[Tested],
    base: Tested,
    unit: str,
    palette: Mapping[str, str],
    axis: str,
    names: Mapping[float, str],
) -> charts.Chart:
    """Return a chart of each row's gain over the base, paired by seed: the clients and attacks are the same."""
    before, curves = {0.0: base.clean, **base.attacked}, list[Curve]()
    for row in rows:
        values = {0.0: row.clean, **row.attacked}
        pairs = {share: list(zip(values[share], before[share], strict=False)) for share in values if share in before}
        points = {share: [mine - other for mine, other in pair] for share, pair in pairs.items() if pair}
        curves.append(_curve(row.name, points))
    title = "accuracy (%), minus FedAvg's" if "%" in unit else "loss, minus FedAvg's"
    return charts.lines(curves, axis, title, palette, marks=True, zero=True, names=names)


def rounds(quantities: Mapping[str, Sequence[Curve]], methods: Mapping[str, str], caption: str = "") -> Section | None:
    """Return the section with one view per quantity and one line per run; ``methods`` has the method of each line."""
    views: dict[str, Any] = {}
    for quantity, curves in quantities.items():
        drawn = list(curves)[:MOST_LINES]
        if any(len(curve.x) > 1 for curve in drawn):
            palette = charts.colors([curve.name for curve in drawn], methods)
            views[quantity] = charts.lines(drawn, "round", quantity, palette)
    return Section("Round by round", "How training went.", [Figure(views, caption)]) if views else None


def by_client(
    tests: Mapping[str, Mapping[str, Sequence[tuple[str, float]]]],
    methods: Mapping[str, str],
    measure: str,
    conditions: Conditions,
) -> Section | None:
    """Return the section of each client's value by test and method, and of the worst clients by name."""
    if not any(points for groups in tests.values() for points in groups.values()):
        return None
    unit, views = unit_of(measure), dict[str, Any]()
    for test, groups in tests.items():
        percent = "%" if measure == "accuracy" else ""
        views[test] = charts.strip(groups, unit, charts.colors(groups, methods), percent, test)
    first_test = next(iter(tests))
    palette, columns = charts.colors(tests[first_test], methods), dict[str, list[Cell]]()
    for name, points in tests[first_test].items():
        ordered = sorted(points, key=lambda point: point[1], reverse=measure != "accuracy")
        tenth = [value for _, value in ordered[: max(1, math.ceil(0.1 * len(ordered) - 1e-9))]]
        worst = [*(_cell(value, measure, client) for client, value in ordered[:4]), *[Cell("", "")] * 4][:4]
        row = [Cell(name, color=palette.get(name, "")), *worst, _cell(fmean(tenth), measure)]
        for heading, cell in zip(("method", "worst", "second", "third", "fourth", "worst tenth"), row, strict=True):
            columns.setdefault(heading, []).append(cell)
    table = Table.of(columns, f"The clients that each method serves worst: {first_test}, one seed.")
    words = conditions.words("attack", "shift", "data", "model")
    caption = f"One point per client, over the quartiles; hover to see which client. One seed.{words}"
    return Section(
        "Client by client",
        "An average hides the clients with the worst results. One model per method: the model of its first seed.",
        [Figure(views, caption), table],
    )


def unseen(
    rows: Mapping[str, Mapping[str, Any]], methods: Mapping[str, str], measure: str, conditions: Conditions
) -> Section:
    """Return the section of each method on training, test and unseen data, with intervals over clients."""
    others = unseen_clients(shorten(conditions.shift))
    splits = {"train": "seen clients, training data", "test": "seen clients, test data", "unseen": others}
    palette = charts.colors(rows, methods)
    curves: list[Any] = []
    for label, row in rows.items():
        means = [row[split]["mean"] for split in splits]
        lows = [min(row[split]["interval"][0], row[split]["mean"]) for split in splits]
        highs = [max(row[split]["interval"][1], row[split]["mean"]) for split in splits]
        curves.append(Curve(label, list(range(len(splits))), means, lows, highs))
    names = {float(index): name for index, name in enumerate(splits.values())}
    chart = charts.lines(curves, "", unit_of(measure), palette, marks=True, names=names)
    chart["layout"]["xaxis"] |= {
        "tickvals": list(range(len(splits))),
        "ticktext": [charts.on_lines(wrap(name, 14)) for name in splits.values()],
        "tickangle": 0,
        "automargin": True,
        "range": [-0.3, 2.3],
    }
    cells = [
        [
            Cell(label, color=palette.get(label, "")),
            *(_cell(row[split]["mean"], measure, _range(row[split]["interval"], measure)) for split in splits),
            _cell(row["unseen"]["worst_tenth"]["mean"], measure),
            *(_cell(row[gap]["mean"], measure) for gap in GAPS),
        ]
        for label, row in rows.items()
    ]
    columns = ["method", "training data", "test data", others, "worst tenth unseen", *GAPS.values()]
    seeds = max((len(row["unseen"]["seeds"]) for row in rows.values()), default=1)
    means = f"mean over {seeds} seeds" if seeds > 1 else "one seed"
    intervals = f"{means}, with 95% intervals over clients (bootstrap)"
    unit = "Accuracy in percent" if measure == "accuracy" else "Loss"
    caption = f"{unit}: {intervals}.{conditions.words('shift', 'data', 'model')}"
    table = Table(columns, cells, f"{caption} A gap is positive where a model does worse.")
    lead = "Clients that took no part in training show how well the model works for others."
    figure = Figure({unit_of(measure): chart}, "Means and intervals of the table below.")
    return Section("Seen and unseen", lead, [figure, table])


def prediction_sets(rows: Sequence[SetRow], tested: str) -> Section:
    """Return the section with the promise of prediction sets, and their coverage and size on the `tested` clients."""
    groups = {row.label: [(name, 100.0 * value) for name, value in row.covered] for row in rows}
    columns = {
        "sets": [Cell(row.label) for row in rows],
        "promise": [Cell(row.promise) for row in rows],
        "threshold": [Cell(f"{row.threshold:.4g}", row.threshold) for row in rows],
        "covered (%)": [Cell(f"{100.0 * row.coverage:.1f}", 100.0 * row.coverage) for row in rows],
        "size": [Cell(f"{row.size:.3g}", row.size) for row in rows],
        "full sets": [Cell(f"{row.full:,}", row.full) for row in rows],
    }
    caption = (
        f"Mean coverage and mean size over {tested}, and the number of sets that exclude nothing; one seed. Each row "
        "holds by itself, and not all rows together."
    )
    chart = charts.strip(groups, "labels covered (%)", charts.colors(groups), "%", tested)
    figure = Figure({"labels covered": chart}, f"One point per client: {tested}.")
    return Section(
        "Prediction sets", "Sets of labels that cover the next client.", [figure, Table.of(columns, caption)]
    )


GAPS = {"out_of_sample_gap": "training - test", "participation_gap": "test - unseen"}


def weights(by_method: Mapping[str, Sequence[float]], names: Sequence[str], methods: Mapping[str, str]) -> Block | None:
    """Return a figure of each client's final weight, one bar per method, if methods weight clients differently."""
    kept: dict[str, Sequence[float]] = {}
    for label, values in by_method.items():
        same = (all(abs(x - y) <= 1e-6 for x, y in zip(values, other, strict=False)) for other in kept.values())
        if len(values) == len(names) and not any(same):
            kept[label] = values
    if not kept:
        return None
    largest = sorted(range(len(names)), key=lambda client: -max(values[client] for values in kept.values()))
    shown = sorted(largest[:MOST_CLIENTS])
    palette = charts.colors(kept, methods)
    series = {label: [values[client] for client in shown] for label, values in kept.items()}
    few = f", the {MOST_CLIENTS} largest of {len(names)}" if len(names) > MOST_CLIENTS else ""
    same = "; methods with the weights of an earlier one are left out" if len(kept) < len(by_method) else ""
    chart = charts.bars([names[client] for client in shown], series, "client weight", palette)
    return Figure({"client weights": chart}, f"The weight of each client at the end of training{few}{same}.")


def partition(
    counts: Sequence[Sequence[int]] | None, sizes: Sequence[int], names: Sequence[str], classes: Sequence[str]
) -> Section:
    """Return the section with each client's number of examples per label, or without labels its number of examples."""
    few = range(min(len(names), MOST_CLIENTS))
    shown = [names[client] for client in few]
    more = f" The first {MOST_CLIENTS} of {len(names)} clients." if len(names) > MOST_CLIENTS else ""
    if counts is not None and len(classes) <= 100:
        rows = [[counts[client][label] or None for client in few] for label in range(len(classes))]
        chart = charts.heatmap(rows, shown, classes, "examples", y="label")
    else:
        chart = charts.bars(shown, {"examples": [sizes[client] for client in few]}, "examples")
    caption = f"{sum(sizes):,} examples; between {min(sizes):,} and {max(sizes):,} per client.{more}"
    return Section("Data", "How the examples are distributed over the clients.", [Figure({"examples": chart}, caption)])


def participation(
    asked: Mapping[str, int], counted: Mapping[str, int], reasons: Mapping[str, Mapping[str, int]]
) -> Section | None:
    """Return the section with each client's rounds asked and counted, and the reasons for not counting."""
    if not asked:
        return None
    troubled = [name for name in asked if counted.get(name, 0) < asked[name]]
    shown = sorted(sorted(asked, key=lambda name: name not in troubled)[:MOST_CLIENTS], key=list(asked).index)
    series = {"counted": [counted.get(name, 0) for name in shown]}
    if troubled:
        series["left out"] = [asked[name] - counted.get(name, 0) for name in shown]
    palette = {"counted": "#0072B2", "left out": "#D55E00"}
    chart = charts.bars(shown, series, "rounds, over all runs", palette, stacked=True)
    total, lost = sum(asked.values()), sum(asked.values()) - sum(counted.values())
    caption = f"Clients were asked {total:,} times; {lost:,} of their replies did not count."
    blocks: list[Block] = [Figure({"rounds": chart}, caption)]
    if reasons:
        rows = [
            [Cell(name), Cell(str(count), count), Cell(why)]
            for name, counts in reasons.items()
            for why, count in sorted(counts.items(), key=lambda pair: -pair[1])[:5]
        ]
        blocks.append(Table(["client", "rounds", "why it was left out"], rows[:500]))
    return Section("Participation", "Which clients took part, and which failed.", blocks)


def nodes(listed: Sequence[Mapping[str, Any]]) -> Table:
    """Return the table of the nodes of a study on Flower."""
    rows = [
        [
            Cell(node["name"] or node["id"]),
            Cell(", ".join(node["clients"][:3]) + (" …" if len(node["clients"]) > 3 else "")),
            Cell("yes" if node["present"] else "no"),
            Cell(str(node["replies"]), node["replies"]),
            Cell(str(node["failures"]), node["failures"]),
            Cell(node["last_failure"]),
        ]
        for node in listed
    ]
    return Table(["node", "clients", "here", "replies", "failures", "last failure"], rows)


def setup(command: str, again: str, config: str, versions: Mapping[str, str]) -> Section:
    """Return the section that explains how to repeat a study: the command, the experiment, and the versions."""
    blocks: list[Block] = [Code(again, "Run it again")] if again else []
    blocks += [Code(command, "Started with")] if command else []
    blocks += [Code(config, "Configuration, with every value in force", folded=True)] if config else []
    if versions:
        blocks.append(Table(["what", "version"], [[Cell(name), Cell(value)] for name, value in versions.items()]))
    return Section("Setup", "Everything that the numbers depend on.", blocks)


def unit_of(measure: str) -> str:
    """Return the axis label of a measure."""
    return "accuracy (%)" if measure == "accuracy" else "loss"


def number(value: float, measure: str) -> str:
    """Format a value of a measure."""
    return f"{value:.1f}" if measure == "accuracy" else f"{value:.4g}"


def best_number(values: Sequence[float], measure: str) -> str:
    """Return the best of several values as text, to mark ties; empty if there is only one value."""
    choose = max if measure == "accuracy" else min
    return number(choose(values), measure) if len(values) > 1 else ""


def half_width(values: Sequence[float]) -> float:
    """Return half the width of the 95% interval of a mean by Student's t."""
    from scipy.special import stdtrit

    return float(stdtrit(len(values) - 1, 0.975)) * stdev(values) / math.sqrt(len(values))


def interval(values: Sequence[float]) -> tuple[float, float] | None:
    """Return the 95% interval of a mean, or None for fewer than three values.

    >>> low, high = interval([1.0, 2.0, 3.0])
    >>> round(low, 3), round(high, 3)
    (-0.484, 4.484)
    """
    return None if len(values) < 3 else (fmean(values) - half_width(values), fmean(values) + half_width(values))


def _cell(value: float, measure: str, small: str = "") -> Cell:
    return Cell(number(value, measure), value, small)


def _mean(values: Sequence[float], measure: str, best: str) -> Cell:
    if not values:
        return Cell("", "")
    mean, ends = fmean(values), interval(values)
    if ends is not None and measure == "accuracy":  # the mean of a few seeds may be this uncertain
        ends = max(ends[0], 0.0), min(ends[1], 100.0)
    text = number(mean, measure)
    return Cell(text, mean, "" if ends is None else _range(ends, measure), best=text == best)


def _range(ends: Sequence[float], measure: str) -> str:
    return f"{number(ends[0], measure)} to {number(ends[1], measure)}"


def _curve(name: str, points: Mapping[float, Sequence[float]]) -> Curve:
    """Return a line of means by share in percent, with intervals if every point has several seeds."""
    shares = sorted(share for share, values in points.items() if values)
    ends = [interval(points[share]) for share in shares]
    known = [pair for pair in ends if pair is not None]
    low, high = ([pair[end] for pair in known] if len(known) == len(ends) else None for end in (0, 1))
    return Curve(name, [100.0 * share for share in shares], [fmean(points[share]) for share in shares], low, high)
