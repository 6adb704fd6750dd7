"""A study and its folder: what is in it, who may write to it, and that no interruption or damage loses anything."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Callable, Generator
from pathlib import Path
from typing import Any

import pytest
import torch
from typer.testing import CliRunner

import wafl
from tests.config.commands import assert_one_line
from tests.studies.commands import contents, flip, interrupt, invoke, methods_trained, outcome
from wafl.base.errors import FolderError
from wafl.base.files import sealed, unsealed
from wafl.cli.main import app
from wafl.config.read import parse_experiment
from wafl.studies import folder as folder_module
from wafl.studies.folder import StudyFolder
from wafl.studies.pages.progress import read_lines
from wafl.studies.study import Study

BASE: dict[str, Any] = {
    "seeds": [3, 1],
    "data": {"num_clients": 5, "labels_per_client": 4},
    "schedule": {"rounds": 4, "cohort": 3, "local_steps": 2, "batch_size": 16, "learning_rate": 0.1},
    "methods": [{"method": "WAFL", "radius": [0.2, 0.4]}, {"method": "FedAvg"}],
    "attack": {"steps": 2},
    "evaluation": {"attacked": [0.4, 0.8]},
}
ATTACK = "l_inf PGD, epsilon 0.1, 2 steps"
FOLDERS = ["fedavg", "fedavg/seed-1", "wafl-radius=0.2", "wafl-radius=0.2/seed-1", "wafl-radius=0.4",
           "wafl-radius=0.4/seed-1"]  # fmt: skip


def make(path: Path, **changes: Any) -> Study:
    return Study.create(parse_experiment({**BASE, **changes}, "here"), path)


def without_figures(folder: Path) -> dict[str, bytes]:
    return {name: data for name, data in contents(folder).items() if not name.startswith("figures")}


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished study; tests that change it make a copy."""
    path = tmp_path_factory.mktemp("whole") / "study"
    make(path).run()
    return path


@pytest.fixture
def finished(whole: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(whole, tmp_path / "finished"))


