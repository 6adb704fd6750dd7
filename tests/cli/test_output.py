"""A reader that leaves, or a terminal that shows ASCII alone, ends no study."""

from __future__ import annotations

import errno
import io
import os
import sys
from pathlib import Path

import pytest

from wafl.cli.main import app
from wafl.cli.terminal import lasting_output, tell
from wafl.studies.folder import StudyFolder

EXPERIMENT = """
name = "tiny"
data = { num_clients = 3, iid = true }
schedule = { rounds = 2, local_steps = 1, batch_size = 4 }
methods = [{ method = "FedAvg" }, { method = "FedFGSM" }]
attack = { kind = "none" }
"""


def trained(tmp_path: Path) -> bool:
    """Whether ``wafl run`` ends well, with whatever stdout and stderr there are."""
    (tmp_path / "tiny.toml").write_text(EXPERIMENT)
    arguments = ["run", str(tmp_path / "tiny.toml"), "--output", str(tmp_path)]
    app(arguments, standalone_mode=False)
    study = StudyFolder(tmp_path / "tiny")
    return study.status() == "finished" and (study.figures / "accuracy.png").exists()


def test_a_closed_pipe_ends_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As in ``wafl run 2>&1 | head -1``."""
    reading, writing = os.pipe()
    os.close(reading)
    with os.fdopen(writing, "w") as closed:
        monkeypatch.setattr(sys, "stdout", closed)
        monkeypatch.setattr(sys, "stderr", closed)
        assert trained(tmp_path)


def test_an_ascii_terminal_ends_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shown = io.BytesIO()
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(shown, encoding="ascii"))
    assert trained(tmp_path)
    with lasting_output():
        print("\N{GREEK SMALL LETTER GAMMA} = 1")
    assert "FedAvg" in shown.getvalue().decode("ascii")
    assert shown.getvalue().endswith(b"? = 1\n")


def test_a_full_disk_below_the_output_is_still_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    class Full(io.StringIO):
        def write(self, text: str) -> int:
            raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(sys, "stdout", Full())
    with lasting_output(), pytest.raises(OSError, match="No space left"):
        print("lost")


def test_text_is_printed_as_it_is(capsys: pytest.CaptureFixture[str]) -> None:
    """Names of clients are neither markup nor emoji codes, and long lines are not broken."""
    text = f"client :key: [bold]x[/] {'a ' * 200}b"
    tell(text)
    assert capsys.readouterr().out == f"{text}\n"
