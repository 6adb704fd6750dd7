"""Issues statements about clients that nobody has seen: gamma and bets come from the clients that trained."""

from dataclasses import replace
from fractions import Fraction

from torch import nn

from wafl.base.errors import PreconditionError
from wafl.data.arguments import check_alike, check_arguments
from wafl.data.federation import Federation
from wafl.promises.bets import place_of
from wafl.promises.check import ball_of, loss_of
from wafl.promises.in_words import plain
from wafl.promises.issue import issue, listed, provable, sealed
from wafl.promises.promise import Promise, Row
from wafl.promises.quantity import Metric
from wafl.results.run import Run
from wafl.tasks.task import Loss
from wafl.theory.certificates.certify import check_confidence
from wafl.theory.population.levels import USUAL, highest_confidence, too_confident
from wafl.weights import uniform


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
    if confidence is not None and not _supports(count, level, own_sampling):
        raise PreconditionError(too_confident(level, count, own_sampling=own_sampling))
    trained = issue(model, seen, radii=[radius], norm=norm, metric=metric, client_weights=uniform(), loss=loss).parts
    ball = ball_of(trained.claim)
    if own_sampling and ball.quantity.needs_bounds and unseen.bounds is None:
        raise PreconditionError(
            "a client's own sampling error needs bounds of the data: declare them (bounds=(low, high), or "
            "preprocess='unit'), or use own_sampling=False, which is about examples as many as these clients have"
        )
    module, reach = model.module if isinstance(model, Run) else model, trained.claim.rows[0].radius
    sampled = level if own_sampling else None
    proof = provable(module, loss_of(model, loss), ball, unseen, sampled)
    following = Row("next", None, reach, 0.0)
    if not _supports(count, level, own_sampling):
        # One client supports nothing about the next one's distribution, and the row is left out.
        following = replace(following, confidence=highest_confidence(count, own_sampling=own_sampling) or None)
    asked = Row("mean", None, reach, 0.0), Row("share", float(share), reach, 0.0), following
    claim = replace(
        trained.claim,
        part="all",
        confidence=level,
        own_sampling=own_sampling,
        clients=tuple(listed(unseen, "all", [1.0 / unseen.num_clients] * unseen.num_clients)),
        rows=asked,
    )
    return sealed(model, loss, proof, claim, [trained.witnesses[0].gamma], unseen, seen.train.joined(seen.test))


def _supports(count: int, confidence: float, own_sampling: bool) -> bool:
    """Return whether the checker proves a statement about the next client from `count` clients."""
    return place_of(None, count, (1 - Fraction(plain(confidence))) / (2 if own_sampling else 1)) <= count
