"""All that a training remembers between rounds: plain data, so a checkpoint is this on disk."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from torch import Tensor

from wafl.parts.messages import State
from wafl.results.history import History

LaneKey = tuple[int, int]
"""A run and a client."""
ClientState = Mapping[str, Tensor]
"""What a client keeps between rounds, by the part of the method that keeps it."""


@dataclass
class RunProgress:
    """One run between two rounds; ``stopped`` says why it ended before its last round, if it did."""

    state: State
    history: History = field(default_factory=History)
    stopped: str | None = None


@dataclass(frozen=True)
class ChosenRadius:
    """The radius that a run chose, why, and for each ``tried`` the accuracy (or loss) of all and the worst left out."""

    radius: float
    why: str
    tried: list[dict[str, float | None]]


@dataclass
class Progress:
    """The runs of a sweep, by their places in it, and what methods let clients keep.

    ``chunk_sizes`` is how many lanes were computed together in each group of runs: sums in another order would round
    differently. ``chosen`` is what ``radius="auto"`` stands for: a training that resumes does not choose again.
    """

    runs: dict[int, RunProgress] = field(default_factory=dict[int, RunProgress])
    memory: dict[LaneKey, ClientState] = field(default_factory=dict[LaneKey, ClientState])
    chunk_sizes: dict[int, int] = field(default_factory=dict[int, int])
    chosen: dict[int, ChosenRadius] = field(default_factory=dict[int, ChosenRadius])
