"""Read data sets in the formats of their authors and torchvision.

Every reader takes the paths of a data set's files and returns plain arrays. No file is trusted. A pickle or a MATLAB
file is read only if it is the published one, the unpacked size is bounded, and every error names its file.
"""

import hashlib
import io
import math
import pickle
import struct
import tarfile
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import IO, Any

import numpy as np
from numpy.typing import NDArray

from wafl.base.extras import require
from wafl.data.named.sources import SOURCES
from wafl.data.unpack import check_size, unpacked

Arrays = dict[str, NDArray[Any]]
Reader = Callable[[Sequence[Path]], Arrays]

KEYS = ("x_train", "y_train", "x_test", "y_test")
IDX_FILES = tuple(file.name.removesuffix(".gz") for file in SOURCES["mnist"].files)
CIFAR10_BATCHES = dict(SOURCES["cifar10"].inside)
"""The files of CIFAR-10 with their published MD5, by name: pickles, which could run anything."""


@dataclass(frozen=True)
class FileSet:
    """The possible locations of a data set's files: a folder below the data folder, or that folder by its name."""

    folder: str
    files: tuple[str, ...]
    read: Reader
    endings: tuple[str, ...] = ("",)
    packages: tuple[str, ...] = ()
    """The modules of the extra ``data`` that ``read`` imports."""

    def check_packages(self) -> None:
        """Raise ValueError if a package of the reader is missing, before the files are downloaded."""
        for module in self.packages:
            require(module, extra="data", what=", ".join(self.files))

    def find(self, data_dir: Path) -> tuple[Path, ...] | None:
        """Return the paths of all files, or None if one is missing."""
        for folder in (data_dir / self.folder, *([data_dir] if data_dir.name == self.folder else [])):
            options = ([folder / (name + ending) for ending in self.endings] for name in self.files)
            paths = [next((path for path in paths if path.is_file()), None) for paths in options]
            if None not in paths:
                return tuple(path for path in paths if path is not None)
        return None

    def __str__(self) -> str:
        names = ", ".join(self.files) + (" (or .gz)" if ".gz" in self.endings else "")
        return names if self.folder == "." else f"{self.folder}/ with {names}"


def read_idx_files(paths: Sequence[Path]) -> Arrays:
    """Return the arrays of MNIST or Fashion-MNIST, from four idx files, plain or compressed."""
    return {name: _read_idx(path) for name, path in zip(KEYS, paths, strict=True)}


def _read_idx(path: Path) -> NDArray[np.uint8]:
    with reading(path), unpacked(path) as file:
        begin = file.read(4)
        if begin[:3] != b"\0\0\x08":
            raise ValueError("it does not begin like an idx file of bytes")
        shape = struct.unpack(f">{begin[3]}I", file.read(4 * begin[3]))
        promised = math.prod(shape)
        check_size(promised)
        values = np.frombuffer(file.read(promised), np.uint8)
        if values.size != promised or file.read(1):
            held = f"{values.size} bytes" if values.size < promised else "more bytes"
            raise ValueError(f"it holds {held}, but its header promises {promised}")
        return values.reshape(shape).copy()


def read_cifar10_folder(paths: Sequence[Path]) -> Arrays:
    """Return the arrays of the unpacked CIFAR-10: five training batches and a test batch."""
    batches: list[tuple[NDArray[Any], NDArray[Any]]] = []
    for path in paths:
        with reading(path), unpacked(path) as file:
            batches.append(_read_cifar10_batch(path.name, file.read()))
    return _join_cifar10(batches)


def read_cifar10_archive(paths: Sequence[Path]) -> Arrays:
    """Return the arrays of the published CIFAR-10; the archive is read in one pass, without unpacking it."""
    (path,) = paths
    batches: dict[str, tuple[NDArray[Any], NDArray[Any]]] = {}
    with reading(path):
        for name, file in _members(path):
            if name.name in CIFAR10_BATCHES:
                batches[name.name] = _read_cifar10_batch(name.name, file.read())
        return _join_cifar10([batches[name] for name in CIFAR10_BATCHES])


def _read_cifar10_batch(name: str, content: bytes) -> tuple[NDArray[Any], NDArray[Any]]:
    batch = pickle.loads(_published(content, CIFAR10_BATCHES[name]), encoding="bytes")
    return batch[b"data"].reshape(-1, 3, 32, 32).transpose(0, 2, 3, 1), np.array(batch[b"labels"])


def _join_cifar10(batches: Sequence[tuple[NDArray[Any], NDArray[Any]]]) -> Arrays:
    images, labels = zip(*batches, strict=True)
    return {
        "x_train": np.concatenate(images[:-1]),
        "y_train": np.concatenate(labels[:-1]),
        "x_test": images[-1].copy(),
        "y_test": labels[-1],
    }


def read_svhn(paths: Sequence[Path]) -> Arrays:
    """Return the arrays of SVHN's cropped digits.

    The MATLAB files have the image index last, and the digit 0 as 10. A damaged MATLAB file can crash the interpreter,
    so only the published ones are read.
    """
    from scipy.io import loadmat

    arrays: Arrays = {}
    for path, split, file in zip(paths, ("train", "test"), SOURCES["svhn"].files, strict=True):
        with reading(path):
            content = loadmat(io.BytesIO(_published(path.read_bytes(), file.md5)), variable_names=("X", "y"))
            arrays[f"x_{split}"] = np.ascontiguousarray(content["X"].transpose(3, 0, 1, 2))
            arrays[f"y_{split}"] = content["y"].reshape(-1) % 10
    return arrays


