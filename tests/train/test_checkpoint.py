"""A training that is interrupted anywhere resumes as if nothing had happened, or says clearly why it cannot."""

from __future__ import annotations

import functools
import itertools
import shutil
import types
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

import wafl
from wafl.base.errors import CheckpointError, CheckpointWarning
from wafl.base.files import sealed, unsealed
from wafl.callbacks import Callback, Moment
from wafl.train.checkpoint import checkpoint as checkpoint_module
from wafl.train.checkpoint.checkpoint import Checkpoint
from wafl.train.checkpoint.journal import Journal
from wafl.train.lanes.lanes import Lanes
from wafl.weights import snapshot

ROUNDS = 4
ONE_STEP: dict[str, Any] = {"local_steps": 1, "cohort": None, "momentum": 0.0}
METHODS: dict[str, tuple[wafl.Method, dict[str, Any]]] = {
    "FedAvg": (wafl.FedAvg(), {}),
    "WAFL": (wafl.WAFL(gamma=1.0), {}),
    "WAFL, learned gamma": (wafl.WAFL(radius=0.3), {}),
    "WAFL, DRFA's weights": (wafl.WAFL(gamma=1.0, client_weights=snapshot(0.05)), {}),
    "FedRobust": (wafl.FedRobust(step_size=0.1), {}),
    "FedPGM, random start": (wafl.FedPGM(steps=2, random_start=True), {}),
    "AFL": (wafl.AFL(), ONE_STEP),
    "DRFA": (wafl.DRFA(weights_step=0.05), {}),
    "DRFA, averaged": (wafl.DRFA(weights_step=0.05), {"average_last": 0.75}),
    "QFFL": (wafl.QFFL(q=0.5), {}),
    "ScaffPD": (wafl.ScaffPD(), {"cohort": None}),
}
GRIDS: dict[str, tuple[wafl.Method, dict[str, list[Any]]]] = {
    "lanes of one batch": (wafl.WAFL(), {"gamma": [1.0, 3.0], "seed": [0, 5]}),
    "several groups": (wafl.WAFL(radius=0.3), {"batch_size": [2, 4], "seed": [0, 5]}),
    "unequal rounds": (wafl.FedRobust(), {"rounds": [2, 4, 3]}),
    "memory in several groups": (wafl.FedRobust(), {"local_steps": [1, 3], "seed": [0, 5]}),
}


class InterruptError(Exception):
    """What a user's own code may raise."""


def federation(scale: float = 1.0, shift: int = 0) -> wafl.Federation:
    """Five clients with 4 to 12 examples; ``scale`` changes only inputs, ``shift`` only labels."""
    rng = np.random.default_rng(0)
    pairs = [(scale * rng.random((n, 3)), (np.arange(n) + shift) % 3) for n in (4, 12, 7, 9, 5)]
    return wafl.Federation.from_arrays(pairs, test_fraction=0)


CLIENTS = federation()


def options(**changes: Any) -> dict[str, Any]:
    usual = {"cohort": 3, "local_steps": 2, "batch_size": 4, "learning_rate": 0.2, "momentum": 0.5}
    return {"rounds": ROUNDS, **usual, **changes}


def fit(name: str = "WAFL, learned gamma", clients: wafl.Federation = CLIENTS, **changes: Any) -> wafl.Run:
    method, settings = METHODS[name]
    if "radius" in changes:
        method = wafl.WAFL(radius=changes.pop("radius"))
    return wafl.fit(wafl.models.mlr(clients), clients, method, **options(**{**settings, **changes}))


def sweep(name: str, **changes: Any) -> list[wafl.Run]:
    method, grid = GRIDS[name]
    rest = {key: value for key, value in options(**changes).items() if key not in grid}
    return wafl.sweep(wafl.models.mlr(CLIENTS), CLIENTS, method, grid, **rest)


def bits(run: wafl.Run) -> dict[str, Any]:
    """Everything about a run, to the last bit, except the time it took."""
    history = [{name: value for name, value in row.items() if name != "seconds"} for row in run.history.to_json()]
    params = {name: value.numpy().tobytes() for name, value in run.params.items()}
    weights, scalars = run.client_weights.numpy().tobytes(), run.settings["scalars"]
    return {"params": params, "weights": weights, "history": history, "scalars": scalars}


