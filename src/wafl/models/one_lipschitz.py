"""Networks that are 1-Lipschitz by construction, so that what they promise can be certified."""

import math

from torch import nn

from wafl.base.checks import check_memory
from wafl.models.layers import LipschitzConv2d, LipschitzLinear, MaxMin, NormalizedLinear


class Lipschitz(nn.Sequential):
    """Almost-orthogonal layers with MaxMin, and a last layer with normalized rows.

    An image is folded 2 x 2 into four times the channels (``PixelUnshuffle``, which keeps distances) as long as its
    sides are even and at least 8; each time, ``depth`` convolutions follow, of ``width`` channels the first time and of
    twice as many later. A vector goes through ``depth`` hidden layers of ``width`` units.
    """

    def __init__(self, input_shape: tuple[int, ...], num_outputs: int, width: int = 32, depth: int = 3) -> None:
        inputs = math.prod(input_shape)
        most = 8.0 * width * (inputs + num_outputs) + depth * 4 * 9.0 * (2 * width) ** 2
        check_memory(f"lipschitz with width={width} and {num_outputs} outputs", 4.0 * most, "use a smaller width")
        layers, features = _for_images(input_shape, width, depth) if len(input_shape) == 3 else ([], 0)
        if not layers:
            layers, features = _for_vectors(inputs, width, depth)
        super().__init__(*layers, NormalizedLinear(features, num_outputs))
        shape = list(input_shape)
        self.spec = {
            "name": "lipschitz",
            "input_shape": shape,
            "num_outputs": num_outputs,
            "width": width,
            "depth": depth,
        }


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
