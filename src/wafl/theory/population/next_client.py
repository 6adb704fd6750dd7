"""Bound the loss of the next client, from certificates of clients that never trained, as a sample of all clients."""

import math
import os
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from statistics import fmean
from typing import Annotated

from torch import nn

from wafl.base.checks import check_radii
from wafl.base.conditions import unproven_line
from wafl.base.describe import percent, rounded_up
from wafl.base.errors import PreconditionError
from wafl.base.norms import norm_name
from wafl.base.options import frozen, naming
from wafl.data.arguments import check_alike, check_apart, check_arguments
from wafl.data.federation import Federation
from wafl.promises.promise import Promise, check_output
from wafl.promises.sentences import at_the_next_client
from wafl.results.run import Run
from wafl.tasks.task import Loss
from wafl.theory.certificates.certificate import Metric, Quantity
from wafl.theory.certificates.certify import certify, check_confidence
from wafl.theory.certificates.mixture import Mixture
from wafl.theory.certificates.publish import Source, publish_next_client
from wafl.theory.certificates.sampling import Domain, Moments, Sample
from wafl.theory.certificates.soundness import hold_clients, room_of
from wafl.theory.population.intervals import Population
from wafl.theory.population.levels import USUAL, check_invited, exact, missing_line, supported, with_confidence
from wafl.weights import ClientWeights, uniform


