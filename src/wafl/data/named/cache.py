"""Find, download and check data sets: one file ``<name>.npz`` each, or the files of torchvision."""

import errno
import os
import tempfile
from collections.abc import Generator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from wafl.base.errors import nearest
from wafl.data.named.natural import NATURAL
from wafl.data.named.readers import FILE_SETS, KEYS, Arrays, FileSet, reading
from wafl.data.named.sources import SOURCES, DownloadError, Source, check_download_packages, download
from wafl.data.unpack import read_npz

GROUP_KEYS = ("u_train", "u_test")


@dataclass(frozen=True)
class Location:
    """The location of a data set: its ``.npz``, or the files of a set."""

    name: str
    paths: tuple[Path, ...]
    file_set: FileSet | None = None

    @property
    def where(self) -> Path:
        """The file, or the folder of the files."""
        return self.paths[0] if len(self.paths) == 1 else self.paths[0].parent

    @property
    def num_bytes(self) -> int:
        """The size of the files in bytes."""
        return sum(path.stat().st_size for path in self.paths)

    def read(self) -> Arrays:
        """Return the arrays; raise ValueError if the files are not this data set."""
        keys = (*KEYS, *GROUP_KEYS)
        arrays = self.file_set.read(self.paths) if self.file_set else _read_npz(self.paths[0], keys)
        try:
            return _checked(SOURCES[self.name], arrays)
        except ValueError as error:
            raise ValueError(f"{self.where} is not {self.name}: {error}") from error

    def num_examples(self) -> tuple[int, int] | None:
        """Return the numbers of training and test examples without reading the images.

        For a set of files, these are the published numbers.
        """
        if self.file_set is not None:
            return SOURCES[self.name].num_examples
        labels = _read_npz(self.paths[0], ("y_train", "y_test"))
        return (np.size(labels["y_train"]), np.size(labels["y_test"])) if len(labels) == 2 else None


def load_raw(name: str, data_dir: str | Path | None = None) -> Arrays:
    """Load a data set by name from ``data_dir``, ``WAFL_DATA`` or the user's cache; download it if it is missing.

    ``x_train`` and ``x_test`` are images as bytes, ``[N, H, W]`` or ``[N, H, W, C]``, ``y_train`` and ``y_test`` are
    their labels, and ``u_train`` and ``u_test`` the groups of examples, if known.
    """
    source, folder = source_of(name), data_folder(data_dir)
    location = locate(name, folder)
    return _download(source, folder) if location is None else location.read()


def source_of(name: str) -> Source:
    """Return the facts about a data set; raise ValueError with a similar name if it does not exist."""
    if name in SOURCES:
        return SOURCES[name]
    if name == "digits":
        raise ValueError("digits comes with scikit-learn and has no file: use wafl.load_dataset('digits')")
    known = ["digits", *SOURCES, *NATURAL]
    near = nearest(name, known)
    hint = f"did you mean {near!r}? If not, " if near else ""
    raise ValueError(f"unknown data set {name!r}: {hint}use one of {', '.join(known)}")


def data_folder(data_dir: str | Path | None = None) -> Path:
    """Return the folder of data sets; it need not exist yet."""
    chosen = data_dir or os.environ.get("WAFL_DATA")
    if not chosen:
        from platformdirs import user_cache_dir

        chosen = user_cache_dir("wafl")
    return Path(chosen).expanduser().absolute()


def locate(name: str, data_dir: str | Path | None = None) -> Location | None:
    """Return the location of a data set in the folder, or None if it must be downloaded."""
    source_of(name)
    folder = data_folder(data_dir)
    _check_readable(folder)
    if (path := folder / f"{name}.npz").is_file():
        return Location(name, (path,))
    for file_set in FILE_SETS.get(name, ()):
        if (paths := file_set.find(folder)) is not None:
            return Location(name, paths, file_set)
    return None


def _download(source: Source, folder: Path) -> Arrays:
    """Download, parse and write a data set to the folder, through a temporary folder that is removed."""
    if not source.files:
        message = f"{source.name} is not in {folder}, and there is no file to download for it."
        raise FileNotFoundError(f"{message}\n{_remedy(source)}")
    file_set = FILE_SETS[source.name][-1]
    check_download_packages()
    file_set.check_packages()
    with _temporary_folder(source, folder) as temporary:
        try:
            paths = [download(file, temporary) for file in source.files]
        except DownloadError as error:
            message = f"{source.name} is not in {folder}, and could not be downloaded:\n{error}"
            raise FileNotFoundError(f"{message}\n{_remedy(source)}") from error
        arrays = _checked(source, file_set.read(paths))
        path = temporary / f"{source.name}.npz"
        np.savez_compressed(path, **arrays)  # pyright: ignore[reportArgumentType]
        path.replace(folder / path.name)
    return arrays


