"""Check each line of a certificate against the model and the data: recomputed, attested, wrong, or noted."""

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from fractions import Fraction
from functools import cache
from typing import Literal

import torch
from torch import Tensor

from wafl.base.describe import rounded_up, some
from wafl.data.examples import Examples
from wafl.data.federation import Federation
from wafl.promises.attack import Unproven, candidates, reached
from wafl.promises.bets import STAKES, paid, rank_of, upper_mean
from wafl.promises.known import Ball, Known
from wafl.promises.layers import UNIT, WIDER
from wafl.promises.promise import (
    NORMS,
    Claim,
    Content,
    Row,
    Witness,
    examples_of,
    missing_line,
    plain,
)
from wafl.promises.published_labels import differences
from wafl.promises.quantities import largest_surrogate, quantity_of, steepest_slope, surrogates
from wafl.tasks.losses import is_built_in

DRAWS = "the examples are independent draws that model, weights, gammas and bets do not depend on"
CLIENTS = "the clients are all that were drawn, independently; model, gamma and bets do not depend on them"
Status = Literal["recomputed", "noted", "attested", "wrong"]


@dataclass(frozen=True)
class Line:
    """One line of a certificate.

    A value is ``recomputed``, only ``attested`` by the issuer, or ``wrong``. A ``noted`` line is an assumption
    that no computation can check, or information about the file.
    """

    name: str
    status: Status
    why: str


ROUNDING = 1e-6
"""How far a loss must exceed an unproven claim to refute it, relative to the claim."""


def ball_of(claim: Claim) -> Ball:
    """Return the ball of a claim."""
    return Ball(quantity_of(claim.metric), NORMS[claim.norm], claim.power)


