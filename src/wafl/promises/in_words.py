"""A certificate in words, on one page, for readers who know neither the model nor the mathematics."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

LENGTHS = {"l1": "sum of the changes", "l2": "Euclidean length", "l_inf": "largest change"}


def statement(content: Mapping[str, Any]) -> list[str]:
    """The lines of the page, which follow from the rest of the file."""
    claim, model, clients = content["claim"], content["model"], content["clients"]
    count = sum(client["examples"] for client in clients)
    number = "1 client" if len(clients) == 1 else f"{len(clients)} clients"
    table = [f"| {row['radius']:g} | {rounded_up(row['value'])} |" for row in content["certificates"]]
    kept = "" if claim["part"] == "train" else " that were kept for testing"
    if claim["confidence"] is None:
        about, those = "these examples", "the clients' examples"
        limits = (
            "- Anything about examples that nobody has seen yet. The promise is about the examples at hand, with the "
            "clients weighted as the file says; how close these are to what comes next is not part of it."
        )
    else:
        about, those = "the populations that these examples were drawn from", "those populations"
        limits = (
            f"- Certainty. The examples were drawn by chance, and with a probability of at most "
            f"{1.0 - claim['confidence']:.2g} the draw was so lucky that one of the numbers is too small. That they "
            "were drawn independently, and that the model had not seen them, is the word of whoever issued this."
        )
    quantity, column = f"expected loss ({claim['loss'].replace('_', ' ')})", "expected loss"
    if claim["metric"] == "error":
        quantity = "error rate (the share of examples for which another answer has at least the score of the right one)"
        column = "error rate"
    return [
        "# What this certificate promises",
        "",
        f"This model ({model['parameters']:,} parameters, SHA-256 {model['sha256'][:16]}...) was examined on {count:,} "
        f"examples of {number}{kept}. If it is used on other data that differ from {about} by no more than the "
        f"distance on the left, then its {quantity} is at most the number on the right.",
        "",
        f"| distance at most | {column} at most |",
        "| --- | --- |",
        *table,
        "",
        f"*Distance* is how far examples must be moved to turn {those} into the other data: the "
        f"{LENGTHS[claim['norm']]} of each move, in {claim['unit']}, in the root mean square. Labels stay as they are. "
        "Mathematicians call it the 2-Wasserstein distance. The promise holds for every such change, whether by "
        "chance, by another instrument or on purpose. It is proven, not tested.",
        "",
        "## What it does not promise",
        "",
        "- Anything about data that are farther away, or in which the labels occur in other proportions.",
        "- Anything about a single example: the promise is about the mean.",
        limits,
        "",
        "## How to check it",
        "",
        "`wafl verify certificate.json --model RUN --data DATA --key PUBLIC_KEY` recomputes every number that can be "
        "recomputed from what you have, and says which are only attested by whoever issued the file. A client that has "
        "its own data alone can check its own numbers. Without a public key that you trust, nothing proves who issued "
        "the file.",
    ]


def rounded_up(value: float, digits: int = 4) -> str:
    """A number with so many digits after the point that is not below the value.

    >>> rounded_up(0.12341), rounded_up(2.0)
    ('0.1235', '2.0000')
    """
    scale = 10**digits
    raised = math.ceil(value * scale) / scale
    return f"{raised if raised >= value else (math.ceil(value * scale) + 1) / scale:.{digits}f}"
