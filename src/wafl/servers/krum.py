"""Select models by their distances: Krum, multi-Krum and Bulyan.

Krum and multi-Krum: Blanchard et al., "Machine learning with adversaries" (NeurIPS 2017). Bulyan: El Mhamdi et al.,
"The hidden vulnerability of distributed learning in Byzantium" (ICML 2018).
"""

from typing import Annotated

import torch
from torch import Tensor

from wafl.base.errors import TooFewRepliesError
from wafl.base.options import Count, frozen, maker
from wafl.parts.lengths import by_columns, gram
from wafl.parts.messages import weighted_mean
from wafl.parts.server import Update
from wafl.servers.averaging import Aggregating


@frozen
class Krum(Aggregating):
    """The model with the smallest sum of squared distances to its ``n - liars - 2`` nearest neighbors.

    Distances ignore weights; a client with zero weight is excluded. The chosen client's model is the aggregate, so the
    information in the other clients' data is lost.
    """

    liars: Annotated[int, Count(0), "The maximum number of lying clients; a round needs 2 liars + 3 clients."] = 1

    def check(self, num_clients: int) -> None:
        """Raise ValueError if a round has too few clients for this number of liars."""
        if num_clients < 2 * self.liars + 3:
            raise ValueError(
                f"liars={self.liars} needs at least {2 * self.liars + 3} clients per round, and there are "
                f"{num_clients}: lower `liars`, or use another server from wafl.servers, such as median()"
            )

    def aggregate(self, update: Update) -> Tensor:
        """Return the selected model."""
        present = update.weights.nonzero().flatten()
        distances = squared_distances(update.start, update.params[present.to(update.params.device)])
        return self.of_best(update, present[scores(distances, self.liars).argsort(stable=True)])

    def of_best(self, update: Update, chosen: Tensor) -> Tensor:
        """Return the aggregate, given the participating clients in the order of their scores."""
        return update.params[chosen[0]]


@frozen
class MultiKrum(Krum):
    """The mean of the ``kept`` models with the best scores of :class:`Krum`, weighted by lambda."""

    kept: Annotated[int | None, Count(), "The number of models to average; by default all but liars + 2."] = None

    def check(self, num_clients: int) -> None:
        """Raise ValueError if a round has too few clients, or if ``kept`` includes some liars."""
        super().check(num_clients)
        if self.kept is not None and self.kept > num_clients - self.liars:
            raise ValueError(
                f"kept={self.kept} of {num_clients} clients per round would include some of the liars={self.liars}: "
                f"keep at most {num_clients - self.liars}"
            )

    def of_best(self, update: Update, chosen: Tensor) -> Tensor:
        """Return the weighted mean of the models with the best scores."""
        best = chosen[: self.kept or max(1, len(chosen) - self.liars - 2)].sort().values
        return weighted_mean(update.weights[best], update.params[best.to(update.params.device)])


def squared_distances(start: Tensor, models: Tensor) -> Tensor:
    """Return the squared distance ``[n, n]`` between any two models; each model is infinitely far from itself."""
    products = gram(models, start)
    squares = products.diagonal()
    distances = (squares[:, None] + squares[None, :] - 2.0 * products).clamp(min=0).cpu()
    return distances.fill_diagonal_(torch.inf)


def scores(distances: Tensor, liars: int) -> Tensor:
    """Return Krum's score of each model: the sum of its squared distances to the ``n - liars - 2`` nearest others."""
    nearest = max(1, len(distances) - liars - 2)  # fewer may have replied than were asked
    return distances.sort(1).values[:, :nearest].sum(1)


@frozen
class Bulyan(Aggregating):
    """Each parameter is the mean of the values nearest to the median, among models that Krum selects.

    Krum selects models one by one until ``n - 2 liars`` of n models are selected. Of their values, the ``n - 4 liars``
    nearest to the median are averaged with equal weights. A client with zero weight is excluded.
    """

    liars: Annotated[int, Count(0), "The maximum number of lying clients; a round needs 4 liars + 3 clients."] = 1

    def check(self, num_clients: int) -> None:
        """Raise ValueError if a round has too few clients for this number of liars."""
        if num_clients < self._least:
            raise ValueError(
                f"bulyan with liars={self.liars} needs at least {self._least} clients per round, and there are "
                f"{num_clients}: lower `liars`, or use another server from wafl.servers, such as median()"
            )

    def aggregate(self, update: Update) -> Tensor:
        """Return the mean of the values near the median among the selected models."""
        models = update.params[update.weights.nonzero().flatten().to(update.params.device)]
        if len(models) < self._least:
            raise TooFewRepliesError(
                f"bulyan with liars={self.liars} needs at least {self._least} replies per round, and {len(models)} "
                "arrived: lower `liars`, or raise cohort or tolerance.min_replies"
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
        """Return the models that Krum selects one by one, each among the remaining models."""
        left = list(range(len(distances)))
        selected: list[int] = []
        while len(selected) < len(distances) - 2 * self.liars:
            selected.append(left.pop(int(scores(distances[left][:, left], self.liars).argmin())))
        return selected

    @property
    def _least(self) -> int:
        return 4 * self.liars + 3


krum = maker(Krum)
multi_krum = maker(MultiKrum)
bulyan = maker(Bulyan)
