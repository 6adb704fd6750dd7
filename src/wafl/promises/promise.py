"""Represent a certificate as a file and in words: a claim, and the witnesses that let anyone prove it again.

The **claim** states the certified quantity (metric, norm, power, part, confidence; radii and values), the model and
the examples, by their digests and weights. It is about the mixture of these clients, or about all clients of
the population that they were drawn from. The **witnesses** are a gamma per radius and, per client, an upper bound on
its mean of phi_gamma, so that a client with only its own data can check its line. Statements about distributions
also have bets. Everything else, such as the slopes, the loss and every sentence, follows from model and data and is
not in the file. The file contains no example.
"""

import json
import math
import os
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from fractions import Fraction
from hashlib import sha256
from importlib.resources import files
from pathlib import Path
from typing import Any, Literal

from torch import nn

from wafl.base.describe import rounded_up, some
from wafl.base.files import SEAL, check_place, write_whole
from wafl.base.fingerprint import model_digest
from wafl.data.examples import Examples
from wafl.data.federation import Federation
from wafl.promises.known import Metric
from wafl.promises.quantities import quantity_of
from wafl.promises.sign import ALGORITHM, read_key, sign
from wafl.tasks.structure.sequence import copied

LENGTHS = {"l1": "sum of the changes", "l2": "Euclidean length", "l_inf": "largest change"}
WHO = {"mean": "all clients, in the mean", "share": "each of at least {} of all clients", "next": "the next client"}


@dataclass(frozen=True)
class Facts:
    """Facts that are not in a certificate but follow from the model and the data; None if these are missing."""

    loss: str | None = None
    parameters: int | None = None
    unit: str | None = None
    proven: bool = False
    """Whether every row was proven, here and now."""


def statement(claim: Mapping[str, Any], facts: Facts, attested: str | None = None) -> str:
    """Return the page that follows from the claim, the model and the data.

    The page is ``mixture.md`` about examples at hand, ``drawn.md`` about their distributions, ``population.md``,
    or ``attested.md`` if nothing is proven.
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
    proven = "It is proven, not tested." if facts.proven else "That it is proven is the issuer's word."
    if attested is not None:
        name = "attested"
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
        proven=proven,
        reason=attested,
        **(kept if mixture else _of_population(claim)),
    )


def _who(claim: Mapping[str, Any], row: Mapping[str, Any]) -> str:
    """Return the subject of a row about all clients, on their distributions or examples, and the row's confidence."""
    what = "distribution" if claim["own_sampling"] or row["about"] == "mean" else "examples"
    on = f"on its {what}" if row["about"] == "next" else f"on their {what}{'s' * (what == 'distribution')}"
    who = f"{WHO[row['about']].format(plain(row['share'] or 0.0))}, {on}"
    if (confidence := row.get("confidence")) is None:
        return who
    count, halves = len(claim["clients"]) + len(claim.get("missing", ())), 2 if claim["own_sampling"] else 1
    # It is written with 6 digits, rounded down: one more in the last digit is more than the clients support.
    most = (1 - Fraction(plain(confidence)) - Fraction(1, 10**6)) * (count + 1) < halves
    clients = "1 client supports" if count == 1 else f"{count} clients support"
    return f"{who}, with a probability of at least {plain(confidence)}{f', the most that {clients}' if most else ''}"


def _of_population(claim: Mapping[str, Any]) -> dict[str, str]:
    about = "its distribution, from which its examples are drawn,"
    if not claim["own_sampling"]:
        about = "its examples, in numbers similar to these clients' (for the mean, from its distribution),"
    other = " unless it says another" if any(row.get("confidence") is not None for row in claim["rows"]) else ""
    whose = f" {missing_line(missing)}." if (missing := claim.get("missing", ())) else ""
    return {"own": about, "radius": plain(claim["rows"][0]["radius"]), "other": other, "missing": whose}


def missing_line(missing: Sequence[str]) -> str:
    """Return a sentence about the clients that reported no number."""
    clients = "1 more client was" if len(missing) == 1 else f"{len(missing)} more clients were"
    return f"{clients} drawn and gave no finite answer, which counts as infinity: {some(missing, 8)}"


def plain(value: float) -> str:
    """Return all digits of a number, so that the text states exactly the number in the claim.

    >>> plain(0.30000000000000004), plain(2.0)
    ('0.30000000000000004', '2')
    """
    return repr(value).removesuffix(".0")


FORMAT = 3
FORMATS = (2, FORMAT)
"""Formats that can be read. In format 2, digests include neither the types of numbers nor the scales of data."""
Split = Literal["train", "test", "all"]
About = Literal["mixture", "mean", "share", "next"]
NormName = Literal["l1", "l2", "l_inf"]
NORMS: dict[NormName, float] = {"l1": 1, "l2": 2, "l_inf": math.inf}


@dataclass(frozen=True)
class Client:
    """A client of a claim: a name, the weight in the mixture, and the number and digest of the examples."""

    name: str
    weight: float
    examples: int
    sha256: str


@dataclass(frozen=True)
class Row:
    """A bound: within ``radius``, the expected loss or the error rate is at most ``value``.

    It is about the mixture of the clients or, for all clients of a population, about their mean, each of a ``share`` of
    them, or the ``next`` one.
    """

    about: About
    share: float | None
    radius: float
    value: float
    confidence: float | None = None
    """The probability with which it holds, if it is lower than the claim's; otherwise None, which is not written."""

    @property
    def name(self) -> str:
        """The subject, such as ``"mean"`` or ``"share 0.9"``."""
        return self.about if self.share is None else f"{self.about} {plain(self.share)}"


