"""Code that an experiment names runs when somebody starts it, and never because somebody reads a folder."""

from __future__ import annotations

import pickle
import shutil
import sys
from collections.abc import Iterator
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from wafl.base.errors import ConfigError, UntrustedError
from wafl.cli import terminal
from wafl.cli.main import app
from wafl.config.code_folder import CodeFolder
from wafl.config.own_code import imported, own_code
from wafl.studies.study import Study

MODULE = """
from pathlib import Path

import numpy as np
import wafl
from helpers import SIZE

with Path(__file__).with_name("ran").open("a") as file:
    file.write("x")


def clients():
    x = np.random.default_rng(0).random((SIZE, 3))
    return wafl.Federation.from_arrays([(x, np.arange(SIZE) % 3), (1 - x, np.arange(SIZE) % 3)], test_fraction=0.5)
"""
EXPERIMENT = """
name = "mine"
[data]
source = "strange:clients"
[schedule]
rounds = 1
local_steps = 1
[attack]
kind = "none"
[[methods]]
method = "FedAvg"
"""
READERS = [
    ("evaluate", "study", "--attack", "none"),
    ("theory", "study", "--radii", "0.1"),
    ("resume", "study"),
    ("config", "check", "study/config.toml"),
    ("config", "check", "experiment.toml"),
]


def invoke(*arguments: Any, **options: Any) -> Any:
    return CliRunner().invoke(app, [str(argument) for argument in arguments], **options)


@pytest.fixture
def downloaded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A finished study with its code, which somebody else ran; nothing is remembered here."""
    for name, text in (
        ("strange.py", MODULE),
        ("helpers.py", "SIZE = 12"),
        ("sklearn.py", "1 / 0"),
    ):
        (tmp_path / name).write_text(text)
    (tmp_path / "experiment.toml").write_text(EXPERIMENT)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "theirs"))
    result = invoke("run", "experiment.toml", "--output", ".", "--name", "study")
    assert result.exit_code == 0, result.output
    (tmp_path / "ran").unlink()
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "ours"))
    forget()
    yield tmp_path
    forget()


def forget() -> None:
    """As in a new process."""
    for name in ("strange", "helpers"):
        sys.modules.pop(name, None)


@pytest.mark.parametrize("command", READERS, ids=lambda command: " ".join(command[:2]))
def test_reading_runs_no_code_until_it_is_trusted(command: tuple[str, ...], downloaded: Path) -> None:
    refused = invoke(*command)
    assert refused.exit_code == 2, refused.output
    assert "runs code, which has not run here before: strange:clients" in " ".join(refused.output.split())
    assert "--trust" in refused.output
    assert not (downloaded / "ran").exists()
    allowed = invoke(*command, "--trust")
    assert allowed.exit_code == 0, allowed.output
    assert (downloaded / "ran").exists()


def test_what_was_trusted_once_is_remembered_until_it_changes(downloaded: Path) -> None:
    assert invoke("config", "check", "experiment.toml", "--trust").exit_code == 0
    assert invoke("config", "check", "experiment.toml").exit_code == 0
    with (downloaded / "helpers.py").open("a") as file:
        file.write("# one more line")
    assert invoke("config", "check", "experiment.toml").exit_code == 2


def test_what_somebody_ran_can_be_read_without_asking(downloaded: Path) -> None:
    shutil.rmtree(downloaded / "study")
    assert invoke("run", "experiment.toml", "--output", ".", "--name", "study").exit_code == 0
    assert invoke("evaluate", "study", "--attack", "none").exit_code == 0
    assert invoke("resume", "study").exit_code == 0


def test_on_a_terminal_somebody_is_asked_once(downloaded: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(terminal, "on_a_terminal", lambda: True)
    declined = invoke("resume", "study", input="n\n")
    assert declined.exit_code == 2
    assert not (downloaded / "ran").exists()
    assert invoke("resume", "study", input="y\n").exit_code == 0
    assert invoke("resume", "study", input="").exit_code == 0


def test_from_python_a_strangers_study_needs_trust_too(downloaded: Path) -> None:
    with pytest.raises(UntrustedError, match="strange:clients"):
        Study.resume(downloaded / "study")
    assert not (downloaded / "ran").exists()
    assert not Study.resume(downloaded / "study", trust=True).pending()


def test_a_plain_study_with_a_library_of_its_own_next_to_it_runs_none_of_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "sklearn.py").write_text("1 / 0")
    (tmp_path / "experiment.toml").write_text(
        EXPERIMENT.replace('source = "strange:clients"', "iid = true\nnum_clients = 4")
    )
    monkeypatch.chdir(tmp_path)
    monkeypatch.delitem(sys.modules, "sklearn.datasets", raising=False)
    result = invoke("config", "check", "experiment.toml")
    assert result.exit_code == 0, result.output


@pytest.mark.parametrize("name", ["json", "sklearn", "wafl"])
def test_a_module_with_the_name_of_a_library_is_refused(name: str, tmp_path: Path) -> None:
    (tmp_path / f"{name}.py").write_text("def make(): ...")
    with (
        pytest.raises(ConfigError, match="has the name of an installed library: rename your module"),
        own_code(tmp_path, [f"{name}:make"], trust=True),
    ):
        pass


def test_two_experiments_with_modules_of_one_name_get_their_own(tmp_path: Path) -> None:
    before = list(sys.path)
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "twin.py").write_text(f"def make(): return {name!r}")
        with own_code(tmp_path / name, ["twin:make"], trust=True):
            assert imported("data.source", "twin:make")() == name
    assert sys.path == before
    sys.modules.pop("twin")


@pytest.mark.parametrize("same", [True, False])
def test_a_copy_of_a_module_on_the_path_is_no_library(
    same: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("app", "study"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "copied.py").write_text(f"def make(): return {('study' if same else name)!r}")
    monkeypatch.syspath_prepend(tmp_path / "app")
    refused = nullcontext() if same else pytest.raises(ConfigError, match="has the name of an installed library")
    with refused, own_code(tmp_path / "study", ["copied:make"], trust=True):
        assert imported("data.source", "copied:make")() == "study"


# -- Trust is about a folder and the files that its modules name -------------------------------------------------

PICKLE = """
import pickle
from pathlib import Path