@pytest.fixture(scope="module")
def stopped(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("stopped") / "study"
    interrupt(make(path), "wafl", 10)
    return path


@pytest.fixture
def half(stopped: Path, tmp_path: Path) -> Path:
    """A study that was interrupted in the third of four rounds of its first method."""
    return Path(shutil.copytree(stopped, tmp_path / "half"))


# -- What is in the folder ------------------------------------------------------------------------------------


def test_a_finished_study_has_the_documented_files_and_no_others(whole: Path) -> None:
    assert {path.name for path in whole.iterdir()} - {".lock"} == {
        "config.toml", "about.json", "metrics.jsonl", "results.json", "fedavg", "wafl-radius=0.2", "wafl-radius=0.4",
        "checkpoint",
    }  # fmt: skip
    assert sorted(str(path.parent.relative_to(whole)) for path in whole.rglob("run.json")) == FOLDERS
    for name in contents(whole):
        assert Path(name).suffix in (".toml", ".json", ".jsonl", ".safetensors", ".journal"), name


def test_a_folder_describes_itself_before_any_work(tmp_path: Path) -> None:
    make(tmp_path / "study")
    assert {path.name for path in (tmp_path / "study").iterdir()} == {"config.toml", "about.json"}
    assert StudyFolder.existing(tmp_path / "study").status() == "interrupted"


def test_about_records_versions_machine_command_and_commit(
    whole: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    about = unsealed((whole / "about.json").read_bytes())
    assert about["format"] == 2
    # Some builds of torch call themselves 2.6.0+cpu, and their packages 2.6.0.
    assert about["packages"]["torch"].partition("+")[0] == torch.__version__.partition("+")[0]
    assert about["packages"]["wafl-learn"] == wafl.__version__
    assert set(about["packages"]) >= {"numpy", "scipy", "scikit-learn", "safetensors", "pydantic"}
    assert about["python"] == ".".join(map(str, sys.version_info[:3]))
    assert about["machine"]["cores"] == os.cpu_count()
    assert about["machine"]["system"]
    assert about["command"] == sys.argv
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\+00:00", about["started"])
    assert tomllib.loads((whole / "config.toml").read_text())["seeds"] == [3, 1]
    git = ["git", "-c", "user.name=a", "-c", "user.email=a@b.c"]
    monkeypatch.chdir(tmp_path)
    Path("mine.py").write_text("x = 1")
    for line in (["init", "-q"], ["add", "mine.py"], ["commit", "-q", "-m", "x"]):
        subprocess.run([*git, *line], check=True, capture_output=True)
    commit = subprocess.run([*git, "rev-parse", "HEAD"], check=True, capture_output=True, text=True).stdout.strip()
    make(tmp_path / "clean")
    assert unsealed((tmp_path / "clean" / "about.json").read_bytes())["git_commit"] == commit
    Path("mine.py").write_text("x = 2")
    make(tmp_path / "dirty")
    assert unsealed((tmp_path / "dirty" / "about.json").read_bytes())["git_commit"] == f"{commit}-dirty"


def test_outside_a_git_repository_no_commit_is_recorded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("GIT_CEILING_DIRECTORIES", str(tmp_path.parent))
    make(tmp_path / "study")
    assert unsealed((tmp_path / "study" / "about.json").read_bytes())["git_commit"] is None


def test_metrics_have_one_line_per_round_and_run_with_the_numbers_of_its_history(whole: Path) -> None:
    rows = [json.loads(line) for line in (whole / "metrics.jsonl").read_text().splitlines()]
    expected: list[dict[str, Any]] = []
    for method, radii in (("wafl", [0.2, 0.4]), ("fedavg", [None])):
        folders = {
            (radius, seed): whole
            / (method + (f"-radius={radius}" if radius else ""))
            / ("" if seed == 3 else f"seed-{seed}")
            for radius in radii
            for seed in (3, 1)
        }
        histories = {point: wafl.load_run(folder).history for point, folder in folders.items()}
        for number in range(4):
            for (radius, seed), history in histories.items():
                record = history[number]
                row = {"method": method, "seed": seed, "round": number, "loss": record.loss, "seconds": record.seconds}
                row |= {"replies": 3, "cohort": list(record.cohort), "excluded": [], "attempts": 1}
                row |= {"agreement": record.agreement}
                if radius is not None:
                    row |= {"radius": radius, "gamma": record.gamma, "achieved_radius": record.achieved_radius}
                expected.append(row)
    assert rows == expected
    assert read_lines(StudyFolder(whole).metrics) == rows


def test_results_are_the_evaluation_of_the_saved_models(whole: Path) -> None:
    results = StudyFolder(whole).read_results()
    clients = wafl.load_dataset("digits").partition(num_clients=5, labels_per_client=4)
    attack = wafl.PGD(epsilon=0.1, steps=2, bounds=clients.bounds)
    assert (results["seeds"], results["done"], results["measure"]) == ([3, 1], ["wafl", "fedavg"], "accuracy")
    assert list(results["methods"]) == ["wafl-radius=0.2", "wafl-radius=0.4", "FedAvg"]
    for label, row in results["methods"].items():
        runs = [wafl.load_run(whole / label.lower() / part) for part in ("", "seed-1")]
        clean = [wafl.evaluate(run, clients) for run in runs]
        assert row["clean"]["seeds"] == [100 * (score.accuracy or 0.0) for score in clean]
        assert row["clean"]["mean"] == pytest.approx(sum(row["clean"]["seeds"]) / 2)
        first, second = row["clean"]["seeds"]
        assert row["clean"]["std"] == pytest.approx(abs(first - second) / 2**0.5)
        assert row["worst_client"]["seeds"] == [100 * (score.worst_client.accuracy or 0.0) for score in clean]
        for share in (0.4, 0.8):
            moved = [
                wafl.evaluate(run, clients, attack=attack, attacked=share, seed=seed)
                for run, seed in zip(runs, (3, 1), strict=True)
            ]
            assert row["attacked"][f"{share:g}"]["seeds"] == [100 * (score.accuracy or 0.0) for score in moved]


def test_results_say_which_radius_each_seed_chose_and_why(tmp_path: Path) -> None:
    methods = [{"method": "WAFL", "radius": "auto"}]
    schedule = {**BASE["schedule"], "rounds": 2, "local_steps": 1}
    results = make(tmp_path / "study", methods=methods, schedule=schedule, attack={"kind": "none"}).run()
    chosen = results["methods"]["WAFL"]["chosen"]
    assert list(chosen) == ["3", "1"]
    for folder, seed in (("wafl", "3"), ("wafl/seed-1", "1")):
        run = wafl.load_run(tmp_path / "study" / folder)
        assert run.settings["method"]["objective"]["radius"] == chosen[seed]["radius"]
        assert chosen[seed]["why"].startswith(f"radius {chosen[seed]['radius']:g} was chosen among ")
    assert StudyFolder(tmp_path / "study").experiment().methods[0].radius == "auto"  # type: ignore[attr-defined]


def test_the_saved_config_run_again_gives_the_same_bits(whole: Path, tmp_path: Path) -> None:
    result = invoke("run", whole / "config.toml", "--output", tmp_path, "--name", "again")
    assert result.exit_code == 0, result.output
    assert outcome(tmp_path / "again") == outcome(whole)
    assert (tmp_path / "again" / "config.toml").read_bytes() == (whole / "config.toml").read_bytes()
    assert (tmp_path / "again" / "figures" / "accuracy.png").read_bytes().startswith(b"\x89PNG")


def test_the_saved_config_holds_every_value_in_force(whole: Path, tmp_path: Path) -> None:
    saved = tomllib.loads((whole / "config.toml").read_text())
    assert saved["data"]["preprocess"] == "unit"
    assert saved["attack"]["norm"] == float("inf")
    assert saved["checkpoint_every"] == 1
    data = {**BASE["data"], "preprocess": "unit"}
    assert parse_experiment(saved, "saved") == parse_experiment({**BASE, "data": data}, "here")


# -- One writer -----------------------------------------------------------------------------------------------


HOLD = """
import sys
from pathlib import Path
from wafl.studies.folder import StudyFolder
with StudyFolder(Path(sys.argv[1])).locked():
    print("held", flush=True)
    sys.stdin.read()
"""


@pytest.mark.processes
def test_a_folder_has_one_writer_and_shows_that_it_runs(half: Path) -> None:
    before = contents(half)
    assert "interrupted" in row_of(half)
    with subprocess.Popen(
        [sys.executable, "-c", HOLD, str(half)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == "held\n"
        assert_one_line(invoke("resume", half), f"{half} is in use by another process")
        with pytest.raises(FolderError, match="in use by another process"):
            Study.resume(half).run()
        assert "running" in row_of(half)
        assert contents(half) == before
        holder.kill()
    assert "interrupted" in row_of(half), "the lock ended with its process"
    assert invoke("resume", half).exit_code == 0
    assert "finished" in row_of(half)


def row_of(folder: Path) -> str:
    """What ``wafl runs`` says about a study."""
    result = invoke("runs", folder.parent)
    assert result.exit_code == 0, result.output
    (row,) = [line for line in result.stdout.splitlines()[2:] if line.split()[:1] == [folder.name]]
    return row


def test_runs_lists_how_far_each_has_come(whole: Path, stopped: Path, tmp_path: Path) -> None:
    for name, source in (("one", whole), ("two", stopped), ("three", whole)):
        shutil.copytree(source, tmp_path / name)
    (tmp_path / "three" / "results.json").write_text("{")
    (tmp_path / "other").mkdir()
    (tmp_path / "file").write_text("")
    rows = StudyFolder(whole).read_results()["methods"]
    best = max(rows.items(), key=lambda item: item[1]["attacked"]["0.8"]["mean"])
    text = f"{best[0]}: {best[1]['attacked']['0.8']['mean']:.1f}% (with 80% attacked: {ATTACK})"
    assert text in row_of(tmp_path / "one")
    assert re.search(r"finished +\d{4}-\d\d-\d\d \d\d:\d\d +3 ", row_of(tmp_path / "one"))
    assert re.search(r"interrupted +\d{4}-\d\d-\d\d \d\d:\d\d +0 of 2; WAFL: 2 of 4 rounds", row_of(tmp_path / "two"))
    assert "results.json is damaged" in row_of(tmp_path / "three"), "a damaged one does not hide the others"
    assert "other" not in invoke("runs", tmp_path).stdout


def test_runs_says_that_a_folder_is_empty_or_missing(tmp_path: Path) -> None:
    result = invoke("runs", tmp_path)
    assert (result.exit_code, "has no studies yet" in result.stdout) == (0, True)
    assert_one_line(invoke("runs", tmp_path / "none"), "is not a folder: wafl run creates one")


def test_a_finished_study_of_an_earlier_version_is_listed_and_needs_no_training(finished: Path) -> None:
    """Its rows did not say which seeds were tested."""
    folder = StudyFolder(finished)
    results = folder.read_results()
    for row in results["methods"].values():
        del row["seeds"]
    folder.write_results(results)
    before = contents(finished)
    assert f"(with 80% attacked: {ATTACK})" in row_of(finished)
    result = invoke("resume", finished)
    assert (result.exit_code, "is a finished study" in result.stdout) == (0, True)
    assert without_figures(finished) == before


def test_listing_studies_writes_nothing(whole: Path, tmp_path: Path) -> None:
    """A study on a read-only disk can be listed."""
    folder = Path(shutil.copytree(whole, tmp_path / "study", ignore=shutil.ignore_patterns(".lock", "results.json")))
    files = {path.name for path in folder.iterdir()}
    invoke("runs", tmp_path)
    assert {path.name for path in folder.iterdir()} == files


def test_a_taken_name_is_refused_and_nothing_overwritten(finished: Path, whole: Path) -> None:
    before = contents(finished)
    result = invoke("run", whole / "config.toml", "--output", finished.parent, "--name", finished.name)
    assert_one_line(result, f"{finished} exists already: choose another --name, or remove it")
    with pytest.raises(FolderError, match="exists already"):
        make(finished)
    assert contents(finished) == before


# -- Damage ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["config.toml", "about.json", "results.json"])
@pytest.mark.parametrize("damage", ["flipped", "cut", "empty", "gone"])
def test_a_damaged_file_is_refused_with_its_path(finished: Path, name: str, damage: str) -> None:
    if (name, damage) == ("results.json", "gone"):
        pytest.skip("then nothing is done yet")
    path = finished / name
    if damage == "flipped":
        flip(path)
    elif damage == "gone":
        path.unlink()
    else:
        path.write_bytes(path.read_bytes()[: 0 if damage == "empty" else -30])
    before = contents(finished)
    assert_one_line(invoke("resume", finished), str(finished), name)
    assert contents(finished) == before


def test_a_folder_of_a_newer_format_is_refused(finished: Path) -> None:
    about = unsealed((finished / "about.json").read_bytes())
    (finished / "about.json").write_bytes(sealed({**about, "format": 3}))
    before = contents(finished)
    assert_one_line(invoke("resume", finished), f"{finished} has format 3, this version reads 2: update wafl-learn")
    assert contents(finished) == before


def test_a_study_begun_by_an_earlier_version_is_not_finished_with_other_cohorts(half: Path, finished: Path) -> None:
    """Also between two methods, where there is no checkpoint; one that is finished needs no training."""
    for folder in (half, finished):
        about = unsealed((folder / "about.json").read_bytes())
        (folder / "about.json").write_bytes(sealed({**about, "format": 1}))
    shutil.rmtree(half / "checkpoint")
    before = contents(half)
    refused = invoke("resume", half)
    assert_one_line(refused, f"{half} was begun by an earlier version", "finish it with that version, or start again")
    assert contents(half) == before
    assert invoke("resume", finished).exit_code == 0


def test_a_folder_that_is_not_a_study_is_refused(whole: Path, tmp_path: Path) -> None:
    assert_one_line(invoke("resume", tmp_path), f"{tmp_path} is not a study: it has no config.toml")
    assert_one_line(invoke("resume", tmp_path / "none"), "is not a study")
    run = whole / "fedavg"
    assert_one_line(
        invoke("resume", run), f"{run} is a run, not a study: give the folder that it is in, such as {whole}"
    )


@pytest.mark.parametrize("damage", ["flipped", "cut", "gone", "longer"])
def test_resuming_a_finished_study_trains_nothing_and_repairs_its_metrics(
    finished: Path, whole: Path, damage: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = finished / "metrics.jsonl"
    if damage == "flipped":
        flip(path)
    elif damage == "gone":
        path.unlink()
    else:
        path.write_bytes(path.read_bytes()[:-30] if damage == "cut" else path.read_bytes() + b'{"round": 9}\n')
    monkeypatch.setattr("wafl.studies.study.train", lambda *_, **__: pytest.fail("it trains"))
    result = invoke("resume", finished)
    assert result.exit_code == 0, result.output
    assert f"{finished} is a finished study: there is nothing to train" in result.stdout
    assert without_figures(finished) == contents(whole)


def test_a_study_killed_before_or_while_its_figures_were_drawn_gets_them_at_the_next_resume(finished: Path) -> None:
    """The study comes from Python, which draws nothing."""
    figures = finished / "figures"
    assert not figures.exists()
    result = invoke("resume", finished)
    drawn = {path.name: path.read_bytes() for path in figures.iterdir()}
    assert drawn.keys() == {"accuracy.png", "accuracy-radius.png"}
    assert all(f"Figure: {figures / name}" in result.stdout for name in drawn)
    (figures / "accuracy.png").unlink()
    (figures / ".left.tmp").mkdir()
    (figures / "accuracy-radius.png").write_bytes(b"mine")
    assert "accuracy.png" in invoke("resume", finished).stdout
    assert {path.name for path in figures.iterdir()} == set(drawn), "what a kill left behind is gone"
    assert (figures / "accuracy-radius.png").read_bytes() == b"mine", "what is there stays"


@pytest.mark.parametrize("moment", ["mkdir", "config.toml", "about.json", "rename"])
def test_a_study_that_ends_while_its_folder_is_made_has_none_or_all_of_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, moment: str
) -> None:
    class Killed(BaseException):
        """After which nothing is cleaned up."""

    def dies(work: Callable[..., Any], when: Callable[..., bool]) -> Callable[..., Any]:
        def dying(*arguments: Any, **options: Any) -> Any:
            if when(*arguments):
                raise Killed
            return work(*arguments, **options)

        return dying

    for owner, name in ((Path, "mkdir"), (Path, "rename"), (folder_module, "write_whole")):
        when = (lambda *_, name=name: name == moment) if owner is Path else (lambda path, *_: path.name == moment)
        monkeypatch.setattr(owner, name, dies(getattr(owner, name), when))
    monkeypatch.setattr(shutil, "rmtree", lambda *_, **__: None)
    with pytest.raises(Killed):
        make(tmp_path / "runs" / "study")
    monkeypatch.undo()
    assert not (tmp_path / "runs" / "study").exists()
    if (tmp_path / "runs").exists():
        assert "has no studies yet" in invoke("runs", tmp_path / "runs").stdout
    assert make(tmp_path / "runs" / "study").pending()


def test_studies_of_one_name_get_folders_of_their_own_also_if_they_start_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another takes the name between the look and the making."""
    experiment = parse_experiment(BASE, "here")
    rename = Path.rename

    def overtaken(self: Path, target: Path) -> Path:
        monkeypatch.setattr(Path, "rename", rename)
        StudyFolder.create(target, experiment)
        return rename(self, target)

    monkeypatch.setattr(Path, "rename", overtaken)
    made = StudyFolder.create(tmp_path / "study", experiment, numbered=True)
    assert made.path == tmp_path / "study-2"
    assert {path.name for path in tmp_path.iterdir()} == {"study", "study-2"}
    assert all(StudyFolder.existing(path).status() == "interrupted" for path in tmp_path.iterdir())
    with pytest.raises(FolderError, match="study exists already: choose another --name"):
        StudyFolder.create(tmp_path / "study", experiment)


# -- Interrupted and resumed ----------------------------------------------------------------------------------


@pytest.mark.parametrize(("method", "at"), [("wafl", 1), ("wafl", 6), ("wafl", 16), ("fedavg", 3)])
def test_a_study_interrupted_and_resumed_ends_in_the_same_bits(
    whole: Path, tmp_path: Path, method: str, at: int
) -> None:
    path = tmp_path / "study"
    interrupt(make(path), method, at)
    assert not StudyFolder(path).read_results().get("finished")
    Study.resume(path).run()
    assert outcome(path) == outcome(whole)
    assert len(list(path.glob("checkpoint/*/*/state.json"))) == 2, "where each method ended, for more rounds"


def test_a_method_interrupted_while_it_is_tested_is_not_trained_again(
    whole: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "study"
    with monkeypatch.context() as patch:
        patch.setattr(Study, "_test", lambda *_: (_ for _ in ()).throw(KeyboardInterrupt))
        with pytest.raises(KeyboardInterrupt):
            make(path).run()
    assert methods_trained(Study.resume(path)) == ["fedavg"]
    assert outcome(path) == outcome(whole)


def test_metrics_during_training_are_those_at_the_end(half: Path, whole: Path) -> None:
    """One line per round that has ended; a line that a crash cut short is written again."""
    rows = [json.loads(line) for line in (half / "metrics.jsonl").read_text().splitlines()]
    keys = ("method", "radius", "seed", "round", "loss")
    done = [tuple(row.get(key) for key in keys) for row in rows]
    final = [tuple(row.get(key) for key in keys) for row in read_lines(StudyFolder(whole).metrics)]
    assert 8 <= len(done) <= 10
    assert done == final[: len(done)]
    with (half / "metrics.jsonl").open("a") as file:
        file.write('{"method": "wafl", "rou')
    Study.resume(half).run()
    assert outcome(half) == outcome(whole)


@pytest.mark.processes
def test_the_printed_command_to_resume_can_be_copied_into_a_shell(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However long the path is, and whatever characters it has."""
    monkeypatch.setattr(Study, "run", lambda *_: (_ for _ in ()).throw(KeyboardInterrupt))
    output = tmp_path / "a folder with spaces [bold]" / ("long" * 20)
    config = tmp_path / "exp.toml"
    config.write_text(
        "data = {num_clients = 5, iid = true}\nmethods = [{method = 'FedAvg', rounds = 1, local_steps = 1}]"
    )
    result = CliRunner(env={"COLUMNS": "80"}).invoke(app, ["run", str(config), "--output", str(output), "--name", "x"])
    assert result.exit_code == 130
    line = result.stdout.split("To resume: ")[1].splitlines()[0]
    assert subprocess.run(
        ["bash", "-c", f"printf '%s|' {line}"], capture_output=True, text=True, check=True
    ).stdout == (f"wafl|resume|{output / 'x'}|")


# -- What a study can be told ---------------------------------------------------------------------------------


def test_a_study_without_an_attack_is_tested_on_clean_data_only(tmp_path: Path) -> None:
    make(tmp_path / "x", attack={"kind": "none"}, methods=[{"method": "FedAvg"}])
    result = invoke("run", tmp_path / "x" / "config.toml", "--output", tmp_path, "--name", "study")
    assert result.exit_code == 0, result.output
    results = StudyFolder(tmp_path / "study").read_results()
    assert results["attack"] is None
    assert results["methods"]["FedAvg"]["attacked"] == {}
    assert "attacked" not in result.stdout
    assert (tmp_path / "study" / "figures" / "accuracy.png").stat().st_size > 1000
    assert "(on clean data)" in row_of(tmp_path / "study")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ("early_stopping.metric=nonsense", "nonsense"),
        ("methods.fedavg.name=metrics.jsonl", "metrics.jsonl"),
        ("methods.fedavg.name=config.toml", "config.toml"),
    ],
)
def test_what_cannot_be_done_is_refused_before_a_folder_is_made(
    whole: Path, tmp_path: Path, change: str, message: str
) -> None:
    """And not after everything has been trained."""
    result = invoke("run", whole / "config.toml", "--output", tmp_path / "runs", "--set", change)
    assert_one_line(result, message)
    assert not (tmp_path / "runs").exists()


# -- Your own models and data ---------------------------------------------------------------------------------


MODULE = """
import torch
import wafl


def targets():
    generator = torch.Generator().manual_seed(0)
    x = torch.rand(4, 16, 3, generator=generator)
    y = x @ torch.tensor([1.0, -2.0, 0.5]) + 0.1 * torch.rand(4, 16, generator=generator)
    return wafl.Federation.from_arrays([(x[i], y[i]) for i in range(4)])


def line(clients):
    return wafl.models.mlr(clients)


def net(clients):
    return torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(64, 6), torch.nn.Tanh(), torch.nn.Linear(6, 10))
"""


@pytest.fixture
def user_module(tmp_path: Path, request: pytest.FixtureRequest) -> Generator[tuple[Path, str], None, None]:
    """A folder with your own module, whose name no other test uses."""
    module = "mine_" + re.sub(r"\W", "_", request.node.name)
    folder = tmp_path / "experiment"
    folder.mkdir()
    (folder / f"{module}.py").write_text(MODULE)
    yield folder, module
    sys.modules.pop(module, None)


def test_a_regression_is_trained_tested_and_shown_by_its_loss(
    user_module: tuple[Path, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, module = user_module
    monkeypatch.chdir(folder)
    (folder / "exp.toml").write_text(
        f'''
        data.source = "{module}:targets"
        model = {{kind = "{module}:line", loss = "squared_error"}}
        schedule = {{rounds = 4, local_steps = 1, learning_rate = 0.1}}
        methods = [{{method = "FedAvg"}}, {{method = "WAFL", gamma = 5.0}}]
        attack = {{kind = "pgd", epsilon = 0.1, steps = 2}}
        evaluation = {{attacked = [0.5, 1.0], every = 2}}
        '''
    )
    result = invoke("run", "exp.toml", "--name", "study")
    assert result.exit_code == 0, result.output
    results = StudyFolder(folder / "runs" / "study").read_results()
    assert results["measure"] == "loss"
    assert "loss over all test examples" in results["numbers"]
    mine = sys.modules[module]
    run = wafl.load_run(folder / "runs" / "study" / "fedavg")
    score = wafl.evaluate(run, mine.targets())
    assert results["methods"]["FedAvg"]["clean"]["mean"] == score.loss
    text = " ".join(result.stdout.split())
    assert "Loss on test examples, one seed. Attack: l_inf PGD, epsilon 0.1" in text
    assert f"{score.loss:.1f}" in result.stdout
    assert (folder / "runs" / "study" / "figures" / "loss.png").stat().st_size > 1000
    assert re.search(rf"\d\.\d+ loss \(with all attacked: {ATTACK}\)", row_of(folder / "runs" / "study"))
    assert all("accuracy" not in row for row in read_lines(StudyFolder(folder / "runs" / "study").metrics))


@pytest.mark.slow
@pytest.mark.parametrize("model", ["line", "net"])
def test_a_study_with_your_own_model_resumes_from_another_folder(
    user_module: tuple[Path, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, model: str
) -> None:
    """``net`` starts at random, as torch's layers do; resuming must start from the same parameters."""
    folder, module = user_module
    monkeypatch.chdir(folder)
    described = parse_experiment({**BASE, "model": {"kind": f"{module}:{model}"}}, "here")
    interrupt(Study.create(described, folder / "study", Path()), "fedavg", 3)
    sys.modules.pop(module)
    monkeypatch.chdir(tmp_path)
    result = invoke("resume", Path("experiment") / "study")
    assert result.exit_code == 0, result.output
    sys.modules.pop(module)
    Study.create(described, tmp_path / "whole", folder).run()
    assert outcome(folder / "study") == outcome(tmp_path / "whole")


def test_a_study_whose_module_is_gone_is_refused_unchanged(user_module: tuple[Path, str], tmp_path: Path) -> None:
    folder, module = user_module
    described = parse_experiment({**BASE, "model": {"kind": f"{module}:line"}}, "here")
    interrupt(Study.create(described, tmp_path / "study", folder), "wafl", 3)
    sys.modules.pop(module)
    (folder / f"{module}.py").unlink()
    before = contents(tmp_path / "study")
    assert_one_line(invoke("resume", "--trust", tmp_path / "study"), "model.kind", module, "cannot be imported")
    assert contents(tmp_path / "study") == before


def test_the_saved_config_finds_its_modules_again(user_module: tuple[Path, str], tmp_path: Path) -> None:
    """They are next to the file that was run, not next to the one that was saved."""
    folder, module = user_module
    described = parse_experiment({**BASE, "model": {"kind": f"{module}:line"}}, "here")
    Study.create(described, tmp_path / "study", folder).run()
    sys.modules.pop(module)
    result = invoke("run", tmp_path / "study" / "config.toml", "--output", tmp_path, "--name", "again")
    assert result.exit_code == 0, result.output
    assert outcome(tmp_path / "again") == outcome(tmp_path / "study")
