"""Every door leads to the same room: the same data through any of them trains the same model, bit for bit."""

from __future__ import annotations

import tracemalloc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas
import pyarrow
import pytest
import torch
from PIL import Image
from torch.utils.data import DataLoader, Subset, SubsetRandomSampler, TensorDataset

import wafl
from wafl.data.mapped import Mapped

NAMES = ("north", "south", "west")
SIZES = (9, 5, 12)


def pairs() -> list[tuple[np.ndarray, np.ndarray]]:
    rng = np.random.default_rng(0)
    return [(rng.normal(size=(n, 3)).astype(np.float32), np.arange(n) % 3) for n in SIZES]


def pixels() -> list[tuple[np.ndarray, np.ndarray]]:
    """Images as bytes, ``[N, 3, 5, 4]``."""
    rng = np.random.default_rng(1)
    return [(rng.integers(0, 256, (n, 3, 5, 4), dtype=np.uint8), np.arange(n) % 3) for n in SIZES]


def frame() -> pandas.DataFrame:
    """The same rows, dealt out to the clients in turn, so that no client's rows are together."""
    parts = []
    for name, (x, y) in zip(NAMES, pairs(), strict=True):
        part = pandas.DataFrame({"a": x[:, 0], "b": x[:, 1], "c": x[:, 2], "grade": y, "site": name})
        parts.append(part.assign(turn=np.arange(len(part))))
    return pandas.concat(parts).sort_values("turn", kind="stable", ignore_index=True).drop(columns="turn")


class Pairs(torch.utils.data.Dataset[Any]):
    """What people write: one example at a time."""

    def __init__(self, x: Any, y: Any, form: Callable[[Any, Any], Any] = lambda x, y: (x, int(y))) -> None:
        self.x, self.y, self.form = x, y, form

    def __len__(self) -> int:
        return len(self.x)

    def __getitem__(self, row: int) -> Any:
        return self.form(self.x[row], self.y[row])


class Folder(Pairs):
    """Has what torchvision's ImageFolder has: images of PIL, numbers, and ``classes``."""

    def __init__(self, x: np.ndarray, y: np.ndarray, classes: list[str]) -> None:
        super().__init__(x, y, lambda x, y: (Image.fromarray(x.transpose(1, 2, 0)), int(y)))
        self.classes = classes


ImageFeature = type("Image", (), {})
"""Hugging Face's feature of a column with images is known by its name."""


class ClassLabel:
    def __init__(self, names: list[str]) -> None:
        self.names = names


class Table:
    """Has what a Hugging Face data set has: columns, features, formats, and rows by slice."""

    def __init__(self, columns: dict[str, Any], features: dict[str, Any] | None = None) -> None:
        self.columns_, self.features = columns, features or dict.fromkeys(columns)
        self.column_names = list(columns)

    def with_format(self, kind: str, columns: list[str]) -> Table:
        assert kind == "numpy"
        return Table({name: self.columns_[name] for name in columns}, self.features)

    def __len__(self) -> int:
        return len(next(iter(self.columns_.values())))

    def __getitem__(self, rows: slice) -> dict[str, Any]:
        return {name: np.asarray(values[rows]) for name, values in self.columns_.items()}


def table(x: np.ndarray, y: np.ndarray) -> Table:
    return Table({"a": x[:, 0], "b": x[:, 1], "c": x[:, 2], "label": y})


def shuffled(x: np.ndarray, y: np.ndarray) -> DataLoader[Any]:
    return DataLoader(Pairs(x, y), batch_size=4, shuffle=True, drop_last=True)


def sampled(x: np.ndarray, y: np.ndarray) -> DataLoader[Any]:
    """The first rows of a larger data set, which has other rows after them."""
    more = Pairs(np.concatenate([x, x + 1]), np.concatenate([y, y]))
    return DataLoader(more, batch_size=4, sampler=SubsetRandomSampler(range(len(x))))


