"""Attacks of a server that reads one client's record through a node's request handler.

The model is linear. Each attack counts its messages; a WireError ends it if the node refuses one.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field

import torch
from flwr.app import RecordDict
from torch import Tensor

from tests.oracles.flower_fakes import carried
from wafl.flower.node.examples import CutsQuery
from wafl.flower.node.queries import SurveyQuery, TestQuery, answer
from wafl.flower.node.refusals import check_refusal
from wafl.flower.node.work import Node
from wafl.flower.wire.values import NodeQuery, decode_replies, encode_query
from wafl.parts.messages import Query

SCALARS = {"learning_rate": 0.5, "momentum": 0.0, "weight_decay": 0.0}
STEEP = 8192.0
"""The slope of a logit that is nearly a step; a power of 2, with which products are exact."""
FAR = 256.0
"""A distance from the origin, along a direction, that no example of the tests has."""


@dataclass
class Curious:
    """A server, the node that it asks, and the client that it asks about."""

    node: Node
    client: str
    features: int
    classes: int = 3
    scalars: Mapping[str, float] = field(default_factory=lambda: SCALARS)
    messages: int = 0
    tests: bool = False
    """If True, use mean losses on the client's test examples, which every app asks for."""
    drfa: bool = False
    """If True, use the mean losses that determine DRFA's client weights."""

    def ask(self, kind: str, content: RecordDict) -> RecordDict:
        """Return the node's reply; raise WireError if the reply is an error."""
        self.messages += 1
        reply = carried(answer(kind, lambda: self.node, carried(content)))
        check_refusal(reply)
        return reply

    def update(self, rows: Tensor, number: int = 0, round: int = 0) -> Tensor:
        """Return the change of a linear model in training: one row of weights and an offset per output.

        Batches follow from the round, the seed, and the number that the server gives to the client.
        """
        ones, outputs = torch.ones(1, dtype=torch.float64), len(rows)
        run = Query("train", round, 0, (number,), ones, _flat(rows), self.scalars)
        query = NodeQuery("fedavg", (0,), (run,), {number: self.client}, outputs, "training")
        ((reply,),) = decode_replies(self.ask("train", encode_query(query)), query)
        moved = (reply.vectors["params"] - run.params).double()
        weights, offsets = moved.split([outputs * self.features, outputs])
        return torch.cat([weights.view(outputs, -1), offsets[:, None]], 1)

    def by_one_step(self) -> tuple[Tensor, int]:
        """Return the only example of a step, and its label: all rows of its gradient are multiples of the example."""
        moved = self.update(torch.zeros(self.classes, self.features + 1))
        label = int(moved[:, -1].argmax())
        return moved[label, :-1] / moved[label, -1], label

    def by_one_update(self) -> tuple[Tensor, Tensor]:
        """Return the mean of each class in an update at zero, where linear models begin, and the share of each class.

        At zero all classes are equally likely, so the row of a class is ``mean / classes`` less what the class adds to
        the mean. The offsets show the shares, and the row of a class that is missing shows the mean.
        """
        rows = -self.update(torch.zeros(self.classes, self.features + 1)) / self.scalars["learning_rate"]
        shares = 1.0 / self.classes - rows[:, -1]
        added = rows[int(shares.argmin()), :-1] - rows[:, :-1]
        return added / shares[:, None], shares

    def by_batches(self, twin: Curious, count: int) -> Tensor:
        """Return all examples, from the updates of different batches at the same parameters, zero.

        An update is the mean of its examples' gradients. Which these are, a twin shows: a client of the server's own
        with the same number of examples, with unit vectors as features.
        """
        zeros, apart = torch.zeros(self.classes, self.features + 1), torch.zeros(self.classes, twin.features + 1)
        drawn = torch.stack([twin.update(apart, number)[:, :-1].abs().sum(0) > 0 for number in range(count)]).double()
        means = -torch.stack([self.update(zeros, number).flatten() for number in range(count)])
        gradients = torch.linalg.lstsq(drawn, means).solution.view(-1, self.classes, self.features + 1)
        label = gradients[..., -1].argmin(1)
        row = gradients[torch.arange(len(label)), label]
        return row[:, :-1] / row[:, -1:]

    def by_watching(self, twin: Curious, rounds: int, last: int) -> tuple[Tensor, Tensor]:
        """Return all examples and their labels from usual rounds: this server follows the protocol, and remembers.

        An update is the mean of its examples' gradients. If the model stayed at its mean in the last rounds, these
        gradients would be the solution of a linear system, and each is an example times its errors. What is known of
        the examples so far explains how their gradients differ from those at the mean, and so on. A twin shows which
        examples are in a batch, as in ``by_batches``.
        """
        rows, apart = torch.zeros(self.classes, self.features + 1), torch.zeros(self.classes, twin.features + 1)
        drawn, visited, sums = list[Tensor](), list[Tensor](), list[Tensor]()
        for number in range(rounds):
            moved = self.update(rows, round=number)
            drawn.append((twin.update(apart, round=number)[:, :-1].abs().sum(0) > 0).double())
            visited.append(rows.double())
            sums.append(-moved * drawn[-1].sum() / self.scalars["learning_rate"])
            rows = rows + moved.float()
        batches, models, totals = (torch.stack(values[-last:]) for values in (drawn, visited, sums))
        mean, explained = models.mean(0, keepdim=True), torch.zeros_like(totals)
        inverse, x, y = torch.linalg.pinv(batches), torch.empty(0), torch.empty(0)
        for _ in range(40):
            gradients = (inverse @ (totals - explained).flatten(1)).view(-1, *totals.shape[1:])
            left, sizes, right = torch.linalg.svd(gradients, full_matrices=False)
            x = (right[:, 0] / right[:, 0, -1:]).clamp(-8.0, 8.0)
            y = (left[..., 0] * sizes[:, :1] * right[:, 0, -1:]).argmin(1)
            explained = torch.einsum("tn,tncf->tcf", batches, _gradients(models, x, y) - _gradients(mean, x, y))
        return x[:, :-1], y

    def by_cuts(self) -> Tensor:
        """Return an example that is drawn alone, from its distances to the origin and to each unit vector."""
        squares = list[float]()
        for target in (torch.zeros(self.features), *torch.eye(self.features)):
            query = CutsQuery((self.client,), (0,), target[None].double(), torch.zeros(1).double(), 1, 0)
            squares.append(float(query.read(self.ask("query.cuts", query.encode()))[0]))
        here, *others = squares
        return torch.tensor([0.5 * (here + 1.0 - other) for other in others])

    def by_survey(self) -> Tensor:
        """Return the example farthest along a direction, from mean losses.

        With a steep last logit, the mean loss is the mean of ``max(0, <w, x> - b)`` less the mean of ``<w, x> - b``
        over the examples of the last class, which planes far from all examples show.
        """
        draws = torch.Generator().manual_seed(0)
        w = torch.randint(-8, 8, (self.features,), generator=draws) / 8.0
        units, small, rest = torch.eye(self.features), 2.0**-8, math.log(self.classes - 1) / STEEP
        last, *others = (self._loss(unit, FAR) - rest for unit in (torch.zeros(self.features), *units))
        shares = torch.tensor([last - other for other in others], dtype=torch.float64)

        def beyond(direction: Tensor, at: float) -> float:
            """Return the mean distance of examples beyond a plane."""
            return self._loss(direction, at) - rest + float(direction.double() @ shares) - at * last / FAR

        low, high = -FAR, FAR
        while high - low > small:
            middle = 0.5 * (low + high)
            low, high = (middle, high) if beyond(w, middle) > 1e-3 * small else (low, middle)
        at = low - 8.0 * small  # no number of an example is below -8
        here = beyond(w, at)
        share = (beyond(w, at - small) - here) / small
        return torch.tensor([(beyond(w + small * unit, at) - here) / small / share for unit in units])

    def _loss(self, direction: Tensor, at: float) -> float:
        rows = torch.zeros(self.classes, self.features + 1)
        rows[-1] = STEEP * torch.cat([direction, torch.tensor([-at])])
        if self.tests:
            test = TestQuery((self.client,), False, _flat(rows), self.classes, 0)
            return test.read(self.ask("evaluate.test", test.encode()))[0][0].loss / STEEP
        if self.drfa:
            ones = torch.ones(1, dtype=torch.float64)
            run = Query("loss", 0, 0, (0,), ones, _flat(rows), self.scalars)
            asked = NodeQuery("drfa", (0,), (run,), {0: self.client}, self.classes, "training")
            ((reply,),) = decode_replies(self.ask("evaluate", encode_query(asked)), asked)
            return float(reply.loss) / STEEP
        query = SurveyQuery((self.client,), _flat(rows).double(), self.classes, [{}], None, 0)
        return float(query.read(self.ask("query.survey", query.encode())).value) / STEEP

    def by_crafted_parameters(self, batch: int, extra: int = 0) -> Tensor:
        """Return an example of a batch: with a steep last logit, only examples beyond a plane move the first row.

        What the others contribute is known from a plane that no example is beyond.
        """
        draws = torch.Generator().manual_seed(0)
        direction = torch.randint(-8, 8, (self.features,), generator=draws) / 8.0
        outputs = self.classes + extra

        def beyond(at: float) -> Tensor:
            """Return the sum and the number of the examples beyond a plane."""
            rows = torch.zeros(outputs, self.features + 1)
            rows[-1] = STEEP * torch.cat([direction, torch.tensor([-at])])
            return self.update(rows)[0] * (outputs - 1) * batch / self.scalars["learning_rate"]

        none, low, high = beyond(FAR), -FAR, FAR
        while True:
            middle = 0.5 * (low + high)
            found = beyond(middle) - none
            if round(float(found[-1])) == 1:
                return found[:-1] / found[-1]
            low, high = (middle, high) if found[-1] > 0.5 else (low, middle)


def _gradients(models: Tensor, x: Tensor, y: Tensor) -> Tensor:
    """Return the gradient ``[T, N, C, F + 1]`` of each example, with 1 as its last feature, at each model."""
    errors = torch.softmax(torch.einsum("tcf,nf->tnc", models, x), -1)
    errors = errors - torch.nn.functional.one_hot(y, models.shape[1])
    return errors[..., None] * x[None, :, None]


def _flat(rows: Tensor) -> Tensor:
    """Return the parameters of a linear model as one vector."""
    return torch.cat([rows[:, :-1].flatten(), rows[:, -1]])
