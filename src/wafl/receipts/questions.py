"""Define the questions to calibration clients, fixed before any of them answers and the same for all."""

import json
import math
import os
from collections.abc import Mapping
from hashlib import sha256
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, Self

from wafl.base.describe import describe
from wafl.base.errors import did_you_mean
from wafl.base.files import read_limited
from wafl.base.options import Choice, Count, Listed, Norm, NotNegative, Positive, Range, check_options, frozen
from wafl.base.toml import LONGEST, parsed_toml

if TYPE_CHECKING:
    from wafl.sets.target import Target

INSIDE = Range(0.0, 1.0, low_open=True, high_open=True)
FINITE = Range(-math.inf, math.inf)
THRESHOLDS = 64
"""The maximum number of thresholds in a grid."""
RADII = 10
"""The maximum number of radii; more would reveal the distances of single examples from a different prediction."""
NAMES = ("margin", "probability", "aps", "raps", "residual", "scaled_residual")


@frozen
class Questions:
    """The questions to each calibration client about its examples, and the resulting statements.

    >>> Questions(radii=(0.0, 0.1)).who
    'the next client with at least 20 examples'
    """

    metric: Annotated[Literal["loss", "error"], Choice(("loss", "error")), "A client's number: its loss or error."] = (
        "error"
    )
    radii: Annotated[
        tuple[float, ...],
        Listed(NotNegative),
        "How far its examples may move, in the unit of the data; 0 means not at all.",
    ] = (0.0,)
    norm: Annotated[float, Norm, "The norm in which examples move, 1, 2 or inf."] = 2
    own_sampling: Annotated[
        bool, "Whether to ask for upper bounds too, for a statement about the next client's distribution (radius 0)."
    ] = True
    confidence: Annotated[
        float | None,
        INSIDE,
        "The probability of a statement; by default 0.95, or the highest that is supported.",
    ] = None
    coverage: Annotated[float, INSIDE, "The fraction of labels that prediction sets cover."] = 0.9
    about: Annotated[
        Literal["client", "example"], Choice(("client", "example")), "What sets cover: this part of the next client's "
        "examples with the confidence, or its next example with the probability ``coverage``."
    ] = "client"  # fmt: skip
    score: Annotated[str, Choice(NAMES), "How badly a label suits an example."] = "margin"
    grid: Annotated[
        tuple[float, ...] | None, Listed(FINITE), "Thresholds of the score, at most 64, rising; sets use one of them."
    ] = None
    gammas: Annotated[
        tuple[float, ...] | None,
        Listed(Positive()),
        "For about='example', the price of distance at each radius above 0, chosen on clients that trained.",
    ] = None
    minimum: Annotated[
        int, Count(), "Clients with fewer examples do not answer; nothing is said about such clients."
    ] = 20
    liars: Annotated[int, Count(0), "How many clients may answer anything without making a statement false."] = 0

    def __post_init__(self) -> None:
        check_options(self)
        for name in ("radii", "grid", "gammas"):
            if (value := getattr(self, name)) is not None:
                object.__setattr__(self, name, tuple(map(float, value)))
        object.__setattr__(self, "norm", float(self.norm))
        _check_rising("radii", self.radii)
        if len(self.radii) > RADII:
            raise ValueError(f"radii has {len(self.radii)} numbers: give at most {RADII}")
        if self.grid is not None:
            _check_rising("grid", self.grid)
            if len(self.grid) > THRESHOLDS:
                raise ValueError(f"grid has {len(self.grid)} thresholds: give at most {THRESHOLDS}")
        moved = sum(radius > 0 for radius in self.radii)
        if moved and self.score not in ("margin", "residual"):
            raise ValueError(f"score={self.score!r} says nothing about examples that move: use 'margin' or 'residual'")
        if self.about == "example" and moved != len(self.gammas or ()):
            raise ValueError(
                f"gammas={self.gammas} must hold one number for each radius above 0 ({moved}) if about='example': "
                "choose them on clients that trained (wafl.prediction_sets(..., training=...).target.shift.gamma)"
            )
        if self.about == "client" and self.gammas is not None:
            raise ValueError(f"gammas={list(self.gammas)} are for about='example': leave them out")
        _ = self.thresholds

    @property
    def thresholds(self) -> tuple[float, ...]:
        """The grid, or the default grid of the score."""
        return default_grid(self.score) if self.grid is None else self.grid

    @property
    def who(self) -> str:
        """The subject of the statements."""
        return f"the next client with at least {self.minimum} example{'s' * (self.minimum != 1)}"

    def target(self, index: int = 0, *, own_sampling: bool = False) -> "Target":
        """Return the promise of the prediction sets at a radius, by its index."""
        from wafl.sets.shifted import Shift
        from wafl.sets.target import Target

        shift = None if self.radii[index] == 0 else Shift(self.radii[index], self.norm, 2, self.gamma(index))
        confidence = self.confidence if self.about == "client" else None
        return Target(self.coverage, self.about, confidence, own_sampling, shift, self.liars)

    def gamma(self, index: int) -> float | None:
        """Return the gamma of a radius, by its index; None if clients find it themselves, or do not move."""
        before = sum(radius > 0 for radius in self.radii[:index])
        return None if self.gammas is None or self.radii[index] == 0 else self.gammas[before]

    @property
    def content(self) -> dict[str, Any]:
        """The questions as plain values, from which they can be read again, with the full grid."""
        values = {**describe(self), "grid": list(self.thresholds), "norm": _norm_name(self.norm)}
        return {name: value for name, value in values.items() if name != "type"}

    @property
    def digest(self) -> str:
        """The SHA-256 of the questions: equal for equal questions, whatever their notation."""
        return sha256(json.dumps(self.content, sort_keys=True, allow_nan=False).encode()).hexdigest()

    @classmethod
    def of(cls, content: Mapping[str, Any], where: str = "questions") -> Self:
        """Read plain values; raise ValueError for a key that does not exist."""
        known = cls.__dataclass_fields__
        for name in content:
            if name not in known:
                raise ValueError(f"{where}: {name!r} is not one of {', '.join(known)}{did_you_mean(name, known)}")
        values: dict[str, Any] = {**content}
        if isinstance(norm := values.get("norm"), str):
            values["norm"] = math.inf if norm == "inf" else norm
        try:
            return cls(**values)
        except (ValueError, TypeError) as error:
            raise ValueError(f"{where}: {error}") from error

    @classmethod
    def read(cls, path: str | os.PathLike[str]) -> Self:
        """Read a TOML file of questions."""
        try:
            content = parsed_toml(read_limited(Path(path), LONGEST).decode())
        except ValueError as error:
            raise ValueError(f"{path} is not a TOML file: {error}") from error
        return cls.of(content, str(path))


def default_grid(score: str) -> tuple[float, ...]:
    """Return the default thresholds of a score; raise ValueError for a score in the unit of the targets.

    >>> grid = default_grid("margin")
    >>> len(grid), round(grid[-1]), default_grid("probability")[-1]
    (64, 50, 1.0)
    """
    if score == "margin":  # close together around 0, and up to the usual differences between a network's outputs
        return tuple(0.05 * math.sinh(7.6 * (2 * index / (THRESHOLDS - 1) - 1)) for index in range(THRESHOLDS))
    if score in ("probability", "aps", "raps"):
        most = 1.25 if score == "raps" else 1.0
        return tuple(most * (index + 1) / THRESHOLDS for index in range(THRESHOLDS))
    raise ValueError(f"score={score!r} has the unit of the targets: give a grid of at most {THRESHOLDS} thresholds")


def _check_rising(name: str, values: tuple[float, ...]) -> None:
    for one, other in pairwise(values):
        if not one < other:
            raise ValueError(f"{name}={list(values)} must rise: {other:g} comes after {one:g}")


def _norm_name(norm: float) -> float | str:
    return "inf" if math.isinf(norm) else norm
