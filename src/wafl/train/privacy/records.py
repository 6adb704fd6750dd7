"""Protect records or patients by differential privacy: DP-SGD at the client, on all of its examples.

Abadi, Chu, Goodfellow, McMahan, Mironov, Talwar and Zhang, "Deep learning with differential privacy" (CCS 2016), with
all n units of a client in each step, not a sample:

    theta <- theta - rate (1/n) (sum_i clip(g_i) + N(0, (2 z C)^2)),

where g_i is the gradient of unit i alone, after its examples were moved. If the rows of one unit change in any way, the
sum changes by at most 2C, so a step is a Gaussian mechanism with noise multiplier z. No amplification has to be proven,
and no server chooses the batches.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from logging import getLogger
from typing import Annotated

import torch
from torch import Tensor

from wafl.base.options import Count, Positive, Range, frozen
from wafl.base.random import Key
from wafl.local import LocalState, LocalStep
from wafl.parts.messages import PARAMS, Query, Replies
from wafl.parts.schedule import LocalWork
from wafl.tasks.modes.statistics import FROZEN
from wafl.train.client import shortened
from wafl.train.client_task import ClientTask, LaneInput
from wafl.train.privacy.accountant import noise_for
from wafl.train.privacy.noise import clipped_sum, noisy
from wafl.train.spec import Spec
from wafl.train.step import Batch, begin, step

LOG = getLogger("wafl")
MOST_NUMBERS, MOST_RECORDS = 2**19, 256
"""The maximum numbers of values and of records whose gradients are computed together."""


@frozen
class RecordPrivacy:
    """The limit of what a client may reveal about any one unit, a record or a patient, in all runs together."""

    epsilon: Annotated[float, Positive(), "How much may leak about a unit, in all runs together."]
    delta: Annotated[
        float,
        Range(0, 1, low_open=True, high_open=True),
        "The probability with which more than epsilon may leak: well below one over the number of units.",
    ]
    clip_norm: Annotated[float, Positive(), "A unit's gradient that is longer is shortened to this length."]
    steps: Annotated[int, Count(), "The number of local steps, in all runs together, that epsilon is for."]

    @cached_property
    def budget(self) -> float:
        """The largest sum of ``1 / z^2`` over all steps that is (epsilon, delta)-private."""
        return noise_for(self.epsilon, self.delta, 1) ** -2

    @property
    def cost(self) -> float:
        """The increase of that sum per step."""
        return self.budget / self.steps

    @property
    def deviation(self) -> float:
        """The standard deviation of the noise on the sum of the clipped gradients."""
        return 2.0 * self.clip_norm * self.cost**-0.5


class Keep(LocalStep):
    """A local step that keeps each lane's gradient."""

    def direction(self, gradient: Tensor, state: LocalState) -> tuple[Tensor, dict[str, Tensor]]:
        """Return the gradient, and carry it."""
        return gradient, {"gradient": gradient}


def why_not_private(spec: Spec, client: ClientTask, params: Tensor) -> str | None:
    """Explain why clients' replies in a run contain more than noisy gradients, or return None if they do not."""
    method = spec.method
    objective, local = method.objective, method.local
    reasons = {
        "weights its clients by their losses": method.client_weights.learns or method.client_weights.judges_ends,
        f"has clients send more than their models ({', '.join(local.sends)})": bool(local.sends),
        "takes more than one gradient in a local step": local.gradients > 1,
        "lets clients keep numbers between rounds": bool(client.initial_memory(params)),
        "learns statistics of BatchNorm": spec.schedule.statistics != FROZEN,
    }
    if objective is not None:
        reasons |= {
            "learns gamma from the clients' costs": objective.learner is not None,
            "takes its cost matrix from the clients": spec.asks_cost_matrix,
            "counts the labels of clients": objective.counts_labels,
        }
    return next((reason for reason, applies in reasons.items() if applies), None)


@dataclass(frozen=True)
class Units:
    """A client's row in the examples, and the unit of each of its examples, counted from 0."""

    row: int
    owner: Tensor

    @cached_property
    def sizes(self) -> Tensor:
        """The number of examples of each unit."""
        return self.owner.bincount()

    def steps(self, work: LocalWork) -> int:
        """Return the number of local steps in a round."""
        return work.num_steps([len(self.sizes)])[0]


