"""Learn client weights that maximize the weighted loss on the simplex: AFL, GroupDRO, DRFA, Scaff-PD, FedDG-GA.

The projection onto the simplex is Michelot's finite algorithm (JOTA, 1986), which needs no sorting.

AFL: Mohri, Sivek and Suresh, "Agnostic federated learning" (ICML 2019), stochastic AFL: every client takes one step
from the same parameters and reports its loss there; the model descends the weighted loss, and the weights ascend it.

GroupDRO: Sagawa, Koh, Hashimoto and Liang, "Distributionally robust neural networks for group shifts" (ICLR 2020),
algorithm 1, with clients as groups.

DRFA: Deng, Kamani and Mahdavi, "Distributionally robust federated averaging" (NeurIPS 2020). A round has two queries. A
cohort drawn by lambda trains and keeps a snapshot at a common random step. Then a uniform cohort reports its loss at
the mean of the snapshots. With ``prox`` it is DRFA-Prox, with the regularizer ``-prox/2 ||lambda - 1/m||^2``.

Scaff-PD: Yu, Karimireddy, Ma and Jordan, "Scaff-PD: Communication efficient fair and robust federated learning"
(2307.13381, 2023). The regularizer of the weights is ``prox/2 ||lambda - 1/m||^2``, a multiple of the paper's
chi-squared penalty. All clients report in every round, as in the paper.

FedDG-GA: Zhang et al., "Federated domain generalization with generalization adjustment" (CVPR 2023), as in the authors'
code. Its step is a fraction of an equal share and falls to 0 over the rounds.
"""

from collections import Counter
from collections.abc import Callable, Sequence
from typing import Annotated

import torch
from torch import Tensor

from wafl.base.checks import in_round
from wafl.base.options import EachRound, NotNegative, Positive, Range, Tunable, frozen, maker
from wafl.base.random import Key, Purpose, bits, uniform
from wafl.parts.client_weights import ClientWeights, Cohort, LossQuery, Round, normalized, uniform_cohort
from wafl.parts.schedule import Schedule

ROW = 256
"""The number of values that are skipped together if none of them is large."""


def project_to_simplex(values: Tensor) -> Tensor:
    """Return the point of the probability simplex that is nearest to a vector.

    >>> project_to_simplex(torch.tensor([0.9, 0.5]))
    tensor([0.7000, 0.3000])
    """
    return project_in_place(values.clone())


def project_in_place(values: Tensor) -> Tensor:
    """Overwrite the values by the nearest point of the probability simplex, and return them."""
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
    """A table of the values that finds the few large ones by the maximum of each row; ``rest`` does not fill a row."""

    def __init__(self, values: Tensor) -> None:
        self._values, whole = values, len(values) // ROW * ROW
        self._table, self.rest = values[:whole].view(-1, ROW), values[whole:]
        self.tops = self._table.amax(1)

    def above(self, threshold: float, origin: Tensor | float = 0.0) -> Tensor | None:
        """Return the rows with a value above the threshold, relative to the origin, or None if there are many."""
        if len(self._table) == 0:
            return None
        large = (~(self.tops - origin <= threshold)).nonzero()[:, 0]  # NaN is never skipped
        return large if 4 * len(large) < len(self._table) else None

    def pick(self, rows: Tensor) -> Tensor:
        return torch.cat([self._table[rows].flatten(), self.rest])

    def change(self, rows: Tensor, change: Callable[[Tensor], Tensor]) -> Tensor:
        """Overwrite the rows and the rest by their ``change``, and all others by 0; return all values."""
        changed, count = change(self.pick(rows)), len(rows) * ROW
        self._table.zero_()[rows] = changed[:count].view(-1, ROW)
        self.rest.copy_(changed[count:])
        return self._values


StepSize = float | Callable[[int], float]
Climb = Annotated[
    StepSize,
    EachRound(Positive()),
    Tunable(30.0),
    "How fast the client weights climb the losses; in Python, it may be a function of the round.",
]
"""The option ``step_size`` of rules and presets that ascend the losses."""
Evenness = Annotated[float, NotNegative, "The price of client weights that differ from equal weights; 0 disables it."]
"""The option ``prox`` of rules and presets that keep the weights near equal weights."""