def trained(clients: wafl.Federation, **options: Any) -> wafl.Run:
    given: dict[str, Any] = {"rounds": 2, "local_epochs": 1, "batch_size": 4, "learning_rate": 0.1}
    return wafl.fit(wafl.models.mlr(clients), clients, wafl.WAFL(gamma=2.0), **given, **options)


def assert_same(clients: wafl.Federation, wanted: wafl.Federation) -> None:
    for part, other in ((clients.train, wanted.train), (clients.test, wanted.test)):
        assert torch.equal(part.x, other.x)
        assert torch.equal(part.y, other.y)
        assert torch.equal(part.offsets, other.offsets)
        assert part.x.dtype == other.x.dtype
    assert clients.num_classes == wanted.num_classes
    run, same = trained(clients), trained(wanted)
    for name, value in run.params.items():
        assert torch.equal(value, same.params[name])


from_datasets = wafl.Federation.from_datasets
TABULAR: dict[str, Callable[[], wafl.Federation]] = {
    "frame": lambda: wafl.Federation.from_frame(frame(), client="site", target="grade"),
    "tensors": lambda: from_datasets([TensorDataset(*map(torch.from_numpy, pair)) for pair in pairs()]),
    "data sets": lambda: from_datasets([Pairs(*pair) for pair in pairs()]),
    "dicts": lambda: from_datasets([Pairs(*pair, lambda x, y: {"x": x, "y": y}) for pair in pairs()]),
    "loaders": lambda: from_datasets([DataLoader(Pairs(*pair), batch_size=4) for pair in pairs()]),
    "shuffled loaders": lambda: from_datasets([shuffled(*pair) for pair in pairs()]),
    "loaders with a sampler": lambda: from_datasets([sampled(*pair) for pair in pairs()]),
    "columns": lambda: from_datasets([table(*pair) for pair in pairs()]),
    "columns by name": lambda: from_datasets(
        [Table({"id": y, "odd": x[:, 1], "row": x, "who": y}) for x, y in pairs()], features=["row"], target="who"
    ),
}


@pytest.mark.parametrize("door", TABULAR)
def test_the_same_examples_through_any_door_train_the_same_model(door: str) -> None:
    assert_same(TABULAR[door](), wafl.Federation.from_arrays(pairs()))


def test_a_frame_of_polars_is_read_like_one_of_pandas() -> None:
    polars = pytest.importorskip("polars")
    given = polars.DataFrame({name: column.to_numpy() for name, column in frame().items()})
    clients = wafl.Federation.from_frame(given, client="site", target="grade")
    assert_same(clients, wafl.Federation.from_arrays(pairs()))
    with pytest.raises(ValueError, match=r"LazyFrame .*collect\(\) it first"):
        wafl.Federation.from_frame(given.lazy(), client="site", target="grade")
    holes = given.with_columns(polars.when(polars.col("a") > 0).then(polars.col("a")).alias("a"))
    with pytest.raises(ValueError, match=r"column 'a' lacks \d+ of 26 values: fill them in, or drop those rows"):
        wafl.Federation.from_frame(holes, client="site", target="grade")


def test_test_data_of_the_clients_own_are_kept_apart() -> None:
    wanted = wafl.Federation.from_arrays(pairs(), names=NAMES, seed=3)
    parts = [(*wanted.train.of(client), *wanted.test.of(client)) for client in range(3)]
    assert_same(wafl.Federation.from_arrays(parts, names=NAMES), wanted)
    sets = [(TensorDataset(*part[:2]), Pairs(*part[2:])) for part in parts]
    assert_same(wafl.Federation.from_datasets(sets), wanted)
    assert_same(wafl.Federation.from_datasets([{"train": a, "test": b} for a, b in sets]), wanted)
    nothing = [(x, y, x[:0], y[:0]) for x, y in pairs()]
    assert_same(wafl.Federation.from_arrays(nothing), wafl.Federation.from_arrays(pairs(), test_fraction=0))


