"""A certificate in words, on one page, for readers who know neither the model nor the mathematics."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

LENGTHS = {"l1": "sum of the changes", "l2": "Euclidean length", "l_inf": "largest change"}
CHECK = (
    "`wafl verify FILE --model RUN --data DATA --key PUBLIC_KEY` proves every number again that can be proven from "
    "what you have, and says which are only attested by whoever issued the file. A client that has its own data alone "
    "can check its own numbers. Without a public key that you trust, nothing proves who issued the file."
)


@dataclass(frozen=True)
class Facts:
    """What is no part of a certificate, and follows from the model and the data; None for what is not at hand."""

    loss: str | None = None
    parameters: int | None = None
    unit: str | None = None
    proven: bool = False
    """Whether every row was proven, here and now."""


def statement(claim: Mapping[str, Any], facts: Facts) -> list[str]:
    """The lines of the page, which follow from the claim, the model and the data."""
    size = "" if facts.parameters is None else f"{facts.parameters:,} parameters, "
    count = sum(client["examples"] for client in claim["clients"])
    number = "1 client" if len(claim["clients"]) == 1 else f"{len(claim['clients'])} clients"
    opening = f"This model ({size}SHA-256 {claim['model'][:16]}...) was examined on {count:,} examples of {number}"
    proven = "It is proven, not tested." if facts.proven else "That it is proven is the word of whoever issued this."
    unit = "the unit of the data" if facts.unit is None else facts.unit
    mean = "in the root mean square" if claim["power"] == 2 else "in the mean"
    moves = f"the {LENGTHS[claim['norm']]} of each move, in {unit}, {mean}. Labels stay as they are."
    named = "" if facts.loss is None or claim["metric"] == "error" else f" ({facts.loss.replace('_', ' ')})"
    page = _of_mixture if claim["part"] != "all" else _of_population
    title, about, heads, cells, meaning, *limits = page(claim, named, moves)
    return [
        f"# What this certificate promises{title}",
        "",
        f"{opening}{about}",
        "",
        f"| {' | '.join(heads)} |",
        "| --- | --- |",
        *(f"| {cell} | {rounded_up(row['value'])} |" for cell, row in zip(cells, claim["rows"], strict=True)),
        "",
        f"{meaning} {proven}",
        "",
        "## What it does not promise",
        "",
        *(f"- {limit}" for limit in limits),
        "",
        "## How to check it",
        "",
        CHECK,
    ]


def _of_mixture(claim: Mapping[str, Any], named: str, moves: str) -> tuple[Any, ...]:
    kept = "" if claim["part"] == "train" else " that were kept for testing"
    about, those = "these examples", "the clients' examples"
    limit = (
        "Anything about examples that nobody has seen yet. The promise is about the examples at hand, with the "
        "clients weighted as the file says; how close these are to what comes next is not part of it."
    )
    if claim["confidence"] is not None:
        about, those = "the populations that these examples were drawn from", "those populations"
        limit = (
            "Certainty. The examples were drawn by chance, and all numbers hold together with a probability of at "
            f"least {plain(claim['confidence'])}: a lucky draw makes one of them too small. That they were drawn "
            "independently, and that the model had not seen them, is the word of whoever issued this."
        )
    quantity, column = f"expected loss{named}", "expected loss"
    if claim["metric"] == "error":
        quantity = "error rate (the share of examples for which another answer has at least the score of the right one)"
        column = "error rate"
    return (
        "",
        f"{kept}. If it is used on other data that differ from {about} by no more than the distance on the left, then "
        f"its {quantity} is at most the number on the right.",
        ("distance at most", f"{column} at most"),
        [plain(row["radius"]) for row in claim["rows"]],
        f"*Distance* is how far examples must be moved to turn {those} into the other data: {moves} Mathematicians "
        f"call it the {claim['power']}-Wasserstein distance. The promise holds for every such change, whether by "
        "chance, by another instrument or on purpose.",
        "Anything about data that are farther away, or in which the labels occur in other proportions.",
        "Anything about a single example: the promise is about the mean.",
        limit,
    )


def _of_population(claim: Mapping[str, Any], named: str, moves: str) -> tuple[Any, ...]:
    worst = "worst error rate" if claim["metric"] == "error" else "worst expected loss"
    own = "what its examples are drawn from"
    if not claim["own_sampling"]:
        own = "its examples, about as many as these clients have (for the mean, from what they are drawn from)"
    said = {"mean": "all clients, in the mean", "next": "one more client"}
    share = "each of at least {} of all clients"
    return (
        " about clients that nobody has seen",
        f" that it was not trained on, drawn from a population of clients. A client's *{worst}*{named} is the largest "
        f"on any data that differ from {own} by no more than {plain(claim['rows'][0]['radius'])}.",
        (f"{worst} of", "at most"),
        [said.get(row["about"], share.format(plain(row["share"] or 0.0))) for row in claim["rows"]],
        f"*Differ* is how far examples must be moved: {moves} Each line alone holds with a probability of at least "
        f"{plain(claim['confidence'])}, over the draw of clients and of their examples.",
        "Anything about clients of another population, or about data that are farther away.",
        "Certainty: a lucky draw makes a number too small. That the clients were drawn independently, that these are "
        "all that were drawn, and that neither model nor bets depend on them is the word of whoever issued this.",
    )


def plain(value: float) -> str:
    """All digits of a number, so that what is said is what was claimed.

    >>> plain(0.30000000000000004), plain(2.0)
    ('0.30000000000000004', '2')
    """
    return repr(value).removesuffix(".0")


def rounded_up(value: float, digits: int = 4) -> str:
    """A number with so many digits after the point that is not below the value.

    >>> rounded_up(0.12341), rounded_up(2.0)
    ('0.1235', '2.0000')
    """
    scale = 10**digits
    raised = math.ceil(value * scale) / scale
    return f"{raised if raised >= value else (math.ceil(value * scale) + 1) / scale:.{digits}f}"
