"""Points of the probability simplex: drawing by them, and the projection onto it.

The projection is Michelot's finite algorithm (JOTA, 1986), which needs no sorting.
"""

from collections.abc import Callable

import torch
from torch import Tensor

ROW = 256
"""How many values are passed over together if none of them is large."""


def indices_of(draws: Tensor, weights: Tensor) -> Tensor:
    """Return the index at which the sum of the weights first exceeds each draw from [0, 1).

    Within the row of each draw alone, the weights are added one by one: each such sum waits for the one before.

    >>> indices_of(torch.tensor([0.1, 0.3, 0.9]), torch.tensor([0.25, 0.25, 0.5]))
    tensor([0, 1, 2])
    """
    whole, last = len(weights) // ROW * ROW, len(weights) - 1
    sums = torch.cat([weights[:whole].view(-1, ROW).sum(1), weights[whole:].sum(0, keepdim=True)])
    ends = sums.cumsum(0)
    row = torch.searchsorted(ends, draws, right=True).clamp_max(last // ROW)
    inside = (ROW * row[:, None] + torch.arange(ROW)).clamp_max(last)
    before = torch.where(row > 0, ends[row - 1], 0.0)
    passed = (before[:, None] + weights[inside].cumsum(1) <= draws[:, None]).sum(1)
    return (ROW * row + passed).clamp_max(last)


def project_to_simplex(values: Tensor) -> Tensor:
    """The nearest point of the probability simplex to any vector.

    >>> project_to_simplex(torch.tensor([0.9, 0.5]))
    tensor([0.7000, 0.3000])
    """
    return project_in_place(values.clone())


def project_in_place(values: Tensor) -> Tensor:
    """The nearest point of the probability simplex, written over the values."""
    rows = _Rows(values)
    highest = torch.cat([rows.tops, rows.rest]).amax()
    near = rows.above(-1.0, highest)  # what stays is less than 1 below the largest
    if near is not None:
        return rows.change(near, project_in_place)
    values -= highest  # changes no projection, and keeps large values exact
    rows.tops -= highest
    lowest = float(values.amin())
    staying = values if lowest > -1.0 else values[values > -1.0]
    while True:
        threshold = float(staying.sum() - 1.0) / len(staying)
        if lowest > threshold:
            return values.sub_(threshold)
        few = rows.above(threshold)
        fewer = staying if few is None or staying is not values else rows.pick(few)
        fewer = fewer[fewer > threshold]
        if len(fewer) == len(staying):
            break
        staying = fewer
    if few is None:
        return values.sub_(threshold).clamp_min_(0.0)
    return rows.change(few, lambda chosen: chosen.sub_(threshold).clamp_min_(0.0))


class _Rows:
    """A table of the values, to find the few large ones by the largest of each row; ``rest`` does not fill a row."""

    def __init__(self, values: Tensor) -> None:
        self._values, whole = values, len(values) // ROW * ROW
        self._table, self.rest = values[:whole].view(-1, ROW), values[whole:]
        self.tops = self._table.amax(1)

    def above(self, threshold: float, origin: Tensor | float = 0.0) -> Tensor | None:
        """The rows with a value that is above the threshold, as seen from the origin; None if they are many."""
        if len(self._table) == 0:
            return None
        large = (~(self.tops - origin <= threshold)).nonzero()[:, 0]  # NaN is never passed over
        return large if 4 * len(large) < len(self._table) else None

    def pick(self, rows: Tensor) -> Tensor:
        return torch.cat([self._table[rows].flatten(), self.rest])

    def change(self, rows: Tensor, change: Callable[[Tensor], Tensor]) -> Tensor:
        """Write over the rows, and the rest, what becomes of them, and 0 over all others; returns all values."""
        changed, count = change(self.pick(rows)), len(rows) * ROW
        self._table.zero_()[rows] = changed[:count].view(-1, ROW)
        self.rest.copy_(changed[count:])
        return self._values
