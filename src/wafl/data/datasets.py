"""Named data sets; ``digits`` comes with scikit-learn and needs no download."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, cast

import torch
from torch import Tensor

from wafl.data.partition import labels_per_client as split_by_labels
from wafl.federation import Federation


@dataclass(frozen=True)
class Dataset:
    """Images ``(channels, height, width)`` and labels, with the unit their values are in."""

    name: str
    x_train: Tensor
    y_train: Tensor
    x_test: Tensor
    y_test: Tensor
    unit: str
    bounds: tuple[float, float] | None
    num_classes: int

    def partition(
        self, num_clients: int, *, labels_per_client: int, test_fraction: float = 0.25, seed: int = 0
    ) -> Federation:
        """Spread all examples over clients that know a few labels each, and have unequal amounts of data.

        Training and test examples are pooled, and each client holds ``test_fraction`` of its own out.
        """
        x, y = torch.cat([self.x_train, self.x_test]), torch.cat([self.y_train, self.y_test])
        shares = split_by_labels(y, num_clients, labels_per_client, self.num_classes, seed)
        return Federation.from_arrays(
            ((x[rows], y[rows]) for rows in shares),
            test_fraction=test_fraction,
            unit=self.unit,
            bounds=self.bounds,
            num_classes=self.num_classes,
            seed=seed,
        )


def load_dataset(name: str) -> Dataset:
    """A data set by name.

    >>> load_dataset("digits").x_train.shape
    torch.Size([1437, 1, 8, 8])
    """
    loaders: dict[str, Callable[[], Dataset]] = {"digits": _digits}
    if name not in loaders:
        raise ValueError(f"unknown data set {name!r}: there is {', '.join(loaders)}")
    return loaders[name]()


def _digits() -> Dataset:
    """1,797 digits of 8x8 pixels (Alpaydin and Kaynak, UCI), 0..16 scaled to [0, 1]; the last fifth for testing."""
    from sklearn.datasets import load_digits  # pyright: ignore[reportUnknownVariableType]

    bunch = cast(Any, load_digits())
    x = torch.from_numpy(bunch.images).to(torch.float32)[:, None] / 16.0
    y = torch.from_numpy(bunch.target).to(torch.int64)
    cut = len(x) * 4 // 5
    return Dataset("digits", x[:cut], y[:cut], x[cut:], y[cut:], "pixels in [0, 1]", (0.0, 1.0), 10)
