"""You can write your own method. This one takes one gradient step, and is swept like any other."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import matplotlib.pyplot as plt
import torch

import wafl
from wafl.objectives import Move, Objective, ObjectiveState
from wafl.objectives.base import lane_scalar
from wafl.tasks.inputs import dense


@dataclass(frozen=True)
class OneStep(Objective):
    """Moves each example by ``size`` along the gradient of its loss."""

    size: float = 0.1

    def scalars(self) -> dict[str, float]:
        return {"size": self.size}

    def __call__(self, problem: Any, x: Any, y: Any, state: ObjectiveState | None = None) -> Move:
        x, state = dense(x), state or ObjectiveState()
        size = lane_scalar(state, "size", self.size, x).view(-1, *[1] * (x.ndim - 1))
        moved = x + size * problem.gradient(x, y)
        cost = (moved - x).flatten(2).square().sum(-1)
        done = torch.ones_like(cost, dtype=torch.bool)
        return replace(Move(moved, y, problem.loss(moved, y), cost, done), state=state)


clients = wafl.load_dataset("digits").partition(num_clients=10, labels_per_client=4, seed=0)
mine = wafl.Method("OneStep", OneStep(), wafl.weights.by_examples())
sizes = [0.03, 0.1, 0.3, 1.0, 3.0]
runs = wafl.sweep(
    wafl.models.mlr(clients), clients, mine, {"size": sizes}, rounds=40, local_epochs=1, learning_rate=0.3
)
figure, axes = plt.subplots(figsize=(5.5, 3.6), layout="constrained")
for name, attack in {"clean": None, "l2 shift of 0.3": wafl.WassersteinShift(0.3)}.items():
    axes.plot(sizes, [100 * wafl.evaluate(run, clients, attack=attack).accuracy for run in runs], "o-", label=name)
axes.set_xlabel("size of the step")
axes.set_ylabel("accuracy (%)")
axes.legend(frameon=False)
figure.savefig("own_method.png", dpi=90)
