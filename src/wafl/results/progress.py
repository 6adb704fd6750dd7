"""Store the whole state of a training between rounds as plain data, which a checkpoint writes to disk."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from torch import Tensor

from wafl.parts.messages import State
from wafl.results.history import History

LaneKey = tuple[int, int]
"""The indices of a run and a client."""
ClientState = Mapping[str, Tensor]
"""A client's memory between rounds, by the part of the method that owns it."""


@dataclass
class RunProgress:
    """One run between two rounds; ``stopped`` is the reason if it ended before its last round."""

    state: State
    history: History = field(default_factory=History)
    stopped: str | None = None


@dataclass(frozen=True)
class ChosenRadius:
    """The chosen radius of a run, the reason, and the held-out accuracy (or loss) of each ``tried`` radius.

    The accuracy is given for all held-out clients and for the worst of them.
    """

    radius: float
    why: str
    tried: list[dict[str, float | None]]


@dataclass
class Progress:
    """The runs of a sweep, by their indices in it, and the clients' memory.

    ``chunk_sizes`` are the numbers of lanes that were computed together in each group of runs, since sums in another
    order would round differently. ``chosen`` contains the radii chosen for ``radius="auto"``, so that a resumed
    training does not choose again.
    """

    runs: dict[int, RunProgress] = field(default_factory=dict[int, RunProgress])
    memory: dict[LaneKey, ClientState] = field(default_factory=dict[LaneKey, ClientState])
    chunk_sizes: dict[int, int] = field(default_factory=dict[int, int])
    chosen: dict[int, ChosenRadius] = field(default_factory=dict[int, ChosenRadius])
