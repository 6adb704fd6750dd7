"""Read arrays and tables out of a pickle without running what is in it.

A pickle names functions, and a plain reader calls them. This one builds numpy arrays by itself, turns what pandas names
into records that do nothing, and refuses every other name.
"""

from __future__ import annotations

import io
import pickle
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import numpy as np

from wafl.data.unpack import check_pickle, unpacked


def read_object_array(path: Path) -> Any:
    """What a ``.npy`` file with a single pickled object holds."""
    with path.open("rb") as file:
        try:
            first = np.lib.format.read_magic(file) == (1, 0)
            (np.lib.format.read_array_header_1_0 if first else np.lib.format.read_array_header_2_0)(file)
        except ValueError as error:
            raise ValueError(f"{path} is not an array of numpy: {error}") from error
        return unpickled(file.read(), path).item()


def read_frame(path: Path) -> dict[str, np.ndarray[Any, Any]]:
    """The columns of a data frame that pandas pickled, compressed with xz."""
    try:
        with unpacked(path) as file:
            content = file.read()
    except Exception as error:  # whatever the decompressor meets
        raise ValueError(f"{path} cannot be unpacked: {error}") from error
    frame = unpickled(content, path)
    try:
        blocks, axes = frame.state["_mgr"].arguments
        names = axes[0].arguments[1]["data"]
        rows = {
            place: values
            for block in blocks
            for place, values in zip(np.arange(len(names))[block.arguments[1]], block.arguments[0], strict=True)
        }
        return {str(name): rows[place] for place, name in enumerate(names)}
    except (AttributeError, IndexError, KeyError, TypeError, ValueError) as error:
        raise ValueError(f"{path} holds no data frame of the kind that this version reads: {error}") from error


def unpickled(content: bytes, path: Path) -> Any:
    """What the pickle holds; a ValueError if it names anything but arrays, slices and data frames."""
    try:
        check_pickle(content)
    except ValueError as error:
        raise ValueError(f"{path} is damaged: {error}") from error
    try:
        return _Restricted(io.BytesIO(content), path).load()
    except ValueError:
        raise
    except Exception as error:  # a damaged pickle may raise anything
        raise ValueError(f"{path} is damaged: {error}") from error


class _Restricted(pickle.Unpickler):
    def __init__(self, file: io.BytesIO, path: Path) -> None:
        super().__init__(file)
        self._path = path

    def find_class(self, module: str, name: str, /) -> Any:
        if (module, name) in _NUMPY:
            return _NUMPY[module, name]
        if (module, name) in _PANDAS:
            return _Record
        raise ValueError(
            f"{self._path} names {module}.{name}, which a table of numbers does not need: nothing was run. Install the "
            "package that the file is from again"
        )


@dataclass
class _Record:
    """Stands for an object of pandas: what it was made from, and nothing that acts."""

    arguments: tuple[Any, ...]
    state: Any = None

    def __init__(self, *arguments: Any) -> None:
        self.arguments = arguments

    def __setstate__(self, state: Any) -> None:
        self.state = state


def _reconstruct(kind: Any, shape: Any, code: Any) -> Any:
    """An empty array, which takes its shape and values from the state that follows."""
    return np.empty(0, np.int8)


def _frombuffer(buffer: Any, dtype: Any, shape: tuple[int, ...], order: str) -> Any:
    return np.frombuffer(buffer, dtype).reshape(shape, order=cast("Any", order))


def _dtype(code: str, *_: Any) -> Any:
    if not re.fullmatch(r"[biufSUO]\d{0,4}", code):
        raise ValueError(f"arrays of type {code!r} are not read")
    return np.dtype("O" if code[0] == "O" else code, False, True)  # a copy: the state that follows changes it


def _encoded(text: str, encoding: str) -> bytes:
    """How Python 3 wrote bytes for Python 2."""
    if encoding != "latin1":
        raise ValueError(f"text in {encoding!r} is not read")
    return text.encode("latin1")


_NUMPY = {
    ("numpy", "ndarray"): "ndarray",  # only named, never called
    ("numpy", "dtype"): _dtype,
    ("_codecs", "encode"): _encoded,
    ("builtins", "slice"): slice,
    **{(f"numpy.{core}.multiarray", "_reconstruct"): _reconstruct for core in ("core", "_core")},
    **{(f"numpy.{core}.numeric", "_frombuffer"): _frombuffer for core in ("core", "_core")},
}
_PANDAS = {
    ("pandas", "DataFrame"),
    ("pandas", "Index"),
    ("pandas", "RangeIndex"),
    ("pandas._libs.internals", "_unpickle_block"),
    ("pandas.core.frame", "DataFrame"),
    ("pandas.core.indexes.base", "Index"),
    ("pandas.core.indexes.base", "_new_Index"),
    ("pandas.core.indexes.range", "RangeIndex"),
    ("pandas.core.internals.managers", "BlockManager"),
}
