"""Data sets on disk: small real files in every layout, and every way they can be wrong."""

from __future__ import annotations

import bz2
import gzip
import hashlib
import io
import itertools
import os
import struct
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image
from scipy.io import savemat

from tests.data.archives import tar_gz
from wafl.data.named import sources
from wafl.data.named.cache import data_folder, load_raw, locate
from wafl.data.named.readers import CIFAR10_BATCHES, IDX_FILES
from wafl.data.named.sources import SOURCES

Arrays = dict[str, np.ndarray]


@pytest.fixture(autouse=True)
def _no_network(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: Any) -> Path:
        raise sources.DownloadError("  http://nowhere: no connection")

    monkeypatch.setattr("wafl.data.named.cache.download", refuse)
    monkeypatch.delenv("WAFL_DATA", raising=False)


def arrays_for(name: str, num_train: int = 12, num_test: int = 5) -> Arrays:
    source, rng = SOURCES[name], np.random.default_rng(0)
    arrays: Arrays = {}
    for part, count in (("train", num_train), ("test", num_test)):
        arrays[f"x_{part}"] = rng.integers(0, 256, (count, *source.image_shape), np.uint8)
        arrays[f"y_{part}"] = (np.arange(count) % source.num_classes).astype(np.uint8)
    return arrays


def same(raw: Arrays, arrays: Arrays) -> None:
    for key, value in arrays.items():
        np.testing.assert_array_equal(raw[key], value)
        assert raw[key].flags.writeable


def idx_bytes(array: np.ndarray) -> bytes:
    return struct.pack(f">HBB{array.ndim}I", 0, 8, array.ndim, *array.shape) + array.tobytes()


def write_idx(folder: Path, arrays: Arrays, compressed: bool) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for name, key in zip(IDX_FILES, ("x_train", "y_train", "x_test", "y_test"), strict=True):
        raw = idx_bytes(arrays[key])
        (folder / (f"{name}.gz" if compressed else name)).write_bytes(gzip.compress(raw) if compressed else raw)


def cifar10_batches(arrays: Arrays) -> dict[str, bytes]:
    """Two training examples per batch, the rest in the fifth, channels first, as the authors store them."""
    cuts = [0, 2, 4, 6, 8, len(arrays["x_train"])]
    parts = [(arrays["x_train"][a:b], arrays["y_train"][a:b]) for a, b in itertools.pairwise(cuts)]
    parts.append((arrays["x_test"], arrays["y_test"]))
    batches: dict[str, bytes] = {}
    for name, (x, y) in zip(CIFAR10_BATCHES, parts, strict=True):
        flat = np.ascontiguousarray(x.transpose(0, 3, 1, 2)).reshape(len(x), -1)
        batches[name] = python2_dump({"data": flat, "labels": y.tolist()})
    return batches


def python2_dump(batch: dict[Any, Any]) -> bytes:
    """What Python 2 and the numpy of 2009 wrote, opcode by opcode: the authors' files look like this."""

    def short(text: bytes) -> bytes:
        return b"U" + bytes([len(text)]) + text

    def number(value: int) -> bytes:
        return b"J" + struct.pack("<i", value)

    data: np.ndarray = batch["data"]
    dtype = (
        b"cnumpy\ndtype\n"
        + short(b"u1")
        + b"K\x00K\x01\x87R(K\x03"
        + short(b"|")
        + b"NNNJ\xff\xff\xff\xffJ\xff\xff\xff\xffK\x00tb"
    )
    array = b"cnumpy.core.multiarray\n_reconstruct\ncnumpy\nndarray\nK\x00\x85" + short(b"b") + b"\x87R"
    shape = number(data.shape[0]) + number(data.shape[1]) + b"\x86"
    state = b"(K\x01" + shape + dtype + b"\x89T" + struct.pack("<I", data.nbytes) + data.tobytes() + b"tb"
    labels = b"](" + b"".join(number(label) for label in batch["labels"]) + b"e"
    items = short(b"data") + array + state + short(b"labels") + labels + short(b"batch_label") + short(b"a batch")
    return b"\x80\x02}(" + items + b"u."


def libsvm(x: np.ndarray, y: np.ndarray) -> bytes:
    """Pixels in 0 .. 2000 as values with three decimals; labels from 1."""
    lines = (
        f"{label + 1} " + " ".join(f"{column}:{value / 1000 - 1:.6g}" for column, value in enumerate(row.ravel(), 1))
        for row, label in zip(x, y, strict=True)
    )
    return bz2.compress("\n".join(lines).encode() + b"\n")


