"""Provide objectives with the models' losses, gradients and structure, one model per lane."""

from dataclasses import KW_ONLY, dataclass
from functools import cached_property

import torch
from torch import Tensor

from wafl.tasks.inputs import Inputs, Shifted, dense, shared
from wafl.tasks.losses import OutputLoss, Product
from wafl.tasks.task import Masks, Moved, Task


@dataclass(frozen=True)
class Problem:
    """The models of an objective, one per lane; in training, ``masks`` are the masks of the step."""

    task: Task
    params: Tensor
    masks: Masks | None = None

    @cached_property
    def _reader(self) -> Task:
        return self.task.reading(self.params)

    def outputs(self, x: Moved) -> Tensor:
        """Return the outputs of each model ``[L, B, C]``."""
        return self._reader.outputs(self.params, x, self.masks)

    def forward(self, x: Tensor) -> Inputs:
        """Return the examples with a forward pass that :meth:`loss` and :meth:`descent` can share."""
        return self._reader.forward(self.params, x, self.masks)

    def loss(self, x: Moved, y: Tensor) -> Tensor:
        """Return the loss of each example ``[L, B]``."""
        return self.output_loss.value(self.outputs(x), y)

    def gradient(self, x: Tensor, y: Tensor) -> Tensor:
        """Return the gradient of each loss in its example ``[L, B, ...]``."""
        if self.linear is None:
            return self.loss_and_gradient(x, y)[1]
        return torch.bmm(self.output_loss.gradient(self.outputs(x), y), self.linear[0]).view_as(x)

    def loss_and_gradient(self, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        """Return the loss of each example, and its gradient in the example."""
        return self._reader.input_gradient(self.params, x, y, self.masks)

    def descent(self, x: Moved, y: Tensor, weight: Tensor) -> Tensor:
        """Return the gradient in the parameters ``[L, P]`` of the weighted sum of the losses."""
        return self.loss_and_descent(x, y, weight)[1]

    def loss_and_descent(self, x: Moved, y: Tensor, weight: Tensor) -> tuple[Tensor, Tensor]:
        """Return the losses, and the gradient in the parameters of their weighted sum."""
        return self._reader.losses_and_gradient(self.params, x, y, weight, self.masks)

    def push(self, x: Moved, slopes: Tensor) -> Tensor:
        """Return the gradient in the parameters ``[L, P]`` of ``sum_b <slopes_b, outputs_b>``.

        Slopes are ``[L, B, C]``.
        """
        task = self._reader.with_loss(Product())
        return task.losses_and_gradient(self.params, x, slopes, torch.ones_like(slopes[..., 0]), self.masks)[1]

    def behind(self, layer: str, x: Tensor | Inputs) -> "LayerProblem":
        """Return the problem of an objective that moves the output of a layer at these examples."""
        at_rest = self.task.features(self.params, x, layer, self.masks)
        return LayerProblem(self.task, self.params, self.masks, x=dense(x), layer=layer, at_rest=at_rest)

    @property
    def output_loss(self) -> OutputLoss:
        """The loss of the outputs."""
        return self.task.loss

    @cached_property
    def linear(self) -> tuple[Tensor, Tensor] | None:
        """``(W [L, C, D], b [L, C])`` if outputs are ``W x + b`` of the flattened input, otherwise None."""
        return self.task.linear(self.params)

    @cached_property
    def curvature(self) -> Tensor | None:
        """L_zz ``[L]``, or None if it is unknown."""
        return self.task.curvature(self.params)


@dataclass(frozen=True)
class LayerProblem(Problem):
    """A problem whose inputs are the outputs of a layer, ``at_rest`` without moves."""

    _: KW_ONLY
    x: Tensor
    layer: str
    at_rest: Tensor

    def shifted(self, features: Tensor | Inputs) -> Shifted:
        """Return the examples whose layer has these features as output."""
        return Shifted(self.x, self.layer, self.at_rest, dense(features) - self.at_rest)

    def forward(self, x: Tensor) -> Inputs:
        """Return the inputs of examples."""
        return shared(x)

    def outputs(self, x: Moved) -> Tensor:
        """Return the outputs of each model ``[L, B, C]`` for these features."""
        return super().outputs(x if isinstance(x, Shifted) else self.shifted(x))

    def loss_and_gradient(self, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        """Return the losses, and their gradients in the features."""
        return self._reader.input_gradient(self.params, self.shifted(x), y, self.masks)

    @cached_property
    def linear(self) -> None:
        """None, since the layers after the features are not used as a linear model."""
        return None

    @cached_property
    def curvature(self) -> None:
        """None, since it is unknown."""
        return None
