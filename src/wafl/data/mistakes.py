"""Detect certain mistakes in a client's data, and name the remedy."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor

from wafl.data.mapped import Stored


def check_client(client: int, item: Any) -> Sequence[Any]:
    """Return the two or four arrays of a client; raise an error for anything else."""
    if isinstance(item, tuple | list) and len(cast("Sequence[Any]", item)) in (2, 4):
        values = cast("Sequence[Any]", item)
        if not any(value is None or isinstance(value, str | Mapping) for value in values):
            return values
    raise ValueError(
        f"client {client} is not a pair of arrays (x, y): it is {what_is(item)}; "
        "pass one pair per client, from_arrays([(x0, y0), (x1, y1)]), or (x_train, y_train, x_test, y_test)"
    )


def what_is(item: Any) -> str:
    """Describe a user's value in a few words for an error message."""
    if isinstance(item, Mapping):
        return f"a dict with {', '.join(map(str, cast('Mapping[Any, Any]', item))) or 'no keys'}"
    if isinstance(item, np.ndarray | Tensor):
        return f"an array of shape {tuple(cast(Any, item).shape)}"
    if isinstance(item, tuple | list):
        kinds = ", ".join(type(value).__name__ for value in cast("Sequence[Any]", item)[:5])
        return f"a {type(item).__name__} of {len(cast('Sequence[Any]', item))} ({kinds})"
    return repr(item) if isinstance(item, str | int | float) or item is None else f"a {type(item).__name__}"


def check_order(client: int, shapes: Sequence[tuple[int, ...]]) -> None:
    """Raise ValueError for ``(y, x)``, and for the order of scikit-learn's ``train_test_split``."""
    if len(shapes[0]) == 1 and len(shapes[1]) > 1:
        raise ValueError(
            f"client {client} has x of shape {shapes[0]} and y of shape {shapes[1]}, which look swapped: "
            "x must have at least one feature dimension, so give (x, y) in this order"
        )
    if len(shapes) == 4 and len(shapes[1]) > 1 and shapes[1][1:] == shapes[0][1:] and len(shapes[2]) == 1:
        raise ValueError(
            f"client {client} has parts of shapes {', '.join(map(str, shapes))}, which look like "
            "(x_train, x_test, y_train, y_test): give (x_train, y_train, x_test, y_test)"
        )


def refuse_raw_images(client: int, x: Stored, low: float, high: float) -> None:
    """Raise ValueError for values in 0 .. 255 in the shape of images, or whole numbers with four dimensions."""
    if low < 0 or not 127 < high <= 255 or not (_image_shaped(x) or (x.ndim == 4 and _whole(x))):
        return
    as_bytes = "" if x.dtype == torch.uint8 else "divide them by 255, or give them as uint8 and "
    raise ValueError(
        f"client {client} has images with values from {low:g} to {high:g}, which are raw pixels: {as_bytes}pass "
        "preprocess='unit'; if they are meant like this, state bounds=(0, 255)"
    )


def _image_shaped(x: Stored) -> bool:
    """Return whether the shape has colors, a square of at least 8 pixels, or bytes in rows and columns."""
    if x.ndim == 3:
        return x.dtype == torch.uint8 or x.shape[1] == x.shape[2] >= 8
    return x.ndim == 4 and (x.shape[1] in (1, 3, 4) or x.shape[3] in (1, 3, 4))


def _whole(x: Stored) -> bool:
    return not x.is_floating_point() or all(bool((chunk == chunk.round()).all()) for chunk in x.split(4096))


def refuse_more(call: str, given: Sequence[Any], remedy: str) -> None:
    """Raise TypeError with the argument kinds if too many positional arguments are passed."""
    if len(given) > 1:
        kinds = " and ".join(what_is(item) for item in given[:2]) + ("" if len(given) == 2 else ", ...")
        raise TypeError(f"{call} takes one list with all clients, but was given {kinds}: {remedy}")


def check_clients(arrays: Any) -> None:
    """Raise an error if the value is not one item per client."""
    if isinstance(arrays, Mapping):
        raise ValueError(
            f"the clients are in {what_is(arrays)}: pass from_arrays(list(d.values()), names=list(d)), "
            "or [(x, y)] for a single client"
        )
    if isinstance(arrays, str) or not isinstance(arrays, Iterable):
        raise ValueError(f"the clients are {what_is(arrays)}: pass a list with one pair of arrays (x, y) per client")
    if hasattr(type(arrays), "columns"):
        raise ValueError("the clients are in a frame: use Federation.from_frame(frame, client=..., target=...)")
