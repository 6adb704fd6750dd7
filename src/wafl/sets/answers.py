"""Compute one client's answer from its examples: the number of their scores above each threshold.

A client sends its :class:`Answer` and nothing else. Thresholds are rounded up to the grid, so an answer is a few
counts, whatever the number of its examples.
"""

import math
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Annotated, Self

import torch
from torch import Tensor, nn

from wafl.base.checks import check_positive
from wafl.base.options import frozen
from wafl.data.examples import CHUNK, Examples
from wafl.results.run import Run
from wafl.sets.scores import Score
from wafl.sets.shifted import Distances, Shift, distances_of
from wafl.tasks.fitness import UNFIT, takes_integers
from wafl.tasks.problem import Problem
from wafl.theory.constants.assumptions import task_of

ROOM = 1e-9
"""The tolerance of a score above a threshold, relative to 1 + |threshold|, for its label to be in the set.

The last bits of an output depend on the number of examples in the same computation. Without room, a label whose score
equals the threshold would leave the set of an example that is predicted alone.
"""
PLACES = 2.0**20
"""The rounding of counts of moved scores, up to multiples of ``1 / PLACES``, so that their sums are exact."""


@dataclass(frozen=True)
class Scorer:
    """A model in float64, and a score of its outputs."""

    problem: Problem
    score: Score

    @classmethod
    def of(cls, model: Run | nn.Module, score: Score, examples: Examples) -> Self:
        """Read a model; it must accept these `examples`."""
        task, params = task_of(model, examples=examples)
        x = examples.rows(torch.arange(1), params.dtype)
        task.traits = replace(task.traits, integers=takes_integers(lambda x: task.call(params, x), x))
        try:
            with torch.no_grad():
                shape = tuple(task.call(params, x).shape[1:])
        except UNFIT as error:
            raise ValueError(f"the model does not take examples of shape {tuple(x.shape[1:])}: {error}") from error
        if len(shape) != 1 or shape[0] < score.outputs or (not score.of_classes and shape[0] > score.outputs):
            what = f"{score.outputs}{' or more' * score.of_classes} output{'s' * (score.outputs > 1)}"
            raise ValueError(f"score={score.name!r} needs a model with {what}, and this one has the shape {shape}")
        return cls(Problem(task, params[None]), score)

    @classmethod
    def of_shape(cls, model: Run | nn.Module, score: Score, shape: Sequence[int]) -> Self:
        """Read a model that must accept examples of this shape, without using any examples."""
        label = torch.zeros(1, dtype=torch.int64)
        return cls.of(model, score, Examples(torch.zeros(1, *shape), label, torch.tensor([0, 1])))

    def outputs(self, x: Tensor) -> Tensor:
        """Return the outputs ``[n, C]`` of examples in float64, a few thousand at a time."""
        task, params = self.problem.task, self.problem.params[0]
        with torch.no_grad():
            outputs = torch.cat([task.call(params, part.to(params)) for part in x.split(CHUNK)])
        if not bool(outputs.isfinite().all()):
            raise ValueError("an output of the model is NaN or infinite")
        return outputs

    def sets(self, outputs: Tensor, threshold: float) -> Tensor:
        """Return the prediction sets of examples with these outputs."""
        return self.score.sets(outputs, with_room(threshold))

    def labels(self, y: Tensor, outputs: Tensor) -> Tensor:
        """Return labels in the score's form; raise ValueError for labels without a score."""
        if not self.score.of_classes:
            if y.numel() != len(y):
                raise ValueError(f"an example has {y[0].numel()} targets: prediction sets are for one")
            return y.to(outputs)
        classes = outputs.shape[1]
        strange = y[(y < 0) | (y >= classes)] if not y.is_floating_point() else y[:1]
        if len(strange):
            raise ValueError(f"label {strange[0].item()} is not one of the model's classes, 0 to {classes - 1}")
        return y.long()


@frozen
class Answer:
    """A client's answer: its number of examples, and the number of scores above each threshold of a grid."""

    size: Annotated[int, "The number of examples."]
    above: Annotated[tuple[float, ...], "How many of their scores are above each threshold; after a shift, at most."]


class Client:
    """The examples of one client, whose scores above any threshold can be counted.

    Args:
        scorer: the model and the score.
        x: the examples, ``[n, ...]``.
        y: their labels, or targets.
        norm: the ground norm of shifts, to count scores after a shift.
    """

    def __init__(self, scorer: Scorer, x: Tensor, y: Tensor, norm: float | None = None) -> None:
        if not len(y):
            raise ValueError("there are no examples")
        self.size, self._scorer = len(y), scorer
        self._outputs = scorer.outputs(x)
        self._y = scorer.labels(y, self._outputs)
        self._scores = scorer.score.of(self._outputs, self._y)
        if bool(self._scores.isnan().any()):
            raise ValueError("the score of an example is NaN")
        self.scores: list[float] = self._scores.sort().values.tolist()
        self._distances: Distances | None = None
        if norm is not None:
            moving = x.to(self._outputs), self._y, self._outputs
            self._distances = distances_of(scorer.problem, scorer.score, *moving, norm)

    def above(self, threshold: float, shift: Shift | None = None) -> float:
        """Return the number of scores above the threshold; after a shift, an upper bound."""
        if shift is None:
            return self.size - bisect_right(self.scores, threshold)
        assert self._distances is not None
        count = shift.count(self._distances(threshold)) * (1.0 + 1e-9)
        return min(math.ceil(count * PLACES) / PLACES, float(self.size))

    def answer(self, grid: Sequence[float], shift: Shift | None = None) -> Answer:
        """Return the client's answer."""
        return Answer(self.size, tuple(self.above(threshold, shift) for threshold in grid))

    def sets(self, threshold: float) -> Tensor:
        """Return the prediction sets of the examples."""
        return self._scorer.sets(self._outputs, threshold)

    def covered(self, threshold: float) -> int:
        """Return the number of labels that are in their sets."""
        if self._scorer.score.of_classes:
            return int(self.sets(threshold).gather(-1, self._y[:, None]).sum())
        return int((self._scores <= with_room(threshold)).sum())


def with_room(threshold: float) -> float:
    """Return the largest score whose label is in a set.

    >>> with_room(1.0) - 1.0 < 3e-9, with_room(float("inf"))
    (True, inf)
    """
    return threshold + ROOM * (1.0 + abs(threshold))


def check_grid(grid: Sequence[float]) -> tuple[float, ...]:
    """Return the thresholds; raise ValueError unless they are finite and increasing."""
    thresholds = tuple(float(threshold) for threshold in grid)
    if not thresholds or not all(map(math.isfinite, thresholds)):
        raise ValueError("grid must hold finite thresholds, at least one")
    for one, other in pairwise(thresholds):
        check_positive("the distance between two thresholds of the grid", other - one)
    return thresholds
