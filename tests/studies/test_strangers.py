"""Studies from strangers: whatever their files hold, commands end in one line, and terminals obey none of it."""

from __future__ import annotations

import ast
import json
import os
import pickle
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from hashlib import sha256
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from typer.testing import CliRunner

import wafl
from wafl.base.describe import visible
from wafl.base.errors import ConfigError, FolderError
from wafl.base.files import sealed
from wafl.base.json_types import parsed
from wafl.cli.main import app
from wafl.cli.terminal import make_console
from wafl.config.demo import demo_experiment
from wafl.config.experiment import Trackers
from wafl.config.read import parse_experiment
from wafl.report.page import Page, as_html
from wafl.results.saved import SAVED, saved_history
from wafl.studies.folder import StudyFolder, check_results, provenance
from wafl.studies.pages.progress import read_lines
from wafl.studies.pages.shown import show_study, summary_of
from wafl.train.checkpoint.checkpoint import FORMAT, CheckpointError, read_progress

ESCAPE = "\x1b]0;title\x07\x9b2J\u202e"
DEEP = b'{"format": 1, "x": ' + b"[" * 100_000 + b"]" * 100_000 + b"}"


def command(*arguments: str) -> Any:
    result = CliRunner().invoke(app, list(arguments))
    assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
    return result


def spread(value: float) -> dict[str, Any]:
    return {"mean": value, "std": 0.0, "seeds": [value]}


def results() -> dict[str, Any]:
    row = {"clean": spread(90.0), "attacked": {"0.2": spread(80.0)}, "worst_client": spread(70.0), "seconds": 1.0}
    fixed = {"seeds": [0], "measure": "accuracy", "attack": None, "done": ["wafl"], "finished": True}
    return {**fixed, "methods": {"WAFL": row, "FedAvg": {"diverged": {"0": "round 3"}}}}


@pytest.fixture
def studies(tmp_path: Path) -> Path:
    for name in ("good", "other"):
        folder = StudyFolder.create(tmp_path / name, demo_experiment(rounds=1, seeds=[0]))
        folder.write_results(results())
    return tmp_path


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    clients = wafl.Federation.from_arrays([(np.eye(4, dtype="float32"), np.arange(4) % 2)] * 2, test_fraction=0.0)
    run = wafl.fit(wafl.models.mlr(clients), clients, wafl.WAFL(gamma=9.0), rounds=1, local_steps=1)
    return run.save(tmp_path_factory.mktemp("runs") / "wafl")