class Seen(Callback):
    """Remembers which rounds were trained."""

    def __init__(self) -> None:
        self.rounds: list[int] = []

    def on_round(self, moment: Moment) -> None:
        self.rounds.append(moment.record.round)


def stop_at(round: int, index: int = 0) -> Callable[[Moment], None]:
    """A user's callback that fails in this round."""

    def fails(moment: Moment) -> None:
        if (moment.index, moment.record.round) == (index, round):
            raise InterruptError

    return fails


def written(folder: Path) -> list[Path]:
    return sorted(path for path in folder.iterdir() if path.name.isdigit()) if folder.exists() else []


def contents(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def flip(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(bytes(data))


# -- Interruptions --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", METHODS)
def test_a_run_interrupted_in_any_round_ends_with_the_same_bits(tmp_path: Path, name: str) -> None:
    whole = bits(fit(name))
    for at in range(ROUNDS):
        folder = tmp_path / str(at)
        with pytest.raises(InterruptError):
            fit(name, checkpoint=Checkpoint(folder), callbacks=[stop_at(at)])
        seen = Seen()
        assert bits(fit(name, checkpoint=Checkpoint(folder), callbacks=[seen])) == whole
        assert seen.rounds == list(range(at, ROUNDS)), "rounds that were finished are not trained again"


@pytest.mark.parametrize("name", ["WAFL, DRFA's weights", "DRFA", "DRFA, averaged", "QFFL", "ScaffPD"])
def test_a_run_interrupted_between_any_two_queries_ends_with_the_same_bits(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    """DRFA, q-FFL and Scaff-PD ask twice per round: the first answer alone is no progress."""
    answer = Lanes.run
    asked = 0

    def counting(self: Lanes, *query: Any) -> Any:
        nonlocal asked
        asked += 1
        return answer(self, *query)

    monkeypatch.setattr(Lanes, "run", counting)
    whole, questions = bits(fit(name)), asked
    assert questions == 2 * ROUNDS
    for turn in range(1, questions + 1):
        left = turn

        def failing(self: Lanes, *query: Any) -> Any:
            nonlocal left
            left -= 1
            if left == 0:
                raise KeyboardInterrupt
            return answer(self, *query)

        monkeypatch.setattr(Lanes, "run", failing)
        with pytest.raises(KeyboardInterrupt):
            fit(name, checkpoint=Checkpoint(tmp_path / str(turn)))
        monkeypatch.setattr(Lanes, "run", answer)
        assert bits(fit(name, checkpoint=Checkpoint(tmp_path / str(turn)))) == whole


@pytest.mark.parametrize("every", [1, 3])
@pytest.mark.parametrize("name", GRIDS)
def test_a_sweep_interrupted_in_any_round_ends_with_the_same_bits(tmp_path: Path, name: str, every: int) -> None:
    """In any round of its first run, and of its last, which trains later if their shapes differ."""
    whole = [bits(run) for run in sweep(name, rounds=3)]
    for index in (0, len(whole) - 1):
        for at in range(len(whole[index]["history"])):
            folder = tmp_path / f"{index}-{at}"
            interrupted = {"checkpoint": Checkpoint(folder, every=every), "callbacks": [stop_at(at, index)]}
            with pytest.raises(InterruptError):
                sweep(name, rounds=3, **interrupted)
            again = sweep(name, rounds=3, checkpoint=Checkpoint(folder, every=every))
            assert [bits(run) for run in again] == whole


@pytest.mark.parametrize("chunk_size", [1, 2, 5])
def test_a_resumed_sweep_keeps_the_chunk_size_of_before(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, chunk_size: int
) -> None:
    """Even if memory has changed since the interruption: sums in another order might round differently."""
    whole = [bits(run) for run in sweep("several groups", chunk_size=chunk_size)]
    with pytest.raises(InterruptError):
        sweep("several groups", chunk_size=chunk_size, checkpoint=Checkpoint(tmp_path), callbacks=[stop_at(2, 3)])
    answer, used = Lanes.run, list[int | None]()

    def watched(self: Lanes, *query: Any) -> Any:
        used.append(self.chunk_size)
        return answer(self, *query)

    monkeypatch.setattr(Lanes, "run", watched)
    again = sweep("several groups", chunk_size=None, checkpoint=Checkpoint(tmp_path))
    assert [bits(run) for run in again] == whole
    assert used == [chunk_size] * 2


def test_a_sweep_of_a_dozen_runs_resumes(tmp_path: Path) -> None:
    """As text, the tenth comes before the second."""
    grid = {"seed": list(range(12))}

    def train(**changes: Any) -> list[wafl.Run]:
        work = {**options(rounds=2), **changes}
        return list(wafl.sweep(wafl.models.mlr(CLIENTS), CLIENTS, wafl.FedAvg(), grid, **work))

    whole = [bits(run) for run in train()]
    with pytest.raises(InterruptError):
        train(checkpoint=Checkpoint(tmp_path), callbacks=[stop_at(1)])
    assert [bits(run) for run in train(checkpoint=Checkpoint(tmp_path))] == whole


# -- How often checkpoints are written, and how many are kept -------------------------------------------------


@pytest.fixture
def crash(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is written when the training is interrupted, as if the process had been killed."""
    monkeypatch.setattr(Checkpoint, "__exit__", lambda *_: None)


def rounds_on_disk(folder: Path) -> list[dict[int, int]]:
    """How far each run had come in each checkpoint, oldest first."""
    states = [unsealed((path / "state.json").read_bytes()) for path in written(folder)]
    return [{int(index): run["round"] for index, run in state["runs"].items()} for state in states]


@pytest.mark.usefixtures("crash")
def test_with_a_checkpoint_every_three_rounds_a_crash_loses_less_than_three(tmp_path: Path) -> None:
    whole = bits(fit(rounds=8))
    for at in range(8):
        folder = tmp_path / str(at)
        with pytest.raises(InterruptError):
            fit(rounds=8, checkpoint=Checkpoint(folder, every=3), callbacks=[stop_at(at)])
        assert [state[0] for state in rounds_on_disk(folder)] == [3, 6][: at // 3]
        seen = Seen()
        assert bits(fit(rounds=8, checkpoint=Checkpoint(folder, every=3), callbacks=[seen])) == whole
        assert seen.rounds == list(range(at // 3 * 3, 8))


@pytest.mark.usefixtures("crash")
def test_with_a_checkpoint_every_three_rounds_runs_that_train_later_lose_no_more(tmp_path: Path) -> None:
    """Runs of another shape train after the first ones, whose number of rounds is not a multiple of three."""
    grid = {"batch_size": [2, 4]}

    def train(**changes: Any) -> None:
        wafl.sweep(wafl.models.mlr(CLIENTS), CLIENTS, wafl.FedAvg(), grid, rounds=7, local_steps=1, **changes)

    with pytest.raises(InterruptError):
        train(checkpoint=Checkpoint(tmp_path, every=3), callbacks=[stop_at(6, index=1)])
    assert rounds_on_disk(tmp_path)[-1][1] >= 4, "no more than three rounds are lost"


@pytest.mark.parametrize("error", [InterruptError, KeyboardInterrupt, ConnectionError])
def test_an_interruption_writes_a_checkpoint_even_between_two_that_are_due(
    tmp_path: Path, error: type[BaseException]
) -> None:
    """A tracker that loses its connection is not a full disk."""

    def fails(moment: Moment) -> None:
        if moment.record.round == 3:
            raise error

    with pytest.raises(error):
        fit(checkpoint=Checkpoint(tmp_path, every=100), callbacks=[fails])
    assert rounds_on_disk(tmp_path) == [{0: 3}]


def test_the_last_two_checkpoints_are_kept(tmp_path: Path) -> None:
    seen: list[list[dict[int, int]]] = []
    fit(rounds=5, checkpoint=Checkpoint(tmp_path), callbacks=[lambda _: seen.append(rounds_on_disk(tmp_path))])
    assert seen == [[], [{0: 1}], [{0: 1}, {0: 2}], [{0: 2}, {0: 3}], [{0: 3}, {0: 4}]]
    assert rounds_on_disk(tmp_path) == [{0: 4}, {0: 5}]


@pytest.mark.parametrize(
    ("options", "message"),
    [({"every": 0}, "every=0 must be at least 1"), ({"seconds": 0.0}, "seconds=0.0 must be above 0"),
     ({"seconds": float("nan")}, "seconds=nan must be above 0")],
)  # fmt: skip
def test_a_checkpoint_that_would_never_be_written_is_refused(
    tmp_path: Path, options: dict[str, Any], message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        Checkpoint(tmp_path, **options)


@pytest.mark.usefixtures("crash")
def test_a_checkpoint_is_written_early_when_its_time_has_come(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A clock on which every look takes a second."""
    monkeypatch.setattr(checkpoint_module.time, "monotonic", itertools.count().__next__)
    with pytest.raises(InterruptError):
        fit(rounds=8, checkpoint=Checkpoint(tmp_path, every=100, seconds=3.0), callbacks=[stop_at(7)])
    assert [state[0] for state in rounds_on_disk(tmp_path)] == [3, 6]


def test_two_trainings_cannot_share_a_folder(tmp_path: Path) -> None:
    def other(_: Moment) -> None:
        with pytest.raises(CheckpointError, match="is in use by another process that trains: pass a different folder"):
            fit(checkpoint=Checkpoint(tmp_path))

    fit(checkpoint=Checkpoint(tmp_path), callbacks=[other])
    assert len(fit(checkpoint=Checkpoint(tmp_path)).history) == ROUNDS, "the lock is gone"


def test_what_a_checkpoint_writes_does_not_grow_with_the_rounds(tmp_path: Path) -> None:
    states: list[int] = []
    journals: list[int] = []

    def measure(_: Moment) -> None:
        states.extend(sum(file.stat().st_size for file in path.iterdir()) for path in written(tmp_path)[-1:])
        journals.extend(path.stat().st_size for path in tmp_path.glob("rounds.journal"))

    fit(rounds=120, checkpoint=Checkpoint(tmp_path), callbacks=[measure])
    assert max(states[-10:]) <= max(states[:10]) + 20, "a few digits"
    growth = np.diff(journals)
    assert max(growth[-10:]) <= max(growth[:10]) + 20


def test_memory_that_changes_is_appended_and_outdated_memory_is_removed(tmp_path: Path) -> None:
    """Forty clients keep a map each; two take part per round."""
    rng = np.random.default_rng(0)
    pairs = [(rng.random((2, 8)), np.arange(2)) for _ in range(40)]
    clients = wafl.Federation.from_arrays(pairs, test_fraction=0)
    sizes: list[int] = []
    names = set[str]()

    def measure(_: Moment) -> None:
        journals = sorted(tmp_path.glob("memory-*.journal"))
        names.update(path.name for path in journals)
        sizes.append(sum(path.stat().st_size for path in journals))
        assert len(journals) <= 3

    def train(**changes: Any) -> wafl.Run:
        return fit("FedRobust", clients, rounds=60, cohort=2, **changes)

    whole = bits(train())
    with pytest.raises(InterruptError):
        train(checkpoint=Checkpoint(tmp_path), callbacks=[measure, stop_at(57)])
    assert len(names) > 2, "it was written anew"
    growth = np.diff(sizes)
    appended = growth[growth > 0]
    assert np.median(appended) < max(sizes) / 10, "most rounds append what changed"
    shutil.rmtree(written(tmp_path)[-1])  # the one before still finds its memory
    assert bits(train(checkpoint=Checkpoint(tmp_path))) == whole


def test_a_full_disk_in_any_write_loses_nothing_that_is_written_later(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = bits(fit("FedRobust"))
    append = Journal.append
    for failing in range(1, 6):
        folder, left = tmp_path / str(failing), failing

        def full(self: Journal, entries: Any) -> None:
            nonlocal left
            left -= 1
            if left == 0:
                with self.path.open("ab") as file:
                    file.write(b"12 torn")
                raise OSError(28, "No space left on device")
            append(self, entries)

        monkeypatch.setattr(Journal, "append", full)
        with pytest.raises(OSError, match="No space"):
            fit("FedRobust", checkpoint=Checkpoint(folder))
        monkeypatch.setattr(Journal, "append", append)
        assert bits(fit("FedRobust", checkpoint=Checkpoint(folder))) == whole


# -- Damage ---------------------------------------------------------------------------------------------------


@pytest.fixture
def half(tmp_path: Path) -> Path:
    """The checkpoints of a training that was interrupted in its last round."""
    folder = tmp_path / "half"
    with pytest.raises(InterruptError):
        fit(checkpoint=Checkpoint(folder), callbacks=[stop_at(ROUNDS - 1)])
    assert len(written(folder)) == 2
    return folder


def _spoil_end(path: Path) -> None:
    data = path.read_bytes()
    path.write_bytes(data[:-4] + bytes([data[-4] ^ 1]) + data[-3:])


DAMAGES: dict[str, Callable[[Path], Any]] = {
    "a bit of the tensors": lambda folder: flip(folder / "state.safetensors"),
    "a bit of the description": lambda folder: flip(folder / "state.json"),
    "tensors cut short": lambda folder: (folder / "state.safetensors").write_bytes(
        (folder / "state.safetensors").read_bytes()[:-5]
    ),
    "description empty": lambda folder: (folder / "state.json").write_bytes(b""),
    "description not a table": lambda folder: (folder / "state.json").write_bytes(b"[1, 2]"),
    "description not text": lambda folder: (folder / "state.json").write_bytes(b"\xff\xfe\x00"),
    "tensors gone": lambda folder: (folder / "state.safetensors").unlink(),
    "description gone": lambda folder: (folder / "state.json").unlink(),
    "its last round in the journal": lambda folder: _spoil_end(folder.parent / "rounds.journal"),
    "tensors of the one before": lambda folder: shutil.copy(
        written(folder.parent)[0] / "state.safetensors", folder / "state.safetensors"
    ),
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_last_checkpoint_falls_back_to_the_one_before(half: Path, damage: str) -> None:
    DAMAGES[damage](written(half)[1])
    seen = Seen()
    with pytest.warns(CheckpointWarning, match=rf"{written(half)[1]} is left out: .* from the checkpoint before it"):
        assert bits(fit(checkpoint=Checkpoint(half), callbacks=[seen])) == bits(fit())
    assert seen.rounds == [2, 3], "one round more than without the damage"


@pytest.mark.parametrize("damage", [name for name in DAMAGES if "one before" not in name and "journal" not in name])
def test_two_damaged_checkpoints_are_an_error_and_nothing_is_changed(half: Path, damage: str) -> None:
    for folder in written(half):
        DAMAGES[damage](folder)
    before = contents(half)
    with pytest.raises(CheckpointError, match="holds no usable checkpoint") as caught:
        fit(checkpoint=Checkpoint(half))
    assert str(half) in str(caught.value)
    assert "move the folder away to start from scratch" in str(caught.value)
    assert contents(half) == before


def test_a_damaged_first_round_leaves_no_usable_checkpoint(half: Path) -> None:
    data = bytearray((half / "rounds.journal").read_bytes())
    data[100] ^= 1
    (half / "rounds.journal").write_bytes(bytes(data))
    with pytest.raises(CheckpointError, match=r"rounds\.journal is damaged at byte 0"):
        fit(checkpoint=Checkpoint(half))


def test_a_damaged_checkpoint_does_not_count_as_one_of_the_two_that_are_kept(half: Path) -> None:
    """Two are kept so that one may be damaged."""
    flip(written(half)[1] / "state.safetensors")
    with pytest.raises(InterruptError), pytest.warns(CheckpointWarning):
        fit(checkpoint=Checkpoint(half), callbacks=[stop_at(3)])
    flip(written(half)[-1] / "state.safetensors")
    with pytest.warns(CheckpointWarning):
        assert bits(fit(checkpoint=Checkpoint(half))) == bits(fit())


def test_what_a_crash_left_half_written_is_ignored(half: Path) -> None:
    shutil.copytree(written(half)[1], half / "000000004.partial")
    (half / "000000004.partial" / "state.json").write_bytes(b"{")
    (half / "notes.txt").write_text("mine")
    assert bits(fit(checkpoint=Checkpoint(half))) == bits(fit())
    assert (half / "notes.txt").read_text() == "mine"


@pytest.mark.parametrize(
    ("format", "message"),
    [
        (7, "format 7, this version reads 6: update wafl-learn"),
        (1, "finish the study with the version that began it, or start again"),
    ],
)
def test_another_format_is_refused_and_left_as_it_is(half: Path, format: int, message: str) -> None:
    for folder in written(half):
        about = unsealed((folder / "state.json").read_bytes())
        (folder / "state.json").write_bytes(sealed({**about, "format": format}))
    before = contents(half)
    with pytest.raises(CheckpointError, match=message):
        fit(checkpoint=Checkpoint(half))
    assert contents(half) == before


# -- Another training -----------------------------------------------------------------------------------------


def scaled_loss(outputs: Tensor, y: Tensor) -> Tensor:
    return 3.0 * torch.nn.functional.cross_entropy(outputs, y, reduction="none")


OTHERS: dict[str, tuple[dict[str, Any], str]] = {
    "method": ({"name": "FedRobust"}, "methods"),
    "radius": ({"radius": 0.4}, "methods"),
    "client weights": ({"client_weights": wafl.weights.uniform()}, "methods"),
    "seed": ({"seed": 1}, "methods"),
    "rounds": ({"rounds": 9}, "methods"),
    "start": ({"init": {"1.weight": torch.ones(3, 3), "1.bias": torch.ones(3)}}, "starting parameters"),
    "loss": ({"loss": scaled_loss}, "loss"),
    "labels": ({"clients": federation(shift=1)}, "training examples"),
    "inputs": ({"clients": federation(scale=2.0)}, "training examples"),
    "faults": ({"faults": wafl.Faults(dropout=0.1)}, "faults"),
}
"""What differs, and what the refusal names."""


@pytest.mark.parametrize("other", OTHERS)
def test_the_checkpoint_of_another_training_is_refused(half: Path, other: str) -> None:
    changes, what = OTHERS[other]
    before = contents(half)
    with pytest.raises(CheckpointError, match=f"it belongs to a different run, with different {what}"):
        fit(checkpoint=Checkpoint(half), **changes)
    assert contents(half) == before


def test_the_checkpoint_of_the_same_data_in_another_unit_is_refused(tmp_path: Path) -> None:
    """The bytes are the same, but they are preprocessed differently."""
    parts = {"num_clients": 4, "labels_per_client": 5}
    one, other = (wafl.load_dataset("digits").partition(**parts, preprocess=unit) for unit in ("unit", "symmetric"))
    with pytest.raises(InterruptError):
        fit(clients=one, checkpoint=Checkpoint(tmp_path), callbacks=[stop_at(2)])
    with pytest.raises(CheckpointError, match="it belongs to a different run"):
        fit(clients=other, checkpoint=Checkpoint(tmp_path))


def falling(first: float, round: int) -> float:
    return first / (1 + round)


def recreated() -> Callable[[float, int], float]:
    """The function as another process creates it: the same code, elsewhere in memory."""
    return types.FunctionType(falling.__code__, globals())


class Falling:
    """A learning rate that is an object, whose repr is only its place in memory."""

    def __init__(self, first: float) -> None:
        self.first = first

    def __call__(self, round: int) -> float:
        return falling(self.first, round)


RATES: dict[str, Callable[[float], Callable[[int], float]]] = {
    "a function": lambda first: lambda number: falling(first, number),
    "a partial": lambda first: functools.partial(recreated(), first),
    "an object": Falling,
}


@pytest.mark.parametrize("kind", RATES)
def test_a_rate_that_is_a_function_is_known_by_its_values(tmp_path: Path, kind: str) -> None:
    """Its place in memory differs from process to process, and its name says nothing about it."""
    rate, same, other = RATES[kind](0.2), RATES[kind](0.2), RATES[kind](0.3)
    whole = bits(fit(learning_rate=rate))
    with pytest.raises(InterruptError):
        fit(learning_rate=rate, checkpoint=Checkpoint(tmp_path), callbacks=[stop_at(2)])
    with pytest.raises(CheckpointError, match="it belongs to a different run"):
        fit(learning_rate=other, checkpoint=Checkpoint(tmp_path))
    assert bits(fit(learning_rate=same, checkpoint=Checkpoint(tmp_path))) == whole
