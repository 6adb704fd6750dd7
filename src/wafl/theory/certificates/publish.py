"""Publish certificates: find a gamma for each radius, and write the values that the checker of files proves at it.

In statements about unseen clients, gamma and bets come from the clients that trained.
"""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from itertools import pairwise
from typing import Literal

import torch
from torch import Tensor, nn

from wafl.base.errors import PreconditionError
from wafl.base.options import Count
from wafl.data.examples import Examples
from wafl.data.federation import Federation
from wafl.promises.bets import STAKES, paid
from wafl.promises.checker import Checker
from wafl.promises.known import Ball, Known, Metric, read
from wafl.promises.promise import (
    FORMAT,
    NORMS,
    About,
    Claim,
    Client,
    Content,
    Draws,
    Labels,
    NormName,
    Promise,
    Row,
    Split,
    Witness,
    digest_of,
    examples_of,
    whole_file,
)
from wafl.promises.published_labels import publish_labels
from wafl.promises.quantities import quantity_of
from wafl.promises.read import LARGEST_NUMBER, SMALLEST, read_promise
from wafl.promises.verify import Verification, check, module_and_loss
from wafl.results.run import Run
from wafl.tasks.task import Loss
from wafl.theory.certificates.sampling import Sample
from wafl.weights.transport.costs import transport_package

ROOM = 1.0 + 1e-9
"""The factor by which published values exceed those proven here: other machines compute other last bits."""
SOME = 2000
"""The number of examples on which a gamma is chosen."""
CUTS, HALVINGS = 8, 10
"""The number of pieces into which the range of gamma is cut, and the number of times that pieces are halved."""


@dataclass(frozen=True)
class Source:
    """The model, the examples and the question of a certificate, as far as a file can state it."""

    model: Run | nn.Module
    clients: Federation
    split: Literal["train", "test"]
    weights: tuple[float, ...]
    loss: Loss | None
    metric: Metric
    norm: float
    power: int
    inexpressible: str = ""
    """The options that no file can state, such as ``space='0'``; empty if there are none."""
    digest: str = ""
    """The digest of the model when it was certified, if a file can state the certificate."""

    @property
    def ball(self) -> Ball:
        """The ball of the certificate, as a file states it."""
        return Ball(quantity_of(self.metric), self.norm, self.power)


def publish(
    source: Source, estimates: Mapping[float, float], confidence: float | None, reason: str, points: int | None = None
) -> Promise:
    """Return a certificate in the form of a file, with the values that the checker proves by itself.

    Without a proof (``reason`` is not empty), the values are the ``estimates`` by radius, attested for that reason.
    """
    ball, clients = source.ball, source.clients
    if source.inexpressible:
        raise PreconditionError(
            f"a certificate with {source.inexpressible} cannot be saved: a file states a ball of the model's inputs, "
            "with fixed labels, in float64; print it, or use to_json()"
        )
    if points is not None:
        _check_points(points, clients, ball, confidence)
    weights, radii, drawn = list(source.weights), list(estimates), confidence is not None
    rows = [Row("mixture", None, radius, 0.0) for radius in radii]
    claim = _claim(source, source.split, weights, confidence, drawn, rows)
    if reason:
        return _attested(source, claim, list(estimates.values()), reason)
    proof = _provable(source, confidence)
    examples = examples_of(clients, source.split)
    gammas = _gammas(proof, ball, clients.train if drawn else examples, weights, radii)
    labels = None if points is None else publish_labels(proof, ball, examples, weights, radii, points)
    return _sealed(source, proof, claim, gammas, clients.train, labels)


def publish_next_client(
    source: Source,
    unseen: Federation,
    *,
    radius: float,
    share: float,
    own_sampling: bool,
    confidence: float,
    next_confidence: float | None,
    missing: tuple[str, ...] = (),
) -> Promise:
    """Return statements about all clients, a share of them and the next one, in the form of a file.

    The statement about the next client has ``next_confidence`` if the clients support no more. Clients that are
    ``missing`` count as infinity.
    """
    if not 0.0 < share < 1.0:
        raise ValueError(f"share={share} must lie between 0 and 1, such as 0.9")
    seen, ball = source.clients, source.ball
    if own_sampling and ball.quantity.needs_bounds and unseen.bounds is None:
        raise PreconditionError(
            "a client's own sampling error needs bounds of the data: declare them (bounds=(low, high), or "
            "preprocess='unit'), or use own_sampling=False, which is about the client's examples"
        )
    proof = _provable(source, None)
    gammas = _gammas(proof, ball, seen.train, _equal(seen), [radius])
    theirs = replace(source, clients=unseen)
    ball.quantity.check(proof, ball.power, unseen.bounds, confidence if own_sampling else None)
    about: list[tuple[About, float | None, float | None]]
    about = [("mean", None, None), ("share", float(share), None), ("next", None, next_confidence)]
    rows = [Row(each, part, radius, 0.0, lower) for each, part, lower in about]
    claim = replace(_claim(theirs, "all", _equal(unseen), confidence, own_sampling, rows), missing=missing)
    return _sealed(theirs, proof, claim, gammas, seen.examples)


