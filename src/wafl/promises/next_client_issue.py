"""Issues statements about clients that nobody has seen: gamma and bets come from the clients that trained."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime

import torch
from torch import Tensor, nn

from wafl.base.errors import PreconditionError
from wafl.data.arguments import check_arguments
from wafl.data.federation import Federation
from wafl.promises.check import loss_of
from wafl.promises.issue import ROOM, issue
from wafl.promises.known import known
from wafl.promises.next_client import (
    ABOUT,
    Bets,
    HeldOut,
    NextClaim,
    NextClientPromise,
    NextContent,
    NextWitness,
    Statement,
)
from wafl.promises.next_client_check import BOLDEST, NextChecker, check_next_client, upper_mean
from wafl.promises.promise import FORMAT, Metric
from wafl.promises.read import versions
from wafl.results.run import Run
from wafl.tasks.losses import output_loss
from wafl.tasks.task import Loss
from wafl.theory.certificates.certify import check_confidence
from wafl.theory.population.next_client import check_alike
from wafl.weights import uniform

ODDS = tuple(math.exp(step / 4.0) for step in range(-40, 17))
"""How boldly one may bet: b is ``odds / (1 + odds)`` over the largest possible number."""


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
    confidence: float = 0.95,
    loss: Loss | None = None,
) -> NextClientPromise:
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
        confidence: the probability with which each statement holds.
        loss: the loss to use instead of the run's own; cross-entropy for a plain model.

    >>> import wafl
    >>> seen, unseen = wafl.load_dataset("digits").partition(num_clients=60, iid=True).hold_out(0.5)
    >>> run = wafl.fit(wafl.models.mlr(seen), seen, wafl.FedAvg(), rounds=2, local_epochs=1)
    >>> promise = issue_next_client(run, seen, unseen, radius=0.1, own_sampling=False)
    >>> list(promise.values)
    ['mean', 'share 0.9', 'next']
    """
    check_arguments("issue_next_client(model, seen, unseen)", model, seen)
    check_confidence(confidence, "test")
    check_alike(seen, unseen)
    if not 0.0 < share < 1.0:
        raise ValueError(f"share={share} must lie between 0 and 1, such as 0.9")
    trained = issue(model, seen, radii=[radius], norm=norm, metric=metric, client_weights=uniform(), loss=loss).parts
    module, held = model.module if isinstance(model, Run) else model, unseen.train.joined(unseen.test)
    clients = [
        HeldOut(name, size, held.of_clients([place]).digest())
        for place, (name, size) in enumerate(zip(unseen.names, held.num_examples.tolist(), strict=True))
    ]
    asked = (Statement("mean", None, 0.0), Statement("share", float(share), 0.0), Statement("next", None, 0.0))
    claim = NextClaim(
        metric, trained.claim.norm, trained.claim.rows[0].radius, own_sampling, float(confidence), trained.claim.model,
        tuple(clients), asked,
    )  # fmt: skip
    witness = NextWitness(trained.witnesses[0].gamma, (), None, None)
    content = NextContent(
        FORMAT, ABOUT, claim, witness, datetime.now(UTC).isoformat(timespec="seconds"), versions()
    )  # fmt: skip
    proof = known(module, output_loss(loss_of(model, loss)))
    ours, theirs = (NextChecker(content, proof, each) for each in (seen, unseen))
    if own_sampling and theirs.most == math.inf:
        raise PreconditionError(
            "a client's own sampling error needs bounds of the data: declare them (bounds=(low, high), or "
            "preprocess='unit'), or use own_sampling=False, which is about examples as many as these clients have"
        )
    found = [theirs.numbers(place) for place in range(unseen.num_clients)]
    before = [ours.numbers(place).clamp_max(theirs.most) for place in range(seen.num_clients)]
    witness = replace(
        witness,
        means=tuple(_raised(float(each.mean())) for each in found),
        bet=None if theirs.most == math.inf else _bet(
            torch.stack([each.mean() for each in before]), theirs.most, len(clients), 1.0 - confidence
        ),
        own=_own(found, torch.cat(before), theirs.most, (1.0 - confidence) / 2.0) if own_sampling else None,
    )  # fmt: skip
    content = replace(content, witness=witness)
    checker = NextChecker(content, proof, unseen)
    bounds = [(said, checker.bound(said)) for said in asked]
    largest = 1.0 if metric == "error" else math.inf
    said = [replace(each, value=min(_raised(b), largest)) for each, b in bounds if b is not None and b < math.inf]
    if not said:
        raise PreconditionError(
            f"{len(clients)} clients say nothing about others with probability {confidence:g}: hold out more of them, "
            "use a smaller share or confidence, or declare bounds of the data, for the mean"
        )
    content = replace(content, claim=replace(claim, statements=tuple(said)))
    checked = check_next_client(NextClientPromise(content), model, unseen, loss)
    if not checked.recomputed:
        raise PreconditionError(f"the checker does not accept what was to be published, so it is not:\n{checked}")
    return NextClientPromise(content, checked.promise.facts)


def _raised(value: float) -> float:
    """With room for what other machines compute."""
    return value * ROOM + 1e-12


def _own(found: Sequence[Tensor], before: Tensor, most: float, delta: float) -> Bets:
    """A bet for each client, by how many examples it has, and what it has lost."""
    sizes = [len(each) for each in found]
    by_size = {size: _bet(before, most, size, delta / len(sizes)) for size in set(sizes)}
    bets = tuple(by_size[size] for size in sizes)
    lost = (float(-torch.log1p(-bet * each).mean()) for bet, each in zip(bets, found, strict=True))
    return Bets(bets, tuple(map(_raised, lost)))


def _bet(before: Tensor, most: float, count: int, delta: float) -> float:
    """What would be best for so many numbers if they were like these, and half of one more were the largest."""

    def bound(bet: float) -> float:
        lost = float(-torch.log1p(-bet * before).sum()) - math.log1p(-bet * most) / 2.0
        return upper_mean(lost / (len(before) + 0.5), count, bet, delta)

    return min((BOLDEST * odds / (1.0 + odds) / most for odds in ODDS), key=bound)
