"""Compute client weights from the losses of a cohort: the base class, CVaR, q-FFL, TERM, V-REx and SFAT.

``methods/reweighted.py`` cites the papers. A cohort reports its losses first; then the clients with a weight train.

CVaR, or the superquantile, takes the quantile of the cohort, as in the papers' algorithm. q-FFL is q-FedAvg, with its
estimate ``1 / learning_rate`` of the Lipschitz constant. The paper draws clients by their share of the examples and
weights them equally; here they are drawn uniformly and weighted by their share. TERM's weights are normalized over the
cohort, as in its federated form. In the paper, V-REx uses every environment; the variance over a cohort is our
extension. SFAT is the alpha-slack mechanism: clients with small losses count more, so that the others do not
destabilize adversarial training.
"""

from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated

import torch
from torch import Tensor

from wafl.base.options import NotNegative, Range, Tunable, documented, frozen, maker
from wafl.parts.client_weights import ClientWeights, Cohort, LossQuery, Round, uniform_cohort
from wafl.weights.fixed import ByExamples

BY_EXAMPLES = ByExamples()


@documented
@dataclass(frozen=True, kw_only=True)
class Reweighted(ClientWeights):
    """The base class of rules whose weights are a function of the cohort's losses, around the weights of ``center``."""

    center: Annotated[
        ClientWeights, "The client weights before losses are used (wafl.weights); by default shares of the examples."
    ] = BY_EXAMPLES

    def __post_init__(self) -> None:
        super().__post_init__()
        if not isinstance(self.center, ClientWeights) or self.center.learns:  # pyright: ignore[reportUnnecessaryIsInstance]
            raise ValueError(
                f"center={self.center!r} must be weights that do not change: wafl.weights.by_examples(), uniform(), "
                "fixed([...]), or a rule of your own without losses"
            )

    @abstractmethod
    def weigh(self, center: Tensor, losses: Tensor) -> Tensor:
        """Return the weights of clients with these losses; their positive weights in the center sum to 1."""

    def initial(self, num_examples: Sequence[int]) -> Tensor:
        """Return the weights of the center."""
        return self.center.initial(num_examples)

    def enlarged(self, weights: Tensor, num_examples: Sequence[int]) -> Tensor:
        """Return the weights of the center, including new clients."""
        return self.center.enlarged(weights, num_examples)

    @property
    def closed(self) -> bool:
        """Whether the center is for the first clients only."""
        return self.center.closed

    def needs_sizes(self, local_steps: int | None) -> bool:
        """Return whether the center needs the clients' sizes."""
        return self.center.needs_sizes(local_steps)

    def loss_query(self, round: Round) -> LossQuery:
        """Request the losses of a cohort before it trains."""
        return LossQuery(uniform_cohort(round), 0)

    def draw(self, weights: Tensor, round: Round) -> Cohort:
        """Return the cohort's clients with a weight, or all of them if none has one, and then nothing changes."""
        cohort = uniform_cohort(round)
        clients = tuple(client for client in cohort if float(weights[client]) > 0) or cohort
        return Cohort(clients, weights[list(clients)])

    def learn(self, weights: Tensor, clients: Sequence[int], losses: Tensor, round: Round) -> Tensor:
        """Return the weights of the cohort's clients, and 0 for all others."""
        center = self.center.initial(round.num_examples)[list(clients)]
        counts = center > 0
        chosen = torch.tensor(list(clients))[counts]
        learned = torch.zeros_like(weights)
        if len(chosen):
            learned[chosen] = self.weigh(center[counts] / center.sum(), losses.to(weights)[counts])
        return learned


@frozen
class CVaR(Reweighted):
    """CVaR: only the worst clients of a cohort, with ``1 - alpha`` of its weight.

    The weights maximize ``sum_i lambda_i loss_i`` over ``0 <= lambda_i <= center_i / (1 - alpha)``. With ``alpha = 0``
    these are the weights of the center; near 1 only the worst client of the cohort counts, which is AFL's objective.
    The papers call ``1 - alpha`` the tail fraction theta.
    """

    alpha: Annotated[
        float, Range(0, 1, high_open=True), Tunable(), "The share of the clients, by weight, that is ignored."
    ] = 0.5

    def weigh(self, center: Tensor, losses: Tensor) -> Tensor:
        """Return the weights of the worst clients."""
        tail = 1.0 - self.alpha
        order = losses.argsort(descending=True, stable=True)
        filled = center[order].cumsum(0)
        last = int(torch.searchsorted(filled, tail).clamp_max(len(losses) - 1))
        quantile = losses[order[last]]
        above, at = losses > quantile, losses == quantile
        # Clients at the quantile share what those above it leave, by their weights in the center.
        rest = (tail - center[above].sum()).clamp_min(0.0)
        weights = torch.where(above, center, 0.0) + torch.where(at, center, 0.0) * (rest / center[at].sum())
        return weights / weights.sum()