def _equal(clients: Federation) -> list[float]:
    return [1.0 / clients.num_clients] * clients.num_clients


def _claim(
    source: Source,
    split: Split,
    weights: Sequence[float],
    confidence: float | None,
    own_sampling: bool,
    rows: Sequence[Row],
) -> Claim:
    """Return a claim about these examples of the source's clients."""
    digest, examples = digest_of(module_and_loss(source.model, source.loss)[0]), examples_of(source.clients, split)
    if digest != source.digest:
        raise PreconditionError("the model has changed since it was certified: certify it again")
    whose = tuple(
        Client(name, weight, int(examples.num_examples[index]), examples.of_clients([index]).digest(statistics=True))
        for index, (name, weight) in enumerate(zip(source.clients.names, weights, strict=True))
    )
    norm: NormName = next(name for name, each in NORMS.items() if each == source.norm)
    power = 1 if source.power == 1 else 2
    return Claim(source.metric, norm, power, split, confidence, own_sampling, digest, whose, tuple(rows))


def _sealed(
    source: Source,
    proof: Known,
    claim: Claim,
    gammas: Sequence[float | None],
    seen: Examples,
    labels: Labels | None = None,
) -> Promise:
    """Return a claim with the values that the checker proves, at a gamma per radius, with bets from ``seen`` examples.

    Rows without a proof are left out; PreconditionError is raised if no row is left.
    """
    clients, witnesses = source.clients, tuple(Witness(gamma, (), None, None) for gamma in gammas)
    content = Content(FORMAT, claim, None, witnesses, labels, _now())
    content = replace(content, witnesses=tuple(_witnesses(content, proof, clients, seen)))
    checker, most = Checker(content, proof, clients), quantity_of(claim.metric).largest
    bounds = [(row, checker.bound(row)) for row in claim.rows]
    rows = [
        replace(row, value=min(bound * ROOM, most)) for row, bound in bounds if bound is not None and bound < math.inf
    ]
    if claim.part != "all" and len(rows) < len(bounds):
        raise PreconditionError(
            "no finite bound is proven at some radius: use smaller ones, or a model of smaller weights"
        )
    if not rows:
        raise PreconditionError(
            f"{claim.drawn} clients say nothing about others with probability {claim.confidence:g}: hold out "
            "more of them, use a smaller share or confidence, or declare bounds of the data, for the mean"
        )
    checked = _checked(source, replace(content, claim=replace(claim, rows=tuple(rows))))
    if not checked.recomputed:
        raise PreconditionError(f"the checker does not accept what was to be published, so it is not:\n{checked}")
    return checked.promise


def _attested(source: Source, claim: Claim, values: Sequence[float], reason: str) -> Promise:
    """Return a claim whose values are estimates, which the checker can only try to refute."""
    if claim.confidence is not None:
        raise PreconditionError(f"nothing is proven ({reason}), so a file cannot state a confidence: leave it out")
    rows = tuple(replace(row, value=value) for row, value in zip(claim.rows, values, strict=True))
    if not all(map(math.isfinite, values)):
        raise PreconditionError("the estimate is infinite at some radius: use smaller ones")
    checked = _checked(source, Content(FORMAT, replace(claim, rows=rows), reason, (), None, _now()))
    if not checked.ok:
        raise PreconditionError(f"the estimates are refuted by the data, so they are not published:\n{checked}")
    return checked.promise


def _checked(source: Source, content: Content) -> Verification:
    """Read a file's content back as anyone would, and check it."""
    promise = read_promise(whole_file(Promise(content).content, None))[0]
    return check(promise, source.model, source.clients, source.loss)


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")


def _check_points(points: int, clients: Federation, ball: Ball, confidence: float | None) -> None:
    transport_package()
    Count().check("points", points)
    if clients.num_classes is None:
        raise ValueError("points are per label: a regression has none")
    if not ball.quantity.has_points:
        raise ValueError(f"points are about the loss: leave them out with metric={ball.quantity.metric!r}")
    if ball.power != 2 or confidence is not None:
        raise ValueError("points are about the examples at hand and power=2: leave out power and confidence")


