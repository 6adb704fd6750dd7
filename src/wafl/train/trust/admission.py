"""Select the valid replies: replies that arrived, are complete and finite, within the caps, and not outsized.

A round with too few of them is repeated. :mod:`wafl.train.trust.trust` limits the influence of valid replies.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Annotated, Self

import torch

from wafl.base.errors import TooFewRepliesError
from wafl.base.options import Count, Range, frozen
from wafl.parts.lengths import by_node, lengths_of, longest_of
from wafl.parts.messages import PARAMS, Query, Replies, Reply
from wafl.train.trust.caps import Caps

NOT_FINITE = "with NaN or infinity"
NOTHING = Replies((), torch.empty(0), torch.empty(0))


REMOTE_CLIP = 2.5
"""The default limit of an update on other machines, as a multiple of the median length."""


@frozen
class Tolerance:
    """How many clients may fail before a round fails, and how far a client may be from the others."""

    min_replies: Annotated[
        float,
        Range(0, 1, ": it is a share of the clients asked"),
        "The share of the clients asked, and at least one client, that must reply for a round to count.",
    ] = 0.5
    attempts: Annotated[int, Count(), "How often a round is tried in total before training stops."] = 3
    outsized: Annotated[
        float,
        Range(1, hint=": it is a multiple of the median length", low_open=True, infinite=True),
        "An update more than this many times as long as the round's median is left out, and so is a loss more than "
        "this many times the median loss, or 1 if that is larger; both need three replies to compare.",
    ] = 100.0
    clip: Annotated[
        float | None,
        Range(1, hint=": it is a multiple of the median length", infinite=True),
        "An update more than this many times as long as the round's median is shortened to that length; a loss that "
        "decides weights counts for at most this many times the median loss, or 1 if that is larger, and a cost that "
        "gamma learns from for at most this many times the median cost. By default 2.5 where clients are on other "
        "machines, and inf, which limits none, elsewhere.",
    ] = None
    clip_loss: Annotated[
        float | None,
        Range(1, hint=": it is a multiple of the median loss", infinite=True),
        "A loss that decides weights counts for at most this many times the median loss of the other nodes, however "
        "small that is; by default, tolerance.clip says for how much it counts.",
    ] = None
    diverged: Annotated[
        float,
        Range(1, hint=": it is a multiple of the first round's loss", low_open=True, infinite=True),
        "Training stops when the mean loss of three rounds is more than this many times the first round's loss; by "
        "default it goes on, with a warning.",
    ] = math.inf

    @property
    def multiple(self) -> float:
        """The limit of an update's length, a loss or a cost, as a multiple of the round's median."""
        return math.inf if self.clip is None else self.clip

    def settled(self, *, remote: bool) -> Self:
        """Return the tolerance with defaults filled in, for clients on other machines or here."""
        return replace(self, clip=REMOTE_CLIP if remote else math.inf) if self.clip is None else self

    def enough(self, replies: int, asked: int) -> bool:
        """Return whether this number of usable replies is enough for a round."""
        return replies >= max(1, self.min_replies * asked)


@dataclass(frozen=True)
class Admitted:
    """A query as if only clients with valid replies had been asked, and their replies.

    ``excluded`` explains, for each other client, why it is left out. ``diverged`` is set if replies arrived but too few
    were finite, while other runs had enough. ``shortened`` contains, by client, the remaining fraction of its update's
    length. ``limited`` describes in words its other limited claims.
    """

    query: Query
    replies: Replies
    excluded: Mapping[int, str] = field(default_factory=dict[int, str])
    attempts: int = 1
    diverged: str | None = None
    shortened: Mapping[int, float] = field(default_factory=dict[int, float])
    limited: Sequence[tuple[int, str]] = ()


def admit(query: Query, received: Sequence[Reply], tolerance: Tolerance, caps: Caps | None = None) -> Admitted:
    """Return the valid replies, with unchanged client weights.

    Every algorithm takes means relative to the weights of the clients that are left.
    """
    faults = {reply.client: _fault(query, reply, caps or Caps()) for reply in received}
    excluded = {client: fault for client, fault in faults.items() if fault is not None}
    excluded |= _outsized(query, [reply for reply in received if reply.client not in excluded], tolerance.outsized)
    order = {client: index for index, client in enumerate(query.clients)}
    sound = [reply for reply in received if reply.client not in excluded]
    kept = sorted(sound, key=lambda reply: order[reply.client])
    indices = [order[reply.client] for reply in kept]
    return Admitted(query.only(indices), _stack(kept, query.wanted) if kept else NOTHING, excluded)


def split(replies: Replies) -> list[Reply]:
    """Return one reply per client."""
    return [
        Reply(client, replies.loss[i], replies.cost[i], {name: rows[i] for name, rows in replies.vectors.items()})
        for i, client in enumerate(replies.clients)
    ]


def _outsized(query: Query, replies: Sequence[Reply], outsized: float) -> dict[int, str]:
    """Explain, by client, which replies are too far from the others, if there are at least three nodes."""
    homes = dict(zip(query.clients, query.nodes or query.clients, strict=True))
    nodes = [homes[reply.client] for reply in replies]
    if len(set(nodes)) < 3:
        return {}
    losses = [abs(float(reply.loss)) for reply in replies]
    highest = outsized * max(float(by_node(torch.tensor(losses, dtype=torch.float64), nodes).median()), 1.0)
    lengths, longest = [0.0] * len(replies), math.inf
    if PARAMS in query.wanted:
        measured = lengths_of(query.params, torch.stack([reply.vectors[PARAMS] for reply in replies]))
        longest = longest_of(measured, outsized, nodes) if int((by_node(measured, nodes) > 0).sum()) > 2 else math.inf
        lengths = measured.tolist()
    faults: dict[int, str] = {}
    for reply, length, loss in zip(replies, lengths, losses, strict=True):
        if length > longest:
            faults[reply.client] = f"an update of length {length:.3g}, above {longest:.3g}"
        elif loss > highest:
            faults[reply.client] = f"a loss of {loss:.3g}, above {highest:.3g}"
    return faults


def _fault(query: Query, reply: Reply, caps: Caps) -> str | None:
    """Explain why a reply cannot be used, or return None if it can."""
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


Arrivals = tuple[Sequence[Reply], Mapping[int, str]]
"""The replies to one query, usable or not, and the reason for each missing reply, by client."""


Source = Callable[[Sequence[Query], Sequence[int], int], list[Arrivals]]
"""A function that sends queries to clients, given the indices of the runs and the attempt, counted from 0.

