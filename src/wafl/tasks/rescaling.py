"""Support layers that rescale their weights: once for many gradients, whose slopes are pulled back at the end."""

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor, nn


class Rescaled(nn.Module, ABC):
    """A layer that computes its ``plain`` kind with ``rescale(weight)``, and adds no other parameter."""

    plain: ClassVar[type[nn.Module]]
    weight: Tensor

    @abstractmethod
    def rescale(self, weight: Tensor) -> Tensor:
        """Return the effective weights, for weights ``[..., *shape]`` with any leading dimensions."""


@dataclass(frozen=True)
class Ready:
    """The plain network's parameters, with links from rescaled parameters to their sources."""

    values: Sequence[Tensor]
    links: Mapping[int, tuple[Tensor, Tensor]]

    def pull_back(self, slopes: Sequence[Tensor]) -> None:
        """Convert slopes ``[L, *shape]`` at the plain network's parameters to slopes at the model's, in place."""
        for index, (leaf, rescaled) in self.links.items():
            slope = slopes[index]
            if len(leaf) == len(slope):
                back = torch.autograd.grad(rescaled, leaf, slope.to(rescaled.dtype), retain_graph=True)[0]
            else:
                each = slope[:, None].to(rescaled.dtype)
                back = torch.autograd.grad(rescaled, leaf, each, retain_graph=True, is_grads_batched=True)[0][:, 0]
            slope.copy_(back)


def rescaled_layers(module: nn.Module, names: Sequence[str]) -> dict[int, Rescaled] | None:
    """Return the layers that rescale, by the index of their weights among the model's parameters.

    Return None if there is no such layer, or if one shares its weights with another layer.
    """
    uses = [id(value) for _, value in module.named_parameters(remove_duplicate=False)]
    layers = {name: layer for name, layer in module.named_modules() if isinstance(layer, Rescaled)}
    weights = {f"{name}.weight" if name else "weight": layer for name, layer in layers.items()}
    if not layers or any(uses.count(id(layer.weight)) > 1 for layer in layers.values()):
        return None
    return {names.index(name): layer for name, layer in weights.items() if name in names}


def rescale(layers: Mapping[int, Rescaled], values: Sequence[Tensor]) -> Ready:
    """Return the parameters ``[L, *shape]`` of all lanes for the plain network."""
    whole, links = list(values), dict[int, tuple[Tensor, Tensor]]()
    for index, layer in layers.items():
        weight = values[index]
        lanes = weight[:1] if weight.stride(0) == 0 else weight  # lanes that share their weights rescale them once
        with torch.enable_grad():
            leaf = lanes.detach().requires_grad_()
            rescaled = layer.rescale(leaf)
        links[index] = leaf, rescaled
        whole[index] = rescaled.detach().expand_as(weight)
    return Ready(whole, links)


def make_plain(module: nn.Module) -> nn.Module:
    """Make the layers of a module use their weights unchanged, and return the module."""
    for layer in module.modules():
        if isinstance(layer, Rescaled):
            changed: Any = layer
            changed.__class__ = layer.plain  # a plain layer has the same parameters and settings
    return module