@dataclass(frozen=True)
class Claim:
    """The certified bounds of a model on some examples.

    With ``own_sampling``, the bounds are about the distributions of the clients' examples, and not about these
    examples.
    """

    metric: Metric
    norm: NormName
    power: Literal[1, 2]
    part: Split
    confidence: float | None
    own_sampling: bool
    model: str
    clients: tuple[Client, ...]
    rows: tuple[Row, ...]
    missing: tuple[str, ...] = ()
    """Drawn clients without a number, each of which counts as infinity; not written if empty."""

    @property
    def drawn(self) -> int:
        """The number of clients that were drawn from all clients."""
        return len(self.clients) + len(self.missing)

    @property
    def radii(self) -> list[float]:
        """The different radii of the rows, in their order."""
        return list(dict.fromkeys(row.radius for row in self.rows))

    def confidence_of(self, row: Row) -> float | None:
        """Return the probability with which a row holds; None if it holds for certain."""
        return self.confidence if row.confidence is None else row.confidence


@dataclass(frozen=True)
class Draws:
    """Bets on the examples of each client, chosen without them, and the average payment for each stake.

    Payments are defined in :mod:`wafl.promises.bets`; ``paid`` has a line for each stake.
    """

    bets: tuple[float, ...]
    paid: tuple[tuple[float, ...], ...]


@dataclass(frozen=True)
class Witness:
    """The proof of the rows of a radius: gamma (None where nothing moves, or the slope decides), and clients' means.

    ``means`` are of phi_gamma, and ``bet`` is one on them, if the clients are draws too.
    """

    gamma: float | None
    means: tuple[float, ...]
    bet: float | None
    draws: Draws | None


@dataclass(frozen=True)
class Resample:
    """The largest distance of draws of this number of a label's examples."""

    examples: int
    distance: float


@dataclass(frozen=True)
class Label:
    """The published facts about one label (:mod:`wafl.promises.published_labels`)."""

    label: int
    share: float
    examples: int
    points: tuple[tuple[float, ...], ...]
    weights: tuple[float, ...]
    spread: float
    loss: float
    surrogates: tuple[float, ...]
    resamples: tuple[Resample, ...]


@dataclass(frozen=True)
class Labels:
    """The published facts about all labels, and their gammas."""

    gammas: tuple[float, ...]
    labels: tuple[Label, ...]


@dataclass(frozen=True)
class Content:
    """The content of a certificate's file, without its digest and its signature."""

    format: Literal[2, 3]
    claim: Claim
    attested: str | None
    """Why the values are not proven but only attested by the issuer; None if the witnesses prove them."""
    witnesses: tuple[Witness, ...]
    labels: Labels | None
    issued: str


@dataclass(frozen=True)
class Promise:
    """A certificate: the content of its file, and the facts known when this object was made."""

    parts: Content
    facts: Facts = field(default_factory=Facts)

    @property
    def content(self) -> dict[str, Any]:
        """The content of the file, as plain values."""
        whole = asdict(self.parts)
        for row in whole["claim"]["rows"]:
            if row["confidence"] is None:
                del row["confidence"]
        if not whole["claim"]["missing"]:
            del whole["claim"]["missing"]
        if self.parts.format == 2:
            del whole["attested"]
        return whole

    @property
    def proven(self) -> bool:
        """Whether every row was proven with the model and the data, at creation or by :func:`wafl.verify`."""
        return self.facts.proven

    @property
    def values(self) -> dict[Any, float]:
        """The promised values by radius; for all clients, by subject, such as ``"mean"`` or ``"share 0.9"``."""
        return {row.radius if row.about == "mixture" else row.name: row.value for row in self.parts.claim.rows}

    def save(self, path: str | os.PathLike[str], *, key: str | os.PathLike[str] | None = None) -> Path:
        """Write the certificate, and a readable page next to it, ``NAME.md``.

        Args:
            path: the file, such as ``certificate.json``.
            key: the file of an Ed25519 private key, without a password, that signs it.

        Returns:
            The page.
        """
        check_output(path, key)
        file = Path(path)
        signature = None if key is None else sign(to_bytes(self.content), key)
        page = file.with_suffix(".md")
        write_whole(file, whole_file(self.content, signature))
        write_whole(page, f"{self}\n".encode())
        return page

    def __str__(self) -> str:
        return statement(self.content["claim"], self.facts, self.parts.attested)


def check_output(path: str | os.PathLike[str], key: str | os.PathLike[str] | None) -> None:
    """Raise ValueError, before any work starts, if no certificate can be written there or signed with this key."""
    check_place(Path(path), page=True)
    if key is not None:
        read_key(key, private=True)


def examples_of(clients: Federation, split: Split) -> Examples:
    """Return the examples of a claim about this split."""
    return clients.examples if split == "all" else getattr(clients, split)


def digest_of(module: nn.Module, version: int = FORMAT) -> str:
    """Return the SHA-256 of a model: its layers with their settings and custom code, its parameters and buffers."""
    whole = copied(module).cpu().eval().requires_grad_(False)
    return model_digest(whole, dtypes=version > 2, arrays=version > 2)


def to_bytes(content: Any) -> bytes:
    """Serialize content in the only allowed form, so that each byte can be checked."""
    return (json.dumps(content, indent=1, allow_nan=False, default=as_table) + "\n").encode()


def as_table(value: Any) -> dict[str, Any]:
    """Return the fields of a dataclass by name."""
    return {each.name: getattr(value, each.name) for each in fields(value)}


def whole_file(content: Mapping[str, Any], signature: str | None) -> bytes:
    """Return the bytes of a certificate: its content, its digest, and its signature, if it has one."""
    digest = {SEAL: sha256(to_bytes(content)).hexdigest()}
    signed = {} if signature is None else {"signature": {"algorithm": ALGORITHM, "of": signature}}
    return to_bytes({**content, **digest, **signed})
