"""Issue certificates: find a gamma for each radius, and publish what the checker proves at it.

In statements about clients that nobody has seen, gamma and bets come from the clients that trained.
"""

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from fractions import Fraction
from itertools import pairwise
from typing import Literal

import torch
from torch import Tensor, nn

from wafl.base.errors import PreconditionError
from wafl.base.norms import check_norm
from wafl.base.options import Count
from wafl.data.arguments import check_alike, check_arguments
from wafl.data.examples import Examples
from wafl.data.federation import Federation
from wafl.promises.bets import STAKES, paid, rank_of
from wafl.promises.known import Ball, Known, Metric, known
from wafl.promises.promise import (
    FORMAT,
    NORMS,
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
    plain,
    whole_file,
)
from wafl.promises.published_labels import publish
from wafl.promises.quantities import quantity_of
from wafl.promises.read import read_promise
from wafl.promises.verify import Checker, ball_of, check, module_and_loss
from wafl.results.run import Run
from wafl.tasks.task import Loss
from wafl.theory.certificates.certify import check_confidence, check_question, check_radii
from wafl.theory.certificates.mixture import Mixture
from wafl.theory.certificates.sampling import Sample
from wafl.theory.population.levels import USUAL, highest_confidence, too_confident
from wafl.weights import ClientWeights, uniform
from wafl.weights.transport.costs import transport_package

ROOM = 1.0 + 1e-9
"""What is published is larger by this factor than what is proven here: other machines compute other last bits."""
SOME = 2000
"""How many examples a gamma is chosen on."""
CUTS, HALVINGS = 8, 10
"""The number of pieces into which the range of gamma is cut, and how often pieces are halved."""


def issue(
    model: Run | nn.Module,
    clients: Federation,
    *,
    radii: Sequence[float],
    norm: float = 2,
    power: Literal[1, 2] = 2,
    metric: Metric = "loss",
    split: Literal["train", "test"] = "train",
    client_weights: ClientWeights | None = None,
    confidence: float | None = None,
    points: int | None = None,
    loss: Loss | None = None,
) -> Promise:
    """A certificate as a file that anyone can check; refused if the checker can prove nothing about the model.

    What is published is what :func:`wafl.verify` proves by itself, with simpler means than :func:`wafl.certify`, so it
    may be somewhat larger.

    Args:
        model: a model, or a run, which brings its own loss and client weights.
        clients: whose examples are mixed.
        radii: in the unit of the data; at least one.
        norm: the ground norm, 1, 2 or inf.
        power: the order of the ball, 1 or 2.
        metric: ``"loss"``, or ``"error"``, the error rate of a classifier.
        split: ``"train"`` or ``"test"`` examples.
        client_weights: the center of the ball; by default the run's final weights, or by examples for a plain model.
        confidence: with what probability it holds for the clients' distributions, as in :func:`wafl.certify`.
        points: how many points per label to publish, so that others can tell how far they are (:func:`wafl.audit`); it
            gives away means of groups of examples.
        loss: the loss to use instead of the run's own; cross-entropy for a plain model.

    >>> import wafl
    >>> clients = wafl.load_dataset("digits").partition(num_clients=4, iid=True)
    >>> run = wafl.fit(wafl.models.mlr(clients), clients, wafl.WAFL(gamma=1.0), rounds=2, local_epochs=1)
    >>> promise = issue(run, clients, radii=[0.5])
    >>> promise.values[0.5] < 1.001 * wafl.certify(run, clients, radii=[0.5])[0].value
    True
    """
    check_arguments("issue(model, clients, radii=[...])", model, clients)
    check_norm(norm)
    ball = Ball(quantity_of(metric), norm, power)
    check_question(power, 0.02)
    wanted = list(dict.fromkeys(check_radii(radii)))
    if confidence is not None:
        check_confidence(confidence, split)
    if points is not None:
        _check_points(points, clients, ball, confidence)
    mixture = Mixture.of(model, clients, split, client_weights, loss)
    weights = mixture.weights.tolist()
    proof = _provable(model, loss, ball, clients, confidence)
    gammas = _gammas(proof, ball, clients.train if confidence is not None else mixture.examples, weights, wanted)
    rows = tuple(Row("mixture", None, radius, 0.0) for radius in wanted)
    named: NormName = next(name for name, each in NORMS.items() if each == norm)
    digest, whose = digest_of(module_and_loss(model, loss)[0]), tuple(_listed(clients, split, weights))
    claim = Claim(metric, named, power, split, confidence, confidence is not None, digest, whose, rows)
    labels = None if points is None else publish(proof, ball, mixture.examples, weights, wanted, points)
    return _sealed(model, loss, proof, claim, gammas, clients, clients.train, labels)