import numpy as np
import wafl

SETTINGS = Path(__file__).parent / "settings" / "size.txt"


def clients():
    with open({opened}, "rb") as file:
        rows = pickle.load(file)
    x = np.array(rows, dtype=np.float32)
    return wafl.Federation.from_arrays([(x, np.arange(12) % 3)] * int(SETTINGS.read_text()), test_fraction=0.5)
"""
BOMB = b"cposix\nsystem\n(S'touch ran'\ntR."
"""A pickle that makes a file called ``ran`` in the working directory."""


def lay_out(folder: Path, opened: str = 'Path(__file__).with_name("rows.pkl")') -> Path:
    """Write an experiment whose loader reads a pickle and a file of settings."""
    (folder / "settings").mkdir(parents=True)
    (folder / "settings" / "size.txt").write_text("2")
    (folder / "experiment.toml").write_text(EXPERIMENT)
    (folder / "strange.py").write_text(PICKLE.format(opened=opened))
    (folder / "rows.pkl").write_bytes(pickle.dumps([[0.1, 0.2, 0.3]] * 12))
    return folder


@pytest.fixture
def mine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """An experiment of yours that has run here, and the working directory."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    folder = lay_out(tmp_path / "mine")
    assert invoke("config", "check", folder / "experiment.toml", "--trust").exit_code == 0
    assert invoke("config", "check", folder / "experiment.toml").exit_code == 0
    yield folder
    forget()


def refused(experiment: Path) -> str:
    """The reason why an experiment is not read, without its white space; nothing of it has run."""
    forget()
    result = invoke("config", "check", experiment)
    assert result.exit_code == 2, result.output
    assert not Path("ran").exists()
    return "".join(result.output.split())


@pytest.mark.parametrize(("name", "code"), [("rows.pkl", 2), ("settings/size.txt", 2), ("settings/new.txt", 0)])
def test_a_file_that_trusted_code_names_asks_again_when_it_changes(name: str, code: int, mine: Path) -> None:
    (mine / name).write_bytes(BOMB)
    assert f"whichnames{mine / 'rows.pkl'}" in refused(mine / "experiment.toml")
    assert invoke("config", "check", mine / "experiment.toml", "--trust").exit_code == code
    assert Path("ran").exists() == (name == "rows.pkl"), "the pickle would have run"


def test_the_same_code_in_another_folder_asks_again(mine: Path) -> None:
    shutil.copytree(mine, mine.parent / "theirs")
    (mine.parent / "theirs" / "rows.pkl").write_bytes(BOMB)
    assert "hasnotrunherebefore" in refused(mine.parent / "theirs" / "experiment.toml")


def test_a_file_of_the_working_directory_that_code_names_asks_again(mine: Path) -> None:
    folder = lay_out(mine.parent / "relative", '"rows.pkl"')
    shutil.copy(folder / "rows.pkl", "rows.pkl")
    assert invoke("config", "check", folder / "experiment.toml", "--trust").exit_code == 0
    forget()
    assert invoke("config", "check", folder / "experiment.toml").exit_code == 0
    Path("rows.pkl").write_bytes(BOMB)
    assert str(Path("rows.pkl").resolve()) in refused(folder / "experiment.toml")


def test_what_trusted_code_writes_itself_does_not_ask_again(mine: Path) -> None:
    with (mine / "strange.py").open("a") as file:
        file.write("\n\nPath(__file__).with_name('cache.txt').write_text(str(id(object())))\n")
    assert invoke("config", "check", mine / "experiment.toml", "--trust").exit_code == 0
    forget()
    assert invoke("config", "check", mine / "experiment.toml").exit_code == 0


def test_a_module_with_the_root_of_the_disk_in_a_text_reads_none_of_it(tmp_path: Path) -> None:
    for name, text in (("mine.py", f"A = '/', '..', '.', '', 'a\\0', {'x' * 5000!r}, '/dev/zero'\n"), ("b.py", "1 +")):
        (tmp_path / name).write_text(text)
    assert CodeFolder(tmp_path).named_files() == []
