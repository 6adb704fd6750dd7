"""Define models for a federation's data: the paper's, and 1-Lipschitz networks; ``layers`` has their layers."""

import math
from typing import Any, Protocol

import torch
from torch import nn

from wafl.base.checks import check_memory
from wafl.base.options import Count
from wafl.models.layers import LipschitzConv2d, LipschitzLinear, MaxMin, NormalizedLinear

FEWER = "use a smaller model, or check the labels, which say how many classes there are"


TITLES = {
    "mlr": "linear model (mlr)",
    "cnn": "convolutional network (cnn)",
    "lipschitz": "1-Lipschitz network (lipschitz)",
}
"""The names of the built-in models in captions."""


class Described(Protocol):
    """The sizes that a model needs: a :class:`wafl.Federation`, or a server's facts about its clients."""

    @property
    def input_shape(self) -> tuple[int, ...]:
        """The shape of one example."""
        ...

    @property
    def num_outputs(self) -> int:
        """The number of outputs: classes, or regression targets."""
        ...


class MLR(nn.Sequential):
    """Multinomial logistic regression (or linear regression, for one or more targets); it starts at zero."""

    def __init__(self, input_shape: tuple[int, ...], num_outputs: int) -> None:
        inputs = math.prod(input_shape)
        check_memory(f"mlr of {inputs} inputs and {num_outputs} outputs", 4.0 * inputs * num_outputs, FEWER)
        # A convex problem needs no random start, so torch's draws for one must not advance the global generator.
        with torch.random.fork_rng(devices=[]):
            layer = nn.Linear(math.prod(input_shape), num_outputs)
        nn.init.zeros_(layer.weight)
        nn.init.zeros_(layer.bias)
        super().__init__(nn.Flatten(), layer)
        self.spec = _spec("mlr", input_shape, num_outputs)