IMAGES: dict[str, Callable[[Any, Any], Any]] = {
    "PIL": lambda x, y: Folder(x, y, ["cat", "dog", "eel"]),
    "part of PIL": lambda x, y: Subset(
        Folder(np.concatenate([x[:1], x]), np.append(0, y), ["cat", "dog", "eel"]), range(1, len(x) + 1)
    ),
    "columns": lambda x, y: Table(
        {"image": x.transpose(0, 2, 3, 1), "label": y},
        {"image": ImageFeature(), "label": ClassLabel(["cat", "dog", "eel"])},
    ),
}


@pytest.mark.parametrize("door", IMAGES)
@pytest.mark.parametrize("preprocess", ["unit", "zscore"])
def test_images_of_pil_are_channels_first_bytes_and_their_classes_have_names(door: str, preprocess: str) -> None:
    wanted = wafl.Federation.from_arrays(pixels(), preprocess=preprocess, classes=["cat", "dog", "eel"])
    clients = wafl.Federation.from_datasets([IMAGES[door](*pair) for pair in pixels()], preprocess=preprocess)
    assert_same(clients, wanted)
    assert clients.train.raw.dtype == torch.uint8
    assert clients.classes == ("cat", "dog", "eel")
    assert (clients.unit, clients.bounds) == (wanted.unit, wanted.bounds)


# ----------------------------------------------------------------------- names


def text(y: np.ndarray) -> np.ndarray:
    return np.array(["mild", "none", "severe"])[y]


@pytest.mark.parametrize("kind", ["U", "O", "S"])
def test_text_labels_are_classes_in_sorted_order_and_predictions_are_text(kind: str, tmp_path: Path) -> None:
    given = [(x, text(y)[::-1].astype(kind)) for x, y in pairs()]
    clients = wafl.Federation.from_arrays(given)
    assert clients.classes == ("mild", "none", "severe")
    assert_same(clients, wafl.Federation.from_arrays([(x, y[::-1].copy()) for x, y in pairs()]))
    run = trained(clients)
    x = np.concatenate([x for x, _ in pairs()])
    numbers = run.outputs(x).argmax(1)
    assert run.predict(x).tolist() == text(numbers.numpy()).tolist()
    loaded = wafl.load_run(run.save(tmp_path))
    assert loaded.classes == clients.classes
    assert loaded.predict(x).tolist() == run.predict(x).tolist()


def test_classes_that_data_sets_number_differently_are_matched_by_name() -> None:
    x = pixels()[0][0]
    first, second = Folder(x, np.arange(9) % 2, ["dog", "eel"]), Folder(x, np.arange(9) % 2, ["cat", "dog"])
    clients = wafl.Federation.from_datasets([first, second], preprocess="unit", test_fraction=0)
    assert clients.classes == ("cat", "dog", "eel")
    assert clients.train.of(0)[1].tolist() == [1, 2] * 4 + [1]
    assert clients.train.of(1)[1].tolist() == [0, 1] * 4 + [0]
    with pytest.raises(ValueError, match=r"some data sets name their classes and others do not: .*classes=\[...\]"):
        wafl.Federation.from_datasets([first, Pairs(*pixels()[0])], preprocess="unit")


def test_names_of_clients_classes_and_inputs_show_in_the_table_and_the_figure() -> None:
    given = frame().assign(grade=text(frame()["grade"].to_numpy()))
    clients = wafl.Federation.from_frame(given, client="site", target="grade")
    assert clients.names == NAMES
    assert clients.columns == ("a", "b", "c")
    table = {line[:20].strip(): line[21:] for line in clients.describe().splitlines()}
    assert table["clients"] == "3: north, south, west"
    assert (table["classes"], table["inputs"]) == ("mild, none, severe", "a, b, c")
    (axes,) = clients.plot().axes
    assert [label.get_text() for label in axes.get_yticklabels()] == ["mild", "none", "severe"]
    assert [label.get_text() for label in axes.get_xticklabels()] == list(NAMES)
    seen, unseen = clients.hold_out(0.4)
    assert seen.classes == unseen.classes == ("mild", "none", "severe")
    assert set(seen.names) | set(unseen.names) == set(NAMES)
    assert [client.name for client in wafl.evaluate(trained(clients), clients).per_client] == list(NAMES)


