"""Describe the content and order of the flat vector of a model's parameters."""

from collections.abc import Mapping
from typing import Annotated, Self

import torch
from torch import Tensor, nn

from wafl.base.options import frozen
from wafl.tasks.modes.statistics import layers_in_training, names_of


@frozen
class Layout:
    """The shapes of a flat vector's entries, by name and in order: parameters, then statistics."""

    params: Annotated[Mapping[str, torch.Size], "The parameters that are trained."]
    statistics: Annotated[
        Mapping[str, torch.Size],
        "The running statistics of BatchNorm layers that are learned, numbers with no gradient.",
    ]

    @classmethod
    def of(cls, model: nn.Module) -> Self:
        """Return the layout of training the model in its current modes.

        BatchNorm layers in training mode learn statistics.
        """
        statistics = names_of(layers_in_training(model))
        return cls(
            {name: value.shape for name, value in trainable(model).items()},
            {name: model.get_buffer(name).shape for name in statistics},
        )

    @property
    def shapes(self) -> dict[str, torch.Size]:
        """The shapes of parameters and statistics, by name."""
        return {**self.params, **self.statistics}


def trainable(module: nn.Module) -> dict[str, Tensor]:
    """Return the trained parameters of a model, by name."""
    return {name: value for name, value in module.named_parameters() if value.requires_grad}