A repeated query starts from the same client states.
"""


def answer_tolerantly(
    source: Source, tolerance: Tolerance, caps: Caps | None, queries: Sequence[Query], runs: Sequence[int]
) -> list[Admitted]:
    """Answer queries of clients that may fail; queries with too few usable replies are sent again."""
    admitted, diverged, why = dict[int, Admitted](), dict[int, Admitted](), ""
    for attempt in range(tolerance.attempts):
        waiting = {run: query for run, query in zip(runs, queries, strict=True) if run not in admitted}
        arrivals = source(list(waiting.values()), list(waiting), attempt)
        for (run, query), (replies, missing) in zip(waiting.items(), arrivals, strict=True):
            answer = admit(query, replies, tolerance, caps)
            faulty, excluded = answer.excluded, {**missing, **answer.excluded}
            diverged.pop(run, None)
            if tolerance.enough(len(answer.replies.clients), len(query.clients)):
                admitted[run] = replace(answer, excluded=excluded, attempts=attempt + 1)
                continue
            why = next((f" ({reason})" for reason in excluded.values()), "")
            if faulty and all(reason.endswith(NOT_FINITE) for reason in faulty.values()) and not missing:
                reason = f"{len(faulty)} clients: {next(iter(faulty.values()))}"
                diverged[run] = Admitted(query, NOTHING, faulty, attempt + 1, reason)
        if len(admitted) == len(runs):
            return [admitted[run] for run in runs]
    # If other runs had enough replies, the clients are not to blame.
    if admitted and all(run in admitted or run in diverged for run in runs):
        return [admitted.get(run) or diverged[run] for run in runs]
    query = next(query for run, query in zip(runs, queries, strict=True) if run not in admitted)
    asked, share = len(query.clients), tolerance.min_replies
    needed = f"{share:.0%} of {asked} clients" if share else "one client"
    cause = ""
    if not admitted and all(run in diverged for run in runs):
        cause = "; every reply came and none was finite: if no client is broken, lower the learning rate"
    raise TooFewRepliesError(
        f"round {query.round}: fewer than {needed} gave a usable reply{why}, {tolerance.attempts} times over"
        f"{cause}; the rounds before it are kept"
    )