def _provable(source: Source, confidence: float | None) -> Known:
    """Return the known properties of the model; raise PreconditionError if they prove nothing."""
    ball, proof = source.ball, read(*module_and_loss(source.model, source.loss))
    if isinstance(proof, str):
        raise PreconditionError(f"the checker has no proof for this model, because {proof}: print the certificate")
    ball.quantity.check(proof, ball.power, source.clients.bounds, confidence)
    return proof


def _gammas(
    model: Known, ball: Ball, examples: Examples, weights: Sequence[float], radii: Sequence[float]
) -> list[float | None]:
    """Return a good gamma for each radius, within the range of a file; None if none is needed.

    The gammas are found on some of the examples.
    """
    share = torch.repeat_interleave(
        torch.tensor(weights, dtype=torch.float64) / examples.num_examples, examples.num_examples
    )
    rows = torch.linspace(0, len(share) - 1, min(SOME, len(share)), dtype=torch.float64).long()
    x, y, some = examples.rows(rows, torch.float64), examples.y[rows], share[rows] / share[rows].sum()
    y = y.double() if y.is_floating_point() else y
    outputs, inputs, gammas = model.outputs(x), x[0].numel(), list[float | None]()
    for radius in radii:
        if not ball.quantity.needs_gamma(ball.power, radius):
            gammas.append(None)
            continue

        def bound(gamma: float, radius: float = radius) -> float:
            upper = ball.quantity.surrogates(model, ball, outputs, y, [gamma], inputs)[0]
            return gamma * ball.cost(radius) + float(some @ upper)

        gamma = _least(bound, *ball.quantity.gammas(model, ball, x, y, some, radius))
        gammas.append(min(max(gamma, SMALLEST), LARGEST_NUMBER) if math.isfinite(gamma) else gamma)
    return gammas


def _least(bound: Callable[[float], float], low: float, high: float) -> float:
    """Return the approximate minimizer of a function of gamma: on a grid that is then halved around its best point."""
    if low >= high:
        return math.sqrt(low * high)  # infinite where the square overflows, and then nothing is published
    values = {gamma: bound(gamma) for gamma in (low * (high / low) ** (index / CUTS) for index in range(CUTS + 1))}
    for _ in range(HALVINGS):
        grid = sorted(values)
        best = min(range(len(grid)), key=lambda index: values[grid[index]])
        near = grid[max(best - 1, 0) : best + 2]
        values |= {middle: bound(middle) for middle in (math.sqrt(a * b) for a, b in pairwise(near))}
    return min(values, key=values.__getitem__)


def _witnesses(content: Content, model: Known, clients: Federation, seen: Examples) -> Iterator[Witness]:
    """Yield the clients' numbers at each gamma, with room for the rounding of other machines."""
    checker, claim = Checker(content, model, clients), content.claim
    drawn = [checker.surrogates(examples_of(clients, claim.part), index) for index in range(clients.num_clients)]
    before = [] if claim.confidence is None else [checker.surrogates(seen, i) for i in range(seen.num_clients)]
    for row, witness in enumerate(content.witnesses):
        here, most = [client[row] for client in drawn], checker.most(witness.gamma)
        bet, draws, known_before = None, None, [client[row] for client in before]
        if claim.part == "all" and most < math.inf:
            means = Sample.pooled([float(each.mean()) for each in known_before], most)
            bet = means.bets([1.0], [len(here)], 1.0 - (claim.confidence or 0.0))[0]
        if claim.own_sampling:
            bets = _bets(claim, known_before, most)
            pays = [
                tuple(_raised(paid(each, bet, part)) for each, bet in zip(here, bets, strict=True))
                for _, part in STAKES
            ]
            draws = Draws(tuple(bets), tuple(pays))
        yield Witness(witness.gamma, tuple(map(_raised, here)), bet, draws)


def _bets(claim: Claim, before: Sequence[Tensor], most: float) -> list[float]:
    """Return a bet for each client, from its training examples or, if clients were drawn, from other clients'."""
    weights, sizes = ([getattr(each, key) for each in claim.clients] for key in ("weight", "examples"))
    delta = 1.0 - min(claim.confidence_of(row) or 0.0 for row in claim.rows)
    if claim.part == "all":
        pooled, level = Sample.pooled(torch.cat(list(before)).tolist(), most), delta / 2.0 / len(sizes)
        by_size = {size: pooled.bets([1.0], [size], level)[0] for size in set(sizes)}
        return [by_size[size] for size in sizes]
    means, seconds = ([float(each.mean()) for each in part] for part in (before, [x.square() for x in before]))
    return Sample([len(each) for each in before], means, seconds, most).bets(weights, sizes, delta / len(claim.rows))


def _raised(values: Tensor) -> float:
    return float(values.mean()) * ROOM + 1e-12
