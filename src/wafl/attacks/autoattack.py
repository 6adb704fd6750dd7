"""Run AutoAttack, the standard ensemble of attacks, from its authors' package.

Croce and Hein, "Reliable evaluation of adversarial robustness with an ensemble of diverse parameter-free attacks" (ICML
2020). The package, pyautoattack, is the optional extra ``wafl-learn[autoattack]``.
"""

import math
import sys
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Annotated, ClassVar

import torch
from torch import Tensor

from wafl.attacks.base import BOUNDS, Attack, Population, Settings
from wafl.attacks.bounded import EPSILON
from wafl.base.bounds import DATA, Bounds, check_bounds, in_words, is_finite
from wafl.base.checks import check_seed
from wafl.base.extras import Package, require
from wafl.base.norms import norm_name
from wafl.base.options import Box, Choice, Count, Range, check_options, documented
from wafl.tasks.problem import Problem

PACKAGE = Package("pyautoattack", extra="autoattack")
autoattack_package = partial(require, PACKAGE.module, extra=PACKAGE.extra, what="attack='autoattack'")


@documented
@dataclass(frozen=True, kw_only=True)
class AutoAttack(Attack):
    """The standard ensemble within ``||delta|| <= epsilon`` (norm inf or 2) and ``bounds``, in the units of the data.

    It runs four attacks in turn, each on the examples that are still classified correctly: APGD on the cross-entropy,
    APGD on the targeted DLR loss, targeted FAB, and the Square attack. The targeted DLR loss needs at least four
    classes, and Square needs images of at least 5x5 pixels; otherwise they are skipped. The bounds must be finite.

    AutoAttack searches for errors and not for large losses. It does not move an example that is already misclassified
    or that no attack could flip. The attack's result is therefore the accuracy; the loss is not the worst case.
    """

    settings: ClassVar[Settings] = Settings("epsilon", 0.1, ("norm", "bounds", "queries"))
    package: ClassVar[Package | None] = PACKAGE

    epsilon: Annotated[float, Range(0.0, hint=", in the units of the data"), EPSILON]
    bounds: Annotated[Bounds, Box(), BOUNDS] = DATA
    norm: Annotated[float, Choice((2, math.inf)), "The norm of the ball: inf or 2."] = math.inf
    queries: Annotated[int, Count(1, "; the standard is 5000"), "The maximum number of Square's queries."] = 5000

    def __post_init__(self) -> None:
        check_options(self)
        object.__setattr__(self, "bounds", check_bounds(self.bounds))
        if self.bounds != DATA:
            self._box()
        autoattack_package()

    @property
    def reach(self) -> tuple[str, float, float] | None:
        """The name of the option ``epsilon``, its value and its norm."""
        return "epsilon", self.epsilon, self.norm

    def _box(self) -> tuple[float, float]:
        box = self.box
        if box is None or not is_finite(box):
            raise ValueError(
                f"bounds={box}: AutoAttack works inside a box: give bounds=(low, high), both finite, or use data that "
                "declare theirs (preprocess 'unit' or 'symmetric')"
            )
        return box

    def at_once(self, usual: int, device: torch.device) -> int:
        """Return the number of examples to attack together: many on a GPU, which needs the same time for few."""
        return usual if device.type == "cpu" else 8192  # on a GPU, a step takes the same time for few and many

    def move(self, problem: Problem, population: Population, seed: int = 0) -> Tensor:
        """Return the moved examples; correctly classified examples that no attack flips do not move."""
        seed = check_seed(seed)
        low, high = self._box()
        x, examples, labels = population.x, population.x[0], population.y[0]
        if labels.is_floating_point() or labels.ndim != 1:
            raise ValueError("AutoAttack looks for wrong classes and cannot attack a regression model: use PGD")
        if bool((examples < low).any() or (examples > high).any()):
            raise ValueError(
                f"x lies in [{float(examples.min()):g}, {float(examples.max()):g}], outside bounds={(low, high)}: "
                "give the bounds of the data"
            )
        if self.epsilon == 0:
            return x

        def logits(unit: Tensor) -> Tensor:
            return problem.task.outputs(problem.params, (low + (high - low) * unit).to(x)[None])[0].float()

        unit = ((examples - low) / (high - low)).float()
        with _undisturbed():
            attack = autoattack_package().AutoAttack(
                logits,
                norm="Linf" if self.norm == math.inf else "L2",
                eps=self.epsilon / (high - low),
                seed=seed,
                device=x.device,
            )
            classes = logits(unit[:1]).shape[-1]
            targeted = ["apgd-t"] if classes >= 4 else []
            square = ["square"] if examples.ndim == 4 and min(examples.shape[2:]) >= 5 else []
            attack.attacks_to_run = ["apgd-ce", *targeted, "fab-t", *square]
            attack.apgd_targeted.n_target_classes = attack.fab.n_target_classes = min(9, classes - 1)
            attack.square.n_queries = self.queries
            together = self.at_once(500, x.device)
            attacked, _ = attack.run_standard_evaluation(unit, labels, batch_size=together)
        moved = self._project(examples, (low + (high - low) * attacked).to(x))
        stays = (attacked == unit).flatten(1).all(1)
        return torch.where(stays.view(-1, *(1,) * (examples.ndim - 1)), examples, moved)[None]

    def describe(self, unit: str) -> str:
        """Describe the attack: norm, epsilon with its unit, queries if unusual, and bounds."""
        short = "" if self.queries == 5000 else f", {self.queries} queries"
        return f"{norm_name(self.norm)} AutoAttack, epsilon {self.epsilon:g} ({unit}){short}, {in_words(self.bounds)}"

    def _project(self, x: Tensor, moved: Tensor) -> Tensor:
        """Project moved examples back into the ball and the box, which they may leave by rounding."""
        delta = (moved - x).flatten(1)
        if self.norm == math.inf:
            delta = delta.clamp(-self.epsilon, self.epsilon)
        else:
            length = torch.linalg.vector_norm(delta, dim=1, keepdim=True)
            delta = delta * (self.epsilon / length.clamp_min(self.epsilon))
        return (x + delta.view_as(x)).clamp(*self._box())


@contextmanager
def _undisturbed() -> Generator[None]:
    """Undo the package's side effects: it seeds torch's generators and disables tracing (coverage, debuggers)."""
    devices = [torch.cuda.current_device()] if torch.cuda.is_available() else []
    trace = sys.gettrace()
    try:
        with torch.random.fork_rng(devices=devices):
            yield
    finally:
        sys.settrace(trace)
