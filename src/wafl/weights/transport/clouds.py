"""Read, check and sample clouds of equally weighted points from any kind of user data."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Annotated, Any, Self

import numpy as np
import torch
from torch import Tensor

from wafl.base.options import Choice, Count, Positive, Seed, check_options, frozen
from wafl.base.random import Key, Purpose, permutation
from wafl.data.federation import Federation

Features = Callable[[Tensor], Tensor]
LABEL_COST = Positive(
    ": at an infinite one, data with other shares of labels are infinitely far; leave it out to compare inputs alone"
)


@dataclass(frozen=True, eq=False)
class Cloud:
    """Points ``x [n, k]`` of ``total`` for W_p of this ``order``, perhaps with labels at a cost.

    Without a cost, the distance between two labels is the distance between their clouds.
    """

    x: Tensor
    y: Tensor | None
    total: int
    label_cost: float | None = None
    order: int = 2

    def __len__(self) -> int:
        return len(self.x)


@frozen
class Sampling:
    """The points of a data set that are used, and their comparison."""

    sample: Annotated[int | None, Count(hint=" point, or None for all"), "How many points are drawn; None takes all."]
    seed: Annotated[int, Seed(), "What the points are drawn from."] = 0
    features: Annotated[Features | None, "A map of examples, whose results are compared instead."] = None
    label_aware: Annotated[bool, "Whether labels are compared by the clouds of their points."] = False
    label_cost: Annotated[float | None, LABEL_COST, "The price at which labels are compared."] = None
    order: Annotated[int, Choice((1, 2), ", the order of the distance"), "The order of the distance."] = 2

    @property
    def labels(self) -> str | None:
        """The option that requests labels, or None."""
        by_cost = None if self.label_cost is None else f"label_cost={self.label_cost:g}"
        return "label_aware=True" if self.label_aware else by_cost

    def __post_init__(self) -> None:
        check_options(self)
        if self.label_cost is not None and self.label_aware:
            raise ValueError("label_aware and label_cost are two prices of a label: give one")


def read_clients(clients: Federation | Iterable[Any], sampling: Sampling) -> list[Cloud]:
    """Return one cloud per client: a federation's training examples, arrays ``x`` or pairs ``(x, y)``."""
    return _draw_all(_read_all(clients, sampling, "client"), sampling)


def read_client(item: Any, number: int, sampling: Sampling) -> Cloud:
    """Return the cloud of client ``number``, drawn in the same way as among other clients."""
    return _read(f"client {number}", item, Key.of(sampling.seed, client=number), sampling).draw(sampling)


def read_target(item: Any, sampling: Sampling) -> Cloud:
    """Return the cloud of a target, drawn in the same way as with sources."""
    return _read("the target", item, Key.of(sampling.seed, round=1), sampling).draw(sampling)


def read_sources_and_target(
    sources: Federation | Iterable[Any], target: Any, sampling: Sampling
) -> tuple[list[Cloud], Cloud]:
    """Return one cloud per source and the target's cloud (a federation is pooled).

    A target that is also a source is drawn like that source.
    """
    data = _read_all(sources, sampling, "source")
    aim = _read("the target", _pooled(target), Key.of(sampling.seed, round=1), sampling)
    *clouds, drawn = _draw_all([*data, aim], sampling)
    same = [cloud for cloud, source in zip(clouds, data, strict=True) if source.equals(aim)]
    return clouds, same[0] if same else drawn


def read_apart(
    sources: Federation | Iterable[Any], target: Any, sampling: Sampling, points: int
) -> tuple[list[Cloud], Cloud]:
    """Return the clouds that each side draws separately (:func:`read_client`, :func:`read_target`).

    ``points`` limits the target's points.
    """
    data = _read_all(sources, sampling, "source")
    few = replace(sampling, sample=min(sampling.sample or points, points))
    aim = _read("the target", _pooled(target), Key.of(sampling.seed, round=1), few)
    _check_space([*data, aim])
    return [each.draw(sampling) for each in data], aim.draw(few)


