"""Whose name is whose: a client's name belongs to the key of the node that first brought it."""

from collections.abc import Mapping, Sequence

import torch

from wafl.train.clients import Roster, trust_in
from wafl.train.trust.caps import Caps

MOST = 0.5
"""If one of three or more clients claims more than this share of all examples, the log says so."""


def owned(owners: Mapping[str, str], homes: Mapping[str, int], keys: Mapping[int, str]) -> dict[str, str]:
    """The owner of each name, new ones included: the fingerprint of the key of the node that holds it now."""
    fresh = {name: keys[node] for name, node in homes.items() if name not in owners and keys.get(node)}
    return {**owners, **fresh}


def too_many(caps: Caps, kind: str, names: Sequence[str], claimed: Sequence[int]) -> dict[str, str]:
    """The clients that claim more examples or tests than the caps allow, and what they claim."""
    faults = {name: caps.fault_of_count(kind, count) for name, count in zip(names, claimed, strict=True)}
    return {name: fault for name, fault in faults.items() if fault is not None}


def capped(caps: Caps, roster: Roster, weights: Sequence[float]) -> tuple[str, ...]:
    """The clients whose weights reach or exceed what a client may count for."""
    if not sum(weights) > 0:
        return ()
    shares = trust_in(roster, None, caps).shares(torch.tensor(weights, dtype=torch.float64), range(len(weights)))
    return tuple(name for name, held in zip(roster.names, shares.at_most.tolist(), strict=True) if held)


def dominating(kind: str, names: Sequence[str], claimed: Sequence[int]) -> str | None:
    """What to say if one client claims most of all examples or tests, which is much to take on trust."""
    total, most = sum(claimed), max(claimed, default=0)
    if len(names) < 3 or most <= MOST * total:
        return None
    return (
        f"{names[list(claimed).index(most)]} claims {most} of all {total} {kind}: if that cannot be, declare "
        f"caps.{'tests' if kind == 'test examples' else 'examples'}"
    )
