"""Score how badly a label suits an example, by the model's outputs; a prediction set has the labels of low scores."""

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Annotated, ClassVar

import torch
from torch import Tensor

from wafl.base.errors import did_you_mean
from wafl.base.options import Count, NotNegative, frozen


class Score(ABC):
    """A function of the outputs and the label; a larger score means a worse label."""

    name: ClassVar[str]
    of_classes: ClassVar[bool] = True
    """Whether labels are classes; otherwise they are numbers."""
    outputs: ClassVar[int] = 2
    """The number of a model's outputs: exactly for numbers, at least for classes."""
    moves: ClassVar[bool] = False
    """Whether the distance to a larger score is known, which a radius needs."""

    @abstractmethod
    def of(self, outputs: Tensor, y: Tensor) -> Tensor:
        """Return the score of each example's label, ``[n]``."""

    @abstractmethod
    def sets(self, outputs: Tensor, threshold: float) -> Tensor:
        """Return the labels whose score is at most `threshold`.

        For classes, ``[n, C]`` is True for each class in the set, and always for the class with the largest output. For
        numbers, ``[n, 2]`` are the ends of the intervals.
        """


class ClassScore(Score):
    """A score of classes."""

    @abstractmethod
    def of_all(self, outputs: Tensor) -> Tensor:
        """Return the score of each class, ``[n, C]``."""

    def of(self, outputs: Tensor, y: Tensor) -> Tensor:
        """Return the score of each example's label, ``[n]``."""
        return self.of_all(outputs).gather(-1, y[:, None])[:, 0]

    def sets(self, outputs: Tensor, threshold: float) -> Tensor:
        """Return the classes with a score of at most `threshold`, and the class with the largest output."""
        # The class with the largest output is in each set: a threshold below 0 would leave sets empty.
        return (self.of_all(outputs) <= threshold).scatter(-1, outputs.argmax(-1, keepdim=True), True)


@frozen
class Margin(ClassScore):
    """The lead of the best other class over the label, ``max over j != y of f_j - f_y``."""

    name = "margin"
    moves = True

    def of_all(self, outputs: Tensor) -> Tensor:
        """Return the score of each class, ``[n, C]``."""
        (best, second), (top, _) = (each.unbind(-1) for each in outputs.topk(2, dim=-1))
        return best[:, None].expand_as(outputs).scatter(-1, top[:, None], second[:, None]) - outputs


@frozen
class Probability(ClassScore):
    """The score ``1 - p_y``, with p the softmax of the outputs (Sadinle, Lei and Wasserman 2019)."""

    name = "probability"

    def of_all(self, outputs: Tensor) -> Tensor:
        """Return the score of each class, ``[n, C]``."""
        return 1.0 - outputs.softmax(-1)


@frozen
class APS(ClassScore):
    """The probability of all classes that are at least as probable as the label (Romano, Sesia and Candes 2020).

    Nothing is randomized: classes with equal probabilities count together.
    """

    name = "aps"

    def of_all(self, outputs: Tensor) -> Tensor:
        """Return the score of each class, ``[n, C]``."""
        return self._mass_and_rank(outputs)[0]

    def _mass_and_rank(self, outputs: Tensor) -> tuple[Tensor, Tensor]:
        """Return the mass and the number of the classes at least as probable as each class."""
        p = outputs.softmax(-1)
        ordered = p.sort(-1, descending=True).values
        last = torch.searchsorted(-ordered, -p, right=True) - 1
        return ordered.cumsum(-1).gather(-1, last), last + 1


@frozen
class RAPS(APS):
    """:class:`APS`, plus `penalty` for each class beyond the first `free` (Angelopoulos et al. 2021)."""

    name = "raps"
    penalty: Annotated[float, NotNegative, "What each further class adds."] = 0.01
    free: Annotated[int, Count(0), "How many classes add nothing."] = 5

    def of_all(self, outputs: Tensor) -> Tensor:
        """Return the score of each class, ``[n, C]``."""
        mass, rank = self._mass_and_rank(outputs)
        return mass + self.penalty * (rank - self.free).clamp_min(0).to(mass)


@frozen
class Residual(Score):
    """The score ``|y - f(x)|``, for a model with one output."""

    name = "residual"
    of_classes = False
    outputs = 1
    moves = True

    def of(self, outputs: Tensor, y: Tensor) -> Tensor:
        """Return the score of each example's target, ``[n]``."""
        return (y.view(-1) - outputs[:, 0]).abs()

    def sets(self, outputs: Tensor, threshold: float) -> Tensor:
        """Return the ends of the intervals, ``[n, 2]``."""
        return torch.stack([outputs[:, 0] - threshold, outputs[:, 0] + threshold], dim=1)


@frozen
class ScaledResidual(Score):
    """The score ``|y - f(x)| / s(x)``, for a model whose second output s is positive."""

    name = "scaled_residual"
    of_classes = False

    def of(self, outputs: Tensor, y: Tensor) -> Tensor:
        """Return the score of each example's target, ``[n]``."""
        return (y.view(-1) - outputs[:, 0]).abs() / self._scale(outputs)

    def sets(self, outputs: Tensor, threshold: float) -> Tensor:
        """Return the ends of the intervals, ``[n, 2]``."""
        width = threshold * self._scale(outputs)
        return torch.stack([outputs[:, 0] - width, outputs[:, 0] + width], dim=1)

    def _scale(self, outputs: Tensor) -> Tensor:
        scale = outputs[:, 1]
        if not bool((scale > 0).all()):
            raise ValueError(
                f"the scale, the model's second output, is {float(scale[~(scale > 0)][0]):g} for an example: it must "
                "be positive, such as a softplus"
            )
        return scale


SCORES: dict[str, Callable[[], Score]] = {
    each.name: each for each in (Margin, Probability, APS, RAPS, Residual, ScaledResidual)
}


def make_score(score: str | Score | None, num_classes: int | None) -> Score:
    """Return the score with this name; None means the margin, or for a regression the residual."""
    if score is None:
        return Residual() if num_classes is None else Margin()
    if isinstance(score, str):
        if score not in SCORES:
            raise ValueError(f"score={score!r} must be one of {', '.join(SCORES)}{did_you_mean(score, SCORES)}")
        score = SCORES[score]()
    if score.of_classes is (num_classes is None):
        fitting = [name for name, kind in SCORES.items() if kind().of_classes is (num_classes is not None)]
        task = "a regression" if num_classes is None else "classes"
        raise ValueError(f"score={score.name!r} is not for {task}: use one of {', '.join(fitting)}")
    return score
