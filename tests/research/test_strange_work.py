"""A working folder of ``wafl reproduce`` that somebody else has made."""

from __future__ import annotations

from pathlib import Path

import pytest

from research.reproduction import experiments as files
from research.reproduction import reproduce
from wafl.base.errors import ConfigError
from wafl.studies.folder import StudyFolder, to_toml


def quiet(_: str) -> None: ...


def test_a_working_folder_of_a_stranger_runs_no_code_of_its_own(tmp_path: Path) -> None:
    """Neither by the experiment file that lies there, nor by a study that was begun."""
    (part, *_) = files.read("fig-gamma-radius", "paper", "smoke")
    name = part.experiment.methods[0].label
    path = tmp_path / "work" / part.label / name
    path.mkdir(parents=True)
    (path / "evil.py").write_text(f"open({str(tmp_path / 'ran')!r}, 'w')\ndef make(): ...\n")
    data = part.experiment.data.model_copy(update={"source": "evil:make"})
    evil = reproduce.alone(part.experiment, name).model_copy(update={"data": data})
    (path / "experiment.toml").write_text(to_toml(evil))
    with pytest.raises(ConfigError, match=r"experiment\.toml names code, evil:make"):
        reproduce.reproduce(part, tmp_path / "out", tmp_path / "work", quiet)
    (path / "experiment.toml").unlink()
    StudyFolder.create(path / "study", evil, path)
    with pytest.raises(ConfigError, match="study names code, evil:make"):
        reproduce.reproduce(part, tmp_path / "out", tmp_path / "work", quiet)
    assert not (tmp_path / "ran").exists()
