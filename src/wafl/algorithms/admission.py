"""Which replies count: those that arrived, are complete and finite, within the caps, and not outsized.

Updates that are merely long count too, but are shortened (:mod:`wafl.algorithms.lengths`).
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import torch

from wafl.algorithms.caps import Caps
from wafl.algorithms.lengths import lengths_of, longest_of, shortened
from wafl.algorithms.messages import PARAMS, Query, Replies, Reply

NOT_FINITE = "with NaN or infinity"


@dataclass(frozen=True)
class Exclusion:
    """A client that was asked but does not count in this round, and why."""

    client: int
    reason: str


REMOTE_CLIP = 3.0
"""How many times the median length an update may have where clients are on other machines, unless told otherwise."""


@dataclass(frozen=True)
class Tolerance:
    """How many clients may fail before a round does, and how far one may stray from the others.

    Args:
        min_replies: the share of the clients asked, and at least one client, that must reply for a round to count.
        attempts: how many times a round is tried in total before training stops.
        outsized: an update more than this many times as long as the round's median is left out, and so is a loss more
            than this many times the median loss, or 1 if that is larger; both need three replies to compare.
        clip: an update more than this many times as long as the round's median is shortened to that length. By default
            none is; where clients are on other machines, the default is 3.
        diverged: training stops when the mean loss of three rounds is more than this many times that of the first
            round. By default it goes on, with a warning.
    """

    min_replies: float = 0.5
    attempts: int = 3
    outsized: float = 100.0
    clip: float = math.inf
    diverged: float = math.inf

    def __post_init__(self) -> None:
        if not 0.0 <= self.min_replies <= 1.0:
            raise ValueError(f"min_replies={self.min_replies} is a share of the clients asked and must lie in [0, 1]")
        if self.attempts < 1:
            raise ValueError(f"attempts={self.attempts} must be at least 1")
        if not self.outsized > 1:
            raise ValueError(f"outsized={self.outsized} must exceed 1: it is a multiple of the median length")
        if not self.clip >= 1:
            raise ValueError(f"clip={self.clip} must be at least 1: it is a multiple of the median length")
        if not self.diverged > 1:
            raise ValueError(f"diverged={self.diverged} must exceed 1: it is a multiple of the first round's loss")

    def enough(self, replies: int, asked: int) -> bool:
        """Whether that many usable replies make a round."""
        return replies >= max(1, self.min_replies * asked)


class Admission(NamedTuple):
    """The query as if only the clients whose replies count had been asked, their replies, and who was left out.

    ``shortened`` has, by client, the share of its update's length that was kept.
    """

    query: Query
    replies: Replies | None
    excluded: list[Exclusion]
    shortened: dict[int, float]


def admit(query: Query, received: Sequence[Reply], tolerance: Tolerance, caps: Caps | None = None) -> Admission:
    """The replies that count; the clients' weights stay as they were.

    Every algorithm takes means relative to the weights of the clients that count.
    """
    sound, excluded = _without(received, [_fault(query, reply, caps or Caps()) for reply in received])
    sound, outsized = _without(sound, _outsized(query, sound, tolerance.outsized))
    order = {client: place for place, client in enumerate(query.clients)}
    kept = sorted(sound, key=lambda reply: order[reply.client])
    places = [order[reply.client] for reply in kept]
    counted = replace(query, clients=tuple(reply.client for reply in kept), weights=query.weights[places])
    if not kept:
        return Admission(counted, None, [*excluded, *outsized], {})
    replies, short = _shorten(query, _stack(kept, query.wanted), tolerance.clip)
    return Admission(counted, replies, [*excluded, *outsized], short)


def not_finite(excluded: Exclusion) -> bool:
    """Whether a reply was left out because it held NaN or infinity."""
    return excluded.reason.endswith(NOT_FINITE)


def split(replies: Replies) -> list[Reply]:
    """One reply per client."""
    return [
        Reply(client, replies.loss[i], replies.cost[i], {name: rows[i] for name, rows in replies.vectors.items()})
        for i, client in enumerate(replies.clients)
    ]


def _without(replies: Sequence[Reply], faults: Sequence[str | None]) -> tuple[list[Reply], list[Exclusion]]:
    """The replies without a fault, and why the others do not count."""
    pairs = list(zip(replies, faults, strict=True))
    return [reply for reply, fault in pairs if fault is None], [
        Exclusion(reply.client, fault) for reply, fault in pairs if fault is not None
    ]


def _outsized(query: Query, replies: Sequence[Reply], outsized: float) -> list[str | None]:
    """Why a reply is too far from the others, if there are at least three and it is."""
    if len(replies) < 3:
        return [None] * len(replies)
    losses = [abs(float(reply.loss)) for reply in replies]
    highest = outsized * max(statistics.median_low(losses), 1.0)
    lengths, longest = [0.0] * len(replies), math.inf
    if PARAMS in query.wanted:
        found = lengths_of(query.params, torch.stack([reply.vectors[PARAMS] for reply in replies]))
        longest = longest_of(found, outsized) if int((found > 0).sum()) > 2 else math.inf
        lengths = found.tolist()
    return [
        f"an update of length {length:.3g}, above {longest:.3g}"
        if length > longest
        else f"a loss of {loss:.3g}, above {highest:.3g}"
        if loss > highest
        else None
        for length, loss in zip(lengths, losses, strict=True)
    ]


def _shorten(query: Query, replies: Replies, clip: float) -> tuple[Replies, dict[int, float]]:
    """The replies with models that are not too far from where they started, and the share of each length that is kept.

    What a local step sends in addition is not a model, and stays as it is.
    """
    models, shares = dict(replies.vectors), dict[int, float]()
    for name in (PARAMS, *query.iterates) if PARAMS in models else ():
        lengths = lengths_of(query.params, models[name])
        longest = longest_of(lengths, clip)
        models[name] = shortened(query.params, models[name], lengths, longest)
        if name == PARAMS:
            pairs = zip(replies.clients, lengths.tolist(), strict=True)
            shares = {client: longest / length for client, length in pairs if length > longest}
    return replace(replies, vectors=models), shares


def _fault(query: Query, reply: Reply, caps: Caps) -> str | None:
    """Why a reply cannot be used, if it cannot."""
    for wanted in query.wanted:
        name, vector = "update" if wanted == PARAMS else wanted, reply.vectors.get(wanted)
        if vector is None:
            return f"no {name}"
        if vector.shape != query.params.shape:
            return f"{name} of shape {tuple(vector.shape)}, asked for {tuple(query.params.shape)}"
        if not bool(torch.isfinite(vector).all()):
            return f"{name} {NOT_FINITE}"
    for name, number in (("loss", reply.loss), ("cost", reply.cost)):
        if number.shape != ():
            return f"{name} of shape {tuple(number.shape)}, asked for a number"
        if not bool(torch.isfinite(number)):
            return f"{name} {NOT_FINITE}"
    return caps.fault_of_numbers(float(reply.loss), float(reply.cost))


def _stack(kept: Sequence[Reply], wanted: Sequence[str]) -> Replies:
    return Replies(
        tuple(reply.client for reply in kept),
        torch.stack([reply.loss for reply in kept]),
        torch.stack([reply.cost for reply in kept]),
        {name: torch.stack([reply.vectors[name] for reply in kept]) for name in wanted},
    )
