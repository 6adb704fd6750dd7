"""What an objective may ask of the models: their losses, gradients and structure, one model per lane."""

from dataclasses import KW_ONLY, dataclass
from functools import cached_property

import torch
from torch import Tensor

from wafl.tasks.inputs import Inputs, Shifted, dense, shared
from wafl.tasks.losses import OutputLoss, Product
from wafl.tasks.task import Masks, Moved, Task


@dataclass(frozen=True)
class Problem:
    """What an objective may ask of the models, one per lane; in training, ``masks`` are those of the step."""

    task: Task
    params: Tensor
    masks: Masks | None = None

    @cached_property
    def _reader(self) -> Task:
        return self.task.reading(self.params)

    def outputs(self, x: Moved) -> Tensor:
        """The outputs of each model ``[L, B, C]``."""
        return self._reader.outputs(self.params, x, self.masks)

    def forward(self, x: Tensor) -> Inputs:
        """The examples in a form with which :meth:`loss` and :meth:`descent` share a forward pass, if they can."""
        return self._reader.forward(self.params, x, self.masks)

    def loss(self, x: Moved, y: Tensor) -> Tensor:
        """The loss of each example ``[L, B]``."""
        return self.output_loss.value(self.outputs(x), y)

    def gradient(self, x: Tensor, y: Tensor) -> Tensor:
        """The gradient of each loss in its example ``[L, B, ...]``."""
        if self.linear is None:
            return self.loss_and_gradient(x, y)[1]
        return torch.bmm(self.output_loss.gradient(self.outputs(x), y), self.linear[0]).view_as(x)

    def loss_and_gradient(self, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        return self._reader.input_gradient(self.params, x, y, self.masks)

    def descent(self, x: Moved, y: Tensor, weight: Tensor) -> Tensor:
        """The gradient in the parameters ``[L, P]`` of the weighted sum of the losses."""
        return self.loss_and_descent(x, y, weight)[1]

    def loss_and_descent(self, x: Moved, y: Tensor, weight: Tensor) -> tuple[Tensor, Tensor]:
        return self._reader.losses_and_gradient(self.params, x, y, weight, self.masks)

    def push(self, x: Moved, slopes: Tensor) -> Tensor:
        """The gradient in the parameters ``[L, P]`` of ``sum_b <slopes_b, outputs_b>``, for slopes ``[L, B, C]``."""
        task = self._reader.with_loss(Product())
        return task.losses_and_gradient(self.params, x, slopes, torch.ones_like(slopes[..., 0]), self.masks)[1]

    def behind(self, layer: str, x: Tensor | Inputs) -> "LayerProblem":
        """The problem of an objective that moves the output of a layer at these examples."""
        at_rest = self.task.features(self.params, x, layer, self.masks)
        return LayerProblem(self.task, self.params, self.masks, x=dense(x), layer=layer, at_rest=at_rest)

    @property
    def output_loss(self) -> OutputLoss:
        return self.task.loss

    @cached_property
    def linear(self) -> tuple[Tensor, Tensor] | None:
        return self.task.linear(self.params)

    @cached_property
    def curvature(self) -> Tensor | None:
        return self.task.curvature(self.params)


@dataclass(frozen=True)
class LayerProblem(Problem):
    """A problem whose inputs are the outputs of a layer, ``at_rest`` if nothing moves them."""

    _: KW_ONLY
    x: Tensor
    layer: str
    at_rest: Tensor

    def shifted(self, features: Tensor | Inputs) -> Shifted:
        return Shifted(self.x, self.layer, self.at_rest, dense(features) - self.at_rest)

    def forward(self, x: Tensor) -> Inputs:
        return shared(x)

    def outputs(self, x: Moved) -> Tensor:
        return super().outputs(x if isinstance(x, Shifted) else self.shifted(x))

    def loss_and_gradient(self, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        return self._reader.input_gradient(self.params, self.shifted(x), y, self.masks)

    @cached_property
    def linear(self) -> None:
        return None

    @cached_property
    def curvature(self) -> None:
        return None
