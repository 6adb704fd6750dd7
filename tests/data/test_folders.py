"""Folders of .npy files, and Parquet and Arrow files: the same arrays' federation, with examples that stay on disk."""

from __future__ import annotations

import io
import os
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow
import pyarrow.feather
import pyarrow.parquet
import pytest
import torch

import wafl
from wafl.data.bring.folders import write_folder
from wafl.data.mapped import Mapped

RNG = np.random.default_rng(0)
SIZES = {"north": 9, "south": 4, "west": 6}
X = {name: RNG.normal(size=(size, 3)).astype(np.float32) for name, size in SIZES.items()}
Y = {name: np.arange(size) % 2 for name, size in SIZES.items()}


def assert_equal(clients: wafl.Federation, other: wafl.Federation) -> None:
    assert clients.names == other.names
    for mine, theirs in ((clients.train, other.train), (clients.test, other.test)):
        assert torch.equal(mine.offsets, theirs.offsets)
        assert torch.equal(mine.y, theirs.y)
        assert torch.equal(mine.raw[:], theirs.raw[:])


def in_memory(**options: Any) -> wafl.Federation:
    return wafl.Federation.from_arrays([(X[name], Y[name]) for name in SIZES], names=list(SIZES), **options)


def together(folder: Path) -> Path:
    folder.mkdir()
    np.save(folder / "x.npy", np.concatenate(list(X.values())))
    np.save(folder / "y.npy", np.concatenate(list(Y.values())))
    np.save(folder / "offsets.npy", np.cumsum([0, *SIZES.values()]))
    return folder


def apart(folder: Path, *, tests: bool = False) -> Path:
    for name in SIZES:
        (folder / name).mkdir(parents=True)
        np.save(folder / name / "x.npy", X[name])
        np.save(folder / name / "y.npy", Y[name])
        if tests:
            np.save(folder / name / "x_test.npy", X[name][:2])
            np.save(folder / name / "y_test.npy", Y[name][:2])
    return folder


@pytest.mark.parametrize("write", [together, apart])
def test_a_folder_is_the_federation_of_its_arrays_and_stays_on_disk(
    write: Callable[[Path], Path], tmp_path: Path
) -> None:
    clients = wafl.Federation.from_folder(write(tmp_path / "clients"), names=list(SIZES), seed=4)
    assert isinstance(clients.train.raw, Mapped)
    assert_equal(clients, in_memory(seed=4))


def test_clients_in_folders_of_their_own_have_their_names_and_may_bring_test_data(tmp_path: Path) -> None:
    clients = wafl.Federation.from_folder(apart(tmp_path / "clients", tests=True))
    pairs = [(X[name], Y[name], X[name][:2], Y[name][:2]) for name in SIZES]
    assert_equal(clients, wafl.Federation.from_arrays(pairs, names=list(SIZES)))


def table() -> Any:
    """The rows of all clients in a mixed order in which each client's own rows stay in order."""
    owners = np.repeat(list(SIZES), list(SIZES.values()))
    turn = np.concatenate([np.arange(size) for size in SIZES.values()])
    order = np.argsort(turn, kind="stable")
    x, y = np.concatenate(list(X.values()))[order], np.concatenate(list(Y.values()))[order]
    columns = {
        "site": pyarrow.array(owners[order]).dictionary_encode(),
        "a": x[:, 0],
        "sick": np.array(["no", "yes"])[y],
    }
    return pyarrow.table({**columns, "rest": pyarrow.FixedSizeListArray.from_arrays(x[:, 1:].ravel(), 2)})


