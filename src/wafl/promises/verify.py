"""Verify a certificate: prove it again line by line, from the claim, the model and the data alone.

No code is shared with the search of :func:`wafl.certify`, and an attack of the checker's own tries to refute the claim.
What is proven, row by row: no distribution within ``radius`` of the clients' mixture has a larger expected loss than
``gamma radius^p + sum_i lambda_i E_i[phi_gamma]``, at any gamma. Each client's line says that its mean of an upper
bound on phi_gamma (:mod:`wafl.promises.quantities`) is no larger than the published one: a client needs only its own
data. What then follows for the distributions behind the examples, and for the population behind these clients, is in
:mod:`wafl.promises.bets`. Where both are draws, half of delta is spent on the clients' examples, equally, and the other
half on the clients.
"""

import copy
import math
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import cache
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor, nn

from wafl.data.examples import Examples
from wafl.data.federation import Federation
from wafl.promises.attack import candidates, moved, reached
from wafl.promises.bets import STAKES, paid, rank_of, upper_mean
from wafl.promises.known import UNIT, WIDER, Ball, Known, read
from wafl.promises.promise import (
    NORMS,
    Claim,
    Content,
    Facts,
    Promise,
    Row,
    Witness,
    digest_of,
    examples_of,
    plain,
    rounded_up,
    to_bytes,
)
from wafl.promises.published_labels import differences
from wafl.promises.quantities import largest_surrogate, quantity_of, steepest_slope, surrogates
from wafl.promises.read import read_file
from wafl.promises.sign import is_signed_by
from wafl.results.run import Run
from wafl.tasks.graph import agrees, is_leaf, plain_graph
from wafl.tasks.losses import OutputLoss, output_loss
from wafl.tasks.task import Loss

DRAWS = "the examples are independent draws that model, weights, gammas and bets do not depend on"
CLIENTS = "the clients are all that were drawn, independently; model, gamma and bets do not depend on them"
TRACED = "assuming that global state does not change, and that the module computes what its graph computes"
Status = Literal["recomputed", "attested", "wrong"]


@dataclass(frozen=True)
class Line:
    """One line of a certificate: ``recomputed`` and found to be so, only ``attested``, or ``wrong``."""

    name: str
    status: Status
    why: str


def module_and_loss(model: Run | nn.Module, loss: Loss | None) -> tuple[nn.Module, OutputLoss]:
    """Return the module of a model or a run, and its loss unless another one is given."""
    module, usual = (model.module, model.loss) if isinstance(model, Run) else (model, "cross_entropy")
    return module, output_loss(usual if loss is None else loss)


def ball_of(claim: Claim) -> Ball:
    return Ball(quantity_of(claim.metric), NORMS[claim.norm], claim.power)


def read_model(claim: Claim, module: nn.Module, loss: Any, data: Federation | None) -> tuple[Known | None, Line]:
    """What can be proven about the model, if it is the one, and the line that says so."""
    digest = digest_of(module)
    name = f"SHA-256 {digest[:16]}..."
    if digest != claim.model:
        why = f"this model has {name}; the same layers may have another digest with another version of torch"
        return None, Line("model", "wrong", why)
    proof = read(module, loss)
    if isinstance(proof, str):
        return None, Line("model", "attested", f"{name}; nothing is proven, because {proof}")
    if quantity_of(claim.metric).needs_classes and not proof.classifies:
        return None, Line("model", "attested", f"{name}; no proof is known here for its loss")
    if data is None:
        return proof, Line("model", "attested", f"{name}; give data to prove something")
    examples = examples_of(data, claim.part)
    x = examples.rows(torch.arange(1), torch.float64)
    whole = copy.deepcopy(module).cpu().double().eval()
    try:
        with torch.no_grad():
            outputs = whole(x)
    except RuntimeError as error:
        raise ValueError(f"examples of shape {tuple(x.shape[1:])} do not fit the model: {error}") from error
    y, count = examples.y, outputs.shape[-1]
    if not (not y.is_floating_point() and int(y.max()) < count if proof.classifies else y[0].numel() == count):
        raise ValueError(f"labels or targets do not fit {count} outputs and {proof.loss.name}: give its data and loss")
    if outputs.ndim != 2 or not agrees(whole, proof.plain, _compared(claim, proof, examples)):
        return None, Line("model", "attested", f"{name}; it computes something else than its layers")
    traced = any(not is_leaf(node.module) for node in plain_graph(module).nodes)
    return proof, Line("model", "recomputed", f"{name}; {TRACED}" if traced else name)