def write_npz(folder: Path, name: str, **changes: Any) -> Path:
    arrays: dict[str, Any] = {**arrays_for(name), **changes}
    path = folder / f"{name}.npz"
    np.savez_compressed(path, **{key: value for key, value in arrays.items() if value is not None})
    return path


@pytest.mark.parametrize("name", SOURCES)
def test_the_npz_of_each_data_set_is_read(name: str, tmp_path: Path) -> None:
    write_npz(tmp_path, name)
    raw = load_raw(name, str(tmp_path))
    same(raw, arrays_for(name))
    assert raw.keys() == arrays_for(name).keys()
    location = locate(name, tmp_path)
    assert location is not None
    assert location.num_examples() == (12, 5)


def test_femnists_writers_are_read_and_other_arrays_are_ignored(tmp_path: Path) -> None:
    write_npz(tmp_path, "femnist", u_train=np.arange(12), u_test=np.arange(5), users=np.array(["a", "b"]))
    raw = load_raw("femnist", tmp_path)
    np.testing.assert_array_equal(raw["u_train"], np.arange(12))
    np.testing.assert_array_equal(raw["u_test"], np.arange(5))


def test_the_folder_is_the_argument_or_wafl_data_or_the_users_cache(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    assert data_folder().name == "wafl"
    monkeypatch.setenv("WAFL_DATA", str(tmp_path / "mine"))
    assert data_folder() == tmp_path / "mine"
    assert data_folder(tmp_path / "other") == tmp_path / "other"
    (tmp_path / "mine").mkdir()
    write_npz(tmp_path / "mine", "usps")
    assert len(load_raw("usps")["x_train"]) == 12


@pytest.mark.parametrize("compressed", [False, True])
@pytest.mark.parametrize(
    ("name", "folder"),
    [("mnist", "MNIST/raw"), ("fashion-mnist", "FashionMNIST/raw"), ("fashion-mnist", "fashion-mnist")],
)
def test_idx_files_are_read_in_every_layout(name: str, folder: str, compressed: bool, tmp_path: Path) -> None:
    write_idx(tmp_path / folder, arrays_for(name), compressed)
    same(load_raw(name, tmp_path), arrays_for(name))
    assert not list(tmp_path.glob("*.npz"))


def test_the_data_folder_may_be_the_idx_folder_itself(tmp_path: Path) -> None:
    folder = tmp_path / "fashion-mnist"
    write_idx(folder, arrays_for("fashion-mnist"), compressed=False)
    same(load_raw("fashion-mnist", folder), arrays_for("fashion-mnist"))
    with pytest.raises(FileNotFoundError):
        load_raw("mnist", folder)


def test_an_npz_is_preferred_to_other_layouts(tmp_path: Path) -> None:
    write_idx(tmp_path / "MNIST/raw", arrays_for("mnist", 3, 3), compressed=False)
    write_npz(tmp_path, "mnist")
    assert len(load_raw("mnist", tmp_path)["x_train"]) == 12


@pytest.mark.parametrize("packed", [False, True])
def test_cifar10_is_read_from_the_archive_and_unpacked(
    packed: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    arrays = arrays_for("cifar10")
    batches = cifar10_batches(arrays)
    for name, content in batches.items():
        monkeypatch.setitem(CIFAR10_BATCHES, name, hashlib.md5(content).hexdigest())
    if packed:
        files = {f"cifar-10-batches-py/{name}": batches[name] for name in reversed(CIFAR10_BATCHES)}
        content = tar_gz({**files, "cifar-10-batches-py/readme.html": b"read me"})
        (tmp_path / "cifar-10-python.tar.gz").write_bytes(content)
    else:
        (tmp_path / "cifar-10-batches-py").mkdir()
        for name, content in batches.items():
            (tmp_path / "cifar-10-batches-py" / name).write_bytes(content)
    same(load_raw("cifar10", tmp_path), arrays)


def write_svhn(folder: Path, arrays: Arrays) -> list[Path]:
    paths = [folder / f"{part}_32x32.mat" for part in ("train", "test")]
    for path, part in zip(paths, ("train", "test"), strict=True):
        labels = np.where(arrays[f"y_{part}"] == 0, 10, arrays[f"y_{part}"]).astype(np.uint8)[:, None]
        savemat(path, {"X": arrays[f"x_{part}"].transpose(1, 2, 3, 0), "y": labels})
    return paths


def test_svhns_label_ten_is_read_as_zero(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    arrays, source = arrays_for("svhn"), SOURCES["svhn"]
    digests = [hashlib.md5(path.read_bytes()).hexdigest() for path in write_svhn(tmp_path, arrays)]
    files = tuple(replace(file, md5=md5) for file, md5 in zip(source.files, digests, strict=True))
    monkeypatch.setitem(SOURCES, "svhn", replace(source, files=files))
    raw = load_raw("svhn", tmp_path)
    same(raw, arrays)
    assert raw["x_train"].flags.c_contiguous


def test_a_matlab_file_that_is_not_the_published_one_is_never_parsed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, _ = write_svhn(tmp_path, arrays_for("svhn"))
    parsed: list[Any] = []
    monkeypatch.setattr("scipy.io.loadmat", lambda *_, **__: parsed.append(0))
    with pytest.raises(
        ValueError, match=rf"{path} cannot be used: its MD5 is .*, not the published e26dedcc434d2e4c54c9"
    ):
        load_raw("svhn", tmp_path)
    assert not parsed


def test_usps_values_become_bytes_rounded_down(tmp_path: Path) -> None:
    arrays, rng = arrays_for("usps"), np.random.default_rng(1)
    for part, name in (("train", "usps.bz2"), ("test", "usps.t.bz2")):
        fine = rng.integers(0, 2001, arrays[f"x_{part}"].shape)
        fine[:, 0, :6] = (0, 400, 800, 1200, 1600, 2000)
        (tmp_path / name).write_bytes(libsvm(fine, arrays[f"y_{part}"]))
        arrays[f"x_{part}"] = (fine * 255 // 2000).astype(np.uint8)
    same(load_raw("usps", tmp_path), arrays)


def test_mnist_m_images_are_read_in_the_order_of_their_labels(tmp_path: Path) -> None:
    arrays = arrays_for("mnist-m")
    files: dict[str, bytes] = {}
    for part in ("train", "test"):
        rows = list(enumerate(zip(arrays[f"x_{part}"], arrays[f"y_{part}"], strict=True)))
        for number, (image, _) in reversed(rows):
            buffer = io.BytesIO()
            Image.fromarray(image).save(buffer, "png")
            files[f"mnist_m/mnist_m_{part}/{number:08}.png"] = buffer.getvalue()
        lines = "".join(f"{number:08}.png {label}\n" for number, (_, label) in rows)
        files[f"mnist_m/mnist_m_{part}_labels.txt"] = lines.encode()
    (tmp_path / "mnist_m.tar.gz").write_bytes(tar_gz(files))
    same(load_raw("mnist-m", tmp_path), arrays)


def test_a_pickle_that_is_not_the_published_one_is_not_read(tmp_path: Path) -> None:
    folder = tmp_path / "cifar-10-batches-py"
    folder.mkdir()
    for name in CIFAR10_BATCHES:
        (folder / name).write_bytes(b"cos\nsystem\n(S'false'\ntR.")
    with pytest.raises(ValueError, match=r"data_batch_1 cannot be used: its MD5 is .*, not the published c99cafc1"):
        load_raw("cifar10", tmp_path)


@pytest.mark.parametrize(
    ("name", "file", "content", "reason"),
    [
        (
            "mnist",
            "MNIST/raw/train-images-idx3-ubyte",
            b"\0\0\x08\x03\0\0\0\x02\0\0\0\x1c\0\0\0\x1c123",
            "promises 1568",
        ),
        ("mnist", "MNIST/raw/t10k-labels-idx1-ubyte", b"\0\0\x08\x01\0", "unpack"),
        ("mnist", "MNIST/raw/t10k-labels-idx1-ubyte", b"<html>", "does not begin like an idx file"),
        ("mnist", "MNIST/raw/t10k-labels-idx1-ubyte", b"", "does not begin like an idx file"),
        ("usps", "usps.t.bz2", bz2.compress(b"1 1:0.5\n")[:20], "end-of-stream"),
        ("usps", "usps.t.bz2", bz2.compress(b"1 1:7.5\n"), r"\[0, 7.5\], but they must lie in \[-1, 1\]"),
        ("usps", "usps.t.bz2", bz2.compress(b"1 300:0.5\n"), "n_features"),
        ("cifar10", "cifar-10-python.tar.gz", b"not an archive", "cannot be used"),
        ("cifar10", "cifar-10-python.tar.gz", tar_gz({"readme.html": b""}), "'data_batch_1' is missing"),
        ("mnist-m", "mnist_m.tar.gz", tar_gz({"readme.html": b""}), "mnist_m_train_labels.txt' is missing"),
    ],
    ids=range(10),
)
def test_the_error_names_the_broken_file(name: str, file: str, content: bytes, reason: str, tmp_path: Path) -> None:
    if name == "mnist":
        write_idx(tmp_path / "MNIST/raw", arrays_for("mnist"), compressed=False)
    if name == "usps":
        (tmp_path / "usps.bz2").write_bytes(libsvm(np.zeros((2, 16, 16)), np.arange(2)))
    (tmp_path / file).write_bytes(content)
    with pytest.raises(ValueError, match=reason) as caught:
        load_raw(name, tmp_path)
    assert str(tmp_path / file) in str(caught.value)
    assert "Remove it and get it again" in str(caught.value)


def test_a_truncated_gz_is_refused(tmp_path: Path) -> None:
    write_idx(tmp_path / "MNIST/raw", arrays_for("mnist"), compressed=True)
    path = tmp_path / "MNIST/raw/train-images-idx3-ubyte.gz"
    path.write_bytes(path.read_bytes()[:-100])
    with pytest.raises(ValueError, match=r"train-images-idx3-ubyte.gz cannot be used: Compressed file ended"):
        load_raw("mnist", tmp_path)


def test_the_error_names_the_folder_of_a_layout_with_wrong_data(tmp_path: Path) -> None:
    arrays = arrays_for("mnist")
    write_idx(tmp_path / "MNIST/raw", {**arrays, "x_test": arrays["x_test"][:, :8, :8]}, compressed=False)
    with pytest.raises(ValueError, match=r"MNIST/raw is not mnist: x_test has images of 8 x 8, but mnist has 28 x 28"):
        load_raw("mnist", tmp_path)


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"y_test": None, "x_test": None}, "it lacks x_test, y_test: it must have x_train, y_train, x_test, y_test"),
        ({"y_train": np.zeros(12)}, "y_train has type float64, but it must be integers"),
        ({"y_train": np.zeros(11, np.uint8)}, r"y_train has shape \(11,\), but there are 12 images"),
        ({"y_test": np.full(5, 10)}, "y_test has labels 10 .. 10, but mnist has 0 .. 9"),
        ({"x_test": np.zeros((5, 8, 8), np.uint8)}, "x_test has images of 8 x 8, but mnist has 28 x 28"),
        ({"x_test": np.zeros((0, 28, 28), np.uint8)}, "x_test is empty"),
        ({"x_train": np.zeros((12, 28, 28))}, "x_train has type float64, but images are uint8"),
        ({"x_train": np.array([None] * 12)}, "cannot be used: Object arrays"),
        ({"u_train": np.arange(12)}, "u_train and u_test belong together"),
        ({"u_train": np.arange(11), "u_test": np.arange(5)}, r"u_train has shape \(11,\)"),
    ],
)
def test_the_error_says_what_is_wrong_with_an_npz(changes: dict[str, Any], reason: str, tmp_path: Path) -> None:
    path = write_npz(tmp_path, "mnist", **changes)
    with pytest.raises(ValueError, match=reason) as caught:
        load_raw("mnist", tmp_path)
    assert str(path) in str(caught.value)


