"""Checks a statement about clients that nobody has seen, by proving it again from the claim, the model and the data.

Each held-out client's line is about its own examples: its mean of an upper bound on phi_gamma, and what a bet on them
has lost, are no larger than what is published. The statements follow from these numbers, by two facts.

**Betting.** Let ``X_1 .. X_n`` be independent draws in ``[0, B]`` with mean mu, and b in ``(0, 1 / B)`` a bet that was
chosen without them. ``prod_k (1 - b X_k) / (1 - b mu)`` is not negative and 1 in the mean, so it is below ``1 / delta``
but for probability delta (Markov), and then ``mu <= (1 - exp(mean_k log(1 - b X_k) - log(1 / delta) / n)) / b``. With
one number per client it bounds the mean over all clients, and with those of one client's examples that client's mean.

**Places.** Of K independent clients, the j-th smallest number is below the s-quantile of all clients only if j of them
are, so with probability ``P(Binomial(K, s) >= j)`` at most. One more client is equally likely to be in any place among
K + 1, so its number is at most the j-th smallest with probability ``j / (K + 1)`` or more.

With own sampling, half of delta is spent on the clients' examples, equally, and the other half on the place.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import replace
from fractions import Fraction
from functools import cached_property

import torch
from torch import Tensor, nn

from wafl.base.norms import NORMS, norm_name
from wafl.data.federation import Federation
from wafl.promises.attack import candidates
from wafl.promises.bound import Ball, largest_surrogate, surrogates
from wafl.promises.check import Line, Verification, bounds_line, chunks, examined, made
from wafl.promises.in_words import plain
from wafl.promises.known import UNIT, WIDER, Known
from wafl.promises.next_client import NextClientPromise, NextContent, Statement
from wafl.results.run import Run
from wafl.tasks.task import Loss

BOLDEST = 0.999
"""A bet is at most this over the largest possible number: its logarithms then lose few digits."""
DRAWS = "the clients are all that were drawn, independently; model, gamma and bets do not depend on them"


def check_next_client(
    promise: NextClientPromise, model: Run | nn.Module | None, data: Federation | None, loss: Loss | None
) -> Verification:
    """Every line of a statement about the next client against what can be proven."""
    claim = promise.parts.claim
    proof, about, facts = examined(claim, model, data, loss)
    checker = NextChecker(promise.parts, proof, data, about.status == "wrong")
    clients = {client.name: checker.client(place) for place, client in enumerate(claim.clients)}
    done = [line for line in clients.values() if line.status == "recomputed"]
    rows = [checker.statement(said, clients) for said in claim.statements]
    facts = replace(facts, proven=all(line.status == "recomputed" for line in rows))
    lines = (about, *rows, *checker.rest())
    return Verification(lines, clients, len(done) / len(clients), False, NextClientPromise(promise.parts, facts))


class NextChecker:
    """Each line, against data and a model; None if no proof is known, ``other`` if the model is another."""

    def __init__(self, parts: NextContent, model: Known | None, data: Federation | None, other: bool = False) -> None:
        self._parts, self._claim, self._witness = parts, parts.claim, parts.witness
        self._model, self._data, self._other = model, data, other
        self._ball = Ball(parts.claim.metric, {norm_name(norm): norm for norm in NORMS}[parts.claim.norm], 2)
        self._examples = None if data is None else data.train.joined(data.test)

    def client(self, place: int) -> Line:
        """The numbers of one client: its examples, and that what is published is no less than what is proven."""
        said, name = self._claim.clients[place], self._claim.clients[place].name
        if self._data is None or self._examples is None or name not in self._data.names:
            return Line(name, "attested", "not checked: give its data")
        here = self._data.names.index(name)
        size = int(self._examples.num_examples[here])
        if size != said.examples or self._examples.of_clients([here]).digest() != said.sha256:
            return Line(name, "wrong", f"its examples are others; {size} of them are here, and {said.examples} there")
        if self._model is None:
            why = "the model is another" if self._other else "nothing is known about the model"
            return Line(name, "attested", f"its examples are the same; {why}")
        if self._witness.own is not None and self.most == math.inf:
            return Line(name, "attested", "not checked: give data with their bounds")
        values = self.numbers(here)
        for what, numbers, published in self._published(place, values):
            # Logarithms lose up to 1 / (1 - BOLDEST) times what products do.
            least = float(numbers.mean()) * (1.0 + 4.0 * (size + 1024) * UNIT)
            if not least <= published:
                return Line(name, "wrong", f"its {what} is {least:.6g}, not {published:.6g}")
        reached = self._reached(here)
        if reached > self._witness.means[place] * WIDER:
            return Line(name, "wrong", f"an attack reaches a mean of phi of {reached:.6g}")
        return Line(name, "recomputed", f"{size:,} examples")

    def statement(self, said: Statement, clients: Mapping[str, Line]) -> Line:
        """What is promised: that it follows from the witnesses."""
        name, bound = f"radius {self._claim.radius:g}, {said.name}", self.bound(said)
        if bound is not None and not bound <= said.value:
            return Line(name, "wrong", f"{said.value!r} is below {bound!r}, which is what its witnesses prove")
        if wrong := [each for each, line in clients.items() if line.status == "wrong"]:
            return Line(name, "wrong", f"the numbers of {wrong[0]} are wrong")
        if bound is None or self._model is None:
            return Line(name, "attested", f"at most {said.value:.6g}: give the model, and data with their bounds")
        if still := sum(line.status != "recomputed" for line in clients.values()):
            return Line(name, "attested", f"at most {said.value:.6g}, with the numbers of {still} clients attested")
        return Line(name, "recomputed", f"at most {said.value:.6g}")

    def rest(self) -> Iterator[Line]:
        """What is said besides."""
        names = {client.name for client in self._claim.clients}
        left_out = [] if self._data is None else [name for name in self._data.names if name not in names]
        if left_out:
            why = f"it leaves out {left_out[0]}, whose data are here: give the data of clients that did not train"
            yield Line("draws", "wrong", why)
        else:
            yield Line("draws", "attested", DRAWS)
        if self._witness.bet is not None or self._witness.own is not None:
            yield bounds_line(self._claim.metric, self._data, self._examples)
        yield from made(self._parts)

    @cached_property
    def most(self) -> float:
        """What phi_gamma is never above, as far as that is known."""
        if self._claim.metric == "error":
            return 1.0
        if self._model is None or self._data is None or self._data.bounds is None or not self._model.classifies:
            return math.inf
        shape, gamma = self._data.input_shape, self._witness.gamma
        return largest_surrogate(self._model, self._ball, shape, self._data.bounds, gamma)

    def numbers(self, here: int) -> Tensor:
        """An upper bound on phi_gamma of each example of a client."""
        assert self._model is not None
        assert self._examples is not None
        parts = chunks(self._examples, here)
        found = [surrogates(self._model, self._ball, x, y, [self._witness.gamma])[0] for x, y in parts]
        return torch.cat(found).clamp_max(self.most)

    def bound(self, said: Statement) -> float | None:
        """What the witnesses prove, rounded upwards; infinite if nothing, None if the model or the box is needed."""
        delta, count, own = 1 - Fraction(plain(self._claim.confidence)), len(self._claim.clients), self._witness.own
        if (said.about == "mean" or own is not None) and self.most == math.inf:
            return None
        if said.about == "mean":
            bet, means = self._witness.bet or math.inf, [min(mean, self.most) for mean in self._witness.means]
            if not bet * self.most <= BOLDEST:
                return math.inf
            lost = math.fsum(-math.log1p(-bet * mean) for mean in means) / count
            return self._certified(upper_mean(lost, count, bet, float(delta)))
        place = _place(said.share, count, delta if own is None else delta / 2)
        if place > count:
            return math.inf
        values = list(self._witness.means)
        if own is not None:
            if not max(own.bets) * self.most <= BOLDEST:
                return math.inf
            each, sizes = float(delta / 2 / count), [client.examples for client in self._claim.clients]
            numbers = zip(own.lost, sizes, own.bets, strict=True)
            values = [upper_mean(lost, size, bet, each) for lost, size, bet in numbers]
        return self._certified(sorted(values)[place - 1])

    def _published(self, place: int, values: Tensor) -> Iterator[tuple[str, Tensor, float]]:
        yield "mean of phi", values, self._witness.means[place]
        if (own := self._witness.own) is not None:
            bet = min(own.bets[place], BOLDEST / self.most)  # with a bolder one, no statement follows
            yield "mean of what its bet has lost", -torch.log1p(-bet * values), own.lost[place]

    def _reached(self, here: int) -> float:
        """The mean of phi_gamma that an attack on a client reaches."""
        assert self._model is not None
        assert self._examples is not None
        gamma, gained = self._witness.gamma, list[Tensor]()
        for x, y in chunks(self._examples, here):
            value, cost = candidates(self._model, self._ball, x, y, gamma, self._claim.radius)
            gained.append(value[:, 0] if gamma is None else (value - gamma * cost).amax(1))
        return float(torch.cat(gained).mean())

    def _certified(self, mean: float) -> float:
        """``gamma radius^2`` and a mean of phi_gamma; an error rate is never above 1."""
        gamma = self._witness.gamma
        offset = 0.0 if gamma is None else gamma * self._ball.cost(self._claim.radius)
        total = (offset + min(mean, self.most)) * (1.0 + 64.0 * UNIT)
        return min(total, 1.0) if self._claim.metric == "error" else total


def upper_mean(lost: float, count: int, bet: float, delta: float) -> float:
    """At least the mean of numbers, but for probability ``delta``: ``lost`` is their mean of ``-log(1 - bet X)``."""
    price = (lost - math.log(delta) / count) * (1.0 + 4.0 * (count + 1024) * UNIT)
    return -math.expm1(-price) / bet * (1.0 + 64.0 * UNIT)


def _place(share: float | None, count: int, delta: Fraction) -> int:
    """Which of the clients' numbers, the smallest first, bounds a share of all clients, or one more; K + 1 if none."""
    if share is None:
        return math.ceil((count + 1) * (1 - delta))
    tail, all_ways = 0.0, math.lgamma(count + 1)
    for place in range(count, 0, -1):
        ways = all_ways - math.lgamma(place + 1) - math.lgamma(count - place + 1)
        tail += math.exp(ways + place * math.log(share) + (count - place) * math.log1p(-share))
        if tail * (1.0 + 1e-6) > delta:  # the logarithms of a million ways are off by less
            return place + 1
    return 1
