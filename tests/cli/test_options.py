"""Every option of every command is used by a command line here, and every line succeeds."""

from __future__ import annotations

import shlex
from pathlib import Path

import click
import numpy as np
import pytest
import typer
from typer.testing import CliRunner

from tests.cli.test_run import every_command
from wafl.cli.main import app
from wafl.cli.method_options import method_options

EXPERIMENT = """
methods = [{method = "FedAvg"}]
schedule = {rounds = 1, local_steps = 1, learning_rate = 0.1}
data = {num_clients = 3, labels_per_client = 4}
attack = {kind = "none"}
tune = {trials = 2}
"""

LINES = """
run -m fedavg --rounds 1 --cohort 2 --local-epochs 1 --batch-size 64 --learning-rate 0.1 --model mlr --clients 3
    --labels-per-client 4 --epsilon 0.1 --seeds 1 --seed 1 --name one --output runs --device cpu --engine embedded
run exp.toml --set schedule.batch_size=8 --name two
tune exp.toml --set tune.rounds=1 --output tuned.toml
resume runs/two --trust --set schedule.rounds=2
repair runs/two --trust
evaluate runs/one --attack pgd --epsilon 0.1 --step-size 0.1 --steps 1 --norm inf --bounds 0,1 --attacked 0.5 --seed 1
    --data-dir data --output compared --trust
evaluate runs/one --attack wasserstein --radius 0.5 --attacked 0.5
evaluate runs/one --attack inversion --severity 1 --attacked 0.5
evaluate runs/one --attack fgsm --space 0 --attacked 0.5
theory runs/one --radii 0.5 --norm 2 --gamma 5 --radius 0.1 --params-radius 5 --data-bounds 0,1 --label-cost inf
    --delta 0.1 --c1 1 --c2 1 --alpha 3 --target-distance 1 --target-examples 10 --barycenter-distance 1
    --data-dir data --output theory --trust
weights -s usps -t mnist --sample 5 --seed 1 --label-aware --size 8 --preprocess unit --data-dir data
    --output weights.png
weights -s mnist -s usps --private --sample 5 --data-dir data
export runs/one/fedavg --format safetensors --output model.out --data-dir data --trust
export runs/one --metrics metrics.csv
config check exp.toml --set schedule.batch_size=8 --trust
data list --data-dir data
data fetch mnist --data-dir data
data show mnist --data-dir data --output sheet.png
flower app app exp.toml --set schedule.batch_size=8
flower certificates keys --host localhost --node one --days 2
"""


def lines() -> list[list[str]]:
    """Lines that go on are indented."""
    return [shlex.split(line) for line in LINES.strip().replace("\n    ", " ").splitlines()]


def test_no_option_is_left_without_a_command_line() -> None:
    of_methods = {f"--{name.replace('_', '-')}" for name in method_options(())}  # tests/cli/test_run.py uses each
    for path, command in every_command(typer.main.get_command(app)).items():
        used = {word for line in lines() if tuple(line[: len(path)]) == path for word in line if word.startswith("-")}
        for parameter in command.params:
            names = {*parameter.opts, *parameter.secondary_opts}
            if isinstance(parameter, click.Option) and not (path == ("run",) and names & of_methods):
                assert names & used, f"wafl {' '.join(path)} {'/'.join(names)} is in no line of this file"


@pytest.mark.filterwarnings("ignore::wafl.RadiusWarning", "ignore::wafl.ConcavityWarning")
def test_every_line_succeeds(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("WAFL_DATA", raising=False)
    Path("exp.toml").write_text(EXPERIMENT)
    Path("data").mkdir()
    draw = np.random.default_rng(0)
    for name, side in (("mnist", 28), ("usps", 16)):
        images = {f"x_{part}": draw.integers(0, 256, (30, side, side), np.uint8) for part in ("train", "test")}
        np.savez(f"data/{name}.npz", **images, y_train=np.arange(30) % 10, y_test=np.arange(30) % 10)
    for line in lines():
        result = CliRunner().invoke(app, line)
        assert result.exit_code == 0, f"wafl {shlex.join(line)}\n{result.output}\n{result.exception!r}"
