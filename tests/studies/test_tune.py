"""``wafl tune`` in process: what it writes, what it keeps when it is interrupted, and what it refuses."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

import wafl
from tests.config.commands import one_command
from wafl.base.files import unsealed
from wafl.callbacks import Callback
from wafl.cli.main import app
from wafl.config.read import read_experiment
from wafl.results.run import Run
from wafl.studies.tune import TunedExperiment

__all__ = ["one_command"]

EXPERIMENT = """
# Mine.
name = "mine"
seeds = [0, 1]

[data]
source = "toy:make_clients"          # next to this file

[schedule]
rounds = 2
cohort = 3
local_epochs = 1
learning_rate = 0.1                  # of everyone

[[methods]]
method = "WAFL"
gamma = 2.0                          # a guess

[[methods]]
method = "AFL"
server = { kind = "momentum", rate = 0.5 }

[[methods]]
method = "FedAvg"
learning_rate = [0.2, 0.4]           # a sweep

[attack]
kind = "fgsm"
epsilon = 0.1

[evaluation]
attacked = [0.5]

[tune]
trials = 4
"""

TOY = """
import torch, wafl

def make_clients(ruined=False):
    generator = torch.Generator().manual_seed(0)
    pairs = []
    for client in range(5):
        x = torch.rand(24, 6, generator=generator)
        pairs.append((x, (3 * x[:, 0]).long()))
    return wafl.Federation.from_arrays(pairs, bounds=(0.0, 1.0))

def make_ruined():
    from dataclasses import replace
    clients = make_clients()
    test = replace(clients.test, raw=torch.ones_like(clients.test.raw), y=torch.zeros_like(clients.test.y))
    return replace(clients, test=test)

def strong(strength=1.0, steps=3):
    return wafl.Method("strong", wafl.objectives.pgm(epsilon=strength, steps=steps), wafl.weights.uniform())
