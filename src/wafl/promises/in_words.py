"""A certificate in words, on one page, for readers who know neither the model nor the mathematics."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

LENGTHS = {"l1": "sum of the changes", "l2": "Euclidean length", "l_inf": "largest change"}


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
    count = sum(client["examples"] for client in claim["clients"])
    number = "1 client" if len(claim["clients"]) == 1 else f"{len(claim['clients'])} clients"
    table = [f"| {plain(row['radius'])} | {rounded_up(row['value'])} |" for row in claim["rows"]]
    kept = "" if claim["part"] == "train" else " that were kept for testing"
    size = "" if facts.parameters is None else f"{facts.parameters:,} parameters, "
    unit = "the unit of the data" if facts.unit is None else facts.unit
    mean = "in the root mean square" if claim["power"] == 2 else "in the mean"
    if claim["confidence"] is None:
        about, those = "these examples", "the clients' examples"
        limits = (
            "- Anything about examples that nobody has seen yet. The promise is about the examples at hand, with the "
            "clients weighted as the file says; how close these are to what comes next is not part of it."
        )
    else:
        about, those = "the populations that these examples were drawn from", "those populations"
        limits = (
            "- Certainty. The examples were drawn by chance, and all numbers hold together with a probability of at "
            f"least {plain(claim['confidence'])}: a lucky draw makes one of them too small. That they were drawn "
            "independently, and that the model had not seen them, is the word of whoever issued this."
        )
    quantity = "expected loss" + ("" if facts.loss is None else f" ({facts.loss.replace('_', ' ')})")
    column = "expected loss"
    if claim["metric"] == "error":
        quantity = "error rate (the share of examples for which another answer has at least the score of the right one)"
        column = "error rate"
    proven = "It is proven, not tested." if facts.proven else "That it is proven is the word of whoever issued this."
    return [
        "# What this certificate promises",
        "",
        f"This model ({size}SHA-256 {claim['model'][:16]}...) was examined on {count:,} examples of {number}{kept}. If "
        f"it is used on other data that differ from {about} by no more than the distance on the left, then its "
        f"{quantity} is at most the number on the right.",
        "",
        f"| distance at most | {column} at most |",
        "| --- | --- |",
        *table,
        "",
        f"*Distance* is how far examples must be moved to turn {those} into the other data: the "
        f"{LENGTHS[claim['norm']]} of each move, in {unit}, {mean}. Labels stay as they are. Mathematicians call it "
        f"the {claim['power']}-Wasserstein distance. The promise holds for every such change, whether by chance, by "
        f"another instrument or on purpose. {proven}",
        "",
        "## What it does not promise",
        "",
        "- Anything about data that are farther away, or in which the labels occur in other proportions.",
        "- Anything about a single example: the promise is about the mean.",
        limits,
        "",
        "## How to check it",
        "",
        "`wafl verify certificate.json --model RUN --data DATA --key PUBLIC_KEY` proves every number again that can be "
        "proven from what you have, and says which are only attested by whoever issued the file. A client that has "
        "its own data alone can check its own numbers. Without a public key that you trust, nothing proves who issued "
        "the file.",
    ]


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