def _published(content: bytes, md5: str) -> bytes:
    """Return the bytes of a file; raise an error if its checksum is not the published one."""
    digest = hashlib.md5(content, usedforsecurity=False).hexdigest()
    if digest != md5:
        raise ValueError(f"its MD5 is {digest}, not the published {md5}, so it was not read")
    return content


def read_usps(paths: Sequence[Path]) -> Arrays:
    """Return the arrays of USPS in libsvm's text format: values in [-1, 1], labels 1 .. 10.

    Values become bytes, rounded down, as in torchvision. The small addend is for values such as -0.6, which mean a
    whole byte (51) but are stored slightly below it.
    """
    from sklearn.datasets import load_svmlight_file  # pyright: ignore[reportUnknownVariableType]

    arrays: Arrays = {}
    for path, split in zip(paths, ("train", "test"), strict=True):
        with reading(path), unpacked(path, 256 * 2**20) as file:  # ten times what it holds
            sparse, labels = load_svmlight_file(file, n_features=256)[:2]
            check_size(8 * sparse.shape[0] * sparse.shape[1])
            values: NDArray[np.float64] = sparse.toarray()
            if len(values) and not (values.min() >= -1.0 and values.max() <= 1.0):
                raise ValueError(f"it has values in [{values.min():g}, {values.max():g}], but they must lie in [-1, 1]")
            arrays[f"x_{split}"] = np.floor((values + 1.0) * 127.5 + 1e-6).astype(np.uint8).reshape(-1, 16, 16)
            arrays[f"y_{split}"] = labels.astype(np.int64) - 1
    return arrays


def read_mnist_m(paths: Sequence[Path]) -> Arrays:
    """Return the arrays of MNIST-M as published: one archive of PNG images and two lists of labels."""
    image = require("PIL.Image", extra="data", what="MNIST-M")
    (path,) = paths
    images: dict[str, NDArray[Any]] = {}
    lists: dict[str, list[list[str]]] = {}
    with reading(path):
        for name, file in _members(path):
            if name.suffix == ".png":
                picture = image.open(io.BytesIO(file.read()), formats=["PNG"])  # other formats may start programs
                if picture.size != (32, 32):
                    raise ValueError(f"{name.name} has {picture.size[0]} x {picture.size[1]} pixels, not 32 x 32")
                images[f"{name.parent.name}/{name.name}"] = np.asarray(picture.convert("RGB"))
                check_size(len(images) * 32 * 32 * 3)
            elif name.suffix == ".txt":
                lists[name.name] = [line.split() for line in file.read().decode("ascii").splitlines()]
        arrays: Arrays = {}
        for split in ("train", "test"):
            rows = [row for row in lists[f"mnist_m_{split}_labels.txt"] if row]
            arrays[f"x_{split}"] = np.stack([images[f"mnist_m_{split}/{name}"] for name, _ in rows])
            arrays[f"y_{split}"] = np.array([int(label) for _, label in rows])
        return arrays


def _members(path: Path) -> Iterator[tuple[PurePosixPath, IO[bytes]]]:
    """Yield the files of an archive in stored order, which is the only fast one."""
    with unpacked(path) as file, tarfile.open(fileobj=file, mode="r|") as archive:
        for member in archive:
            if member.isfile() and (content := archive.extractfile(member)) is not None:  # no links
                yield PurePosixPath(member.name), content


@contextmanager
def reading(path: Path) -> Generator[None, None, None]:
    """Convert any library's error in the block to one that names the file and the remedy."""
    try:
        yield
    except MemoryError as error:
        raise ValueError(f"{path} cannot be used: it needs more memory than there is") from error
    except PermissionError as error:
        raise PermissionError(f"{path} cannot be read: permission denied. Make it readable") from error
    except KeyError as error:
        raise ValueError(f"{path} cannot be used: {error} is missing from it. Remove it and get it again") from error
    except Exception as error:
        raise ValueError(f"{path} cannot be used: {error}. Remove it and get it again") from error


def _idx(folder: str) -> FileSet:
    return FileSet(folder, IDX_FILES, read_idx_files, ("", ".gz"))


FILE_SETS: dict[str, tuple[FileSet, ...]] = {
    "mnist": (_idx("MNIST/raw"), _idx("mnist")),
    "fashion-mnist": (_idx("FashionMNIST/raw"), _idx("fashion-mnist")),
    "usps": (FileSet(".", ("usps.bz2", "usps.t.bz2"), read_usps),),
    "svhn": (FileSet(".", ("train_32x32.mat", "test_32x32.mat"), read_svhn),),
    "mnist-m": (FileSet(".", ("mnist_m.tar.gz",), read_mnist_m, packages=("PIL.Image",)),),
    "cifar10": (
        FileSet("cifar-10-batches-py", tuple(CIFAR10_BATCHES), read_cifar10_folder),
        FileSet(".", ("cifar-10-python.tar.gz",), read_cifar10_archive),
    ),
}
"""The files that are read in place, the last one as downloaded; other data sets have only their ``.npz``."""