@frozen
class QFair(Reweighted):
    """q-FFL: weights ``center_i loss_i^q``, scaled to sum to 1, and a matching step of the server.

    The clients then descend ``sum_i center_i loss_i^(q + 1) / (q + 1)``. The step of the server is multiplied by
    ``sum_i center_i loss_i^q / sum_i h_i``, with ``h_i = center_i (loss_i^q + q loss_i^(q - 1) ||update_i||^2 /
    learning_rate)``.
    """

    q: Annotated[float, NotNegative, Tunable(), "The power of the losses in the weights; 0 is FedAvg."] = 1.0

    def weigh(self, center: Tensor, losses: Tensor) -> Tensor:
        """Return the weights; raise ValueError if a loss is negative."""
        if bool((losses < 0).any()):
            raise ValueError(
                f"q-FFL takes losses to the power q={self.q:g}, and a client has the loss {float(losses.min()):.3g}: "
                "use a loss that is never negative, or weights that do not need this, such as term(t)"
            )
        largest = losses.max()
        if not float(largest) > 0:
            return center  # every client fits its data exactly
        weights = center * (losses / largest) ** self.q
        return weights / weights.sum()

    def damping(self, weights: Tensor, losses: Tensor, squared_lengths: Tensor, rate: float) -> float:
        """Return the paper's ``Delta / h`` as a fraction of the mean update.

        A client whose loss is 0 adds nothing: a smooth loss that is never negative has ``||gradient||^2 <= 2 L loss``,
        so ``loss^(q - 1) ||gradient||^2`` vanishes with the loss, even if q is below 1.
        """
        relative = torch.where(losses > 0, squared_lengths / losses, 0.0)
        return float(1.0 / (1.0 + self.q / rate * (weights @ relative)))


@frozen
class Tilted(Reweighted):
    """TERM: weights proportional to ``center_i exp(t loss_i)``, from ``1/t log sum_i center_i exp(t loss_i)``."""

    t: Annotated[
        float,
        Range(),
        Tunable(30.0),
        "The strength of the tilt toward large losses; 0 keeps the center, below 0 outliers get less weight.",
    ] = 1.0

    def weigh(self, center: Tensor, losses: Tensor) -> Tensor:
        """Return the tilted weights."""
        return torch.softmax(center.log() + self.t * (losses - losses.max()), 0)


@frozen
class RiskVariance(Reweighted):
    """V-REx: weights ``center_i (1 + 2 beta (loss_i - mean))``, cut off at 0 and scaled to sum to 1.

    They are the weights of the gradient of ``sum_i center_i loss_i + beta sum_i center_i (loss_i - mean)^2``. A
    negative weight, with which a client would unlearn, is set to 0; this can happen with the paper's larger betas.
    """

    beta: Annotated[
        float, NotNegative, Tunable(30.0), "The price of the variance of the clients' losses; 0 keeps the center."
    ] = 1.0

    def weigh(self, center: Tensor, losses: Tensor) -> Tensor:
        """Return the weights, at least 0."""
        weights = center * (1.0 + 2.0 * self.beta * (losses - center @ losses)).clamp_min(0.0)
        return weights / weights.sum()


@frozen
class Slack(Reweighted):
    """SFAT: the clients of a cohort with the smallest losses count ``1 + alpha``, the others ``1 - alpha``.

    These factors multiply the weights of the center, and the products are scaled to sum to 1. At least one client is
    favored; of clients with equal losses, the first ones are favored.
    """

    alpha: Annotated[
        float,
        Range(0, 1, high_open=True),
        Tunable(),
        "The increase in weight of clients with the smallest losses; 0 keeps the center.",
    ] = 0.2
    favored: Annotated[float, Range(0, 1, low_open=True), "The share of a cohort that gets more weight."] = 0.2

    def weigh(self, center: Tensor, losses: Tensor) -> Tensor:
        """Return the center's weights with the factors of small and other losses."""
        count = max(1, round(self.favored * len(losses)))
        factor = torch.full_like(center, 1.0 - self.alpha)
        factor[losses.argsort(stable=True)[:count]] = 1.0 + self.alpha
        return center * factor / (center * factor).sum()


cvar = maker(CVaR)
qffl = maker(QFair)
term = maker(Tilted)
rex = maker(RiskVariance)
slack = maker(Slack)