@frozen
class Learned(ClientWeights):
    """The base class of rules that learn: ``lambda <- projection(lambda + step_size loss)``, from equal weights."""

    step_size: Climb = 0.1
    climbs = True

    def initial(self, num_examples: Sequence[int]) -> Tensor:
        """Return equal weights."""
        return normalized([1.0] * len(num_examples))

    def enlarged(self, weights: Tensor, num_examples: Sequence[int]) -> Tensor:
        """Return the weights with an equal share for each new client; the others divide the rest as before."""
        fresh = weights.new_full((len(num_examples) - len(weights),), 1.0 / len(num_examples))
        return torch.cat([weights * (1.0 - float(fresh.sum())), fresh])

    def needs_sizes(self, local_steps: int | None) -> bool:
        """Return False, since learned weights need no sizes."""
        return False

    def learn(self, weights: Tensor, clients: Sequence[int], losses: Tensor, round: Round) -> Tensor:
        """Return the weights after a step along the losses."""
        climbed = weights.clone()
        climbed[list(clients)] += self.step(round.number) * losses.to(climbed)
        return project_in_place(climbed)

    def step(self, round: int) -> float:
        """Return the step size of a round."""
        return in_round("weights_step", self.step_size, round)


def _check_everyone(name: str, schedule: Schedule, num_clients: int) -> None:
    if schedule.cohort not in (None, num_clients):
        raise ValueError(
            f"{name} asks all {num_clients} clients each round: leave cohort={schedule.cohort} out; DRFA samples"
        )


@frozen
class Agnostic(Learned):
    """AFL: every client reports its loss each round, and ``lambda <- projection(lambda + step_size loss)``."""

    asks_everyone = True
    takes_one_step = True

    def check(self, schedule: Schedule, num_clients: int) -> None:
        """Raise ValueError unless all clients train in every round, with one local step."""
        if schedule.local_steps != 1:
            raise ValueError(
                f"AFL's clients take exactly one step per round: pass local_steps=1 instead of local_epochs="
                f"{schedule.local_epochs}, local_steps={schedule.local_steps}; DRFA takes local steps"
            )
        _check_everyone("AFL", schedule, num_clients)


@frozen
class Group(Learned):
    """GroupDRO over clients: weights that grow exponentially with the losses so far.

    ``lambda_i <- lambda_i exp(step_size loss_i)`` for the clients of a cohort, then all weights are scaled to sum to 1.
    The cohort trains with these weights, as in the paper, where a step is weighted after its loss is known. A client
    outside the cohort keeps its weight, up to the scaling.
    """

    step_size: Climb = 0.01

    def loss_query(self, round: Round) -> LossQuery:
        """Request the losses of a cohort before it trains."""
        return LossQuery(uniform_cohort(round), 0)

    def learn(self, weights: Tensor, clients: Sequence[int], losses: Tensor, round: Round) -> Tensor:
        """Return the weights after a multiplicative step."""
        powers = weights.log()
        powers[list(clients)] += self.step(round.number) * losses.to(powers)
        return torch.softmax(powers, 0)


@frozen
class Snapshot(Learned):
    """DRFA: like AFL, but from the losses of a random subset U of the clients at a random snapshot of the round.

    ``lambda <- projection(lambda + K step_size v)``, with v the losses at the snapshot, scaled by ``m / |U|``.
    With ``prox`` the weights maximize ``sum_i lambda_i loss_i - prox/2 ||lambda - 1/m||^2``: the step ends with the
    proximal operator of the penalty.
    """

    step_size: Climb = 0.01
    prox: Evenness = 0.0

    def needs_sizes(self, local_steps: int | None) -> bool:
        """Return whether the number of steps depends on the clients' sizes, as with local epochs."""
        return local_steps is None  # K is then the number of steps of the largest client

    def draw(self, weights: Tensor, round: Round) -> Cohort:
        """Draw clients by lambda with replacement; a client that is drawn twice gets twice the weight."""
        draws = uniform(Key.of(round.seed, round.number), Purpose.COHORT, round.cohort)
        drawn = torch.searchsorted(weights.cumsum(0), draws, right=True).clamp_max(len(weights) - 1)
        times = sorted(Counter(drawn.tolist()).items())
        return Cohort(
            tuple(client for client, _ in times),
            torch.tensor([float(count) for _, count in times], dtype=torch.float64),
        )

    def loss_query(self, round: Round) -> LossQuery:
        """Request the losses of a uniform cohort at a random snapshot."""
        step = int(bits(Key.of(round.seed, round.number), Purpose.SNAPSHOT, 1)) % round.local_steps + 1
        return LossQuery(uniform_cohort(round, Purpose.LOSS_COHORT), step)

    def learn(self, weights: Tensor, clients: Sequence[int], losses: Tensor, round: Round) -> Tensor:
        """Return the weights after a step along the losses, and the proximal step of the penalty."""
        climbed = weights.clone()
        step = round.local_steps * self.step(round.number)
        climbed[list(clients)] += step * (len(climbed) / len(clients)) * losses.to(climbed)
        if self.prox:
            price = step * self.prox
            climbed.add_(price / len(climbed)).div_(1.0 + price)
        return project_in_place(climbed)