# --------------------------------------------------------------------- predict


def test_predict_takes_what_federations_are_made_of(tmp_path: Path) -> None:
    run = trained(wafl.Federation.from_frame(frame(), client="site", target="grade"))
    x, y = pairs()[2]
    wanted = run.predict(x).tolist()
    np.save(tmp_path / "x.npy", x)
    rows = frame()[frame()["site"] == "west"]
    inputs = [
        torch.from_numpy(x),
        x.tolist(),
        np.load(tmp_path / "x.npy", mmap_mode="r"),
        rows,
        rows[["c", "a", "b"]],
        TensorDataset(torch.from_numpy(x)),
        Pairs(x, y),
        Pairs(x, y, lambda x, y: x),
        DataLoader(Pairs(x, y), batch_size=5, shuffle=True),
        table(x, y),
        Table({"c": x[:, 2], "a": x[:, 0], "b": x[:, 1]}),
        pyarrow.table({"c": x[:, 2], "b": x[:, 1], "a": x[:, 0], "grade": y}),
    ]
    for given in inputs:
        assert run.predict(given).tolist() == wanted, type(given)
    loaded = wafl.load_run(run.save(tmp_path / "run"))
    assert loaded.predict(rows[["c", "a", "b"]]).tolist() == wanted
    with pytest.raises(ValueError, match="features='b' is not a column of the frame: it has c, a"):
        run.predict(rows[["c", "a"]])
    with pytest.raises(
        ValueError, match=r"x has examples of shape \(2,\), and the model was trained on examples of shape"
    ):
        run.predict(x[:, :2])
    for odd in ("x", {"a": 1}, None, (x, y), wafl.Federation.from_arrays([(x, y)])):
        with pytest.raises(ValueError, match=r"x is .*: give an array of examples, a frame or a data set"):
            run.predict(odd)


@pytest.mark.parametrize("preprocess", ["unit", "zscore"])
def test_bytes_are_prepared_for_a_prediction_as_for_training(preprocess: str, tmp_path: Path) -> None:
    sets = [Folder(*pair, ["cat", "dog", "eel"]) for pair in pixels()]
    clients = wafl.Federation.from_datasets(sets, preprocess=preprocess, test_fraction=0)
    run = trained(clients)
    prepared = clients.train.of(1)[0]
    for mine in (run, wafl.load_run(run.save(tmp_path))):
        assert torch.equal(mine.outputs(sets[1]), mine.outputs(prepared))
        assert torch.equal(mine.outputs(pixels()[1][0]), mine.outputs(prepared))
        assert torch.equal(mine.outputs([image for image, _ in sets[1]]), mine.outputs(prepared))
        assert set(mine.predict(sets[1])) <= {"cat", "dog", "eel"}
    with pytest.raises(ValueError, match=r"^x is one image, \d+ x \d+: give a list of images, \[x\]$"):
        run.predict(sets[1][0][0])


# ---------------------------------------------------------------- memory-mapped


def mapped(folder: Path, arrays: list[tuple[np.ndarray, np.ndarray]], mode: Any = "r") -> list[tuple[Any, Any]]:
    for client, (x, _) in enumerate(arrays):
        np.save(folder / f"{client}.npy", x)
    return [(np.load(folder / f"{i}.npy", mmap_mode=mode), y) for i, (_, y) in enumerate(arrays)]


@pytest.mark.parametrize("dtype", ["float32", "float64", ">f4", "int16"])
def test_memory_mapped_arrays_train_the_same_model(dtype: str, tmp_path: Path) -> None:
    plain = [((10 * x).astype(dtype), y) for x, y in pairs()]
    clients = wafl.Federation.from_arrays(mapped(tmp_path, plain))
    wanted = wafl.Federation.from_arrays(plain)
    assert_same(clients, wanted)
    seen, same = (each.hold_out(0.4, seed=1)[0] for each in (clients, wanted))
    assert_same(seen, same)
    for each in (clients.train.span(), clients.test.of(1)[0].sum()):
        assert each in (wanted.train.span(), wanted.test.of(1)[0].sum())


