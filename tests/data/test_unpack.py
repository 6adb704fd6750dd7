"""Files from strangers: what they unpack to is bounded, and what they promise takes no memory."""

from __future__ import annotations

import bz2
import gzip
import io
import os
import pickle
import struct
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from tests.data.archives import tar_gz
from wafl.data import unpack
from wafl.data.named.readers import read_cifar10_archive, read_idx_files, read_mnist_m, read_usps
from wafl.data.unpack import check_npy, read_npz, unpacked


def npy(shape: tuple[int, ...], content: bytes, dtype: str = "<f8") -> bytes:
    """An array file whose header promises a shape, whatever follows."""
    buffer = io.BytesIO()
    np.lib.format.write_array_header_1_0(buffer, {"descr": dtype, "fortran_order": False, "shape": shape})
    return buffer.getvalue() + content


def zipped(path: Path, **members: bytes) -> Path:
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in members.items():
            archive.writestr(f"{name}.npy", content)
    return path


def archived(path: Path, name: str, content: bytes) -> Path:
    path.write_bytes(tar_gz({name: content}))
    return path


@pytest.fixture
def small_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(unpack, "LIMIT", 100_000)


@pytest.mark.usefixtures("small_limit")
@pytest.mark.parametrize("pack", [gzip.compress, bz2.compress])
def test_a_small_file_that_unpacks_to_a_large_one_is_refused_at_the_limit(pack: Any, tmp_path: Path) -> None:
    path = tmp_path / "bomb"
    path.write_bytes(pack(bytes(100_000)))
    assert len(unpacked(path).read()) == 100_000
    path.write_bytes(pack(bytes(100_001)))
    with pytest.raises(ValueError, match="unpacks to more than 100,000 bytes"):
        unpacked(path).read()


@pytest.mark.usefixtures("small_limit")
def test_every_compressed_format_of_a_data_set_is_bounded(tmp_path: Path) -> None:
    idx = struct.pack(">HBBI", 0, 8, 1, 200_000) + bytes(200_000)
    path = tmp_path / "idx.gz"
    path.write_bytes(gzip.compress(idx))
    with pytest.raises(ValueError, match=r"idx.gz cannot be used: it unpacks to more than 100,000 bytes"):
        read_idx_files([path] * 4)
    archive = archived(tmp_path / "c.tar.gz", "data_batch_1", pickle.dumps(bytes(200_000)))
    for read in (read_cifar10_archive, read_mnist_m):
        with pytest.raises(ValueError, match=r"c.tar.gz cannot be used: it unpacks to more than"):
            read([archive])
    text = tmp_path / "usps.bz2"
    text.write_bytes(bz2.compress(b"1\n" * 100))  # 100 rows of 256 numbers
    with pytest.raises(ValueError, match=r"usps.bz2 cannot be used: it unpacks to more than"):
        read_usps([text, text])
    with pytest.raises(ValueError, match="it unpacks to more than"):
        read_npz(zipped(tmp_path / "a.npz", x=npy((20_000,), bytes(160_000))), ("x",))


@pytest.mark.parametrize("read", [lambda path: read_npz(path, ("x",)), unpacked, check_npy])
def test_a_pipe_is_refused_and_not_waited_for(read: Any, tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "x.npz")
    with pytest.raises(ValueError, match="it is not a plain file"):
        read(tmp_path / "x.npz")


def test_a_header_that_promises_more_than_the_file_holds_takes_no_memory(tmp_path: Path) -> None:
    path = zipped(tmp_path / "huge.npz", x=npy((10**14,), bytes(8)), y=npy((1,), bytes(8)))
    with pytest.raises(ValueError, match="x holds 8 bytes, but its header promises 728 TiB"):
        read_npz(path, ("x", "y"))


def test_an_idx_header_that_promises_terabytes_takes_no_memory(tmp_path: Path) -> None:
    path = tmp_path / "idx"
    path.write_bytes(struct.pack(">HBB3I", 0, 8, 3, 2**32 - 1, 2**31, 2**31))
    with pytest.raises(ValueError, match=r"idx cannot be used: it unpacks to more than 2 GiB"):
        read_idx_files([path] * 4)


EPS = b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 32 32\n%%EndComments\nshowpage\n"


def test_a_picture_of_another_format_is_not_opened_whatever_its_name(tmp_path: Path) -> None:
    assert Image.open(io.BytesIO(EPS)).format == "EPS"  # which Pillow would hand to Ghostscript
    with pytest.raises(ValueError, match=r"m.tar.gz cannot be used: cannot identify image file"):
        read_mnist_m([archived(tmp_path / "m.tar.gz", "mnist_m_train/0.png", EPS)])


def test_a_picture_of_another_size_is_refused_before_it_is_decoded(tmp_path: Path) -> None:
    buffer = io.BytesIO()
    Image.new("1", (3000, 3000)).save(buffer, "png")
    with pytest.raises(ValueError, match=r"0.png has 3000 x 3000 pixels, not 32 x 32"):
        read_mnist_m([archived(tmp_path / "m.tar.gz", "mnist_m_train/0.png", buffer.getvalue())])
