"""Signals end a training as Ctrl-C does, after everything is on disk, and only where Python lets them be handled."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable, Generator
from pathlib import Path
from typing import Any

import pytest
import torch

import wafl
from wafl.callbacks import Moment
from wafl.train.checkpoint import checkpoint as checkpoint_module
from wafl.train.checkpoint.checkpoint import Checkpoint
from wafl.train.checkpoint.signals import ENDING, Stopped

ROUNDS = 5


@pytest.fixture(autouse=True)
def handlers() -> Generator[dict[int, Any], None, None]:
    """The handlers of a plain process, which must be there again in the end."""
    before = {number: signal.getsignal(number) for number in ENDING}
    plain: dict[int, Any] = {**dict.fromkeys(ENDING, signal.SIG_DFL), signal.SIGINT: signal.default_int_handler}
    for number, handler in plain.items():
        signal.signal(number, handler)
    yield plain
    left = {number: signal.getsignal(number) for number in ENDING}
    for number, handler in before.items():
        signal.signal(number, handler)
    assert left == plain


DRAW = torch.Generator().manual_seed(0)
CLIENTS = wafl.Federation.from_arrays(
    [(torch.randn(6, 3, generator=DRAW), torch.randint(0, 2, (6,), generator=DRAW)) for _ in range(3)]
)


def fit(folder: Path, *callbacks: Callable[[Moment], None], every: int = 100) -> wafl.Run:
    return wafl.fit(
        wafl.models.mlr(CLIENTS),
        CLIENTS,
        wafl.FedAvg(),
        rounds=ROUNDS,
        local_steps=1,
        batch_size=4,
        checkpoint=Checkpoint(folder, every=every),
        callbacks=callbacks,
    )


def sends(round: int, *numbers: int) -> Callable[[Moment], None]:
    def send(moment: Moment) -> None:
        if moment.record.round == round:
            for number in numbers:
                signal.raise_signal(number)

    return send


def rounds_left(folder: Path) -> int:
    """How many rounds the same call still trains, which must end in the bits of a training without signals."""
    seen: list[int] = []
    again = fit(folder, lambda moment: seen.append(moment.record.round))
    whole = fit(folder / "whole")
    assert all(torch.equal(again.params[name], value) for name, value in whole.params.items())
    return len(seen)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_a_signal_saves_what_there_is_and_ends_with_its_status(tmp_path: Path, number: signal.Signals) -> None:
    with pytest.raises(Stopped) as stop:
        fit(tmp_path, sends(3, number))
    assert stop.value.code == 128 + number
    assert rounds_left(tmp_path) == ROUNDS - 3


@pytest.mark.parametrize("second", [signal.SIGINT, signal.SIGTERM])
def test_a_second_signal_before_and_while_the_checkpoint_is_written_loses_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, second: signal.Signals
) -> None:
    """Also right after the first, when nothing has been written yet."""
    write = checkpoint_module.write_state
    came = 0

    def impatient(*arguments: Any) -> None:
        nonlocal came
        came += 1
        signal.raise_signal(second)
        write(*arguments)

    def cleaning_up(moment: Moment) -> None:
        if moment.record.round == 3:
            try:
                signal.raise_signal(signal.SIGINT)
            finally:
                signal.raise_signal(signal.SIGINT)

    monkeypatch.setattr(checkpoint_module, "write_state", impatient)
    # The second takes effect as soon as all is saved; SIGTERM is not handled here, which would end this process.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    with pytest.raises(KeyboardInterrupt):
        fit(tmp_path, cleaning_up)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    monkeypatch.undo()
    assert came == 1
    assert rounds_left(tmp_path) == ROUNDS - 3


@pytest.mark.parametrize("function", ["append", "write_state", "rmtree"])
def test_the_first_signal_waits_for_a_checkpoint_that_is_being_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, function: str
) -> None:
    owner: Any = {
        "append": checkpoint_module.Journal,
        "write_state": checkpoint_module,
        "rmtree": checkpoint_module.shutil,
    }[function]
    work, calls = getattr(owner, function), 0

    def interrupted(*arguments: Any, **options: Any) -> None:
        nonlocal calls
        calls += 1
        work(*arguments, **options)
        if calls == 2:
            signal.raise_signal(signal.SIGINT)

    monkeypatch.setattr(owner, function, interrupted)
    with pytest.raises(KeyboardInterrupt):
        fit(tmp_path, every=1)
    monkeypatch.undo()
    assert 0 < rounds_left(tmp_path) < ROUNDS - 1


def test_a_signal_that_somebody_catches_does_not_make_the_next_one_wait(tmp_path: Path) -> None:
    def catches(moment: Moment) -> None:
        if moment.record.round == 1:
            with pytest.raises(KeyboardInterrupt):
                signal.raise_signal(signal.SIGINT)

    with pytest.raises(KeyboardInterrupt):
        fit(tmp_path, catches, sends(3, signal.SIGINT))
    assert rounds_left(tmp_path) == ROUNDS - 3


def test_signals_that_are_ignored_or_handled_elsewhere_stay_so(tmp_path: Path, handlers: dict[int, Any]) -> None:
    """As after ``nohup``, and under a scheduler's own handler."""
    came: list[int] = []
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, lambda number, _: came.append(number))
    run = fit(tmp_path, sends(2, signal.SIGHUP, signal.SIGTERM, signal.SIGTERM))
    signal.signal(signal.SIGHUP, handlers[signal.SIGHUP])
    signal.signal(signal.SIGTERM, handlers[signal.SIGTERM])
    assert len(run.history) == ROUNDS
    assert came == [signal.SIGTERM] * 2


def test_a_training_in_another_thread_leaves_signals_alone(tmp_path: Path) -> None:
    during: list[Any] = []
    worker = threading.Thread(target=lambda: fit(tmp_path, lambda _: during.append(signal.getsignal(signal.SIGTERM))))
    worker.start()
    worker.join()
    assert during == [signal.SIG_DFL] * ROUNDS


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_the_command_ends_with_the_status_of_its_signal(tmp_path: Path, number: signal.Signals) -> None:
    from typer.testing import CliRunner

    from wafl.cli.main import app
    from wafl.studies.study import Study

    def stopped(self: Study, callbacks: object) -> None:
        os.kill(os.getpid(), number)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Study, "run", stopped)
        arguments = ["run", "--method", "fedavg", "--rounds", "1", "--output", str(tmp_path)]
        result = CliRunner(env={"COLUMNS": "300"}).invoke(app, arguments)
    assert result.exit_code == 128 + number
    assert f"To resume: wafl resume {tmp_path / 'digits'}" in result.output
