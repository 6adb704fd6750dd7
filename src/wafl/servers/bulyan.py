"""Bulyan: El Mhamdi et al., "The hidden vulnerability of distributed learning in Byzantium" (ICML 2018)."""

from typing import Annotated

import torch
from torch import Tensor

from wafl.base.errors import TooFewRepliesError
from wafl.base.options import Count, frozen, maker
from wafl.parts.lengths import by_columns
from wafl.parts.update import Update
from wafl.servers.averaging import Aggregating
from wafl.servers.krum import scores, squared_distances


@frozen
class Bulyan(Aggregating):
    """Each parameter is the mean of the values nearest to the median, among models that Krum selects.

    Of n models, Krum selects one after another until ``n - 2 liars`` are selected. Of their values,
    ``n - 4 liars`` count: those nearest to the median. All of these count the same; a client without weight takes no
    part.
    """

    liars: Annotated[int, Count(0), "How many clients per round may lie; a round needs 4 liars + 3 clients."] = 1

    def check(self, num_clients: int) -> None:
        if num_clients < self._least:
            raise ValueError(
                f"bulyan with liars={self.liars} needs at least {self._least} clients per round, and there are "
                f"{num_clients}: lower liars, or use another of wafl.servers, such as median()"
            )

    def aggregate(self, update: Update) -> Tensor:
        models = update.params[update.weights.nonzero().flatten().to(update.params.device)]
        if len(models) < self._least:
            raise TooFewRepliesError(
                f"bulyan with liars={self.liars} needs at least {self._least} replies per round, and {len(models)} "
                "arrived: lower liars, or raise cohort or tolerance.min_replies"
            )
        selected = self._selected(squared_distances(update.start, models))
        count = len(models) - 4 * self.liars

        def mean_near_median(part: Tensor) -> Tensor:
            values, middle = part.sort(0).values, len(part) // 2
            median = (values[middle] + values[-1 - middle]) / 2
            nearest = (values - median).abs().argsort(dim=0, stable=True)[:count]
            return values.gather(0, nearest).mean(0)

        return torch.cat(by_columns(mean_near_median, models[selected]))

    def _selected(self, distances: Tensor) -> list[int]:
        """Return the models that Krum selects, one after another, each among those that are left."""
        left = list(range(len(distances)))
        selected: list[int] = []
        while len(selected) < len(distances) - 2 * self.liars:
            selected.append(left.pop(int(scores(distances[left][:, left], self.liars).argmin())))
        return selected

    @property
    def _least(self) -> int:
        return 4 * self.liars + 3


bulyan = maker(Bulyan)
