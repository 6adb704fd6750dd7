"""Krum and multi-Krum: Blanchard et al., "Machine learning with adversaries" (NeurIPS 2017)."""

from typing import Annotated

import torch
from torch import Tensor

from wafl.base.options import Count, frozen, maker
from wafl.parts.lengths import gram
from wafl.parts.messages import weighted_mean
from wafl.parts.update import Update
from wafl.servers.averaging import Aggregating


@frozen
class Krum(Aggregating):
    """The model whose ``n - liars - 2`` nearest others are the nearest, in the sum of squared distances.

    Distances know no weights; a client without weight takes no part. The chosen client's model is the aggregate, so
    what only the other clients' data could teach is lost.
    """

    liars: Annotated[int, Count(0), "How many clients per round may lie; a round needs 2 liars + 3 clients."] = 1

    def check(self, num_clients: int) -> None:
        if num_clients < 2 * self.liars + 3:
            raise ValueError(
                f"liars={self.liars} needs at least {2 * self.liars + 3} clients per round, and there are "
                f"{num_clients}: lower liars, or use another of wafl.servers, such as median()"
            )

    def aggregate(self, update: Update) -> Tensor:
        present = update.weights.nonzero().flatten()
        distances = squared_distances(update.start, update.params[present.to(update.params.device)])
        return self.of_best(update, present[scores(distances, self.liars).argsort(stable=True)])

    def of_best(self, update: Update, chosen: Tensor) -> Tensor:
        """Return the aggregate, given the clients that take part in the order of their scores."""
        return update.params[chosen[0]]


krum = maker(Krum)


@frozen
class MultiKrum(Krum):
    """The mean of the ``kept`` models with the best scores of :class:`Krum`, weighted by lambda."""

    kept: Annotated[int | None, Count(), "How many models count; by default all but liars + 2 of a round."] = None

    def check(self, num_clients: int) -> None:
        super().check(num_clients)
        if self.kept is not None and self.kept > num_clients - self.liars:
            raise ValueError(
                f"kept={self.kept} of {num_clients} clients per round would count some of the liars={self.liars}: "
                f"keep at most {num_clients - self.liars}"
            )

    def of_best(self, update: Update, chosen: Tensor) -> Tensor:
        best = chosen[: self.kept or max(1, len(chosen) - self.liars - 2)].sort().values
        return weighted_mean(update.weights[best], update.params[best.to(update.params.device)])


multi_krum = maker(MultiKrum)


def squared_distances(start: Tensor, models: Tensor) -> Tensor:
    """Return the squared distance ``[n, n]`` between each two models; each model is infinitely far from itself."""
    products = gram(models, start)
    squares = products.diagonal()
    distances = (squares[:, None] + squares[None, :] - 2.0 * products).clamp(min=0).cpu()
    return distances.fill_diagonal_(torch.inf)


def scores(distances: Tensor, liars: int) -> Tensor:
    """Return Krum's score of each model: the sum of its squared distances to the ``n - liars - 2`` nearest others."""
    nearest = max(1, len(distances) - liars - 2)  # fewer may have replied than were asked
    return distances.sort(1).values[:, :nearest].sum(1)