def _compared(claim: Claim, model: Known, examples: Examples) -> Iterator[Tensor]:
    """All examples, a few at a time, and the first of them where gradients lead within each radius."""
    for rows in torch.arange(len(examples.y)).split(model.at_once):
        x = examples.rows(rows, torch.float64)
        yield x
        if int(rows[0]) == 0:
            points = [moved(model, NORMS[claim.norm], x, examples.y[rows], row.radius) for row in claim.rows]
            yield from (point for point in points if bool(model.plain(point).isfinite().all()))


class Checker:
    """Each line of a certificate, against data and a model; None if no proof is known, ``other`` if it is another."""

    def __init__(self, parts: Content, model: Known | None, data: Federation | None, other: bool = False) -> None:
        self._parts, self._claim, self._model, self._data = parts, parts.claim, model, data
        self._other, self.ball = other, ball_of(parts.claim)
        self._examples = None if data is None else examples_of(data, parts.claim.part)
        self._positions = {} if data is None else {name: index for index, name in enumerate(data.names)}
        radii = dict.fromkeys(row.radius for row in parts.claim.rows)
        self._witnesses = dict(zip(radii, parts.witnesses, strict=True))
        self._bets = any(each.draws is not None or each.bet is not None for each in parts.witnesses)
        self.most, self._reached = cache(self._most), cache(self._attack)

    def client(self, index: int) -> Line:
        """The numbers of one client: its examples, and that what is published is no less than what is proven."""
        client, name = self._claim.clients[index], self._claim.clients[index].name
        if self._examples is None or name not in self._positions:
            return Line(name, "attested", "not checked: give its data")
        here = self._positions[name]
        size = int(self._examples.num_examples[here])
        if size != client.examples or self._examples.of_clients([here]).digest() != client.sha256:
            return Line(name, "wrong", f"its examples are others; {size} of them are here, and {client.examples} there")
        if self._model is None:
            why = "the model is another" if self._other else "no proof is known for the model"
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
        """An upper bound on phi_gamma of each example of a client, for each radius: ``[radii, n]``."""
        assert self._model is not None
        gammas = [witness.gamma for witness in self._witnesses.values()]
        parts = chunks(examples, client, self._model.at_once)
        bounds = [surrogates(self._model, self.ball, x, y, gammas) for x, y in parts]
        most = torch.tensor([self.most(gamma) for gamma in gammas], dtype=torch.float64)
        return torch.cat(bounds, 1).minimum(most[:, None])

    def _numbers(self, witness: Witness, index: int, values: Tensor) -> Iterator[tuple[str, float, float]]:
        """What the witness says about a client, with what it is if phi is this; everything grows with phi."""
        yield "mean of phi", float(values.mean()), witness.means[index]
        if witness.draws is not None:
            for (_, part), pays in zip(STAKES, witness.draws.paid, strict=True):
                yield "payment", float(paid(values, witness.draws.bets[index], part).mean()), pays[index]

    def row(self, row: Row, clients: Mapping[str, Line]) -> Line:
        """What is promised in one row: that it follows from the witnesses, and that no attack refutes it."""
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
        # Clients without a weight count too: the statement in words says how many there are.
        open_ = [each for each, line in clients.items() if line.status != "recomputed"]
        if wrong := [each for each in open_ if clients[each].status == "wrong"]:
            return Line(name, "wrong", f"the numbers of {wrong[0]} are wrong")
        if bound is None or self._model is None:
            return Line(name, "attested", f"at most {printed}: give the model, and data with their bounds")
        if open_:
            return Line(name, "attested", f"at most {printed}, with the numbers of {len(open_)} clients attested")
        return Line(name, "recomputed", f"at most {printed}")

    def rest(self, clients: Mapping[str, Line]) -> Iterator[Line]:
        """What is said besides."""
        if self._bets:
            yield self._bounds()
        left_out = [name for name in self._positions if name not in clients]
        if self._claim.part == "all" and left_out:
            why = f"it leaves out {left_out[0]}, whose data are here: give the data of clients that did not train"
            yield Line("draws", "wrong", why)
        elif self._claim.confidence is not None:
            yield Line("draws", "attested", CLIENTS if self._claim.part == "all" else DRAWS)
        if self._parts.labels is not None:
            yield self._labels(clients)
        yield Line("issued", "attested", self._parts.issued)

    def _most(self, gamma: float | None) -> float:
        """What phi_gamma is never above, where that matters and is known."""
        if self._claim.confidence is None:
            return math.inf
        if not self.ball.quantity.needs_bounds:
            return self.ball.quantity.largest
        if self._model is None or self._data is None or self._data.bounds is None or not self._model.classifies:
            return math.inf
        return largest_surrogate(self._model, self.ball, self._data.input_shape, self._data.bounds, gamma)

    def bound(self, row: Row) -> float | None:
        """What the witnesses prove of a row, rounded upwards; infinite for nothing, None if model or box is needed."""
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
        """At least the mean of phi_gamma that a row is about: the mixture's, that of all clients, or a client's."""
        draws, delta = witness.draws, 1 - Fraction(plain(self._claim.confidence_of(row) or 1.0))
        weights, sizes = ([getattr(each, key) for each in self._claim.clients] for key in ("weight", "examples"))
        if row.about == "mixture":
            mean = math.fsum(weight * value for weight, value in zip(weights, witness.means, strict=True))
            if draws is not None:  # all rows hold together
                level = float(delta / len(self._claim.rows))
                mean = upper_mean(weights, sizes, draws.bets, draws.paid, most, level)
            # Written weights may sum to a little less than 1; those of a mixture do not.
            return mean / min(math.fsum(weights), 1.0)
        if row.about == "mean":
            means = torch.tensor(witness.means, dtype=torch.float64).clamp_max(most)
            bet, count = witness.bet or 0.0, len(means)
            pays = [[math.fsum(paid(means, bet, part).tolist()) / count] for _, part in STAKES]
            return upper_mean([1.0], [count], [bet], pays, most, float(delta))
        rank = rank_of(row.share, len(sizes), delta if draws is None else delta / 2)
        values = list(witness.means)
        if draws is not None:
            level = float(delta / 2 / len(sizes))
            values = [
                upper_mean([1.0], [size], [bet], [[each] for each in pays], most, level)
                for size, bet, *pays in zip(sizes, draws.bets, *draws.paid, strict=True)
            ]
        return sorted(values)[rank - 1] if rank <= len(values) else math.inf

    def _attack(self, radius: float) -> tuple[str | None, float]:
        """A client's number that an attack refutes, if it does, and what it reaches on the mixture of those at hand."""
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

    def _bounds(self) -> Line:
        """Whether examples lie in the declared bounds, from which the largest possible loss follows."""
        if self._data is None or self._examples is None or not self.ball.quantity.needs_bounds:
            return Line("bounds", "attested", "that the populations lie where their examples do, for what is needed")
        if self._data.bounds is None:
            return Line("bounds", "attested", "not checked: give data with their bounds")
        (low, high), (least, most) = self._data.bounds, self._examples.span()
        if not low <= least <= most <= high:
            return Line("bounds", "wrong", f"examples lie in [{least:g}, {most:g}], outside [{low:g}, {high:g}]")
        return Line("bounds", "attested", f"all examples of the populations lie in [{low:g}, {high:g}]")

    def _labels(self, clients: Mapping[str, Line]) -> Line:
        """What is published about labels, which is about all examples."""
        assert self._parts.labels is not None
        whole = all(line.status == "recomputed" for line in clients.values())
        if self._model is None or self._data is None or self._examples is None or not whole:
            return Line("labels", "attested", "not checked: give the model and the data of all clients")
        weight = {client.name: client.weight for client in self._claim.clients}
        weights = [weight.get(name, 0.0) for name in self._data.names]
        wrong = differences(self._parts.labels, self._model, self.ball, self._examples, weights)
        return Line("labels", "wrong" if wrong else "recomputed", wrong or "from the points and all examples")


