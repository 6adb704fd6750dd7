"""Folders of ``.npy`` files, whose examples stay on disk: see :meth:`wafl.Federation.from_folder`.

``about.json`` may have the names of clients, classes and inputs of a folder that holds all clients in one array.
"""

import errno
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from wafl.base.json_types import as_type, parsed

TOGETHER = ("x.npy", "y.npy", "offsets.npy")
TESTS = ("x_test.npy", "y_test.npy")


@dataclass(frozen=True)
class About:
    """What ``about.json`` may say: the names of clients, classes and inputs."""

    names: list[str] | None = None
    classes: list[str] | None = None
    columns: list[str] | None = None


@dataclass(frozen=True)
class Together:
    """All clients in one array."""

    x: NDArray[Any]
    y: NDArray[Any]
    offsets: NDArray[Any]
    about: About


def read_folder(folder: Path) -> Together | dict[str, Any]:
    """What a folder holds: all clients in one array, or those of each by its name; examples are mapped, not read."""
    if not folder.is_dir():
        raise ValueError(f"{folder} is not a folder: it must hold {', '.join(TOGETHER)}, or one folder per client")
    if any((folder / name).exists() for name in TOGETHER):
        x, y, offsets = (_load(folder / name, mapped=name == "x.npy") for name in TOGETHER)
        return Together(x, y, offsets, _about(folder / "about.json"))
    folders = sorted(client for client in folder.iterdir() if client.is_dir())
    if not folders:
        raise ValueError(f"{folder} holds neither {', '.join(TOGETHER)} nor one folder per client with x.npy and y.npy")
    return {client.name: _client(client) for client in folders}


def _client(folder: Path) -> tuple[NDArray[Any], ...]:
    files = ["x.npy", "y.npy", *(TESTS if any((folder / name).exists() for name in TESTS) else ())]
    return tuple(_load(folder / name, mapped=name.startswith("x")) for name in files)


def _load(path: Path, *, mapped: bool) -> NDArray[Any]:
    try:
        return np.load(path, mmap_mode="r" if mapped else None)
    except FileNotFoundError as error:
        raise ValueError(f"{path} is missing") from error
    except OSError as error:
        if error.errno == errno.EMFILE:
            raise ValueError(
                f"{path.parents[1]} has more clients than this system opens files: put them into one array, with "
                "offsets.npy"
            ) from error
        raise
    except ValueError as error:
        raise ValueError(f"{path} is not a .npy file of numbers or text: {error}") from error


def _about(path: Path) -> About:
    if not path.exists():
        return About()
    try:
        return as_type(About, parsed(path.read_bytes()), "about.json")
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from error