def changes(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """The place of every value in a file, of lists only the first."""
    inner = value.items() if isinstance(value, dict) else enumerate(value[:1]) if isinstance(value, list) else ()
    for key, each in inner:
        yield (*path, key)
        yield from changes(each, (*path, key))


def changed(content: dict[str, Any], path: tuple[Any, ...], value: Any) -> dict[str, Any]:
    copy = json.loads(json.dumps(content))
    index = copy
    for key in path[:-1]:
        index = index[key]
    index[path[-1]] = value
    return copy


def test_results_with_any_value_of_another_type_are_refused_or_listed(studies: Path) -> None:
    from rich.console import Console

    from wafl.cli.tables import comparison

    for path in changes(results()):
        for value in (None, "x", [["x"]], {"x": None}, -1):
            content = changed(results(), path, value)
            try:
                check_results(content)
            except ValueError:
                continue
            with Console().capture():  # what is not refused can be shown
                Console().print(comparison(content))
    for wrong in ({}, {**results(), "methods": {"WAFL": {"clean": 5}}}, {**results(), "seeds": "x"}):
        StudyFolder(studies / "good").write_results(wrong)
        with pytest.raises(FolderError, match=r"results.json is damaged and cannot be read: .*Nothing was changed"):
            StudyFolder(studies / "good").read_results()


def test_one_bad_folder_does_not_end_the_list_of_studies(studies: Path) -> None:
    good = studies / "good"
    for file, content in [
        ("results.json", DEEP),
        ("results.json", sealed({"methods": 5})),
        ("results.json", b"[]"),
        ("about.json", sealed({"started": ["x"], "format": "x"})),
        ("about.json", b"\xff\xfe"),
    ]:
        before = (good / file).read_bytes()
        (good / file).write_bytes(content)
        result = command("runs", str(studies))
        assert result.exit_code == 0
        assert "damaged" in result.output
        assert "WAFL: 80.0%" in " ".join(result.output.split())  # the other study
        (good / file).write_bytes(before)


@pytest.mark.parametrize("content", [DEEP, b"[1, 2]", b"5", b"", b'{"format": 1}', b'{"format": {"x": 1}}'])
def test_a_run_whose_description_is_no_description_is_refused(content: bytes, saved: Path, tmp_path: Path) -> None:
    (tmp_path / "params.safetensors").write_bytes((saved / "params.safetensors").read_bytes())
    (tmp_path / "run.json").write_bytes(content)
    with pytest.raises(ValueError, match="is damaged"):
        wafl.load_run(tmp_path)


def test_a_run_with_any_value_of_another_type_is_refused_by_name(saved: Path, tmp_path: Path) -> None:
    about = json.loads((saved / "run.json").read_bytes())
    del about["checksum"]
    (tmp_path / "params.safetensors").write_bytes((saved / "params.safetensors").read_bytes())
    for name in SAVED:
        (tmp_path / "run.json").write_bytes(sealed({**about, name.removesuffix("?"): [{"x": 1}]}))
        with pytest.raises(ValueError, match=f"is damaged: {name.removesuffix('?')}"):
            wafl.load_run(tmp_path)
    (tmp_path / "run.json").write_bytes(sealed({**about, "model": {"name": "cnn", "input_shape": 5}}))
    with pytest.raises(ValueError, match="describes no model that wafl builds"):
        wafl.load_run(tmp_path)
    record = {**about["history"][0], "loss": "x"}
    (tmp_path / "run.json").write_bytes(sealed({**about, "history": [record]}))
    with pytest.raises(ValueError, match=r"history\.0\.loss: input should be a valid number"):
        wafl.load_run(tmp_path)


def test_terminals_never_get_control_characters_or_markup_from_files(studies: Path) -> None:
    content = results()
    content["methods"] = {f"[red]{ESCAPE}[/red][/]": content["methods"]["WAFL"]}
    StudyFolder(studies / "good").write_results(content)
    output = command("runs", str(studies)).output
    assert "[red]" in output.replace("\n", "")
    (studies / "evil\x1b[2J[bold]").mkdir()
    (studies / "evil\x1b[2J[bold]" / "config.toml").touch()
    for text in (output, command("runs", str(studies)).output, command("evaluate", str(studies / ESCAPE)).stderr):
        assert "?" in text
        assert not set(text) & set("\x1b\x07\x9b\u202e")


def test_a_console_keeps_its_own_colors_and_shows_what_a_terminal_would_obey(
    capsys: pytest.CaptureFixture[str],
) -> None:
    console = make_console(force_terminal=True, color_system="standard")
    console.print(f"[red]mine[/] {ESCAPE}", highlight=False)
    shown = capsys.readouterr().out
    assert "\x1b[31mmine\x1b[0m" in shown
    assert "]0;title" in shown
    assert "\x1b]" not in shown
    assert visible("a\nb\tc é 日本 👍") == "a\nb\tc é 日本 👍"
    assert visible("\ud800\x00\r\x85") == "????"


@pytest.mark.parametrize("file", ["results.json", "about.json", ".lock"])
@pytest.mark.parametrize("kind", ["a pipe", "a terabyte"])
def test_a_pipe_or_a_terabyte_in_one_folder_does_not_stop_the_list(studies: Path, file: str, kind: str) -> None:
    path = studies / "good" / file
    path.unlink(missing_ok=True)
    if kind == "a pipe":
        os.mkfifo(path)
    else:
        with path.open("wb") as sparse:
            sparse.truncate(2**40)
    listed = command("runs", str(studies))
    assert listed.exit_code == 0
    assert "WAFL: 80.0%" in " ".join(listed.output.split())  # the other study
    assert ("damaged" in listed.output) == (file != ".lock")
    assert as_html(Page("", [summary_of(studies / "good", "/study/good")]))


@pytest.mark.parametrize("read", [wafl.load_run, saved_history])
def test_tensors_that_take_more_than_half_of_the_memory_are_refused_before_they_are_read(
    read: Any, saved: Path, tmp_path: Path
) -> None:
    (tmp_path / "run.json").write_bytes((saved / "run.json").read_bytes())
    with (tmp_path / "params.safetensors").open("wb") as sparse:
        sparse.truncate(2**42)
    begun = time.process_time()
    with pytest.raises(ValueError, match=r"is damaged: it has more than \d+ MiB"):
        read(tmp_path)
    (tmp_path / "state.json").write_bytes(sealed({"format": FORMAT}))
    (tmp_path / "params.safetensors").rename(tmp_path / "state.safetensors")
    with pytest.raises(CheckpointError, match=r"it has more than \d+ MiB"):
        read_progress(tmp_path)
    assert time.process_time() - begun < 5.0


@pytest.mark.parametrize("name", ["metrics.jsonl", "wafl"])
def test_a_pipe_in_a_study_is_named_and_not_read(studies: Path, name: str) -> None:
    os.mkfifo(studies / "good" / name)
    for arguments in (
        ["resume"],
        ["evaluate"],
        ["export", "--format", "pt2"],
        ["report", "--quick"],
        ["repair"],
    ):
        result = command(arguments[0], str(studies / "good"), *arguments[1:])
        assert result.exit_code == 2
        assert "is neither a file nor a folder: remove it" in " ".join(result.output.split())


def test_a_number_of_a_thousand_digits_is_damage(studies: Path, saved: Path, tmp_path: Path) -> None:
    line = {"method": "wafl", "seed": 0, "round": 0, "loss": 1.0, "cohort": [0]}
    rows = [line, {**line, "round": 10**1000}, {**line, "loss": 10**1000}]
    (studies / "good" / "metrics.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    assert len(read_lines(studies / "good" / "metrics.jsonl")) == 1
    assert show_study(studies / "good").sections
    assert parsed('{"text": "' + "1" * 1000 + '", "number": 5}')["number"] == 5
    about = json.loads((saved / "run.json").read_bytes())
    del about["checksum"]
    (tmp_path / "params.safetensors").write_bytes((saved / "params.safetensors").read_bytes())
    model = {"name": "mlr", "input_shape": [10**200, 10**200], "num_outputs": 2}
    (tmp_path / "run.json").write_bytes(sealed({**about, "model": model}))
    with pytest.raises(ValueError, match="describes no model that wafl builds"):
        wafl.load_run(tmp_path)


@pytest.mark.parametrize("content", ["long", "sparse", "dotted"])
def test_a_config_that_would_take_a_parser_long_is_refused_at_once(content: str, studies: Path) -> None:
    """Read as they are, 120,000 characters of dotted keys take a minute and 6 GB, and 60 MB end a report."""
    config, about = studies / "good" / "config.toml", studies / "good" / "about.json"
    with config.open("wb") as file:
        file.write(b"a." * 60_000 + b"a = 1" if content == "dotted" else b"#" * 2**23)
        file.truncate(2**40 if content == "sparse" else file.tell())
    if content == "dotted":
        before = json.loads(about.read_bytes())
        del before["checksum"]
        about.write_bytes(sealed({**before, "config": sha256(config.read_bytes()).hexdigest()}))
    begin = time.process_time()
    for arguments in (("resume", config.parent), ("report", config.parent), ("config", "check", config)):
        result = command(*map(str, arguments))
        assert result.exit_code == (0 if arguments[0] == "report" else 2), "a report says what it leaves out"
        assert ("a key of 60001 parts" if content == "dotted" else "MiB") in " ".join(result.output.split())
    listed = command("runs", str(studies))
    assert "WAFL: 80.0%" in " ".join(listed.output.split()), "the other study"
    assert time.process_time() - begin < 5.0


class Touch:
    """An object whose pickle makes a file."""

    def __init__(self, file: Path) -> None:
        self.file = file

    def __reduce__(self) -> Any:
        return Path.touch, (self.file,)


@pytest.mark.parametrize("write", [torch.save, lambda bomb, file: file.write_bytes(pickle.dumps(bomb))])
def test_a_pickle_in_the_place_of_parameters_does_not_run(write: Any, saved: Path, tmp_path: Path) -> None:
    about = json.loads((saved / "run.json").read_bytes())
    del about["checksum"]
    write(Touch(tmp_path / "ran"), tmp_path / "params.safetensors")
    digest = sha256((tmp_path / "params.safetensors").read_bytes()).hexdigest()
    (tmp_path / "run.json").write_bytes(sealed({**about, "sha256": digest}))
    with pytest.raises(ValueError, match="is damaged"):
        wafl.load_run(tmp_path)
    assert not (tmp_path / "ran").exists()


UNPICKLING = {"data/named/readers.py": ["loads"], "data/named/natural.py": ["load", "read_pickle"]}
"""CIFAR-10's pickles, after their digest was compared, and the files of installed packages."""
READERS = {"pickle", "torch", "onnx", "onnxruntime", "joblib", "dill", "marshal", "shelve"}


def test_nothing_else_is_unpickled_and_no_onnx_is_read() -> None:
    source, found = Path(wafl.__file__).parent, dict[str, list[str]]()
    for file in source.rglob("*.py"):
        text = file.read_text(encoding="utf-8")
        for node in ast.walk(ast.parse(text)) if re.search(r"load\w*\(|pickle|InferenceSession", text) else ():
            if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Attribute):
                continue
            owner, name = node.func.value, node.func.attr
            reads = isinstance(owner, ast.Name) and owner.id in READERS and name.startswith("load")
            pickles = any(each.arg == "allow_pickle" and ast.unparse(each.value) != "False" for each in node.keywords)
            if reads or pickles or name in ("read_pickle", "Unpickler", "InferenceSession"):
                found.setdefault(file.relative_to(source).as_posix(), []).append(name)
    assert {file: sorted(names) for file, names in found.items()} == UNPICKLING


def test_an_experiment_names_no_address_that_its_metrics_go_to() -> None:
    """It may turn a tracker on, and a resume then logs to your own account, under the project that it names."""
    assert set(Trackers.model_fields) == {"tensorboard", "mlflow", "wandb", "project"}
    for key in ("tracking_uri", "entity", "host", "folder"):
        with pytest.raises(ConfigError, match=f"unknown key trackers.{key}"):
            parse_experiment({"trackers": {key: "https://example.org"}, "methods": [{"method": "FedAvg"}]}, "here")


@pytest.mark.processes
@pytest.mark.parametrize(
    "setting",
    ["core.fsmonitor", "filter.evil.clean", "filter.evil.process", "post-index-change", "remote.evil.uploadpack"],
)
def test_no_program_runs_that_a_strangers_git_repository_names(
    setting: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """``git status``, which marks a changed commit, would run each: one may start an experiment in any folder."""
    ran, program = tmp_path / "ran", tmp_path / "program"
    program.write_text(f"#!/bin/sh\ntouch {ran}\nexit 1\n")
    program.chmod(0o755)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("GIT_CONFIG_GLOBAL", os.devnull)

    def git(*words: str, check: bool = True) -> str:
        line = ["git", "-c", "user.name=a", "-c", "user.email=a@b.c", *words]
        return subprocess.run(line, check=check, capture_output=True, text=True).stdout.strip()

    git("init", "-q")
    Path("mine.toml").write_text("x = 1")
    git("add", "mine.toml")
    git("commit", "-q", "-m", "x")
    commit = git("rev-parse", "HEAD")
    Path("mine.toml").write_text("x = 2")
    if setting.startswith("filter"):
        Path(".git/info/attributes").write_text("* filter=evil")
    if setting == "post-index-change":
        Path(".git/hooks").mkdir(exist_ok=True)
        shutil.copy(program, Path(".git/hooks") / setting)
        os.utime("mine.toml", (1, 1))
        Path("mine.toml").write_text("x = 1")
        os.utime("mine.toml", (1, 1))
    elif setting.startswith("remote"):
        git("config", "core.repositoryformatversion", "1")
        git("config", "extensions.partialClone", "evil")
        git("config", "remote.evil.promisor", "true")
        git("config", "remote.evil.url", str(tmp_path))
        git("config", setting, str(program))
        tree = git("rev-parse", "HEAD^{tree}")
        (Path(".git/objects") / tree[:2] / tree[2:]).unlink()
    else:
        git("config", setting, str(program))
    found = provenance()["git_commit"]
    assert not ran.exists()
    assert found in (None, commit, f"{commit}-dirty", f"{commit}-unknown")
    git("status", "--porcelain", "--untracked-files=no", check=False)
    assert ran.exists(), "plain Git does"


@pytest.mark.processes
def test_python_itself_takes_libraries_from_the_working_directory_and_that_is_a_documented_no(tmp_path: Path) -> None:
    """It looks there before anything of wafl runs, unless it is told not to, as the command ``wafl`` does."""
    (tmp_path / "lazy_loader.py").write_text("raise SystemExit('planted')")

    def version(*options: str) -> str:
        line = [sys.executable, *options, "-m", "wafl", "--version"]
        done = subprocess.run(line, cwd=tmp_path, capture_output=True, text=True, timeout=60, check=False)
        return done.stdout + done.stderr

    assert "planted" in version()
    assert wafl.__version__ in version("-P")
