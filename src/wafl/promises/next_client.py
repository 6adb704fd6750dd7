"""A statement about clients that nobody has seen, as a file: a claim, and the witnesses from which it is proven again.

The **claim** says what is promised (of the mean over all clients, of a share of them, of one more), of which model, and
from which held-out clients. The **witnesses** are a gamma, each client's mean of phi_gamma, and the bets, which were
chosen on the clients that trained. Everything else follows from model and data and is not in the file.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

from wafl.promises.in_words import LENGTHS, Facts, plain, rounded_up
from wafl.promises.promise import Metric, Sealed

ABOUT = "the next client"


@dataclass(frozen=True)
class HeldOut:
    """A client that did not train: its name, and the number and digest of all its examples."""

    name: str
    examples: int
    sha256: str


@dataclass(frozen=True)
class Statement:
    """At most ``value`` is the mean over all clients, what a ``share`` of them has at most, or the next one's."""

    about: Literal["mean", "share", "next"]
    share: float | None
    value: float

    @property
    def name(self) -> str:
        return self.about if self.share is None else f"{self.about} {plain(self.share)}"


@dataclass(frozen=True)
class NextClaim:
    """What is promised, of which model, from which clients."""

    metric: Metric
    norm: Literal["l1", "l2", "l_inf"]
    radius: float
    own_sampling: bool
    confidence: float
    model: str
    clients: tuple[HeldOut, ...]
    statements: tuple[Statement, ...]


@dataclass(frozen=True)
class Bets:
    """For clients' own sampling: each one's bet b, and its mean of ``-log(1 - b phi_gamma)``, what the bet has lost."""

    bets: tuple[float, ...]
    lost: tuple[float, ...]


@dataclass(frozen=True)
class NextWitness:
    """What proves the statements: gamma, each client's mean phi_gamma, and bets on clients and on their examples."""

    gamma: float | None
    means: tuple[float, ...]
    bet: float | None
    own: Bets | None


@dataclass(frozen=True)
class NextContent:
    """All that the file holds, but for its digest and its signature."""

    format: Literal[2]
    about: Literal["the next client"]
    claim: NextClaim
    witness: NextWitness
    issued: str
    versions: dict[str, str | None]


@dataclass(frozen=True)
class NextClientPromise(Sealed[NextContent]):
    """A statement about clients that nobody has seen: what its file holds, and the facts known to its maker."""

    @property
    def values(self) -> dict[str, float]:
        """The promised loss by what it is about: ``"mean"``, ``"next"``, or a share, such as ``"share 0.9"``."""
        return {each.name: each.value for each in self.parts.claim.statements}

    def __str__(self) -> str:
        return "\n".join(_page(self.parts.claim, self.facts))


def _page(claim: NextClaim, facts: Facts) -> list[str]:
    """The statement in words, which follow from the claim, the model and the data."""
    count, number = sum(client.examples for client in claim.clients), len(claim.clients)
    size = "" if facts.parameters is None else f"{facts.parameters:,} parameters, "
    unit = "the unit of the data" if facts.unit is None else facts.unit
    worst = "worst error rate" if claim.metric == "error" else "worst expected loss"
    named = "" if facts.loss is None or claim.metric == "error" else f" ({facts.loss.replace('_', ' ')})"
    own = "what its examples are drawn from"
    if not claim.own_sampling:
        own = "its examples, about as many as these clients have (for the mean, from what they are drawn from)"
    proven = "It is proven." if facts.proven else "That it is proven is the word of whoever issued this."
    said = {"mean": "all clients, in the mean", "next": "one more client"}
    share = "each of at least {} of all clients"
    about = [said.get(each.about, share.format(plain(each.share or 0.0))) for each in claim.statements]
    return [
        "# What this file promises about clients that nobody has seen",
        "",
        f"This model ({size}SHA-256 {claim.model[:16]}...) was examined on {count:,} examples of {number} clients that "
        f"it was not trained on, drawn from a population of clients. A client's *{worst}*{named} is the largest on any "
        f"data that differ from {own} by no more than {plain(claim.radius)}.",
        "",
        f"| {worst} of | at most |",
        "| --- | --- |",
        *(f"| {who} | {rounded_up(each.value)} |" for who, each in zip(about, claim.statements, strict=True)),
        "",
        f"Each line alone holds with a probability of at least {plain(claim.confidence)}, over the draw of clients and "
        f"of their examples. {proven} *Differ* is how far examples must be moved: the {LENGTHS[claim.norm]} of each "
        f"move, in {unit}, in the root mean square. Labels stay as they are.",
        "",
        "## What it does not promise",
        "",
        "- Anything about clients of another population, or about data that are farther away.",
        "- Certainty: a lucky draw makes a number too small. That the clients were drawn independently, that these are "
        "all that were drawn, and that neither model nor bets depend on them is the word of whoever issued this.",
        "",
        "## How to check it",
        "",
        "`wafl verify next.json --model RUN --data DATA --key PUBLIC_KEY` proves every number again that can be proven "
        "from what you have. A client that has its own data alone can check its own numbers.",
    ]


def complaints(found: NextContent) -> Iterator[str]:
    """What is wrong with numbers that have the right types."""
    claim, witness, count = found.claim, found.witness, len(found.claim.clients)
    about = [each.about for each in claim.statements]
    if not about or len(set(about)) != len(about):
        yield "it promises nothing, or says something twice"
    if not 0.0 < claim.confidence < 1.0:
        yield f"its confidence {claim.confidence:g} must lie between 0 and 1"
    for each in claim.statements:
        given = each.share is not None and 0.0 < each.share < 1.0
        if given != (each.about == "share") or (each.share is not None and not given):
            yield f"{each.about}: a share of clients is missing, there without a use, or not between 0 and 1"
    if (witness.gamma is None) != (claim.radius == 0.0) or witness.gamma == 0.0:
        yield f"radius {claim.radius:g}: gamma is missing, 0, or there without a use"
    own = witness.own
    if len(witness.means) != count or (own is not None and not len(own.bets) == len(own.lost) == count):
        yield "its witnesses do not have one number per client"
    if (own is None) == claim.own_sampling or (witness.bet is None) == ("mean" in about):
        yield "its bets and what is promised do not belong together"
    if witness.bet == 0.0 or (own is not None and 0.0 in own.bets):
        yield "a bet is 0, which wins nothing"
