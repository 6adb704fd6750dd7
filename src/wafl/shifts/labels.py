"""A shift of how common each label is. No example moves; some count for more."""

from typing import Annotated, Any, ClassVar

import torch
from torch import Tensor

from wafl.attacks.base import Attack, Population, Settings
from wafl.base.checks import check_seed
from wafl.base.options import frozen, maker
from wafl.base.random import Key, uniform
from wafl.shifts.shift import PURPOSE, Draw, Severity
from wafl.tasks.problem import Problem


@frozen
class LabelShift(Attack):
    """Label probabilities change from ``p_c``, those of the data, to ``q_c`` proportional to ``p_c d_c^severity``.

    d is drawn from the seed, uniformly from all label distributions (Dirichlet with all parameters 1). At 0 all
    examples count the same; at 1 the odds of two labels change by those of d; beyond that, the most favored label takes
    over.

    >>> label_shift(severity=0.0).weights([0, 1, 1, 2], num_classes=3).tolist()
    [0.25, 0.25, 0.25, 0.25]
    """

    needs_classes: ClassVar[bool] = True
    settings: ClassVar[Settings] = Settings("severity", 0.5)

    severity: Annotated[float, Severity(), "The size of the shift; 0 changes nothing."]

    def weights(self, y: Any, num_classes: int | None, seed: int = 0) -> Tensor:
        """Each example's weight ``[N]`` under the shifted labels; they sum to 1."""
        labels = torch.as_tensor(y)
        if num_classes is None or labels.is_floating_point() or labels.ndim != 1 or len(labels) == 0:
            raise ValueError(
                f"y holds {labels.dtype} of shape {tuple(labels.shape)}: a label shift needs one whole number per "
                "example, its class, and at least one example"
            )
        lowest, highest = int(labels.min()), int(labels.max())
        if lowest < 0 or highest >= num_classes:
            raise ValueError(f"y holds labels {lowest} .. {highest}, which are not all in 0 .. {num_classes - 1}")
        draws = uniform(Key.of(check_seed(seed), step=Draw.LABELS), PURPOSE, num_classes)
        # A flat Dirichlet draw is exponential draws over their sum, which the softmax divides out.
        tilt = torch.log(-torch.log1p(-(draws + 2.0**-25))).to(labels.device)[labels.long()]
        return torch.softmax(self.severity * (tilt - tilt.max()), dim=0)

    def move(self, problem: Problem, population: Population, seed: int = 0) -> Tensor:
        """The examples stay where they are: the shift is in :meth:`weights`."""
        return population.x

    def describe(self, unit: str) -> str:
        return f"label shift, severity {self.severity:g}"


label_shift = maker(LabelShift)