def test_memory_mapped_bytes_are_prepared_when_they_are_read(tmp_path: Path) -> None:
    for name in ("unit", "zscore_pooled"):
        clients = wafl.Federation.from_arrays(mapped(tmp_path, pixels()), preprocess=name)
        assert_same(clients, wafl.Federation.from_arrays(pixels(), preprocess=name))


def test_memory_mapped_arrays_are_not_copied(tmp_path: Path) -> None:
    shape = (4000, 1000)
    file = np.lib.format.open_memmap(tmp_path / "x.npy", mode="w+", dtype="float32", shape=shape)  # 16 MB, all zero
    y = np.arange(4000) % 2
    wafl.Federation.from_arrays(mapped(tmp_path, pairs()))  # loads what is loaded once
    tracemalloc.start()
    clients = wafl.Federation.from_arrays([(file[:2500], y[:2500]), (file[2500:], y[2500:])])
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < file.nbytes, "not even once"
    assert isinstance(clients.train.raw, Mapped)
    assert all(np.shares_memory(array, file) for array in clients.train.raw.arrays)
    file[2500:] = 7.0
    assert clients.train.of(1)[0].eq(7.0).all(), "the rows are read when they are asked for"
    assert clients.train.of(0)[0].eq(0.0).all()


def test_a_round_announces_the_examples_of_its_cohort(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    draws = np.random.default_rng(0)
    np.save(tmp_path / "x.npy", draws.normal(size=(36, 3)).astype(np.float32))
    x, y = np.load(tmp_path / "x.npy", mmap_mode="r"), draws.integers(0, 2, 36)
    clients = wafl.Federation.from_offsets(x, y, np.arange(0, 37, 4), test_fraction=0)
    announced: list[set[int]] = []
    whole = Mapped.expect

    def watching(self: Mapped, begins: torch.Tensor, sizes: torch.Tensor) -> None:
        announced.append({int(row) // 4 for row in begins})
        whole(self, begins, sizes)

    monkeypatch.setattr(Mapped, "expect", watching)
    run = wafl.fit(wafl.models.mlr(clients), clients, wafl.FedAvg(), rounds=3, cohort=3, local_epochs=1)
    assert announced == [set(record.cohort) for record in run.history]
    in_memory = wafl.Federation.from_offsets(clients.train.x, clients.train.y, clients.train.offsets, test_fraction=0)
    same = wafl.fit(wafl.models.mlr(in_memory), in_memory, wafl.FedAvg(), rounds=3, cohort=3, local_epochs=1)
    assert all(torch.equal(run.params[name], same.params[name]) for name in run.params)


def resident_file_bytes() -> int:
    """How much of files is mapped into this process."""
    status = Path("/proc/self/status").read_text()
    return 1024 * sum(int(status.split(f"{kind}:")[1].split()[0]) for kind in ("RssFile", "RssShmem"))


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="reads what Linux says about a process")
def test_reading_more_than_fits_keeps_the_process_small(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("wafl.data.mapped.RESIDENT", 2**22)
    np.lib.format.open_memmap(tmp_path / "x.npy", mode="w+", dtype="float32", shape=(64, 2**18))  # 64 MB, sparse
    file = np.load(tmp_path / "x.npy", mmap_mode="r")
    before = resident_file_bytes()
    clients = wafl.Federation.from_offsets(file, np.arange(64) % 2, np.arange(0, 65, 4), test_fraction=0)
    for client in range(clients.num_clients):
        clients.train.expect(clients.train.offsets[client, None], torch.tensor([4]))
        assert clients.train.of(client)[0].eq(0.0).all()
    assert resident_file_bytes() - before < 2**24
