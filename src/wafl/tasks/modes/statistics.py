"""Learn the running statistics of BatchNorm layers, which use them for normalization even in training.

Ioffe and Szegedy, "Batch normalization" (ICML 2015), normalize a training batch by its mean and variance. Each example
then depends on the rest of its batch, and no objective can move it alone. Here a layer in training mode computes the
same as in evaluation, and only its running mean and variance follow the batches.
"""

from collections.abc import Collection, Generator, Mapping
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import Any

from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm as BatchNorm  # pyright: ignore[reportPrivateUsage]
from torch.nn.modules.batchnorm import _NormBase as Normalization  # pyright: ignore[reportPrivateUsage]

FROZEN, AVERAGED, PER_CLIENT, FEDBN = "frozen", "averaged", "client", "fedbn"
"""The treatment of statistics in training: fixed, averaged over clients, or kept by each client.

``"client"`` is SiloBN (Andreux et al., 2020). With ``"fedbn"`` each client also keeps the scale and offset of these
layers: FedBN (Li et al., "FedBN: federated learning on non-IID features via local batch normalization", ICLR 2021).
"""

MEAN, VARIANCE = "running_mean", "running_var"


def layers_in_training(module: nn.Module) -> dict[str, BatchNorm]:
    """Return the BatchNorm layers in training mode whose running statistics can be learned, by name."""
    return {
        name: layer
        for name, layer in module.named_modules()
        if isinstance(layer, BatchNorm) and layer.track_running_stats and layer.training and layer.momentum is not None
    }


def layers_with(module: nn.Module, statistics: Collection[str]) -> dict[str, BatchNorm]:
    """Return the BatchNorm layers that have these running statistics, by name."""
    return {
        name: layer
        for name, layer in module.named_modules()
        if isinstance(layer, BatchNorm) and _path(name, MEAN) in statistics
    }


def rest(module: nn.Module) -> None:
    """Put all layers that have running statistics in evaluation mode."""
    for layer in module.modules():
        if isinstance(layer, Normalization) and layer.track_running_stats:
            layer.eval()


def names_of(layers: Mapping[str, BatchNorm]) -> tuple[str, ...]:
    """Return the names of the layers' running statistics among the model's buffers."""
    return tuple(_path(layer, kind) for layer in layers for kind in (MEAN, VARIANCE))


def affine_of(layers: Mapping[str, BatchNorm]) -> set[str]:
    """Return the names of the layers' scales and offsets among the model's parameters, even if missing."""
    return {_path(layer, kind) for layer in layers for kind in ("weight", "bias")}


def check_statistics(choice: str, layers: Mapping[str, BatchNorm]) -> None:
    """Raise ValueError for frozen statistics if a layer would learn, and for other choices if none would."""
    if choice == FROZEN and layers:
        name, layer = next(iter(layers.items()))
        raise ValueError(
            f"{type(layer).__name__}{f' at {name!r}' if name else ''} keeps batch statistics, which mix examples and "
            "differ between clients: call its eval() to train with the statistics that it has, let it learn running "
            f"ones with statistics={AVERAGED!r}, {PER_CLIENT!r} or {FEDBN!r}, or use torch.nn.GroupNorm or "
            "torch.nn.LayerNorm instead"
        )
    if choice != FROZEN and not layers:
        raise ValueError(
            f"statistics={choice!r} is for BatchNorm layers in training mode, and the model has none: leave it out, or "
            "call train() on the layers"
        )


@contextmanager
def followed(
    layers: Mapping[str, BatchNorm], weight: Tensor, running: dict[str, Tensor]
) -> Generator[None, None, None]:
    """Move the ``running`` statistics toward the inputs' statistics, weighted ``[B]``, at each call of a layer."""

    def follow(name: str, layer: BatchNorm, args: tuple[Any, ...]) -> None:
        (x,) = args
        if len(x) != len(weight):
            raise ValueError(
                f"{type(layer).__name__} at {name!r} gets {len(x)} rows for {len(weight)} examples: its first "
                "dimension must be the examples for its statistics to be learned; call its eval() to freeze them"
            )
        assert layer.momentum is not None
        for kind, latest, share in zip((MEAN, VARIANCE), *_moments(x, weight, layer.momentum), strict=True):
            old = running[_path(name, kind)]
            running[_path(name, kind)] = old + share * (latest - old)

    with ExitStack() as stack:
        for name, layer in layers.items():
            stack.callback(layer.register_forward_pre_hook(partial(follow, name)).remove)
        yield


def _moments(x: Tensor, weight: Tensor, momentum: float) -> tuple[tuple[Tensor, Tensor], tuple[Any, Any]]:
    """Return the mean and unbiased variance ``[C]`` of ``x [B, C, ...]``, and the step of each.

    A single value has no variance, so its step is zero.
    """
    values = x.reshape(*x.shape[:2], -1)
    mean = weight @ values.mean(2)
    spread = weight @ (values - mean[:, None]).square().mean(2)
    count = (weight > 0).sum() * values.shape[2]
    variance = spread * count / (count - 1).clamp_min(1)
    return (mean, variance), (momentum, momentum * (count > 1).to(weight))


def _path(layer: str, kind: str) -> str:
    return f"{layer}.{kind}" if layer else kind