"""


def write(folder: Path, text: str = EXPERIMENT) -> Path:
    (folder / "toy.py").write_text(TOY)
    path = folder / "exp.toml"
    path.write_text(text)
    return path


def invoke(*arguments: str) -> Any:
    return CliRunner().invoke(app, ["tune", *arguments])


@pytest.fixture(scope="module")
def tuned(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Any]:
    path = write(tmp_path_factory.mktemp("tune"))
    result = invoke(str(path))
    assert result.exit_code == 0, result.output
    return path, result


def trials_of(path: Path) -> dict[str, Any]:
    return unsealed(path.with_suffix(".trials.json").read_bytes())["methods"]


def test_the_tuned_file_has_the_best_values_and_keeps_the_rest(tuned: tuple[Path, Any]) -> None:
    path, _ = tuned
    methods, text = trials_of(path), path.with_suffix(".tuned.toml").read_text()
    for kept in ("# Mine.", "# next to this file", "# of everyone", 'kind = "fgsm"', "seeds = [0, 1]"):
        assert kept in text
    before, after = read_experiment(path), read_experiment(path.with_suffix(".tuned.toml"))
    assert after.name == "mine-tuned"
    assert after.schedule == before.schedule
    robust, agnostic, plain = (method.model_dump(exclude_none=True) for method in after.methods)
    norm = {"inf": math.inf}.get(methods["wafl"]["best"]["norm"], methods["wafl"]["best"]["norm"])
    assert robust == {"method": "WAFL", **methods["wafl"]["best"], "norm": norm}
    best = methods["afl"]["best"]
    assert agnostic == {
        "method": "AFL", "weights_step": best["weights_step"], "learning_rate": best["learning_rate"],
        "server": {"kind": "momentum", "rate": best["rate"], "beta": best["beta"]},
    }  # fmt: skip
    assert plain == {"method": "FedAvg", **methods["fedavg"]["best"]}
    assert plain["learning_rate"] in (0.2, 0.4)
    assert "tuned, from 2.0" in text


def test_each_method_has_the_same_number_of_trials_and_a_sweep_is_what_there_is_to_choose_from(
    tuned: tuple[Path, Any],
) -> None:
    methods = trials_of(tuned[0])
    assert {name: len(rows["trials"]) for name, rows in methods.items()} == {"wafl": 4, "afl": 4, "fedavg": 2}
    assert [row["setting"]["learning_rate"] for row in methods["fedavg"]["trials"]] == [0.2, 0.4]
    assert methods["wafl"]["trials"][0]["setting"] == {"gamma": 2.0, "norm": 2, "learning_rate": 0.1}


def test_the_command_says_what_it_chose_and_why_and_what_to_run_next(tuned: tuple[Path, Any]) -> None:
    path, result = tuned
    output = " ".join(result.output.split())
    assert "4 trials per method, judged by accuracy on 20 held-out training examples, mean over 0 and 50%" in output
    for name, rows in trials_of(path).items():
        assert name in output
        assert rows["why"].partition(",")[0] in output
    assert f"wafl run {path.with_suffix('.tuned.toml')}" in output


def test_changes_of_the_command_line_are_in_the_tuned_file(tmp_path: Path) -> None:
    path, output = write(tmp_path), tmp_path / "other.toml"
    result = invoke(
        str(path), "--set", "tune.trials=2", "--set", "methods.wafl.gamma=5", "--set", "tune.space.norm=[]",
        "--set", "tune.space.gamma=[]", "--output", str(output),
    )  # fmt: skip
    assert result.exit_code == 0, result.output
    assert read_experiment(output).methods[0].model_dump()["gamma"] == 5
    assert (tmp_path / "other.trials.json").exists()


class Interrupt(Callback):
    """Ctrl-C when the first trial of a later method begins."""

    def __init__(self, after: int) -> None:
        self.after = after

    def on_end(self, index: int, run: Run) -> None:
        if index >= self.after:
            raise KeyboardInterrupt


def test_after_an_interruption_only_the_methods_that_are_not_done_are_tried(
    tuned: tuple[Path, Any], tmp_path: Path
) -> None:
    path = write(tmp_path)
    experiment = TunedExperiment.create(path)
    with pytest.raises(KeyboardInterrupt):
        experiment.run([Interrupt(after=4)])
    assert list(trials_of(path)) == ["wafl"]
    assert not path.with_suffix(".tuned.toml").exists()
    again = TunedExperiment.create(path)
    assert list(again.known) == ["wafl"]
    names: list[str] = []
    again.run([lambda moment: names.append(moment.name)])
    assert not any("WAFL" in name for name in names)
    assert trials_of(path) == trials_of(tuned[0])
    assert path.with_suffix(".tuned.toml").read_text() == tuned[0].with_suffix(".tuned.toml").read_text()


def test_the_command_ends_with_130_when_it_is_interrupted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def stop(*_: Any, **__: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(TunedExperiment, "run", stop)
    result = invoke(str(write(tmp_path)))
    assert result.exit_code == 130
    assert "Stopped. No method was finished." in result.output


def test_nothing_that_exists_is_overwritten(tuned: tuple[Path, Any], tmp_path: Path) -> None:
    path, _ = tuned
    text = path.with_suffix(".tuned.toml").read_bytes()
    result = invoke(str(path))
    assert result.exit_code == 2
    assert "exists already" in result.stderr
    assert path.with_suffix(".tuned.toml").read_bytes() == text
    other = write(tmp_path)
    (tmp_path / "exp.trials.json").write_bytes(path.with_suffix(".trials.json").read_bytes())
    for change in ("schedule.rounds=1", "tune.seeds=[4, 5]"):
        result = invoke(str(other), "--set", change)
        assert result.exit_code == 2
        assert "trials of a different experiment" in result.stderr
    (tmp_path / "exp.trials.json").write_bytes(b"{}")
    assert "cannot be read" in invoke(str(other)).stderr


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ("tune.space.gama=[1.0]", "tune: space: no method here has a value of 'gama' to start from: did you mean"),
        ("tune.metric=accurcy", "tune.metric = 'accurcy'"),
        ("engine=flower", "engine = 'flower'"),
        ("tune.share=0.0001", "raise it, or hold out clients"),
    ],
)
def test_a_mistake_is_one_line_and_nothing_is_written(tmp_path: Path, change: str, message: str) -> None:
    path = write(tmp_path)
    result = invoke(str(path), "--set", change)
    assert result.exit_code == 2, result.output
    assert result.stderr.count("\n") == 1
    assert message in result.stderr
    assert sorted(each.name for each in tmp_path.iterdir() if each.name != "__pycache__") == ["exp.toml", "toy.py"]


def test_your_own_method_is_tuned_in_the_arguments_that_the_file_names(tmp_path: Path) -> None:
    text = (
        EXPERIMENT.partition("[[methods]]")[0]
        + """