@frozen
class NextClient:
    """Certified losses of clients that never trained, and their implications for all clients of their population.

    With ``metric="error"`` every loss is an error rate. Each method's bound holds with probability ``confidence`` over
    the draw of the clients and of their examples. A client's certified loss is ``gamma radius^2 + E[phi_gamma]`` (or
    the slope's ``E[loss] + L_z radius``) under its own distribution, which bounds its loss after any move by
    ``radius``.
    """

    names: Annotated[tuple[str, ...], "The names of the held-out clients that answered."]
    sample: Annotated[Sample, "The phi_gamma of their examples."]
    offset: Annotated[float, "``gamma radius^2``, or ``L_z radius``."]
    seen: Annotated[Sample, "The phi_gamma of the clients that trained, from which the bets come."]
    radius: Annotated[float, "How far each client's data may move, plus how far the population of clients may."]
    norm: Annotated[float, "The ground norm."]
    unit: Annotated[str, "The unit of the data."]
    confidence: Annotated[float, "The probability with which each statement holds; see :meth:`next_confidence`."]
    proven: Annotated[bool, "Whether the certified losses are proven; otherwise they use estimates of L_z or L_zz."]
    quantity: Annotated[Quantity, "The certified metric."]
    fallback: Annotated[bool, "If True, :meth:`next` uses a lower confidence if the clients require it."] = False
    source: Annotated[Source | None, "The model and the clients that trained, for :meth:`save`."] = None
    unseen: Annotated[Federation | None, "The clients that did not train, for :meth:`save`."] = None
    reason: Annotated[str, "Why the certified losses are not proven; empty if they are."] = ""
    missing: Annotated[tuple[str, ...], "Invited clients without a finite answer: each counts as infinity."] = ()

    @property
    def metric(self) -> Metric:
        """The name of the certified quantity."""
        return self.quantity.metric

    @property
    def measured(self) -> tuple[float, ...]:
        """The certified loss of each held-out client's examples."""
        return tuple(map(self._certified, self.sample.means))

    @property
    def count(self) -> int:
        """The number of clients that were invited."""
        return len(self.names) + len(self.missing)

    def _all(self, values: Sequence[float], lost: float = math.inf) -> list[float]:
        """Return the clients' numbers, and `lost` for each one that did not answer."""
        return [*values, *[lost] * len(self.missing)]

    def _certified(self, mean: float) -> float:
        """Return the bound that follows from a mean of phi_gamma."""
        return min(self.offset + mean, self.quantity.largest)

    def mean(self, *, kl: float | None = None, chi2: float | None = None) -> float:
        """Return an upper bound on the mean certified loss over all clients.

        The clients' sampling errors cancel in the mean, so none is added.

        Args:
            kl: let the population of clients itself shift, by at most this Kullback-Leibler divergence.
            chi2: let it shift by at most this chi-squared divergence instead.
        """
        if kl is not None and chi2 is not None:
            raise ValueError("give kl or chi2, not both")
        if not math.isfinite(self.sample.most):
            raise PreconditionError(
                "the mean over all clients needs bounds of the data, from which the largest possible loss follows: "
                "declare them (bounds=(low, high), or preprocess='unit')"
            )
        delta, most = 1.0 - self.confidence, self.sample.most
        means = self._all(self.sample.means, most)
        some = Population(means, most, delta)
        if kl is not None:
            return self._certified(some.upper_mean_within_kl(kl))
        if chi2 is None:
            bets = Sample.pooled(self.seen.means, most).bets([1.0], [len(means)], delta)
            return self._certified(Sample.pooled(means, most).upper_mean([1.0], bets, delta))
        return self._certified(some.upper_mean_within_chi2(chi2))

    def share(self, share: float, *, own_sampling: bool = True) -> float:
        """Return a certified loss that at least this share of all clients does not exceed.

        Args:
            share: a share of all clients, between 0 and 1.
            own_sampling: if True, for a statement about the clients' distributions; otherwise, about their examples.
        """
        delta = 1.0 - self.confidence
        if not own_sampling:
            return Population(self._all(self.measured), math.inf, delta).upper_quantile(share)
        return Population(self._all(self._upper(delta / 2.0)), math.inf, delta / 2.0).upper_quantile(share)

    def next_confidence(self, *, own_sampling: bool = True) -> float:
        """Return the confidence of :meth:`next`: `confidence`, or with `fallback` the highest that the clients support.

        K clients support ``(K - 1) / (K + 1)`` about the next client's distribution, and ``K / (K + 1)`` about its
        examples. Raises PreconditionError, a ValueError, if that is less than `confidence` and there is no fallback.

        Args:
            own_sampling: If True, for a statement about the client's distribution; otherwise, about its examples.
        """
        confidence = self._supported(own_sampling)
        if confidence <= 0.0:
            raise PreconditionError(
                "1 held-out client supports no statement about the next client's distribution: hold out 2 or more, or "
                "use own_sampling=False for its examples"
            )
        return confidence

    def _supported(self, own_sampling: bool) -> float:
        return supported(None if self.fallback else self.confidence, self.count, own_sampling=own_sampling)

    def next(self, *, own_sampling: bool = True) -> float:
        """Return a certified loss that one more client does not exceed, with probability :meth:`next_confidence`.

        Args:
            own_sampling: If True, it is about the client's distribution; otherwise, about its examples, drawn like
                the other clients' examples, including their number.
        """
        confidence = self.next_confidence(own_sampling=own_sampling)
        if not own_sampling:
            return Population(self._all(self.measured), math.inf, 0.5).next_client(confidence)
        delta = (1.0 - confidence) / 2.0
        return Population(self._all(self._upper(delta)), math.inf, 0.5).next_client((1 + exact(confidence)) / 2)

    def publish(self, *, share: float = 0.9, own_sampling: bool = True) -> Promise:
        """Return the promise for a file: provable bounds on the mean, a share and the next client.

        :func:`wafl.verify` proves them by itself.

        Args:
            share: a share of all clients, between 0 and 1.
            own_sampling: if True, for a statement about the clients' distributions; otherwise, about their examples.
        """
        if self.source is None or self.unseen is None:
            raise PreconditionError("these statements cannot be saved: the clients' examples are not on this machine")
        if not self.proven:
            raise PreconditionError(f"statements about the next client are saved only with a proof: {self.reason}")
        level = self._supported(own_sampling)
        return publish_next_client(
            self.source,
            self.unseen,
            radius=self.radius,
            share=share,
            own_sampling=own_sampling,
            confidence=float(self.confidence),
            next_confidence=level if 0.0 < level < self.confidence else None,
            missing=self.missing,
        )

    def save(
        self,
        path: str | os.PathLike[str],
        *,
        key: str | os.PathLike[str] | None = None,
        share: float = 0.9,
        own_sampling: bool = True,
    ) -> Path:
        """Write a file that anyone can check with :func:`wafl.verify`, and a readable page next to it, ``NAME.md``.

        Args:
            path: the file, such as ``next-client.json``.
            key: the file of an Ed25519 private key, without a password, that signs it.
            share: a share of all clients, between 0 and 1.
            own_sampling: if True, for a statement about the clients' distributions; otherwise, about their examples.

        Returns:
            The page.
        """
        check_output(path, key)
        return self.publish(share=share, own_sampling=own_sampling).save(path, key=key)

    def _upper(self, delta: float) -> list[float]:
        """Return bounds on each held-out client's true certified loss.

        Any of them fails with probability ``delta`` at most.
        """
        if not math.isfinite(self.sample.most):
            raise PreconditionError(
                "a client's own sampling error needs bounds of the data: declare them (bounds=(low, high), or "
                "preprocess='unit'), or use own_sampling=False, which is about the client's examples"
            )
        level, most = delta / self.count, self.sample.most
        like = Sample([sum(self.seen.sizes)], [fmean(self.seen.means)], [fmean(self.seen.seconds)], most)
        numbers = zip(self.sample.sizes, self.sample.means, self.sample.seconds, strict=True)
        singles = [Sample([size], [mean], [second], most) for size, mean, second in numbers]
        bets = {size: like.bets([1.0], [size], level) for size in set(self.sample.sizes)}
        return [self._certified(each.upper_mean([1.0], bets[each.sizes[0]], level)) for each in singles]

    @property
    def sentence(self) -> str:
        """The statement about the next client's examples, as one sentence to repeat."""
        return at_the_next_client(
            self.metric,
            self.next(own_sampling=False),
            self.next_confidence(own_sampling=False),
            own_sampling=False,
            moved=f"{self.radius:g} ({norm_name(self.norm)}, {self.unit})" if self.radius else "",
            proven=self.proven,
        )

    def __str__(self) -> str:
        about = f"{len(self.names)} client{'s' * (len(self.names) != 1)} that never trained"
        lines = [] if self.proven else [unproven_line(self.reason)]
        lines.append(f"{about}, moved by {self.radius:g} ({norm_name(self.norm)}, {self.unit}):")
        number = f"{'certified' if self.proven else 'estimated'} {self.quantity.noun}"
        usual = f"with {percent(self.confidence)} confidence"
        where = f"on their distributions, {usual}"
        lines.append(_sentence(f"the mean {number} of all clients", self.mean, where))
        if share := self._supported_share():
            name = f"the {number} of at least {percent(share)} of all clients"
            lines.append(_sentence(name, lambda: self.share(share), where))
        for own_sampling, where in ((True, "on its distribution"), (False, "on its examples")):
            lines.append(self._next_sentence(f"the next client's {number} {where}", own_sampling))
        if self.missing:
            lines.append(missing_line(self.missing, self.count))
        return "\n".join(lines)

    def _supported_share(self) -> float:
        """Return 0.9, or the largest whole percentage that this many clients support; 0 if below a half.

        It follows from the number of invited clients alone. A share that also depends on how many of them answered
        would be chosen by the data, and the statement would fail more often than its confidence says.
        """
        most = ((1.0 - self.confidence) / 2.0) ** (1.0 / self.count)
        share = min(math.floor(100.0 * most) / 100.0, 0.9)
        return share if share >= 0.5 else 0.0

    def _next_sentence(self, name: str, own_sampling: bool) -> str:
        try:
            confidence = self.next_confidence(own_sampling=own_sampling)
        except PreconditionError as refusal:
            return f"{name}: {refusal}"
        level = with_confidence(confidence, self.count, fallen=confidence < self.confidence)
        return _sentence(name, lambda: self.next(own_sampling=own_sampling), level)


