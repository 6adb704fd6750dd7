"""Checks a certificate by proving it again, from the claim, the model and the data alone.

No code is shared with the search of :func:`wafl.certify`, and an attack of the checker's own tries to refute the claim.
What is proven, row by row: no distribution within ``radius`` of the clients' mixture has a larger expected loss than
``gamma radius^p + sum_i lambda_i E_i[phi_gamma]``, at any gamma. Each client's line says that its mean of an upper
bound on phi_gamma (:mod:`wafl.promises.bound`) is no larger than what is published: a client needs its own data alone.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cache
from typing import Any, Literal

import torch
from torch import Tensor, nn

from wafl.base.norms import NORMS, norm_name
from wafl.data.examples import Examples
from wafl.data.federation import Federation
from wafl.promises.attack import candidates, reached
from wafl.promises.bets import STAKES, paid, upper_mean
from wafl.promises.bound import Ball, largest_surrogate, steepest_slope, surrogates
from wafl.promises.in_words import Facts
from wafl.promises.known import UNIT, WIDER, Known, known
from wafl.promises.next_client import NextClaim, NextClientPromise, NextContent
from wafl.promises.promise import Claim, Content, Promise, Witness, client_digest, digest_of
from wafl.promises.published_labels import differences
from wafl.results.run import Run
from wafl.tasks.losses import output_loss
from wafl.tasks.task import Loss

CHUNK = 2048
DRAWS = "the examples are independent draws that model, weights, gammas and bets do not depend on"
Status = Literal["recomputed", "attested", "wrong"]


@dataclass(frozen=True)
class Line:
    """One line of a certificate: ``recomputed`` and found to be so, only ``attested``, or ``wrong``."""

    name: str
    status: Status
    why: str


@dataclass(frozen=True)
class Verification:
    """What :func:`wafl.verify` found.

    Args:
        lines: of the certificate: its model, each radius, and what is said besides.
        clients: a line for each client, by name.
        share: of the weight that belongs to clients whose numbers were recomputed.
        signed: whether the owner of the given key signed the file.
        promise: what the file says; as text, it is the statement in words.
    """

    lines: tuple[Line, ...]
    clients: Mapping[str, Line]
    share: float
    signed: bool
    promise: Promise | NextClientPromise

    @property
    def ok(self) -> bool:
        """Whether no line is wrong; lines that are only attested may still be untrue."""
        return all(line.status != "wrong" for line in (*self.lines, *self.clients.values()))

    @property
    def recomputed(self) -> bool:
        """Whether all that is promised was proven again."""
        return self.ok and all(line.status == "recomputed" for line in self.lines if line.name.startswith("radius "))

    @property
    def values(self) -> Mapping[Any, float]:
        return self.promise.values

    @property
    def content(self) -> Mapping[str, Any]:
        return self.promise.content

    def __str__(self) -> str:
        lines = (*self.lines, *self.clients.values())
        table = [f"{line.name:<12} {line.status:<11} {line.why}" for line in lines]
        return "\n".join([*table, f"recomputed: {self.share:.1%} of the clients' weight"])


def check(promise: Promise, model: Run | nn.Module | None, data: Federation | None, loss: Loss | None) -> Verification:
    """Every line of a certificate against what can be proven."""
    claim = promise.parts.claim
    proof, about, facts = examined(claim, model, data, loss)
    checker = Checker(promise.parts, proof, data, about.status == "wrong")
    clients = {client.name: checker.client(place) for place, client in enumerate(claim.clients)}
    done = [client.weight for client in claim.clients if clients[client.name].status == "recomputed"]
    rows = [checker.row(place, clients) for place in range(len(claim.rows))]
    facts = replace(facts, proven=all(line.status == "recomputed" for line in rows))
    lines = (about, *rows, *checker.rest(clients))
    return Verification(lines, clients, math.fsum(done), False, Promise(promise.parts, facts))


def examined(
    claim: Claim | NextClaim, model: Run | nn.Module | None, data: Federation | None, loss: Loss | None
) -> tuple[Known | None, Line, Facts]:
    """What can be proven about a model, the line that says whether it is the one, and what follows from it."""
    module = model.module if isinstance(model, Run) else model
    names = [client.name for client in claim.clients]
    if data is not None and not set(data.names) & set(names):
        raise ValueError(
            f"the data are those of {', '.join(data.names[:5])}, and the certificate is about {', '.join(names[:5])}: "
            "give data of clients that it is about"
        )
    about = Line("model", "attested", "not checked: give the model")
    proof, facts = None, Facts(unit=None if data is None else data.unit)
    if module is not None:
        proof, about = _read_model(claim, module, output_loss(loss_of(model, loss)), data)
        facts = replace(facts, loss=output_loss(loss_of(model, loss)).name, parameters=_parameters(module))
    return proof, about, facts


def loss_of(model: Run | nn.Module | None, loss: Loss | None) -> Loss:
    return loss if loss is not None else model.loss if isinstance(model, Run) else "cross_entropy"


def _parameters(module: nn.Module) -> int:
    return sum(value.numel() for value in module.parameters() if value.requires_grad)


def ball_of(claim: Claim) -> Ball:
    return Ball(claim.metric, {norm_name(norm): norm for norm in NORMS}[claim.norm], claim.power)


def _read_model(
    claim: Claim | NextClaim, module: nn.Module, loss: Any, data: Federation | None
) -> tuple[Known | None, Line]:
    """What can be proven about the model, if it is the one, and the line that says so."""
    found = digest_of(module)
    name = f"SHA-256 {found[:16]}..."
    if found != claim.model:
        return None, Line("model", "wrong", f"this model has {name}")
    proof = known(module, loss)
    if proof is None or (claim.metric == "error" and not proof.classifies):
        return None, Line("model", "attested", f"{name}; no proof is known here for its layers or its loss")
    if data is None:
        return proof, Line("model", "attested", f"{name}; give data to prove something")
    x = data.train.rows(torch.arange(min(len(data.train.y), 16)), torch.float64)
    try:
        with torch.no_grad():
            whole = copy.deepcopy(module).cpu().double().eval()
            outputs = torch.cat([whole(each[None]) for each in x])  # one by one: nothing may pass between examples
            same = outputs.ndim == 2 and len(outputs) == len(x)
            same = same and torch.allclose(outputs, proof.plain(x), rtol=1e-6, atol=1e-9)
    except RuntimeError as error:
        raise ValueError(f"examples of shape {tuple(x.shape[1:])} do not fit the model: {error}") from error
    if not same:
        return None, Line("model", "attested", f"{name}; it computes something else than its layers")
    return proof, Line("model", "recomputed", name)


class Checker:
    """Each line of a certificate, against data and a model; None if no proof is known, ``other`` if it is another."""

    def __init__(self, parts: Content, model: Known | None, data: Federation | None, other: bool = False) -> None:
        self._parts, self._claim, self._model, self._data = parts, parts.claim, model, data
        self._other, self.ball = other, ball_of(parts.claim)
        self._gammas = [witness.gamma for witness in parts.witnesses]
        self._places = {} if data is None else {name: place for place, name in enumerate(data.names)}
        self.most = cache(self._most)

    def client(self, place: int) -> Line:
        """The numbers of one client: its examples, and that its means are no smaller than what is proven of them."""
        said, name = self._claim.clients[place], self._claim.clients[place].name
        if self._data is None or said.name not in self._places:
            return Line(name, "attested", "not checked: give its data")
        here = self._places[said.name]
        size = int(self._examples.num_examples[here])
        if size != said.examples:
            return Line(name, "wrong", f"it has {size} examples here, not {said.examples}")
        if client_digest(self._data, self._claim.part, here) != said.sha256:
            return Line(name, "wrong", "its examples are others")
        if self._other:
            return Line(name, "attested", "not checked: the model is another")
        if self._model is None:
            return Line(name, "attested", "its examples are the same; without a proof for the model, nothing else is")
        if self._claim.confidence is not None and self.most(None) == math.inf:
            return Line(name, "attested", "not checked: give data with their bounds")
        examples = chunks(self._examples, here)
        values = torch.cat([surrogates(self._model, self.ball, x, y, self._gammas) for x, y in examples], 1)
        for row, witness, now in zip(self._claim.rows, self._parts.witnesses, values, strict=True):
            for what, mean, published in self._numbers(witness, place, now):
                least = mean * (1.0 + 4.0 * (size + 8) * UNIT)
                if not least <= published:
                    return Line(name, "wrong", f"radius {row.radius:g}: its {what} is {least:.6g}, not {published:.6g}")
        return Line(name, "recomputed", f"{size:,} examples")

    def _numbers(self, witness: Witness, place: int, values: Tensor) -> Iterator[tuple[str, float, float]]:
        """What the witness says about a client, with what it is if phi is this; everything grows with phi."""
        values = values.clamp_max(self.most(witness.gamma))
        yield "mean of phi", float(values.mean()), witness.means[place]
        if witness.draws is not None:
            for (_, part), pays in zip(STAKES, witness.draws.paid, strict=True):
                yield "payment", float(paid(values, witness.draws.bets[place], part).mean()), pays[place]

    def row(self, place: int, clients: Mapping[str, Line]) -> Line:
        """What is promised at one radius: that it follows from the witnesses, and that no attack refutes it."""
        row, name = self._claim.rows[place], f"radius {self._claim.rows[place].radius:g}"
        bound = self.bound(place)
        if bound is not None and not bound <= row.value:
            return Line(name, "wrong", f"{row.value!r} is below {bound!r}, which is what its witnesses prove")
        if refuted := self._attack(place):
            return Line(name, "wrong", refuted)
        # Clients without a weight count too: the statement in words says how many there are.
        open_ = [each for each in self._claim.clients if clients[each.name].status != "recomputed"]
        if wrong := [each.name for each in open_ if clients[each.name].status == "wrong"]:
            return Line(name, "wrong", f"the numbers of {wrong[0]} are wrong")
        if bound is None or self._model is None:
            return Line(name, "attested", f"at most {row.value:.6g}: give the model, and data with their bounds")
        if open_:
            return Line(name, "attested", f"at most {row.value:.6g}, with the numbers of {len(open_)} clients attested")
        return Line(name, "recomputed", f"at most {row.value:.6g}")

    def rest(self, clients: Mapping[str, Line]) -> Iterator[Line]:
        """What is said besides."""
        if self._claim.confidence is not None:
            yield bounds_line(self._claim.metric, self._data, None if self._data is None else self._examples)
            yield Line("draws", "attested", DRAWS)
        if self._parts.labels is not None:
            yield self._labels(clients)
        yield from made(self._parts)

    @property
    def _examples(self) -> Examples:
        assert self._data is not None
        return self._data.train if self._claim.part == "train" else self._data.test

    def _most(self, gamma: float | None) -> float:
        """What phi_gamma is never above, where that matters and is known."""
        if self._claim.confidence is None:
            return math.inf
        if self._claim.metric == "error":
            return 1.0
        if self._model is None or self._data is None or self._data.bounds is None or not self._model.classifies:
            return math.inf
        return largest_surrogate(self._model, self.ball, self._data.input_shape, self._data.bounds, gamma)

    def bound(self, place: int) -> float | None:
        """``gamma radius^p`` and the mean over clients, rounded upwards; None if the model or the box is needed."""
        row, witness = self._claim.rows[place], self._parts.witnesses[place]
        weights, sizes = ([getattr(each, key) for each in self._claim.clients] for key in ("weight", "examples"))
        offset = 0.0 if witness.gamma is None else witness.gamma * self.ball.cost(row.radius)
        if row.radius > 0 and witness.gamma is None:
            if self._model is None or self._data is None or not self._model.classifies:
                return None
            offset = steepest_slope(self._model, self.ball, math.prod(self._data.input_shape)) * row.radius
        if witness.draws is None or self._claim.confidence is None:
            mean = math.fsum(weight * value for weight, value in zip(weights, witness.means, strict=True))
        else:
            most, level = self.most(witness.gamma), (1.0 - self._claim.confidence) / len(self._claim.rows)
            if most == math.inf:
                return None
            mean = upper_mean(weights, sizes, witness.draws.bets, witness.draws.paid, most, level)
        # Weights may sum to a little less than 1, and those of a mixture do not.
        total = (offset + mean / min(math.fsum(weights), 1.0)) * (1.0 + 64.0 * UNIT)
        return min(total, 1.0) if self._claim.metric == "error" else total

    def _attack(self, place: int) -> str | None:
        """What an attack on the clients at hand reaches, if it is more than what is promised."""
        if self._model is None or self._data is None:
            return None
        row, witness = self._claim.rows[place], self._parts.witnesses[place]
        values, costs, shares = list[Tensor](), list[Tensor](), list[Tensor]()
        for there, client in enumerate(self._claim.clients):
            if client.name not in self._places:
                continue
            found = [
                candidates(self._model, self.ball, x, y, witness.gamma, row.radius)
                for x, y in chunks(self._examples, self._places[client.name])
            ]
            value, cost = (torch.cat(each) for each in zip(*found, strict=True))
            gained = value[:, 0] if witness.gamma is None else (value - witness.gamma * cost).amax(1)
            for what, mean, said in self._numbers(witness, there, gained):
                if mean > said * WIDER:
                    return f"an attack on {client.name} reaches a {what} of {mean:.6g}, more than {said:.6g}"
            values.append(value)
            costs.append(cost)
            shares.append(torch.full((len(value),), client.weight / len(value), dtype=torch.float64))
        if self._claim.confidence is not None or not values:
            return None
        found = reached(torch.cat(values), torch.cat(costs), torch.cat(shares), self.ball.cost(row.radius))
        return f"an attack reaches {found:.6g}, more than {row.value:.6g}" if found > row.value * WIDER else None

    def _labels(self, clients: Mapping[str, Line]) -> Line:
        assert self._parts.labels is not None
        whole = all(clients[each.name].status == "recomputed" for each in self._claim.clients)
        if self._model is None or self._data is None or not whole:
            return Line("labels", "attested", "not checked: give the model and the data of all clients")
        weight = {client.name: client.weight for client in self._claim.clients}
        weights = [weight.get(name, 0.0) for name in self._data.names]
        wrong = differences(self._parts.labels, self._model, self.ball, self._examples, weights)
        return Line("labels", "wrong" if wrong else "recomputed", wrong or "from the points and all examples")


def chunks(examples: Examples, client: int) -> Iterator[tuple[Tensor, Tensor]]:
    """A client's examples in float64, a few at a time."""
    begin, end = examples.offsets[client : client + 2].tolist()
    for rows in torch.arange(begin, end).split(CHUNK):
        y = examples.y[rows]
        yield examples.rows(rows, torch.float64), y.double() if y.is_floating_point() else y


def made(parts: Content | NextContent) -> Iterator[Line]:
    """When and with what a file was made."""
    yield Line("issued", "attested", parts.issued)
    told = ", ".join(f"{name} {version}" for name, version in parts.versions.items())
    yield Line("versions", "attested", told)


def bounds_line(metric: str, data: Federation | None, examples: Examples | None) -> Line:
    """Whether examples lie in the declared bounds, from which the largest possible loss follows."""
    if data is None or examples is None or metric == "error":
        return Line("bounds", "attested", "that the populations lie where their examples do, for what is needed")
    if data.bounds is None:
        return Line("bounds", "attested", "not checked: give data with their bounds")
    (low, high), (least, most) = data.bounds, examples.span()
    if not low <= least <= most <= high:
        return Line("bounds", "wrong", f"examples lie in [{least:g}, {most:g}], outside [{low:g}, {high:g}]")
    return Line("bounds", "attested", f"all examples of the populations lie in [{low:g}, {high:g}]")