[[methods]]
method = "toy:strong"
options = { strength = 0.5, steps = 2 }

[attack]
kind = "none"

[tune]
trials = 3
space = { strength = { low = 0.01, high = 0.1 } }
"""
    )
    path = write(tmp_path, text)
    result = invoke(str(path))
    assert result.exit_code == 0, result.output
    best = trials_of(path)["strong"]["best"]
    method = read_experiment(path.with_suffix(".tuned.toml")).methods[0].model_dump()
    assert method["options"] == {"strength": best["strength"], "steps": 2}
    assert method["learning_rate"] == best["learning_rate"]


def test_a_method_whose_trials_all_diverge_keeps_its_setting_and_the_exit_status_says_so(tmp_path: Path) -> None:
    path = write(
        tmp_path, EXPERIMENT.replace("learning_rate = [0.2, 0.4]", "learning_rate = [1e20, 1e21]\nweight_decay = 1e20")
    )
    result = invoke(str(path))
    assert result.exit_code == 3, result.output
    assert "every trial diverged" in result.output
    assert read_experiment(path.with_suffix(".tuned.toml")).methods[2].learning_rate == [1e20, 1e21]


def test_trials_have_at_most_the_given_rounds_and_the_tuned_file_keeps_its_own(tmp_path: Path) -> None:
    path = write(tmp_path)
    experiment = TunedExperiment.create(path, ["tune.rounds=1", "tune.trials=2"])
    assert [candidate.schedule["rounds"] for candidate in experiment.search.candidates] == [1, 1, 1]
    experiment.run()
    assert read_experiment(path.with_suffix(".tuned.toml")).schedule.rounds == 2


def test_early_stopping_looks_at_held_out_examples(tmp_path: Path) -> None:
    changes = ["evaluation.every=1", "early_stopping.metric=test_loss", "early_stopping.patience=1", "tune.trials=2"]
    seen: list[float] = []

    def note(moment: Any) -> None:
        seen.append(moment.metrics["test_loss"])

    write(tmp_path)
    TunedExperiment.create(tmp_path / "exp.toml", [*changes, "data.source=toy:make_ruined"]).run([note])
    (tmp_path / "exp.tuned.toml").unlink()
    (tmp_path / "exp.trials.json").unlink()
    first, seen = seen, []
    TunedExperiment.create(tmp_path / "exp.toml", changes).run(
        [lambda moment: seen.append(moment.metrics["test_loss"])]
    )
    assert first == seen


def test_held_out_examples_can_be_moved_otherwise_than_the_file_says(tmp_path: Path) -> None:
    path = tmp_path / "exp.toml"
    path.write_text(
        EXPERIMENT.replace('source = "toy:make_clients"', 'dataset = "digits"\niid = true\nnum_clients = 5')
    )
    plain, other = (TunedExperiment.create(path, attack=shift) for shift in (None, wafl.shifts.inversion(severity=1.0)))
    assert isinstance(plain.search.goal.attack, wafl.FGSM)
    assert isinstance(other.search.goal.attack, wafl.shifts.Inversion)
