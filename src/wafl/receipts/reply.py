"""Compute one calibration client's reply: a few numbers about its examples.

The upper bound allows for the client's sampling error: for n independent draws in ``[0, M]`` with mean m, the
expectation is above every u with ``n KL(m / M, u / M) > log(1 / failure)`` with probability `failure` at most
(Hoeffding 1963, Theorem 1; KL is the divergence of two coins).
"""

import math
from dataclasses import replace
from typing import Annotated, Any, Self, cast

import torch
from torch import nn

from wafl.base.errors import PreconditionError
from wafl.base.options import NotNegative, frozen
from wafl.data.federation import Federation
from wafl.receipts.questions import Questions
from wafl.sets.answers import Client, Scorer
from wafl.sets.scores import Margin, make_score
from wafl.sets.shifted import check_moves
from wafl.tasks.task import Loss
from wafl.theory.certificates.certify import certify, quantity_of
from wafl.theory.certificates.mixture import Mixture
from wafl.theory.certificates.sampling import Domain
from wafl.theory.population.levels import exact, supported
from wafl.weights import uniform


class TooFewExamplesError(PreconditionError):
    """A client has fewer examples than the questions require, so statements do not cover it."""


@frozen
class Reply:
    """One client's numbers, by radius."""

    examples: Annotated[int, "The number of examples."]
    values: Annotated[tuple[float, ...], "The client's loss or error rate; at a radius, a bound on the worst one."]
    uppers: Annotated[tuple[float | None, ...], "Upper bounds on their expectations; None where none is asked for."]
    above: Annotated[tuple[tuple[float, ...], ...], "How many scores are above each threshold, at most."]
    reason: Annotated[str, "Why the values at a radius above 0 are only estimates; empty if they are proven."] = ""

    def __post_init__(self) -> None:
        known = [*self.values, *(upper for upper in self.uppers if upper is not None)]
        for count in (float(self.examples), *known, *(each for row in self.above for each in row)):
            NotNegative.check("a number of a reply", count)
        if any(count > self.examples for row in self.above for count in row):
            raise ValueError(f"a reply counts more scores than its {self.examples} examples")

    @property
    def content(self) -> dict[str, Any]:
        """The reply as plain values, from which it can be read again."""
        rows = [list(row) for row in self.above]
        numbers = {"values": list(self.values), "uppers": list(self.uppers), "above": rows}
        return {"examples": self.examples, **numbers, "reason": self.reason}

    @classmethod
    def of(cls, content: Any, questions: Questions) -> Self:
        """Read plain values; raise ValueError unless they are numbers of the requested kind and shape."""
        fields = ("examples", "values", "uppers", "above", "reason")
        if not isinstance(content, dict) or set(cast(dict[str, Any], content)) != set(fields):
            raise ValueError(f"a reply must have {', '.join(fields)}")
        examples, values, uppers, above, reason = (cast(dict[str, Any], content)[name] for name in fields)
        if type(examples) is not int or not isinstance(reason, str) or examples < questions.minimum:
            raise ValueError(f"a reply must be about at least {questions.minimum} examples, with a reason in words")
        shape, radii = len(questions.thresholds), len(questions.radii)
        counts = [_floats("above", row, shape) for row in _listed(above, radii)]
        bounds = list[float | None]()
        for radius, upper, row in zip(questions.radii, _listed(uppers, radii), counts, strict=True):
            if (questions.own_sampling and radius == 0) is (upper is None):
                raise ValueError("uppers must contain a number for radius 0 if own_sampling is true, and no other")
            if radius == 0 and list(row) != sorted(row, reverse=True):
                raise ValueError("above must not rise: fewer scores are above a higher threshold")
            bounds.append(None if upper is None else _floats("uppers", [upper], 1)[0])
        return cls(examples, _floats("values", values, radii), tuple(bounds), tuple(counts), reason)


def _listed(value: Any, count: int) -> list[Any]:
    if not isinstance(value, list | tuple) or len(cast(list[Any], value)) != count:
        raise ValueError(f"a reply must have {count} entries in each list, not {str(value)[:80]}")
    return list(cast(list[Any], value))


def _floats(name: str, value: Any, count: int) -> tuple[float, ...]:
    numbers = _listed(value, count)
    for each in numbers:
        if type(each) not in (int, float):
            raise ValueError(f"{name} must have numbers, not {each!r}")
    return tuple(map(float, numbers))


