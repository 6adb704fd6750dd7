"""Prepare raw examples for a model; every epsilon and radius is in the resulting unit."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Self

import torch
from torch import Tensor

from wafl.base.describe import some
from wafl.data.mapped import Stored

STANDARDIZED = "standardize"
"""The preprocessing of numbers (not bytes) by each column's mean and standard deviation."""
NAMES = ("unit", "symmetric", "zscore", "zscore_pooled")
STATISTICS = ("zscore", "zscore_pooled", STANDARDIZED)


@dataclass(frozen=True)
class Preprocessing:
    """A map of raw examples, ``(raw - shift) / scale``, the ``unit`` of the results, and their box, if known."""

    name: str = "none"
    unit: str = "input units"
    bounds: tuple[float, float] | None = None
    shift: Tensor | None = None
    scale: Tensor | None = None

    def __call__(self, raw: Tensor, dtype: torch.dtype) -> Tensor:
        """Return raw examples ``[..., *shape]`` as the model sees them."""
        x = raw.to(torch.float64 if self.takes_numbers else dtype)  # float32 could lose what differs in large numbers
        if self.shift is not None:
            x = x - self.shift.to(x)
        return (x if self.scale is None else x / self.scale.to(x)).to(dtype)

    @property
    def takes_numbers(self) -> bool:
        """Whether raw examples are numbers of any type; otherwise only bytes are raw."""
        return self.name == STANDARDIZED

    def to(self, device: torch.device) -> Self:
        """Return the preprocessing with its numbers on a device."""
        numbers = (None if number is None else number.to(device) for number in (self.shift, self.scale))
        return replace(self, **dict(zip(("shift", "scale"), numbers, strict=True)))

    def to_json(self) -> dict[str, Any]:
        """Return plain values."""
        numbers = {
            name: None if (value := getattr(self, name)) is None else value.tolist() for name in ("shift", "scale")
        }
        return {"name": self.name, "unit": self.unit, "bounds": self.bounds, **numbers}

    @classmethod
    def from_json(cls, about: Mapping[str, Any]) -> Self:
        """Return the preprocessing from the values of :meth:`to_json`."""
        shift, scale = (
            None if about[name] is None else torch.tensor(about[name], dtype=torch.float64)
            for name in ("shift", "scale")
        )
        return cls(
            about["name"], about["unit"], None if about["bounds"] is None else tuple(about["bounds"]), shift, scale
        )


def make_preprocessing(name: str, max_value: float | None, train: Stored, test: Stored) -> Preprocessing:
    """Return the preprocessing with this name, for raw values in ``[0, max_value]``.

    Measurements have no ``max_value``, and features in place of pixels. ``zscore`` uses each pixel's mean and deviation
    over the training examples, and ``zscore_pooled`` over all examples, like the code released with the paper. A pixel
    that never varies is only centered.
    """
    if name == "unit" and max_value is not None:
        return Preprocessing(name, "pixels in [0, 1]", (0.0, 1.0), None, torch.tensor(max_value))
    if name == "symmetric" and max_value is not None:
        half = torch.tensor(max_value / 2.0)
        return Preprocessing(name, "pixels in [-1, 1]", (-1.0, 1.0), half, half)
    if name in STATISTICS:
        pooled = name == "zscore_pooled"
        mean, deviation = pixel_statistics([train, test] if pooled else [train])
        of = "all examples" if pooled else "the training examples"
        scale = torch.where(deviation > 0, deviation, 1.0)
        what = "feature" if max_value is None else "pixel"
        return Preprocessing(name, f"standard deviations a {what}, over {of}", None, mean, scale)
    raise ValueError(f"unknown preprocessing {name!r}: use one of {', '.join(NAMES)}")


def standardization(train: Stored, columns: Sequence[str] | None) -> Preprocessing:
    """Return the preprocessing by the mean and the standard deviation of each column over the training examples.

    Both follow from every client's number of examples and its sums of values and squares. A column that never varies
    is only centered.
    """
    mean, deviation = pixel_statistics([train])
    prepare = Preprocessing(STANDARDIZED, "", None, mean, torch.where(deviation > 0, deviation, 1.0))
    return replace(prepare, unit=f"standard deviations ({factors_of(prepare, columns, 8)})")


def factors_of(prepare: Preprocessing, columns: Sequence[str] | None, most: int) -> str:
    """Name the standard deviations of up to ``most`` columns.

    >>> factors_of(Preprocessing(scale=torch.tensor([15.25, 0.003])), ["age", "dose"], 8)
    'age 15.25, dose 0.003'
    """
    scales = [] if prepare.scale is None else prepare.scale.flatten().tolist()
    names = columns or [f"column {index}" for index in range(len(scales))]
    return some([f"{name} {scale:.4g}" for name, scale in zip(names, scales, strict=True)], most)


def refitted(
    prepare: Preprocessing, train: Stored, test: Stored, columns: Sequence[str] | None = None
) -> Preprocessing:
    """Return the preprocessing with the statistics of these raw examples, if it has statistics."""
    if prepare.name == STANDARDIZED:
        return standardization(train, columns)
    if prepare.name not in STATISTICS:
        return prepare
    return replace(make_preprocessing(prepare.name, 1.0, train, test), unit=prepare.unit)


def pixel_statistics(packs: Sequence[Stored], chunk: int = 4096) -> tuple[Tensor, Tensor]:
    """Return each pixel's mean and standard deviation in float64, without a float copy of the data."""
    count = sum(len(pack) for pack in packs)
    total = square = torch.zeros(packs[0].shape[1:], dtype=torch.float64)
    for pack in packs:
        for rows in pack.split(chunk):
            values = rows.to(torch.float64)
            total, square = total + values.sum(0), square + values.square().sum(0)
    mean = total / count
    return mean, (square / count - mean.square()).clamp_min(0.0).sqrt()