def issue_next_client(
    model: Run | nn.Module,
    seen: Federation,
    unseen: Federation,
    *,
    radius: float = 0.0,
    norm: float = 2,
    metric: Metric = "loss",
    share: float = 0.9,
    own_sampling: bool = True,
    confidence: float | None = None,
    loss: Loss | None = None,
) -> Promise:
    """What :func:`wafl.next_client` says, as a file that anyone can check with :func:`wafl.verify`.

    It says what can be said of three things: the mean over all clients, a share of them, and one more. What is
    published is what the checker proves by itself, with simpler means than :func:`wafl.next_client`.

    Args:
        model: a model, or a run, which brings its own loss.
        seen: the clients that trained; gamma and the bets are chosen on their examples.
        unseen: the clients that did not, drawn from the population of all clients. All their examples count.
        radius: how far each client's data may move, in the unit of the data; in the mean, that by which the population
            of clients may move is part of it.
        norm: the ground norm, 1, 2 or inf.
        metric: ``"loss"``, or ``"error"``, the error rate of a classifier, which needs no bounds of the data.
        share: of all clients, between 0 and 1.
        own_sampling: whether it is about the clients' distributions, or about examples as many as these have.
        confidence: the probability with which each statement holds. If you leave it out, it is 0.95, and the statement
            about the next client has the highest confidence that the held-out clients support, if that is lower. If
            you pass one that they do not support, a PreconditionError, which is a ValueError, names the highest.
        loss: the loss to use instead of the run's own; cross-entropy for a plain model.

    >>> import wafl
    >>> seen, unseen = wafl.load_dataset("digits").partition(num_clients=60, iid=True).hold_out(0.5)
    >>> run = wafl.fit(wafl.models.mlr(seen), seen, wafl.FedAvg(), rounds=2, local_epochs=1)
    >>> promise = issue_next_client(run, seen, unseen, radius=0.1, own_sampling=False)
    >>> list(promise.values)
    ['mean', 'share 0.9', 'next']
    """
    check_arguments("issue_next_client(model, seen, unseen)", model, seen)
    if confidence is not None:
        check_confidence(confidence, "test")
    check_alike(seen, unseen)
    if not 0.0 < share < 1.0:
        raise ValueError(f"share={share} must lie between 0 and 1, such as 0.9")
    level, count = float(USUAL if confidence is None else confidence), unseen.num_clients
    delta = (1 - Fraction(plain(level))) / (2 if own_sampling else 1)
    supported = rank_of(None, count, delta) <= count
    if confidence is not None and not supported:
        raise PreconditionError(too_confident(level, count, own_sampling=own_sampling))
    trained = issue(model, seen, radii=[radius], norm=norm, metric=metric, client_weights=uniform(), loss=loss).parts
    ball = ball_of(trained.claim)
    if own_sampling and ball.quantity.needs_bounds and unseen.bounds is None:
        raise PreconditionError(
            "a client's own sampling error needs bounds of the data: declare them (bounds=(low, high), or "
            "preprocess='unit'), or use own_sampling=False, which is about examples as many as these clients have"
        )
    proof, reach = _provable(model, loss, ball, unseen, level if own_sampling else None), trained.claim.rows[0].radius
    following = Row("next", None, reach, 0.0)
    if not supported:
        # One client supports nothing about the next one's distribution, and the row is left out.
        following = replace(following, confidence=highest_confidence(count, own_sampling=own_sampling) or None)
    asked = Row("mean", None, reach, 0.0), Row("share", float(share), reach, 0.0), following
    claim = replace(
        trained.claim,
        part="all",
        confidence=level,
        own_sampling=own_sampling,
        clients=tuple(_listed(unseen, "all", [1.0 / count] * count)),
        rows=asked,
    )
    return _sealed(model, loss, proof, claim, [trained.witnesses[0].gamma], unseen, seen.train.joined(seen.test))