def reply_of(
    questions: Questions, model: nn.Module, client: Federation, invited: int, loss: Loss | None = None
) -> Reply:
    """Return the reply of a client.

    Args:
        questions: the questions.
        model: the model.
        client: a federation of this client; all of its examples are used.
        invited: the number of invited clients, among which the probability of a failure is divided.
        loss: the loss; by default cross-entropy.
    """
    if client.num_clients != 1:
        raise ValueError(f"a reply is about 1 client, and these data have {client.num_clients}")
    everything = client.examples
    size = len(everything.y)
    if size < questions.minimum:
        raise TooFewExamplesError(f"{client.names[0]} has {size} examples, fewer than {questions.minimum}")
    one = replace(client, train=everything, test=everything.picked([torch.arange(0)]), recipe=None)
    score = make_score(questions.score, client.num_classes)
    scorer = Scorer.of(model, score, everything)
    moved = any(radius > 0 for radius in questions.radii)
    if moved:
        check_moves(scorer.problem, score)
    rows = torch.arange(size)
    x, y = everything.rows(rows, scorer.problem.params.dtype), everything.y[rows]
    scored = Client(scorer, x, y, questions.norm if moved else None)
    values, uppers, above, reason = list[float](), list[float | None](), list[tuple[float, ...]](), ""
    for index, radius in enumerate(questions.radii):
        above.append(scored.answer(questions.thresholds, questions.target(index).shift).above)
        if radius == 0:
            values.append(_at_rest(questions, scorer, scored, one, model, loss))
            upper = questions.own_sampling
            uppers.append(_upper(questions, values[-1], size, invited, model, one, loss) if upper else None)
            continue
        options: dict[str, Any] = {"norm": questions.norm, "metric": questions.metric, "achieved": False, "loss": loss}
        bounds = certify(model, one, radii=[radius], client_weights=uniform(), progress=False, **options)
        reason = reason or ("" if bounds.certifies else bounds.reason)
        values.append(bounds[0].best)
        uppers.append(None)
    return Reply(size, tuple(values), tuple(uppers), tuple(above), reason)


def _at_rest(
    questions: Questions, scorer: Scorer, scored: Client, one: Federation, model: nn.Module, loss: Loss | None
) -> float:
    if questions.metric == "loss":
        return Mixture.of(model, one, "train", uniform(), loss).means(None, [{}]).value[0]
    if not scorer.score.of_classes:
        raise PreconditionError("metric='error' is for classes: use metric='loss' for regression")
    outputs = scorer.outputs(one.train.rows(torch.arange(scored.size), scorer.problem.params.dtype))
    margins = Margin().of(outputs, scorer.labels(one.train.y, outputs))
    return float((margins >= 0).sum()) / scored.size


def _upper(
    questions: Questions, mean: float, size: int, invited: int, model: nn.Module, one: Federation, loss: Loss | None
) -> float:
    most = largest_value(questions, model, one, loss)
    level = supported(questions.confidence, invited, own_sampling=True, liars=questions.liars)
    if level <= 0.0:
        raise PreconditionError(
            f"{invited} clients support no statement about a distribution: use own_sampling = false, or invite more"
        )
    return upper_mean(mean, size, most, (1.0 - level) / 2.0 / invited)


def check_invited(questions: Questions, invited: int) -> None:
    """Raise PreconditionError, before any site is asked, if the questions need more invited sites."""
    own = questions.own_sampling and 0.0 in questions.radii
    level = min(
        supported(questions.confidence, invited, own_sampling=each, liars=questions.liars)
        for each in ((False, True) if own else (False,))
    )
    if level <= 0.0:
        remedy = ", or use own_sampling = false" if own else ""
        raise PreconditionError(f"{invited} sites support no statement about the next client: invite more{remedy}")


def spare(questions: Questions, invited: int) -> int:
    """Return how many invited sites may fail to answer without losing the statements about the next client.

    >>> spare(Questions(confidence=0.8), 20), spare(Questions(), 5)
    (3, 0)
    """
    level = exact(supported(questions.confidence, invited, own_sampling=False, liars=questions.liars))
    return invited - math.ceil(level * (invited + 1)) - questions.liars


def largest_value(questions: Questions, model: nn.Module, clients: Federation, loss: Loss | None) -> float:
    """Return the largest possible loss or error of an example; raise PreconditionError if it is unknown."""
    if questions.metric == "error":
        return 1.0
    if clients.bounds is not None:
        (low, high), (least, most) = clients.bounds, clients.examples.span()
        if least < low or most > high:
            raise PreconditionError(
                f"examples lie in [{least:g}, {most:g}], outside bounds={clients.bounds}, from which the largest loss "
                "follows: use own_sampling = false, or the bounds of the data"
            )
    options: dict[str, Any] = {"norm": questions.norm, "achieved": False, "loss": loss, "progress": False}
    at_rest = certify(model, clients, radii=[0.0], client_weights=uniform(), **options)
    mixture = Mixture.of(model, clients, "train", uniform(), loss)
    return quantity_of("loss").most(mixture, Domain.of(clients), at_rest, math.inf)


def upper_mean(mean: float, count: int, most: float, failure: float) -> float:
    """Return an upper bound on the expectation of `count` draws in ``[0, most]``, except with probability `failure`.

    >>> round(upper_mean(0.0, 100, 1.0, 0.05), 4)  # 1 - 0.05**(1 / 100)
    0.0295
    """
    share, limit = min(mean / most, 1.0), math.log(1.0 / failure) / count
    low, high = share, 1.0
    while low < (middle := (low + high) / 2.0) < high:
        low, high = (low, middle) if divergence(share, middle) >= limit else (middle, high)
    return min(high * (1.0 + 1e-12), 1.0) * most


def divergence(p: float, q: float) -> float:
    """Return the Kullback-Leibler divergence of a coin with probability q from one with p."""
    one = p * math.log(p / q) if p > 0 else 0.0
    other = (1.0 - p) * (math.log1p(-p) - math.log1p(-q)) if p < 1 else 0.0
    return one + other