@pytest.mark.parametrize("kind", ["table", "parquet", "arrow", "folder"])
@pytest.mark.parametrize("rows", [1, 5, 100])
def test_rows_of_files_go_to_their_clients_in_order(
    kind: str, rows: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source: Any = tmp_path / "source"
    if kind == "table":
        source = table()
    elif kind == "parquet":
        pyarrow.parquet.write_table(table(), source)
    elif kind == "arrow":
        pyarrow.feather.write_feather(table(), str(source))
    else:
        source.mkdir()
        for part in range(2):
            pyarrow.parquet.write_table(table().slice(11 * part, 11), source / f"part-{part}.parquet")
    write_folder(source, tmp_path / "clients", "site", "sick", ["a", "rest"], rows)
    clients = wafl.Federation.from_folder(tmp_path / "clients")
    assert (clients.classes, clients.columns) == (("no", "yes"), ("a", "rest[0]", "rest[1]"))
    assert_equal(clients, in_memory())
    assert not list(tmp_path.glob("*.partial"))


def test_the_door_for_files_gives_what_it_wrote(tmp_path: Path) -> None:
    clients = wafl.Federation.from_arrow(
        table(), tmp_path / "clients", client="site", target="sick", features=["a", "rest"], seed=4
    )
    assert_equal(clients, in_memory(seed=4))
    run = wafl.fit(wafl.models.mlr(clients), clients, wafl.WAFL(gamma=1.0), rounds=1, local_epochs=1)
    assert set(run.predict(X["north"])) <= {"no", "yes"}
    rest = table()["rest"].combine_chunks().flatten().to_numpy().reshape(-1, 2)
    assert torch.equal(run.outputs(table()), run.outputs(np.column_stack([table()["a"].to_numpy(), rest])))


def with_column(name: str, values: Any) -> Any:
    return table().append_column(name, pyarrow.array(values))


def from_spoilt(path: Path, file: str, text: str) -> Any:
    """Clients of a folder with one file that is not what it was."""
    (together(path / "c") / file).write_text(text)
    return wafl.Federation.from_folder(path / "c")


def from_arrow(source: Any, path: Path, client: str = "site") -> Any:
    return wafl.Federation.from_arrow(source, path, client=client, target="sick")


WRONG: dict[str, tuple[Callable[[Path], Any], str]] = {
    "no folder": (lambda path: wafl.Federation.from_folder(path / "nowhere"), "is not a folder"),
    "an empty folder": (lambda path: wafl.Federation.from_folder(path), "holds neither x.npy"),
    "a missing file": (
        lambda path: ((together(path / "c") / "y.npy").unlink(), wafl.Federation.from_folder(path / "c")),
        "y.npy is missing",
    ),
    "a text file": (lambda path: from_spoilt(path, "x.npy", "1 2 3"), "x.npy is not a .npy file"),
    "damaged names": (lambda path: from_spoilt(path, "about.json", '{"names": 3}'), "about.json.names"),
    "no such column": (lambda path: from_arrow(table(), path / "c", "who"), "client='who' is not a column: there are"),
    "missing values": (
        lambda path: from_arrow(with_column("b", [None, *range(18)]), path / "c"),
        "column 'b' lacks 1 of 19 values",
    ),
    "text as an input": (
        lambda path: from_arrow(with_column("b", ["t"] * 19), path / "c"),
        "column 'b' holds string, not numbers",
    ),
    "lists of other lengths": (
        lambda path: from_arrow(with_column("b", [[1.0], *([[1.0, 2.0]] * 18)]), path / "c"),
        "lists of different lengths",
    ),
    "no files": (lambda path: from_arrow(path / "none.parquet", path / "c"), "none.parquet does not exist"),
    "other files": (lambda path: from_arrow(Path(__file__), path / "c"), "neither a Parquet nor an Arrow file"),
    "a folder that exists": (lambda path: from_arrow(table(), path), "exists: read what was written there"),
}


@pytest.mark.parametrize("mistake", WRONG)
def test_bad_files_are_refused_with_their_names_and_leave_nothing_behind(mistake: str, tmp_path: Path) -> None:
    work, message = WRONG[mistake]
    with pytest.raises(ValueError, match=message):
        work(tmp_path)
    assert not list(tmp_path.glob("*.partial"))


BOMBS: dict[str, tuple[Callable[[Path], Any], str]] = {
    "header": (lambda path: path.write_bytes(header((10**14,)) + bytes(8)), "its header promises 728 TiB"),
    "archive": (lambda path: zip_of(path, header((10**5,)) + bytes(8 * 10**5)), "is not a .npy file"),
    "sparse": (lambda path: write_sparse(path, 2**40), "is not a .npy file"),
    "pipe": (os.mkfifo, "is not a plain file"),
    "objects": (lambda path: np.save(path, np.array([None, {}]), allow_pickle=True), "is not a .npy file"),
}


def header(shape: tuple[int, ...]) -> bytes:
    buffer = io.BytesIO()
    np.lib.format.write_array_header_1_0(buffer, {"descr": "<f8", "fortran_order": False, "shape": shape})
    return buffer.getvalue()


def zip_of(path: Path, content: bytes) -> None:
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("y.npy", content)


def write_sparse(path: Path, size: int) -> None:
    with path.open("wb") as file:
        file.truncate(size)


@pytest.mark.parametrize("name", ["x.npy", "y.npy", "offsets.npy"])
@pytest.mark.parametrize("bomb", BOMBS)
def test_a_file_that_is_larger_than_it_looks_is_refused_before_it_is_read(bomb: str, name: str, tmp_path: Path) -> None:
    folder = together(tmp_path / "data")
    (folder / name).unlink()
    write, message = BOMBS[bomb]
    write(folder / name)
    with pytest.raises(ValueError, match=f"{name} {message}" if message.startswith("is") else message):
        wafl.Federation.from_folder(folder)


def test_a_parquet_file_becomes_as_large_as_its_rows_say_and_that_is_a_documented_no(tmp_path: Path) -> None:
    rows, width = 4096, 250
    lists = pyarrow.FixedSizeListArray.from_arrays(pyarrow.array(np.zeros(rows * width, np.float32)), width)
    columns = {"who": np.arange(rows) % 2, "y": np.arange(rows) % 2}
    table = pyarrow.table({**{name: pyarrow.array(column) for name, column in columns.items()}, "x": lists})
    pyarrow.parquet.write_table(table, tmp_path / "bomb.parquet", compression="zstd")
    wafl.Federation.from_arrow(tmp_path / "bomb.parquet", tmp_path / "out", client="who", target="y")
    packed, written = ((tmp_path / name).stat().st_size for name in ("bomb.parquet", "out/x.npy"))
    assert written > 500 * packed