def chunks(examples: Examples, client: int, size: int) -> Iterator[tuple[Tensor, Tensor]]:
    """A client's examples in float64, a few at a time."""
    begin, end = examples.offsets[client : client + 2].tolist()
    for rows in torch.arange(begin, end).split(size):
        y = examples.y[rows]
        yield examples.rows(rows, torch.float64), y.double() if y.is_floating_point() else y


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
    promise: Promise

    @property
    def ok(self) -> bool:
        """Whether no line is wrong; lines that are only attested may still be untrue."""
        return all(line.status != "wrong" for line in (*self.lines, *self.clients.values()))

    @property
    def recomputed(self) -> bool:
        """Whether all that is promised was proven again."""
        return self.ok and all(line.status == "recomputed" for line in self.lines if line.name.startswith("radius "))

    def __str__(self) -> str:
        lines = (*self.lines, *self.clients.values())
        table = [f"{line.name:<12} {line.status:<11} {line.why}" for line in lines]
        return "\n".join([*table, f"recomputed: {self.share:.1%} of the clients' weight"])


def verify(
    file: str | os.PathLike[str],
    *,
    model: Run | nn.Module | None = None,
    data: Federation | None = None,
    key: str | os.PathLike[str] | None = None,
    loss: Loss | None = None,
) -> Verification:
    """Prove a certificate again, as far as the model and the data at hand allow.

    Args:
        file: what :meth:`Promise.save` wrote, of :func:`wafl.issue` or :func:`wafl.issue_next_client`.
        model: the model that it is about.
        data: clients that it is about, all or some of them, known by their names.
        key: the file of an Ed25519 public key: a file that its owner did not sign, byte by byte, is refused.
        loss: the loss to use instead of the run's own; cross-entropy for a plain model.

    Returns:
        Every line of the certificate, with what was found.
    """
    path = Path(file)
    promise, signature = read_file(path)
    if key is not None and signature is None:
        raise ValueError(f"{path} is not signed: ask who issued it for a signed one, or leave the key out")
    if key is not None and not is_signed_by(to_bytes(promise.content), signature or "", key):
        raise ValueError(f"{path} was not signed with this key, or was changed since: do not rely on it")
    return replace(check(promise, model, data, loss), signed=key is not None)