def _sentence(name: str, bound: Callable[[], float], how: str) -> str:
    """Return a sentence with the bound on a number, or with the reason why there is none."""
    try:
        return f"{name} is at most {rounded_up(bound())} {how}"
    except PreconditionError as refusal:
        return f"{name}: {refusal}"


@naming
def next_client(
    model: Run | nn.Module,
    seen: Federation,
    unseen: Federation,
    *,
    radius: float = 0.0,
    population_radius: float = 0.0,
    norm: float = 2,
    metric: Metric = "loss",
    confidence: float | None = None,
    client_weights: ClientWeights | None = None,
    curvature: float | None = None,
    loss: Loss | None = None,
    invited: Sequence[str] | None = None,
    seed: int = 0,
) -> NextClient:
    """Bound the loss of an unseen client, from clients that were held out of training.

    The held-out clients must be drawn from the population of all clients, as :meth:`wafl.Federation.hold_out` draws
    them. Gamma is chosen on the clients that trained; all examples of the held-out clients count. The result's ``save``
    method writes a file that anyone can check with :func:`wafl.verify`.

    A population of clients that lies within ``population_radius`` (W_2 between distributions over clients, whose ground
    distance is W_2 between their data), each of whose clients' data then moves by ``radius``, has a mixture within the
    sum of both: couple the clients, then their examples, and add the lengths. So its mean loss is at most the mean
    certified loss at the sum of the radii (Najafi, Sani and Farnia, ICML 2025, for this ball).

    See Also:
        :func:`wafl.certify`, :func:`wafl.prediction_sets`, :func:`wafl.audit`

    Args:
        model: a model, or a run, which brings its loss and client weights.
        seen: the clients that trained.
        unseen: the clients that did not.
        radius: how far each client's data may move, in the unit of the data.
        population_radius: how far the population of clients may move, in the same unit; then only the mean is about it.
        norm: the ground norm, 1, 2 or inf.
        metric: ``"loss"``, or ``"error"``, the error rate of a linear classifier, which needs no bounds of the data.
        confidence: the probability with which each statement holds. If you leave it out, it is 0.95, and statements
            about the next client have the highest confidence that the held-out clients support, if that is lower. If
            you pass one that they do not support, :meth:`NextClient.next` raises ValueError.
        client_weights: the weights of the training clients, for choosing gamma; by default as in :func:`wafl.certify`.
        curvature: as in :func:`wafl.certify`.
        loss: the loss to use instead of the run's loss; cross-entropy for a plain model.
        invited: the names of all clients that were asked, fixed before any of them answered; by default those in
            `unseen`. A client that is not in `unseen`, or has no finite number, counts as infinity.
        seed: the seed of the objective.

    >>> import wafl
    >>> seen, unseen = wafl.load_dataset("digits").partition(num_clients=60, iid=True).hold_out(0.5)
    >>> run = wafl.fit(wafl.models.mlr(seen), seen, wafl.FedAvg(), rounds=2, local_epochs=1)
    >>> bounds = next_client(run, seen, unseen, radius=0.1)
    >>> max(bounds.measured) >= bounds.share(0.9, own_sampling=False) and bounds.mean() <= bounds.mean(kl=0.1)
    True
    """
    check_arguments("next_client(model, seen, unseen)", model, seen)
    asked = USUAL if confidence is None else confidence
    check_confidence(asked, "test")
    check_radii([radius, population_radius])
    check_alike(seen, unseen)
    check_apart(seen, unseen)
    missing = check_invited(invited, unseen.names)
    reach = radius + population_radius
    chosen = certify(
        model,
        seen,
        radii=[reach],
        norm=norm,
        metric=metric,
        client_weights=client_weights,
        curvature=curvature,
        achieved=False,
        loss=loss,
        seed=seed,
    )
    row = chosen[0]
    held = replace(unseen, train=unseen.examples)
    theirs = Mixture.of(model, held, "train", uniform(), loss)
    ours = Mixture.of(model, seen, "train", client_weights, loss)
    quantity, domain = chosen.quantity, Domain.of(seen)
    inquiry, proven = quantity.inquiry(chosen, row), reach == 0 or chosen.certifies
    bounded = domain.box is not None and domain.num_classes is not None and theirs.task.loss.logistic
    most = quantity.most(theirs, domain, chosen, inquiry.gamma) if bounded else quantity.largest
    sample, trained = (Moments(inquiry.report).ask(each, inquiry.setting, most, seed) for each in (theirs, ours))
    if proven and quantity.has_slopes and math.isfinite(inquiry.gamma):
        room = room_of(quantity, theirs.task, theirs.params, seen.input_shape, norm, chosen.dtype, sum(sample.sizes))
        hold_clients(chosen, theirs, unseen.names, sample, inquiry, room, seed)
    moments = zip(sample.means, sample.seconds, strict=True)
    finite = [index for index, pair in enumerate(moments) if all(map(math.isfinite, pair))]
    if len(finite) < unseen.num_clients:
        missing += tuple(name for index, name in enumerate(unseen.names) if index not in finite)
        means, seconds = ([each[index] for index in finite] for each in (sample.means, sample.seconds))
        sample = Sample([sample.sizes[index] for index in finite], means, seconds, sample.most)
        unseen = unseen.of_clients(finite)
    return NextClient(
        unseen.names,
        sample,
        inquiry.offset,
        trained,
        reach,
        norm,
        seen.unit,
        asked,
        proven,
        quantity,
        fallback=confidence is None,
        source=chosen.source,
        unseen=unseen,
        reason="" if proven else chosen.reason,
        missing=missing,
    )