@contextmanager
def _temporary_folder(source: Source, folder: Path) -> Generator[Path, None, None]:
    """Create a temporary folder next to the final file; a read-only folder fails before a download."""
    new = not os.path.exists(folder)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        if not os.access(folder, os.W_OK | os.X_OK):
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(folder))
    except OSError as error:
        message = f"{source.name} is not in {folder}, and nothing can be written there ({error.strerror})"
        raise type(error)(f"{message}: make it writable, or {_ELSEWHERE}") from error
    try:
        with tempfile.TemporaryDirectory(prefix=f".{source.name}-", dir=folder) as temporary:
            yield Path(temporary)
    except BaseException:
        if new:
            with suppress(OSError):
                folder.rmdir()
        raise


def _read_npz(path: Path, keys: tuple[str, ...]) -> Arrays:
    """Return the arrays of a file by name, each read in full, so that a truncated file raises an error here."""
    with reading(path):
        return read_npz(path, keys)


def _checked(source: Source, arrays: Arrays) -> Arrays:
    """Return the arrays of a data set; raise ValueError if one is missing or unsuitable."""
    if missing := [key for key in KEYS if key not in arrays]:
        raise ValueError(f"it lacks {', '.join(missing)}: it must have {', '.join(KEYS)}")
    if ("u_train" in arrays) != ("u_test" in arrays):
        raise ValueError("u_train and u_test belong together: give both or neither")
    for split in ("train", "test"):
        images = arrays[f"x_{split}"]
        _check_images(f"x_{split}", images, source)
        _check_labels(f"y_{split}", arrays[f"y_{split}"], len(images), source)
        if f"u_{split}" in arrays:
            _check_integers(f"u_{split}", arrays[f"u_{split}"], len(images))
    return arrays


def _check_images(key: str, images: Any, source: Source) -> None:
    wanted = " x ".join(map(str, source.image_shape))
    if not isinstance(images, np.ndarray) or images.dtype != np.uint8:
        kind = images.dtype if isinstance(images, np.ndarray) else type(images).__name__
        raise ValueError(f"{key} has type {kind}, but images are uint8, 0 .. 255: save them as bytes")
    if images.ndim == 0 or len(images) == 0:
        raise ValueError(f"{key} is empty: there must be at least one image of {wanted}")
    if images.shape[1:] != source.image_shape:
        got = " x ".join(map(str, images.shape[1:])) or "no size"
        raise ValueError(f"{key} has images of {got}, but {source.name} has {wanted}: save them in that size")


def _check_labels(key: str, labels: Any, count: int, source: Source) -> None:
    _check_integers(key, labels, count)
    low, high = int(labels.min()), int(labels.max())
    if low < 0 or high >= source.num_classes:
        raise ValueError(f"{key} has labels {low} .. {high}, but {source.name} has 0 .. {source.num_classes - 1}")


def _check_integers(key: str, values: Any, count: int) -> None:
    if not isinstance(values, np.ndarray) or values.dtype.kind not in "iu":
        kind = values.dtype if isinstance(values, np.ndarray) else type(values).__name__
        raise ValueError(f"{key} has type {kind}, but it must be integers: save {key}.astype('uint8')")
    if values.shape != (count,):
        raise ValueError(f"{key} has shape {values.shape}, but there are {count} images: give one number per image")


def _check_readable(folder: Path) -> None:
    if os.path.exists(folder) and not os.path.isdir(folder):
        raise NotADirectoryError(f"{folder} is a file, not a folder for data sets: {_ELSEWHERE}")
    if os.path.isdir(folder) and not os.access(folder, os.R_OK | os.X_OK):
        raise PermissionError(f"{folder} cannot be read: make it readable, or {_ELSEWHERE}")


_ELSEWHERE = "name another folder with data_dir (--data-dir) or the environment variable WAFL_DATA"


def _remedy(source: Source) -> str:
    """Return the remedy for users who have the files or can get them elsewhere."""
    size, last = " x ".join(map(str, source.image_shape)), source.num_classes - 1
    groups = f"; {', '.join(GROUP_KEYS)}: the {source.group}, if known" if source.group else ""
    kinds = f"uint8 images of {size}; integer labels 0 .. {last}{groups}"
    options = [f"{source.name}.npz with {', '.join(KEYS)} ({kinds})"]
    options += [str(file_set) for file_set in FILE_SETS.get(source.name, ())]
    lines = "".join(f"  {option}\n" for option in options)
    which = "one of these" if len(options) > 1 else "this file"
    return f"Put {which} there (see {source.homepage}):\n{lines}or {_ELSEWHERE}."
