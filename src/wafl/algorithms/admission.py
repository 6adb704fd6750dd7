"""Which replies count: those that arrived, are complete and finite, and are not outsized."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch

from wafl.algorithms.messages import PARAMS, Query, Replies, Reply

NOT_FINITE = "with NaN or infinity"


@dataclass(frozen=True)
class Exclusion:
    """A client that was asked but does not count in this round, and why."""

    client: int
    reason: str


@dataclass(frozen=True)
class Tolerance:
    """How many clients may fail before a round does.

    Args:
        min_replies: the share of the clients asked, and at least one client, that must reply for a round to count.
        attempts: how many times a round is tried in total before training stops.
        outsized: an update more than this many times as long as the round's median is left out.
    """

    min_replies: float = 0.5
    attempts: int = 3
    outsized: float = 100.0

    def __post_init__(self) -> None:
        if not 0.0 <= self.min_replies <= 1.0:
            raise ValueError(f"min_replies={self.min_replies} is a share of the clients asked and must lie in [0, 1]")
        if self.attempts < 1:
            raise ValueError(f"attempts={self.attempts} must be at least 1")
        if not self.outsized > 1:
            raise ValueError(f"outsized={self.outsized} must exceed 1: it is a multiple of the median length")

    def enough(self, replies: int, asked: int) -> bool:
        """Whether that many usable replies make a round."""
        return replies >= max(1, self.min_replies * asked)


def admit(
    query: Query, received: Sequence[Reply], tolerance: Tolerance
) -> tuple[Query, Replies | None, list[Exclusion]]:
    """The query as if only the clients whose replies count had been asked, their replies, and who was left out.

    The clients' weights stay as they were: every algorithm takes means relative to the weights of the clients that
    count.
    """
    excluded: list[Exclusion] = []
    sound: list[Reply] = []
    for reply in received:
        fault = _fault(query, reply)
        if fault is None:
            sound.append(reply)
        else:
            excluded.append(Exclusion(reply.client, fault))
    kept: list[Reply] = []
    updates = [reply.vectors[PARAMS] for reply in sound if PARAMS in query.wanted]
    lengths = [float((update - query.params).norm()) for update in updates]
    limit = tolerance.outsized * statistics.median(lengths) if len(lengths) > 2 else float("inf")
    for place, reply in enumerate(sound):
        if lengths and 0.0 < limit < lengths[place]:
            excluded.append(Exclusion(reply.client, f"an update of length {lengths[place]:.3g}, above {limit:.3g}"))
        else:
            kept.append(reply)
    order = {client: place for place, client in enumerate(query.clients)}
    kept.sort(key=lambda reply: order[reply.client])
    places = [order[reply.client] for reply in kept]
    counted = replace(query, clients=tuple(reply.client for reply in kept), weights=query.weights[places])
    return counted, _stack(kept, query.wanted) if kept else None, excluded


def not_finite(excluded: Exclusion) -> bool:
    """Whether a reply was left out because it held NaN or infinity."""
    return excluded.reason.endswith(NOT_FINITE)


def split(replies: Replies) -> list[Reply]:
    """One reply per client."""
    return [
        Reply(client, replies.loss[i], replies.cost[i], {name: rows[i] for name, rows in replies.vectors.items()})
        for i, client in enumerate(replies.clients)
    ]


def _fault(query: Query, reply: Reply) -> str | None:
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
    return None


def _stack(kept: Sequence[Reply], wanted: Sequence[str]) -> Replies:
    return Replies(
        tuple(reply.client for reply in kept),
        torch.stack([reply.loss for reply in kept]),
        torch.stack([reply.cost for reply in kept]),
        {name: torch.stack([reply.vectors[name] for reply in kept]) for name in wanted},
    )