class Checker:
    """A check of each line of a certificate, against data and a model.

    ``model`` is None if there is no proof for it; then ``unproven`` can still refute the claim. ``other`` means that
    the certificate is about a different model.
    """

    def __init__(
        self,
        parts: Content,
        model: Known | None,
        data: Federation | None,
        other: bool = False,
        unproven: Unproven | None = None,
    ) -> None:
        self._parts, self._claim, self._model, self._data = parts, parts.claim, model, data
        self._other, self._unproven, self.ball = other, unproven, ball_of(parts.claim)
        self._examples = None if data is None else examples_of(data, parts.claim.part)
        self._positions = {} if data is None else {name: index for index, name in enumerate(data.names)}
        self._witnesses = dict(zip(parts.claim.radii, parts.witnesses, strict=True)) if parts.attested is None else {}
        self._bets = any(each.draws is not None or each.bet is not None for each in parts.witnesses)
        self.most, self._reached, self._data_reach = cache(self._most), cache(self._attack), cache(self._measured)

    def client(self, index: int) -> Line:
        """Check one client's numbers: its examples, and whether the published numbers are at least the proven ones."""
        client, name = self._claim.clients[index], self._claim.clients[index].name
        if self._examples is None or name not in self._positions:
            return Line(name, "attested", "not checked: give its data")
        here = self._positions[name]
        size = int(self._examples.num_examples[here])
        digest = self._examples.of_clients([here]).digest(statistics=self._parts.format > 2)
        if size != client.examples or digest != client.sha256:
            return Line(name, "wrong", f"its examples are others; {size} of them are here, and {client.examples} there")
        if self._model is None or self._parts.attested is not None:
            why = "the model is another" if self._other else "no proof is known for the model"
            why = why if self._parts.attested is None else "the file has no proof"
            return Line(name, "attested", f"its examples are the same; {why}")
        if self._bets and self.most(None) == math.inf:
            return Line(name, "attested", "not checked: give data with their bounds")
        values = self.surrogates(self._examples, here)
        for (radius, witness), now in zip(self._witnesses.items(), values, strict=True):
            for what, mean, published in self._numbers(witness, index, now):
                least = mean * (1.0 + 4.0 * (size + 8) * UNIT)
                if not least <= published:
                    return Line(name, "wrong", f"radius {radius:g}: its {what} is {least:.6g}, not {published:.6g}")
        return Line(name, "recomputed", f"{size:,} examples")

    def surrogates(self, examples: Examples, client: int) -> Tensor:
        """Return an upper bound on phi_gamma of each example of a client, for each radius: ``[radii, n]``."""
        assert self._model is not None
        gammas = [witness.gamma for witness in self._witnesses.values()]
        parts = chunks(examples, client, self._model.at_once)
        bounds = [surrogates(self._model, self.ball, x, y, gammas) for x, y in parts]
        most = torch.tensor([self.most(gamma) for gamma in gammas], dtype=torch.float64)
        return torch.cat(bounds, 1).minimum(most[:, None])

    def _numbers(self, witness: Witness, index: int, values: Tensor) -> Iterator[tuple[str, float, float]]:
        """Yield each published number of a client with its value for these phi; every number grows with phi."""
        yield "mean of phi", float(values.mean()), witness.means[index]
        if witness.draws is not None:
            for (_, part), pays in zip(STAKES, witness.draws.paid, strict=True):
                yield "payment", float(paid(values, witness.draws.bets[index], part).mean()), pays[index]

    def row(self, row: Row, clients: Mapping[str, Line]) -> Line:
        """Check one row's promise: whether it follows from the witnesses, and whether an attack refutes it."""
        name = f"radius {plain(row.radius)}" + ("" if row.about == "mixture" else f", {row.name}")
        bound, printed = self.bound(row), rounded_up(row.value, 6)
        if row.confidence is not None:
            printed += f" with probability {plain(row.confidence)}"
        if bound is not None and not bound <= row.value:
            return Line(name, "wrong", f"{row.value!r} is below {bound!r}, which is what its witnesses prove")
        refuted, attacked = self._reached(row.radius)
        if refuted is not None:
            return Line(name, "wrong", refuted)
        if self._claim.confidence is None and attacked > row.value * WIDER:
            return Line(name, "wrong", f"an attack reaches {attacked:.6g}, more than {row.value:.6g}")
        if (happened := self._data_reach().get(row.radius, -math.inf)) > row.value + ROUNDING * abs(row.value):
            return Line(name, "wrong", f"the data reach {happened:.6g}, more than {row.value:.6g}")
        # Clients without a weight count too, because the statement in words contains their number.
        open_ = [each for each, line in clients.items() if line.status != "recomputed"]
        if wrong := [each for each in open_ if clients[each].status == "wrong"]:
            return Line(name, "wrong", f"the numbers of {wrong[0]} are wrong")
        if self._parts.attested is not None:
            return Line(name, "attested", f"at most {printed}, on the word of the issuer: the file has no proof")
        if bound is None or self._model is None:
            return Line(name, "attested", f"at most {printed}: give the model, and data with their bounds")
        if open_:
            return Line(name, "attested", f"at most {printed}, with the numbers of {len(open_)} clients attested")
        return Line(name, "recomputed", f"at most {printed}")

    def rest(self, clients: Mapping[str, Line]) -> Iterator[Line]:
        """Yield the lines about bounds, draws, clients that are left out, labels, weights and the date."""
        if self._bets:
            yield self._bounds()
        left_out = [name for name in self._positions if name not in clients and name not in self._claim.missing]
        if self._claim.part == "all" and left_out:
            why = f"it leaves out {left_out[0]}, whose data are here: give the data of clients that did not train"
            yield Line("draws", "wrong", why)
        elif self._claim.confidence is not None:
            yield Line("draws", "noted", CLIENTS if self._claim.part == "all" else DRAWS)
        if self._claim.missing:
            yield Line("missing", "noted", missing_line(self._claim.missing))
        if self._claim.part != "all" and left_out:
            yield Line("left out", "noted", f"data of clients that are not in the certificate: {some(left_out)}")
        if self._parts.labels is not None:
            yield self._labels(clients)
        yield from self._weights()
        yield Line("issued", "noted", self._parts.issued)

    def _weights(self) -> Iterator[Line]:
        """Note weights of a mixture that differ from its shares of the examples."""
        clients, total = self._claim.clients, sum(client.examples for client in self._claim.clients)
        far = max(clients, key=lambda each: abs(each.weight - each.examples / total))
        if self._claim.part != "all" and abs(far.weight - far.examples / total) > 1e-6:
            why = (
                f"not by examples: {far.name} has {far.weight:.1%} of the weight and {far.examples / total:.1%} of them"
            )
            yield Line("weights", "noted", why)

    def _most(self, gamma: float | None) -> float:
        """Return an upper bound on phi_gamma, where it matters and is known."""
        if self._claim.confidence is None:
            return math.inf
        if not self.ball.quantity.needs_bounds:
            return self.ball.quantity.largest
        if self._model is None or self._data is None or self._data.bounds is None or not self._model.classifies:
            return math.inf
        return largest_surrogate(self._model, self.ball, self._data.input_shape, self._data.bounds, gamma)

    def bound(self, row: Row) -> float | None:
        """Return the proven bound of a row, rounded up; infinite for no proof.

        Return None if the model or the box is missing.
        """
        if self._parts.attested is not None:
            return None
        witness, offset = self._witnesses[row.radius], 0.0
        if witness.gamma is not None:
            offset = witness.gamma * self.ball.cost(row.radius)
        elif row.radius > 0:
            if self._model is None or self._data is None or not self._model.classifies:
                return None
            offset = steepest_slope(self._model, self.ball, math.prod(self._data.input_shape)) * row.radius
        most = self.most(witness.gamma)
        if most == math.inf and (witness.draws is not None or row.about == "mean"):
            return None
        total = (offset + self._mean(row, witness, most)) * (1.0 + 64.0 * UNIT)
        return min(total, self.ball.quantity.largest) if total < math.inf else total

    def _mean(self, row: Row, witness: Witness, most: float) -> float:
        """Return an upper bound on a row's mean of phi_gamma: over the mixture, over all clients, or of one client."""
        draws, delta = witness.draws, 1 - Fraction(plain(self._claim.confidence_of(row) or 1.0))
        weights, sizes = ([getattr(each, key) for each in self._claim.clients] for key in ("weight", "examples"))
        if row.about == "mixture":
            mean = math.fsum(weight * value for weight, value in zip(weights, witness.means, strict=True))
            if draws is not None:  # all rows hold together
                level = float(delta / len(self._claim.rows))
                mean = upper_mean(weights, sizes, draws.bets, draws.paid, most, level)
            # Written weights may sum to a little less than 1, but the weights of a mixture sum to 1.
            return mean / min(math.fsum(weights), 1.0)
        if row.about == "mean":
            lost = [math.inf] * len(self._claim.missing)
            means = torch.tensor([*witness.means, *lost], dtype=torch.float64).clamp_max(most)
            bet, count = witness.bet or 0.0, len(means)
            pays = [[math.fsum(paid(means, bet, part).tolist()) / count] for _, part in STAKES]
            return upper_mean([1.0], [count], [bet], pays, most, float(delta))
        drawn = self._claim.drawn
        rank = rank_of(row.share, drawn, delta if draws is None else delta / 2)
        values = list(witness.means)
        if draws is not None:
            level = float(delta / 2 / drawn)
            values = [
                upper_mean([1.0], [size], [bet], [[each] for each in pays], most, level)
                for size, bet, *pays in zip(sizes, draws.bets, *draws.paid, strict=True)
            ]
        return sorted(values)[rank - 1] if rank <= len(values) else math.inf

    def _attack(self, radius: float) -> tuple[str | None, float]:
        """Return a client's number that an attack refutes, if any, and the loss reached on the mixture.

        The mixture consists of the clients whose data are present.
        """
        if self._parts.attested is not None:
            return None, 0.0
        witness, attacks = self._witnesses[radius], list[tuple[Tensor, Tensor, Tensor]]()
        for index, client in enumerate(self._claim.clients):
            if self._model is None or self._examples is None or client.name not in self._positions:
                continue
            parts = [
                candidates(self._model, self.ball, x, y, witness.gamma, radius)
                for x, y in chunks(self._examples, self._positions[client.name], self._model.at_once)
            ]
            value, cost = (torch.cat(each) for each in zip(*parts, strict=True))
            gained = value[:, 0] if witness.gamma is None else (value - witness.gamma * cost).amax(1)
            for what, mean, published in self._numbers(witness, index, gained.clamp_max(self.most(witness.gamma))):
                if mean > published * WIDER:
                    why = f"an attack on {client.name} reaches a {what} of {mean:.6g}, more than {published:.6g}"
                    return why, math.inf
            attacks.append((value, cost, torch.full_like(value[:, 0], client.weight / len(value))))
        if not attacks:
            return None, 0.0
        values, costs, shares = (torch.cat(each) for each in zip(*attacks, strict=True))
        return None, reached(values, costs, shares, self.ball.cost(radius))

    def _measured(self) -> dict[float, float]:
        """Return the losses that a model without a proof reaches on the data, by radius.

        The result is empty if the losses refute nothing. A sample cannot refute a statement about its distribution.
        Some of the clients can refute only if the losses of the others cannot be negative.
        """
        examples, unproven, claim = self._examples, self._unproven, self._claim
        if examples is None or unproven is None or claim.confidence is not None:
            return {}
        present = [client for client in claim.clients if client.name in self._positions]
        positive = is_built_in(unproven.loss) or not self.ball.quantity.needs_bounds
        if len(present) < len(claim.clients) and not positive:
            return {}
        total = torch.zeros(len(claim.radii), dtype=torch.float64)
        for client in present:
            parts = chunks(examples, self._positions[client.name], 256)
            worst = torch.cat([unproven.worst(self.ball, x, y, claim.radii) for x, y in parts], dim=1)
            if client.weight > 0.0:  # its examples may reach infinity, and 0 times infinity is not a number
                total += client.weight * worst.mean(1)
        return dict(zip(claim.radii, total.tolist(), strict=True))

    def _bounds(self) -> Line:
        """Check whether examples lie in the declared bounds, from which the largest possible loss follows."""
        if self._data is None or self._examples is None or not self.ball.quantity.needs_bounds:
            return Line("bounds", "noted", "the populations lie where their examples do, for what is needed")
        if self._data.bounds is None:
            return Line("bounds", "attested", "not checked: give data with their bounds")
        (low, high), (least, most) = self._data.bounds, self._examples.span()
        if not low <= least <= most <= high:
            return Line("bounds", "wrong", f"examples lie in [{least:g}, {most:g}], outside [{low:g}, {high:g}]")
        return Line("bounds", "noted", f"all examples of the populations lie in [{low:g}, {high:g}]")

    def _labels(self, clients: Mapping[str, Line]) -> Line:
        """Check the published points of labels, which depend on all examples."""
        assert self._parts.labels is not None
        whole = all(line.status == "recomputed" for line in clients.values())
        if self._model is None or self._data is None or self._examples is None or not whole:
            return Line("labels", "attested", "not checked: give the model and the data of all clients")
        weight = {client.name: client.weight for client in self._claim.clients}
        weights = [weight.get(name, 0.0) for name in self._data.names]
        wrong = differences(self._parts.labels, self._model, self.ball, self._examples, weights)
        return Line("labels", "wrong" if wrong else "recomputed", wrong or "from the points and all examples")


def chunks(examples: Examples, client: int, size: int) -> Iterator[tuple[Tensor, Tensor]]:
    """Yield a client's examples in float64, a few at a time."""
    begin, end = examples.offsets[client : client + 2].tolist()
    for rows in torch.arange(begin, end).split(size):
        y = examples.y[rows]
        yield examples.rows(rows, torch.float64), y.double() if y.is_floating_point() else y
