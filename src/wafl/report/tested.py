"""The numbers of a page: one row per method, and the conditions under which they were measured."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field


@dataclass(frozen=True)
class Conditions:
    """What captions say about the numbers on a page: data and model, the attack, and what else was tested.

    ``shift`` describes how unseen clients' examples were shifted, ``certified`` the ball of the certified numbers.
    """

    data: str = ""
    model: str = ""
    attack: str = ""
    shift: str = ""
    certified: str = ""

    @property
    def setting(self) -> str:
        """Data and model, as a sentence."""
        texts = [f"Data: {self.data}" if self.data else "", f"Model: {self.model}" if self.model else ""]
        return "".join(f" {text}." for text in texts if text)


NO_CONDITIONS = Conditions()


@dataclass(frozen=True)
class Tested:
    """The row of a method: one value per seed on clean test data, by the share of attacked clients, and for the worst
    client; the seconds of training; how many runs diverged; the study that it is from, if there are several; the bounds
    in a ball, per seed, and the line that explains why they are only estimates, if they are; and the values on unseen
    clients.

    A row has the color of its ``method``.
    """

    label: str
    method: str
    clean: Sequence[float] = ()
    attacked: Mapping[float, Sequence[float]] = field(default_factory=dict[float, Sequence[float]])
    worst: Sequence[float] = ()
    seconds: float | None = None
    diverged: int = 0
    study: str = ""
    certified: Sequence[float] = ()
    caveat: str = ""
    unseen: Sequence[float] = ()

    @property
    def name(self) -> str:
        return f"{self.label} · {self.study}" if self.study else self.label