@dataclass(frozen=True)
class _Data:
    """All examples of a source; its key depends only on its number, so draws are independent of other sources."""

    name: str
    x: Tensor
    y: Tensor | None
    key: Key

    def equals(self, other: Self) -> bool:
        return all(
            a is b or (a is not None and b is not None and a.shape == b.shape and torch.equal(a, b))
            for a, b in ((self.x, other.x), (self.y, other.y))
        )

    def draw(self, sampling: Sampling) -> Cloud:
        size = len(self.x)
        rows = torch.arange(size)
        if sampling.sample is not None and sampling.sample < size:
            order = permutation(self.key, Purpose.TRANSPORT, torch.tensor(size), size)
            rows = order[: sampling.sample].sort().values
        x = self.x[rows]
        if sampling.features is not None:
            with torch.no_grad():
                x = sampling.features(x if x.is_floating_point() else x.to(torch.float32)).cpu()
            if len(x) != len(rows) or not bool(torch.isfinite(x).all()):
                raise ValueError(
                    f"{self.name}: features made {tuple(x.shape)} numbers of {len(rows)} examples, "
                    "or NaN or infinity: it must return one row of finite numbers per example"
                )
        y = None if self.y is None else self.y[rows]
        return Cloud(x.reshape(len(rows), -1).to(torch.float64), y, size, sampling.label_cost, sampling.order)


def _pooled(target: Any) -> Any:
    return (target.train.x, target.train.y) if isinstance(target, Federation) else target


def _check_space(data: Sequence[_Data]) -> None:
    for other in data[1:]:
        if other.x[0].numel() != data[0].x[0].numel():
            raise ValueError(
                f"{other.name} has examples of {other.x[0].numel()} numbers, {data[0].name} of "
                f"{data[0].x[0].numel()}: all must lie in one space"
            )


def _draw_all(data: Sequence[_Data], sampling: Sampling) -> list[Cloud]:
    _check_space(data)
    clouds = [each.draw(sampling) for each in data]
    # Centering changes no distance, and points far from the origin keep their precision.
    center = torch.stack([cloud.x.mean(0) for cloud in clouds]).mean(0)
    return [replace(cloud, x=cloud.x - center) for cloud in clouds]


def _read_all(sources: Federation | Iterable[Any], sampling: Sampling, word: str) -> list[_Data]:
    pairs = [sources.train.of(i) for i in range(sources.num_clients)] if isinstance(sources, Federation) else sources
    data = [
        _read(f"{word} {number}", item, Key.of(sampling.seed, client=number), sampling)
        for number, item in enumerate(pairs)
    ]
    if not data:
        raise ValueError(f"there is no {word}: give at least one")
    return data


def _read(name: str, item: Any, key: Key, sampling: Sampling) -> _Data:
    paired = isinstance(item, tuple | list) and len(item) == 2 and all(isinstance(v, Tensor | np.ndarray) for v in item)
    x, y = item if paired else (item, None)
    wanted = sampling.labels
    x, y = _tensor(name, x), _tensor(name, y) if wanted and y is not None else None
    if x.ndim < 1 or x.numel() == 0:
        raise ValueError(f"{name} has examples of shape {tuple(x.shape)}: give at least one point of one number")
    if x.is_floating_point() and not bool(torch.isfinite(x).all()):
        raise ValueError(f"{name} has NaN or infinity among its examples: clean or drop those")
    if wanted and (y is None or not _fits(y, len(x), sampling.label_aware)):
        labels = "no labels" if y is None else f"labels of shape {tuple(y.shape)} and type {y.dtype}"
        kind = "integer label" if sampling.label_aware else "class or target"
        raise ValueError(f"{name} has {labels}: {wanted} needs one {kind} per example, in pairs (x, y)")
    return _Data(name, x, y, key)


def _fits(y: Tensor, count: int, label_aware: bool) -> bool:
    """Return whether there is one class per example or, unless labels mean clouds, one target of any shape."""
    targets = y.is_floating_point()
    return y.shape[:1] == (count,) and not (targets and label_aware) and (targets or y.ndim == 1)


def _tensor(name: str, values: Any) -> Tensor:
    if isinstance(values, Tensor):
        return values.detach().cpu()
    try:
        return torch.from_numpy(np.array(values))
    except (TypeError, ValueError) as error:
        raise ValueError(f"{name} is neither an array x nor a pair of arrays (x, y): {error}") from error
