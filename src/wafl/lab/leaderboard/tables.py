"""The leaderboard as Markdown, from numbers alone."""

from collections.abc import Mapping, Sequence
from typing import Any

from wafl.lab.leaderboard.measure import COLUMNS
from wafl.lab.statistics import Mean, average_ranks, critical_difference, mean_of, paired

BASE = "FedAvg"


def table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A Markdown table."""
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def of_leaderboard(numbers: Mapping[str, Any]) -> str:
    """The leaderboard as Markdown: the average ranks, and every data set's table."""
    results: dict[str, dict[str, Any]] = numbers["results"]
    parts = [_ranks(results)]
    for name, methods in results.items():
        shown = [column for column in COLUMNS if _values(next(iter(methods.values())), column)]
        rows = [
            [method, *(str(mean_of(_values(row, column))) for column in shown), _ahead(methods, method)]
            for method, row in methods.items()
            if _values(row, "unseen")
        ]
        title = f"### {name} ({numbers['what'][name]})"
        parts.append(f"{title}\n\n{table(['method', *shown, 'unseen, against FedAvg'], rows)}")
    if numbers["absent"]:
        missing = ", ".join(f"{name} ({what})" for name, what in numbers["absent"].items())
        parts.append(f"Not here when this was made: {missing}.")
    if numbers.get("unfinished"):
        missing = "; ".join(f"{', '.join(methods)} on {name}" for name, methods in numbers["unfinished"].items())
        parts.append(f"Not made: {missing}.")
    return "\n\n".join(parts)


def _values(row: Mapping[str, Any], column: str) -> list[float]:
    return [split[column] for split in row["splits"] if split[column] is not None]


def _ahead(methods: Mapping[str, Any], method: str) -> str:
    """The paired difference to FedAvg on unseen clients, in bold if its interval leaves out 0."""
    if method == BASE or BASE not in methods:
        return ""
    ours, theirs = _values(methods[method], "unseen"), _values(methods[BASE], "unseen")
    return signed(paired(ours, theirs)) if len(ours) == len(theirs) else "some splits diverged"


def signed(mean: Mean) -> str:
    """A difference with its interval, in bold if that leaves out 0.

    >>> signed(Mean(1.5, 0.5, 5)), signed(Mean(-0.2, 0.5, 5))
    ('**+1.5 ± 0.5**', '-0.2 ± 0.5')
    """
    text = f"{mean.value:+.1f}" + ("" if mean.half is None else f" ± {mean.half:.1f}")
    return f"**{text}**" if mean.half is not None and abs(mean.value) > mean.half else text


def _ranks(results: Mapping[str, Mapping[str, Any]]) -> str:
    """Average ranks on unseen clients and on the worst tenth, over the data sets where every method has numbers."""
    most = max((len(methods) for methods in results.values()), default=0)
    whole = {
        name: methods
        for name, methods in results.items()
        if len(methods) == most and all(_values(row, "unseen") for row in methods.values())
    }
    if len(whole) < 2:
        return "Ranks need at least two data sets."
    columns = ("unseen", "worst tenth", "disturbed")
    ranks = {
        column: average_ranks(
            {
                name: {method: mean_of(_values(row, column)).value for method, row in methods.items()}
                for name, methods in whole.items()
            }
        )
        for column in columns
    }
    order = sorted(ranks["unseen"], key=ranks["unseen"].__getitem__)
    rows = [[method, *(f"{ranks[column][method]:.1f}" for column in columns)] for method in order]
    distance = critical_difference(len(order), len(whole))
    text = f"Average ranks over {len(whole)} data sets; two differ at 5% if they are {distance:.1f} apart (Nemenyi)."
    return f"{text}\n\n{table(['method', *columns], rows)}"