def _listed(clients: Federation, split: Split, weights: Sequence[float]) -> Iterator[Client]:
    """Whose examples a claim is about."""
    examples = examples_of(clients, split)
    for index, (name, weight) in enumerate(zip(clients.names, weights, strict=True)):
        yield Client(name, weight, int(examples.num_examples[index]), examples.of_clients([index]).digest())


def _sealed(
    model: Run | nn.Module,
    loss: Loss | None,
    proof: Known,
    claim: Claim,
    gammas: Sequence[float | None],
    clients: Federation,
    seen: Examples,
    labels: Labels | None = None,
) -> Promise:
    """A claim with the values that the checker proves, at a gamma per radius, with bets from examples ``seen`` before.

    Rows of which nothing is proven are left out; a PreconditionError if none is left.
    """
    witnesses = tuple(Witness(gamma, (), None, None) for gamma in gammas)
    issued = datetime.now(UTC).isoformat(timespec="seconds")
    content = Content(FORMAT, claim, witnesses, labels, issued)
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
            f"{len(claim.clients)} clients say nothing about others with probability {claim.confidence:g}: hold out "
            "more of them, use a smaller share or confidence, or declare bounds of the data, for the mean"
        )
    content = replace(content, claim=replace(claim, rows=tuple(rows)))
    published = read_promise(whole_file(Promise(content).content, None))[0]  # what nobody could read is not published
    checked = check(published, model, clients, loss)
    if not checked.recomputed:
        raise PreconditionError(f"the checker does not accept what was to be published, so it is not:\n{checked}")
    return checked.promise


def _check_points(points: int, clients: Federation, ball: Ball, confidence: float | None) -> None:
    transport_package()
    Count().check("points", points)
    if clients.num_classes is None:
        raise ValueError("points are per label: a regression has none")
    if not ball.quantity.has_points:
        raise ValueError(f"points are about the loss: leave them out with metric={ball.quantity.metric!r}")
    if ball.power != 2 or confidence is not None:
        raise ValueError("points are about the examples at hand and power=2: leave out power and confidence")


def _provable(
    model: Run | nn.Module, loss: Loss | None, ball: Ball, clients: Federation, confidence: float | None
) -> Known:
    """Return what is known of the model; raise PreconditionError if that proves nothing."""
    proof = known(*module_and_loss(model, loss))
    if proof is None:
        raise PreconditionError(
            "nothing is proven about this model: certify a linear model, or a network of linear layers, convolutions, "
            "pooling and tanh, sigmoid, SiLU or ReLU, or of wafl.models.layers, with cross-entropy, MarginLoss or "
            "squared error"
        )
    ball.quantity.check(proof, ball.power, clients.bounds, confidence)
    return proof


def _gammas(
    model: Known, ball: Ball, examples: Examples, weights: Sequence[float], radii: Sequence[float]
) -> list[float | None]:
    """A good gamma for each radius, found on some of the examples; None where none is needed."""
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

        gammas.append(_least(bound, *ball.quantity.gammas(model, ball, x, y, some, radius)))
    return gammas


def _least(bound: Callable[[float], float], low: float, high: float) -> float:
    """Return about where a function of gamma is least: on a grid, which is then halved on both sides of the best."""
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
    """Each client's numbers at each gamma, with room for what other machines compute."""
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
    """A bet for each client: from its own training examples or, if clients were drawn, from those of others."""
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
