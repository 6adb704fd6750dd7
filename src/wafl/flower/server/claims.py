"""Check clients' claims about their numbers of examples."""

from collections.abc import Sequence

import torch

from wafl.train.clients import Roster, trust_in
from wafl.train.trust.caps import Caps

MOST = 0.5
"""The share of all examples above which a claim by one of three or more clients logs a warning."""


def too_many(caps: Caps, kind: str, names: Sequence[str], claimed: Sequence[int]) -> dict[str, str]:
    """Return the clients that claim more examples or tests than the caps allow, with their claims."""
    faults = {name: caps.fault_of_count(kind, count) for name, count in zip(names, claimed, strict=True)}
    return {name: fault for name, fault in faults.items() if fault is not None}


def capped(caps: Caps, roster: Roster, weights: Sequence[float]) -> tuple[str, ...]:
    """Return the clients whose weights reach or exceed the largest weight of a client."""
    if not sum(weights) > 0:
        return ()
    shares = trust_in(roster, None, caps).shares(torch.tensor(weights, dtype=torch.float64), range(len(weights)))
    return tuple(name for name, held in zip(roster.names, shares.at_most.tolist(), strict=True) if held)


def dominating(kind: str, names: Sequence[str], claimed: Sequence[int]) -> str | None:
    """Return a warning if one client claims most of all examples or tests, else None."""
    total, most = sum(claimed), max(claimed, default=0)
    if len(names) < 3 or most <= MOST * total:
        return None
    return (
        f"{names[list(claimed).index(most)]} claims {most} of all {total} {kind}: if that cannot be, declare "
        f"caps.{'tests' if kind == 'test examples' else 'examples'}"
    )