@pytest.mark.parametrize("keep", [0, 10, 0.5, 0.99])
def test_a_truncated_npz_is_refused(keep: float, tmp_path: Path) -> None:
    path = write_npz(tmp_path, "mnist")
    content = path.read_bytes()
    path.write_bytes(content[: int(keep if keep > 1 else keep * len(content))])
    with pytest.raises(ValueError, match=r"mnist.npz cannot be used: it is cut off.*Remove it and get it again"):
        load_raw("mnist", tmp_path)


def test_an_npz_with_a_flipped_byte_is_refused(tmp_path: Path) -> None:
    path = write_npz(tmp_path, "mnist")
    content = bytearray(path.read_bytes())
    content[len(content) // 3] ^= 0xFF
    path.write_bytes(content)
    with pytest.raises(ValueError, match=r"mnist.npz cannot be used"):
        load_raw("mnist", tmp_path)


@pytest.mark.parametrize(
    ("name", "near"),
    [("mnsit", "mnist"), ("fashion_mnist", "fashion-mnist"), ("CIFAR-10", "cifar10"), ("MNIST_M", "mnist-m")],
)
def test_an_unknown_name_suggests_the_nearest(name: str, near: str, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=f"unknown data set '{name}': did you mean '{near}'"):
        load_raw(name, tmp_path)


def test_a_name_like_no_other_lists_all_and_digits_has_no_file(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="unknown data set 'xyz': use one of digits, mnist"):
        load_raw("xyz", tmp_path)
    with pytest.raises(ValueError, match=r"use wafl.load_dataset\('digits'\)"):
        load_raw("digits", tmp_path)


def test_without_file_and_network_the_error_says_what_to_put_where(tmp_path: Path) -> None:
    folder = tmp_path / "data"
    with pytest.raises(FileNotFoundError) as caught:
        load_raw("cifar10", folder)
    message = str(caught.value)
    for part in (
        f"cifar10 is not in {folder}, and could not be downloaded:\n  http://nowhere: no connection\n",
        "cifar10.npz with x_train, y_train, x_test, y_test (uint8 images of 32 x 32 x 3; integer labels 0 .. 9)",
        "cifar-10-batches-py/ with data_batch_1, ",
        "cifar-10-python.tar.gz\n",
        "WAFL_DATA",
    ):
        assert part in message
    assert not folder.exists()


def test_a_data_set_without_downloads_says_what_users_must_bring(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match="there is no file to download for it") as caught:
        load_raw("femnist", tmp_path)
    assert "femnist.npz with x_train, y_train, x_test, y_test (uint8 images of 28 x 28;" in str(caught.value)
    assert "u_train, u_test: the writer, if known" in str(caught.value)


def test_a_file_instead_of_the_folder_is_refused(tmp_path: Path) -> None:
    path = write_npz(tmp_path, "mnist")
    with pytest.raises(NotADirectoryError, match=r"mnist.npz is a file, not a folder .*WAFL_DATA"):
        load_raw("mnist", path)
    with pytest.raises(OSError, match=r"nothing can be written there .*WAFL_DATA"):
        load_raw("mnist", path / "below")


def without_permission(monkeypatch: pytest.MonkeyPatch, forbidden: int) -> None:
    allowed = os.access
    monkeypatch.setattr(os, "access", lambda path, mode: not mode & forbidden and allowed(path, mode))


def test_an_unreadable_folder_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_npz(tmp_path, "mnist")
    without_permission(monkeypatch, os.R_OK)
    with pytest.raises(PermissionError, match=f"{tmp_path} cannot be read: .*WAFL_DATA"):
        load_raw("mnist", tmp_path)


def test_a_read_only_folder_is_fine_until_something_is_missing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_npz(tmp_path, "mnist")
    without_permission(monkeypatch, os.W_OK)
    assert len(load_raw("mnist", tmp_path)["x_train"]) == 12
    with pytest.raises(PermissionError, match=r"nothing can be written there \(Permission denied\): .*WAFL_DATA"):
        load_raw("usps", tmp_path)


def test_an_unreadable_file_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_npz(tmp_path, "mnist")
    write_idx(tmp_path / "FashionMNIST/raw", arrays_for("fashion-mnist"), compressed=False)

    def refuse(self: Path, *_: Any, **__: Any) -> Any:
        raise PermissionError(13, "Permission denied", str(self))

    monkeypatch.setattr(Path, "open", refuse)
    monkeypatch.setattr(Path, "read_bytes", refuse)
    for name, file in (("mnist", "mnist.npz"), ("fashion-mnist", "train-images-idx3-ubyte")):
        with pytest.raises(PermissionError, match=f"{file} cannot be read: permission denied. Make it readable"):
            load_raw(name, tmp_path)


@pytest.mark.parametrize("source", SOURCES.values(), ids=SOURCES)
def test_the_record_of_each_source_is_complete(source: sources.Source) -> None:
    assert source.description
    assert source.license
    assert source.citation
    assert source.homepage.startswith("http")
    assert source.num_classes == len(set(source.classes))
    for file in source.files:
        assert len(file.md5) == 32
        assert set(file.md5) <= set("0123456789abcdef")
        assert all(url.startswith("http") for url in file.urls)


def test_a_poisoned_cache_runs_nothing_but_decides_the_data_and_that_is_a_documented_no(tmp_path: Path) -> None:
    """Other programs may put other images into the folder of data sets; a study notices that they changed."""
    write_npz(tmp_path, "mnist")
    usual = load_raw("mnist", tmp_path)
    poisoned = np.where(usual["x_train"] == 0, 255, usual["x_train"]).astype(np.uint8)
    write_npz(tmp_path, "mnist", x_train=poisoned)
    assert np.array_equal(load_raw("mnist", tmp_path)["x_train"], poisoned)
    for key in ("x_train", "y_train"):
        write_npz(tmp_path, "mnist", **{key: np.array([Touch(tmp_path / "ran")] * len(poisoned), object)})
        with pytest.raises(ValueError, match=r"mnist.npz cannot be used: Object arrays cannot be loaded"):
            load_raw("mnist", tmp_path)
    assert not (tmp_path / "ran").exists()


class Touch:
    """An object whose pickle makes a file."""

    def __init__(self, file: Path) -> None:
        self.file = file

    def __reduce__(self) -> Any:
        return Path.touch, (self.file,)