def private_replies(client: ClientTask, query: Query, units: Mapping[int, Units], privacy: RecordPrivacy) -> Replies:
    """Return the trained models of the clients; losses and costs are 0, because they would get no noise."""
    trained = torch.stack([private_update(client, query, units[number], privacy) for number in query.clients])
    none = trained.new_zeros(len(trained))
    return Replies(query.clients, none, none, {PARAMS: trained})


def private_update(client: ClientTask, query: Query, units: Units, privacy: RecordPrivacy) -> Tensor:
    """Return the parameters after a client's local steps.

    All later computations use only the noisy gradient and the server's knowledge: weight decay, the local step,
    momentum, and the maximum length of an update.
    """
    start = query.params[None]
    numbers = {name: start.new_tensor([[value]]) for name, value in query.scalars.items()}
    state, velocity = LocalState(start, start, numbers, {}), torch.zeros_like(start)
    state = replace(state, carry=client.local.begin(state))
    for number in range(units.steps(client.work)):
        total = sum_of_units(client, replace(query, params=state.params[0]), units, number, privacy)
        noised = noisy(total, privacy.deviation) / len(units.sizes)
        gradient = noised.to(start)[None] + numbers["weight_decay"] * state.params
        direction, carry = client.local.direction(gradient, state)
        velocity = numbers["momentum"] * velocity + direction
        state = replace(state, params=state.params - numbers["learning_rate"] * velocity, carry=carry)
    longest = numbers.get("clip_norm")
    return (state.params if longest is None else shortened(start, state.params, longest))[0]


def sum_of_units(client: ClientTask, query: Query, units: Units, number: int, privacy: RecordPrivacy) -> Tensor:
    """Sum up the clipped gradients of the units in a step, each the mean over the unit's examples."""
    count = len(query.params)
    total, room, first = torch.zeros(count, dtype=torch.float64), max(1, min(MOST_RECORDS, MOST_NUMBERS // count)), 0
    order, ends = units.owner.argsort(stable=True), units.sizes.cumsum(0)
    for sizes, last in zip(units.sizes.split(room), ends.split(room), strict=True):
        examples = order[int(last[0] - sizes[0]) : int(last[-1])]
        if len(examples) == len(sizes):  # each is a unit
            means = _computable_gradients(client, query, examples, units.row, number).cpu()
        else:
            means = torch.zeros(len(sizes), count, dtype=torch.float64)
            for piece in examples.split(room):
                gradients = _computable_gradients(client, query, piece, units.row, number)
                means.index_add_(0, units.owner[piece] - first, gradients.double().cpu())
            means /= sizes[:, None]
        total += clipped_sum(means, privacy.clip_norm, privacy.deviation)
        first += len(sizes)
    return total


def check_computable(client: ClientTask, query: Query) -> None:
    """Raise the error, if any, of the gradient at an example of zeros, which reveals nothing about the data."""
    raw, y = (torch.zeros_like(part[:1]) for part in (client.examples.raw, client.examples.y))
    blank = replace(client.examples, raw=raw, y=y, offsets=torch.tensor([0, 1], device=y.device))
    _gradients(replace(client, examples=blank), query, torch.tensor([0]), 0, 0)


def _computable_gradients(client: ClientTask, query: Query, examples: Tensor, row: int, number: int) -> Tensor:
    """Return the gradients of these examples; a gradient that cannot be computed is zero.

    An error would reveal the example to the server.
    """
    try:
        return _gradients(client, query, examples, row, number)
    except Exception as error:
        if len(examples) == 1:
            LOG.warning("the gradient of an example cannot be computed and counts as zero: %s", error)
            return torch.zeros_like(query.params)[None]
        return torch.cat([_computable_gradients(client, query, half, row, number) for half in examples.chunk(2)])


def _gradients(client: ClientTask, query: Query, examples: Tensor, row: int, number: int) -> Tensor:
    """Return the gradient of each of these examples of a client, each alone in a lane."""
    params, count = query.params, len(examples)

    def each(value: int) -> Tensor:
        return torch.full((count,), value, device=params.device)

    scalars = {**query.scalars, "momentum": 0.0, "weight_decay": 0.0}
    lanes = LaneInput(
        params.expand(count, -1),
        each(row),
        {name: params.new_full((count,), value) for name, value in scalars.items()},
        Key(each(query.seed), each(query.round), examples.to(params.device), each(number)),
    )
    rows = client.examples.offsets[row] + lanes.key.client[:, None]
    batch = Batch(rows, params.new_ones(count, 1), lanes.key.step, None, first=False)
    alone = replace(client, local=Keep())
    return step(alone, lanes, begin(alone, lanes), batch).local["gradient"]