Extrapolation = Annotated[
    float, Range(0, 1), "The share of the losses' change since the last round that is extrapolated."
]
"""The option ``extrapolation`` of the rule and of Scaff-PD."""


@frozen
class PrimalDual(Learned):
    """Scaff-PD's weights: all clients report their losses, the weights ascend them, and then the clients train.

    ``lambda <- argmax <s, lambda> - prox/2 ||lambda - 1/m||^2 - 1/(2 step_size) ||lambda - lambda_before||^2``, where
    ``s = loss + extrapolation (loss - loss before)`` uses the losses at the model before the round trains.
    """

    prox: Evenness = 0.1
    extrapolation: Extrapolation = 1.0
    asks_everyone = True
    remembers_losses = True

    def check(self, schedule: Schedule, num_clients: int) -> None:
        """Raise ValueError unless all clients train in every round."""
        _check_everyone("Scaff-PD", schedule, num_clients)

    def loss_query(self, round: Round) -> LossQuery:
        """Request the losses of all clients before they train."""
        return LossQuery(tuple(range(round.num_clients)), 0)

    def draw(self, weights: Tensor, round: Round) -> Cohort:
        """Return the clients with a weight."""
        clients = tuple(weights.nonzero()[:, 0].tolist())
        return Cohort(clients, weights[list(clients)])

    def learn(self, weights: Tensor, clients: Sequence[int], losses: Tensor, round: Round) -> Tensor:
        """Return the weights after the extrapolated, regularized step."""
        asked, losses = list(clients), losses.to(weights)
        before = losses if round.last_losses is None else round.last_losses.to(weights)[asked]
        before = torch.where(before.isnan(), losses, before)
        # Clients that fail to report neither gain nor lose.
        slopes = torch.full_like(weights, float(losses.mean()))
        slopes[asked] = losses + self.extrapolation * (losses - before)
        step = self.step(round.number)
        climbed = weights + step * (slopes + self.prox / len(weights))
        return project_to_simplex(climbed / (1.0 + step * self.prox))


Adjustment = Annotated[
    StepSize,
    EachRound(Range(0, 1, low_open=True)),
    Tunable(),
    "How much the client weights change in the first rounds, in parts of an equal share; in Python, it may be a "
    "function of the round.",
]
"""The option ``step_size`` of the rule and of FedDG-GA."""


@frozen
class Gap(Learned):
    """FedDG-GA: clients gain weight if the mean model is worse for them than their own model.

    A client's gap is its loss at the server's model minus its loss at the model that it sent in the previous round,
    both on all its examples. Then ``lambda_i <- lambda_i + step gap_i / max_j |gap_j|``, cut off at 0 and scaled to sum
    to 1, with ``step = step_size (1 - t / T) / m`` in round t of T. A client that did not train in the previous round
    has no gap, and keeps its weight up to the scaling.
    """

    step_size: Adjustment = 0.2
    remembers_losses = True
    judges_ends = True
    counts_rounds = True

    def loss_query(self, round: Round) -> LossQuery:
        """Request the losses of a cohort before it trains."""
        return LossQuery(uniform_cohort(round), 0)

    def learn(self, weights: Tensor, clients: Sequence[int], losses: Tensor, round: Round) -> Tensor:
        """Return the weights after a step along the gaps."""
        asked = list(clients)
        if round.last_losses is None:
            return weights
        gaps = (losses.to(weights) - round.last_losses.to(weights)[asked]).nan_to_num(0.0)
        largest = float(gaps.abs().max())
        if largest == 0.0:
            return weights
        step = self.step(round.number) * (1.0 - round.number / round.rounds) / len(weights)
        adjusted = weights.clone()
        adjusted[asked] += step / largest * gaps
        adjusted = adjusted.clamp_min(0.0)
        return adjusted / adjusted.sum()


agnostic = maker(Agnostic)
group_dro = maker(Group)
snapshot = maker(Snapshot)
primal_dual = maker(PrimalDual)
gap = maker(Gap)
