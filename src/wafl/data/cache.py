"""One folder, one file a data set: ``<folder>/<name>.npz`` with ``x_train, y_train, x_test, y_test``.

What is missing is read from torchvision's layouts in the same folder, or downloaded, checked and written there once.
"""

from __future__ import annotations

import difflib
import os
import tempfile
import zipfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from wafl.data.readers import LAYOUTS, READERS, Layout
from wafl.data.sources import SOURCES, DownloadError, Source, download

KEYS = ("x_train", "y_train", "x_test", "y_test")
GROUP_KEYS = ("u_train", "u_test")


@dataclass(frozen=True, eq=False)
class RawDataset:
    """Images as bytes, ``(N, H, W)`` or ``(N, H, W, C)``, and labels; checked against what the data set should be.

    ``group_train`` and ``group_test`` say who an example is from, where that is known (FEMNIST: the writer).
    """

    name: str
    x_train: NDArray[np.uint8]
    y_train: NDArray[Any]
    x_test: NDArray[np.uint8]
    y_test: NDArray[Any]
    group_train: NDArray[Any] | None = None
    group_test: NDArray[Any] | None = None

    def __post_init__(self) -> None:
        source = source_of(self.name)
        _check_images("x_train", self.x_train, source)
        _check_images("x_test", self.x_test, source)
        _check_labels("y_train", self.y_train, len(self.x_train), source)
        _check_labels("y_test", self.y_test, len(self.x_test), source)
        if (self.group_train is None) != (self.group_test is None):
            raise ValueError("u_train and u_test belong together: give both or neither")
        if self.group_train is not None and self.group_test is not None:
            _check_integers("u_train", self.group_train, len(self.x_train))
            _check_integers("u_test", self.group_test, len(self.x_test))

    @classmethod
    def from_arrays(cls, name: str, arrays: Mapping[str, NDArray[Any]]) -> RawDataset:
        """From arrays under the names they have in the file; others are ignored."""
        if missing := [key for key in KEYS if key not in arrays]:
            raise ValueError(f"it lacks {', '.join(missing)}: it must have {', '.join(KEYS)}")
        return cls(name, *(arrays[key] for key in KEYS), *(arrays.get(key) for key in GROUP_KEYS))

    def to_arrays(self) -> dict[str, NDArray[Any]]:
        values = (self.x_train, self.y_train, self.x_test, self.y_test, self.group_train, self.group_test)
        return {key: value for key, value in zip((*KEYS, *GROUP_KEYS), values, strict=True) if value is not None}


@dataclass(frozen=True)
class Location:
    """Where a data set was found: its ``.npz``, or the files of a layout."""

    name: str
    paths: tuple[Path, ...]
    layout: Layout | None = None

    @property
    def num_bytes(self) -> int:
        return sum(path.stat().st_size for path in self.paths)

    def read(self) -> RawDataset:
        if self.layout is None:
            return _read_npz(self.name, self.paths[0])
        arrays = self.layout.read(self.paths)
        try:
            return RawDataset.from_arrays(self.name, arrays)
        except ValueError as error:
            raise ValueError(f"{self.paths[0].parent} does not hold {self.name}: {error}") from error

    def num_examples(self) -> tuple[int, int] | None:
        """Training and test examples by the header of the ``.npz``, without reading the images."""
        if self.layout is not None:
            return SOURCES[self.name].num_examples
        with _reading_npz(self.name, self.paths[0]), np.load(self.paths[0]) as content:
            return len(content["y_train"]), len(content["y_test"])


def load_raw(name: str, data_dir: str | Path | None = None) -> RawDataset:
    """A data set by name, from ``data_dir``, else the folder in ``WAFL_DATA``, else a folder of this user's.

    If it is not there, it is downloaded, and kept there for the next time.
    """
    source, folder = source_of(name), data_folder(data_dir)
    found = locate(name, folder)
    return _download(source, folder) if found is None else found.read()


def source_of(name: str) -> Source:
    if name in SOURCES:
        return SOURCES[name]
    if name == "digits":
        raise ValueError("digits comes with scikit-learn and has no file: use wafl.load_dataset('digits')")
    near = difflib.get_close_matches(name.lower().replace("_", "-"), [*SOURCES, "digits"], n=1, cutoff=0.5)
    hint = f"did you mean {near[0]!r}? " if near else ""
    raise ValueError(f"unknown data set {name!r}: {hint}There is digits, {', '.join(SOURCES)}")


def data_folder(data_dir: str | Path | None = None) -> Path:
    """The folder data sets are kept in; it need not exist yet."""
    import pooch

    chosen = data_dir or os.environ.get("WAFL_DATA") or pooch.os_cache("wafl")
    return Path(chosen).expanduser().absolute()


def locate(name: str, data_dir: str | Path | None = None) -> Location | None:
    """Where a data set is in the folder, or None if it would have to be downloaded."""
    source_of(name)
    folder = data_folder(data_dir)
    _check_readable(folder)
    if (path := folder / f"{name}.npz").is_file():
        return Location(name, (path,))
    for layout in LAYOUTS.get(name, ()):
        if (paths := layout.find(folder)) is not None:
            return Location(name, paths, layout)
    return None


def _download(source: Source, folder: Path) -> RawDataset:
    """Fetch, parse and write once; all of it in a folder of its own that goes away whatever happens."""
    if not source.files:
        raise FileNotFoundError(f"{source.name} is not in {folder}, and nobody offers it for download.\n{_remedy(source)}")
    _check_writable(source, folder)
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=f".{source.name}-", dir=folder) as temporary:
        try:
            paths = [download(file, Path(temporary)) for file in source.files]
        except DownloadError as error:
            message = f"{source.name} is not in {folder}, and could not be downloaded:\n{error}\n{_remedy(source)}"
            raise FileNotFoundError(message) from error
        raw = RawDataset.from_arrays(source.name, READERS[source.name](paths))
        part = Path(temporary) / f"{source.name}.npz"
        np.savez_compressed(part, **raw.to_arrays())  # pyright: ignore[reportArgumentType]
        part.replace(folder / part.name)
    return raw


def _read_npz(name: str, path: Path) -> RawDataset:
    with _reading_npz(name, path):
        with np.load(path) as content:
            arrays = {key: content[key] for key in (*KEYS, *GROUP_KEYS) if key in content}
        return RawDataset.from_arrays(name, arrays)


class _reading_npz:  # noqa: N801
    """Errors inside a file, turned into one that names the file and the remedy."""
