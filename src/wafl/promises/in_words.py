"""A certificate in words, on one page, for readers who know neither the model nor the mathematics."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from fractions import Fraction
from importlib.resources import files
from typing import Any

from wafl.promises.quantities import quantity_of

LENGTHS = {"l1": "sum of the changes", "l2": "Euclidean length", "l_inf": "largest change"}
WHO = {"mean": "all clients, in the mean", "share": "each of at least {} of all clients", "next": "the next client"}


@dataclass(frozen=True)
class Facts:
    """What is no part of a certificate, and follows from the model and the data; None for what is not at hand."""

    loss: str | None = None
    parameters: int | None = None
    unit: str | None = None
    proven: bool = False
    """Whether every row was proven, here and now."""


def statement(claim: Mapping[str, Any], facts: Facts) -> str:
    """The page with what follows from the claim, the model and the data.

    It is ``mixture.md`` about examples at hand, ``drawn.md`` about what they were drawn from, or ``population.md``.
    """
    size = "" if facts.parameters is None else f"{facts.parameters:,} parameters, "
    count = sum(client["examples"] for client in claim["clients"])
    number = "1 client" if len(claim["clients"]) == 1 else f"{len(claim['clients'])} clients"
    unit = "the unit of the data" if facts.unit is None else facts.unit
    mean = "in the root mean square" if claim["power"] == 2 else "in the mean"
    quantity, mixture = quantity_of(claim["metric"]), claim["part"] != "all"
    kept = {"kept": "" if claim["part"] == "train" else " that were kept for testing"}
    cells = [plain(row["radius"]) if mixture else _who(claim, row) for row in claim["rows"]]
    name = "population" if not mixture else "mixture" if claim["confidence"] is None else "drawn"
    page = files("wafl.promises").joinpath(f"{name}.md").read_text(encoding="utf-8")
    return page.rstrip("\n").format(
        opening=f"This model ({size}SHA-256 {claim['model'][:16]}...) was examined on {count:,} examples of {number}",
        quantity=quantity.noun,
        meaning=quantity.meaning(facts.loss),
        table="\n".join(
            f"| {cell} | {rounded_up(row['value'])} |" for cell, row in zip(cells, claim["rows"], strict=True)
        ),
        moves=f"the {LENGTHS[claim['norm']]} of each move, in {unit}, {mean}. Labels stay as they are.",
        power=claim["power"],
        confidence=plain(claim["confidence"] or 0.0),
        proven="It is proven, not tested." if facts.proven else "That it is proven is the word of whoever issued this.",
        **(kept if mixture else _of_population(claim)),
    )


def _who(claim: Mapping[str, Any], row: Mapping[str, Any]) -> str:
    """Return whom a row about all clients is about, on their distributions or examples, and its own confidence."""
    what = "distribution" if claim["own_sampling"] or row["about"] == "mean" else "examples"
    on = f"on its {what}" if row["about"] == "next" else f"on their {what}{'s' * (what == 'distribution')}"
    who = f"{WHO[row['about']].format(plain(row['share'] or 0.0))}, {on}"
    if (confidence := row.get("confidence")) is None:
        return who
    count, halves = len(claim["clients"]), 2 if claim["own_sampling"] else 1
    # It is written with 6 digits, rounded down: one more in the last digit is more than the clients support.
    most = (1 - Fraction(plain(confidence)) - Fraction(1, 10**6)) * (count + 1) < halves
    clients = "1 client supports" if count == 1 else f"{count} clients support"
    return f"{who}, with a probability of at least {plain(confidence)}{f', the most that {clients}' if most else ''}"


def _of_population(claim: Mapping[str, Any]) -> dict[str, str]:
    about = "its distribution, from which its examples are drawn,"
    if not claim["own_sampling"]:
        about = "its examples, about as many as these clients have (for the mean, from its distribution),"
    other = " unless it says another" if any(row.get("confidence") is not None for row in claim["rows"]) else ""
    return {"own": about, "radius": plain(claim["rows"][0]["radius"]), "other": other}


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