class CNN(nn.Sequential):
    """McMahan et al.'s network (2017): two 5x5 convolutions, each with ReLU and 2x2 max pooling, then 512 units."""

    def __init__(self, input_shape: tuple[int, ...], num_outputs: int, channels: tuple[int, int] = (32, 64)) -> None:
        depth, height, width = input_shape
        first, second = channels
        units = second * (height // 4) * (width // 4)
        weights = 25.0 * first * (depth + second) + 512.0 * (units + num_outputs)
        check_memory(f"cnn with channels={list(channels)} and {num_outputs} outputs", 4.0 * weights, FEWER)
        super().__init__(
            nn.Conv2d(depth, first, 5, padding=2),
            nn.ReLU(),
            nn.MaxPool2d(2),
            nn.Conv2d(first, second, 5, padding=2),
            nn.ReLU(),
            nn.MaxPool2d(2),
            nn.Flatten(),
            nn.Linear(units, 512),
            nn.ReLU(),
            nn.Linear(512, num_outputs),
        )
        self.spec = _spec("cnn", input_shape, num_outputs, channels=list(channels))


class Lipschitz(nn.Sequential):
    """Almost-orthogonal layers with MaxMin, and a last layer with normalized rows.

    An image is folded 2 x 2 into four times the channels (``PixelUnshuffle``, which keeps distances) as long as its
    sides are even and at least 8. After each fold come ``depth`` convolutions, with ``width`` channels the first time
    and twice that number later. A vector passes ``depth`` hidden layers of ``width`` units.
    """

    def __init__(self, input_shape: tuple[int, ...], num_outputs: int, width: int = 32, depth: int = 3) -> None:
        inputs = math.prod(input_shape)
        most = 8.0 * width * (inputs + num_outputs) + depth * 4 * 9.0 * (2 * width) ** 2
        check_memory(f"lipschitz with width={width} and {num_outputs} outputs", 4.0 * most, "use a smaller width")
        layers, features = _for_images(input_shape, width, depth) if len(input_shape) == 3 else ([], 0)
        if not layers:
            layers, features = _for_vectors(inputs, width, depth)
        super().__init__(*layers, NormalizedLinear(features, num_outputs))
        self.spec = _spec("lipschitz", input_shape, num_outputs, width=width, depth=depth)


KINDS = {"mlr": MLR, "cnn": CNN, "lipschitz": Lipschitz}
"""The built-in models by name."""


def _spec(name: str, input_shape: tuple[int, ...], num_outputs: int, **options: Any) -> dict[str, Any]:
    return {"name": name, "input_shape": list(input_shape), "num_outputs": num_outputs, **options}


def mlr(clients: Described) -> MLR:
    """Return a linear model, sized for these clients' inputs and classes (or regression targets)."""
    _check_described(clients)
    return MLR(clients.input_shape, clients.num_outputs)


def cnn(clients: Described, *, channels: tuple[int, int] = (32, 64), seed: int = 0) -> CNN:
    """Return a small convolutional network for these clients' images ``(channels, height, width)``.

    Args:
        clients: the federation to size the model for; images must be at least 4x4.
        channels: the numbers of channels of the two convolutions.
        seed: the seed of the initial parameters.
    """
    _check_described(clients)
    shape = clients.input_shape
    if len(shape) != 3 or min(shape[1:]) < 4:
        raise ValueError(f"cnn needs images of shape (channels, height, width), at least 4x4, not {shape}: use mlr")
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return CNN(shape, clients.num_outputs, channels)


def lipschitz(clients: Described, *, width: int = 32, depth: int = 3, seed: int = 0) -> Lipschitz:
    """Return a network whose outputs change by no more than its inputs, so that its certificates are useful.

    Train it with a loss that requests a margin, ``loss=wafl.MarginLoss()``. With cross-entropy alone, a network that
    cannot be steep has small margins.

    Args:
        clients: the federation to size the model for: images ``(channels, height, width)``, or vectors.
        width: the channels of the first convolutions (later ones have twice that number), or the units of hidden
            layers; an even number.
        depth: the number of convolutions at each size of the images, or of hidden layers.
        seed: the seed of the initial parameters.
    """
    _check_described(clients)
    if width < 2 or width % 2:
        raise ValueError(f"width={width} must be an even number of at least 2: MaxMin takes channels in pairs")
    Count().check("depth", depth)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return Lipschitz(clients.input_shape, clients.num_outputs, width, depth)


def _check_described(clients: Any) -> None:
    if not hasattr(clients, "num_outputs"):
        raise TypeError(f"a model is sized for clients, not for {clients!r}: pass the federation, models.mlr(clients)")


def spec(model: nn.Module) -> dict[str, Any] | None:
    """Return plain values from which :func:`build` rebuilds the model, or None for a user's own model."""
    return model.spec if isinstance(model, MLR | CNN | Lipschitz) else None


def title(model: nn.Module) -> str:
    """Return a model's name in captions: the name of a built-in model, or the class of your own."""
    about = spec(model)
    return type(model).__name__ if about is None else TITLES[about["name"]]


def build(about: dict[str, Any]) -> nn.Module:
    """Build the model that a :func:`spec` describes, with parameters to be filled in."""
    options: dict[str, Any] = {name: tuple(each) if isinstance(each, list) else each for name, each in about.items()}
    return KINDS[options.pop("name")](**options)


def _for_images(shape: tuple[int, ...], width: int, depth: int) -> tuple[list[nn.Module], int]:
    channels, height, across = shape
    layers: list[nn.Module] = []
    wide = width
    while not layers or (height % 2 == across % 2 == 0 and min(height, across) >= 8):
        side = 3
        if height % 2 == across % 2 == 0:
            # Folded pixels are neighbors of each other already, so that later filters need none around them.
            side = 1 if layers else 3
            layers.append(nn.PixelUnshuffle(2))
            channels, height, across = 4 * channels, height // 2, across // 2
        for _ in range(depth):
            layers += [LipschitzConv2d(channels, wide, side), MaxMin()]
            channels, side = wide, 3
        wide = 2 * width
    return [*layers, nn.Flatten()], channels * height * across


def _for_vectors(inputs: int, width: int, depth: int) -> tuple[list[nn.Module], int]:
    layers: list[nn.Module] = [nn.Flatten()]
    for _ in range(depth):
        layers += [LipschitzLinear(inputs, width), MaxMin()]
        inputs = width
    return layers, inputs