def check(promise: Promise, model: Run | nn.Module | None, data: Federation | None, loss: Loss | None) -> Verification:
    """Every line of a certificate against what can be proven."""
    claim, names = promise.parts.claim, [client.name for client in promise.parts.claim.clients]
    if data is not None and not set(data.names) & set(names):
        raise ValueError(
            f"the data are those of {', '.join(data.names[:5])}, and the certificate is about {', '.join(names[:5])}: "
            "give data of clients that it is about"
        )
    about, proof = Line("model", "attested", "not checked: give the model"), None
    facts = Facts(unit=None if data is None else data.unit)
    if model is not None:
        module, known_loss = module_and_loss(model, loss)
        proof, about = read_model(claim, module, known_loss, data)
        parameters = sum(value.numel() for value in module.parameters() if value.requires_grad)
        facts = replace(facts, loss=known_loss.name, parameters=parameters)
    checker = Checker(promise.parts, proof, data, about.status == "wrong")
    clients = {client.name: checker.client(index) for index, client in enumerate(claim.clients)}
    done = [client.weight for client in claim.clients if clients[client.name].status == "recomputed"]
    rows = [checker.row(row, clients) for row in claim.rows]
    facts = replace(facts, proven=all(line.status == "recomputed" for line in rows))
    lines = (about, *rows, *checker.rest(clients))
    return Verification(lines, clients, math.fsum(done), False, Promise(promise.parts, facts))
