"""Every option of every command is used by a command line here, and every line succeeds."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import typer
from typer.testing import CliRunner

from tests.cli.commands import every_command
from tests.promises.files import write_keys
from wafl.cli.main import app
from wafl.cli.method_options import attack_options, method_options

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
run exp.toml --set schedule.batch_size=8 --name two --quiet --serve
run exp.toml --name three --json
tune exp.toml --set tune.rounds=1 --output tuned.toml
resume runs/two --trust --set schedule.rounds=2 --quiet --serve
resume runs/three --json
report runs/two runs/three --output page.html --quick --data-dir data --trust
serve runs --host 127.0.0.1 --port 0
repair runs/two --trust
evaluate runs/one --attack pgd --epsilon 0.1 --step-size 0.1 --steps 1 --norm inf --bounds 0,1 --attacked 0.5 --seed 1
    --data-dir data --output compared --trust
evaluate runs/one --attack wasserstein --radius 0.5 --attacked 0.5
evaluate runs/one --attack inversion --severity 1 --attacked 0.5
evaluate runs/one --attack fgsm --space 0 --attacked 0.5
theory runs/one --radii 0.5 --norm 2 --metric error --gamma 5 --radius 0.1 --params-radius 5 --data-bounds 0,1
    --label-cost inf --delta 0.1 --c1 1 --c2 1 --alpha 3 --target-distance 1 --target-examples 10
    --data-dir data --output theory --trust
certify runs/one -o certificate.json --radii 0,0.5 --norm 2 --power 2 --points 2 --sign issuer.pem
    --data-dir data --trust
certify runs/one -o tested.json --radii 0,0.5 --metric error --split test --confidence 0.9
verify certificate.json --model runs/one --data runs/one --key issuer.pub.pem --data-dir data --trust
    --client "client 1" --accept attested
audit certificate.json --model runs/one --data mine --key issuer.pub.pem --trust
run exp.toml --set data.num_clients=8 --set data.unseen=0.5 --name held --quiet
next-client runs/held --radius 0.1 --population-radius 0.1 --norm 2 --metric error --confidence 0.5 --data-dir data
    --trust
next-client runs/held --radius 0.1 --metric error --confidence 0.5 --output next.json --sign issuer.pem --data-dir data
prediction-sets runs/held --coverage 0.4 --about client --confidence 0.5 --score margin --radius 0.1 --norm inf
    --power 1 --output sets.json --data-dir data --trust
prediction-sets runs/held --coverage 0.4 --confidence 0.3 --own-sampling
verify next.json --model runs/held --data runs/held --key issuer.pub.pem --data-dir data
request runs/one --invite sites --sign issuer.pem --questions q.toml --trained trained.txt --deadline 2999-01-01
    --output request.json --trust
receipt request.json --model runs/one --data mine --sign site.pem --key issuer.pub.pem --again
    --output receipts/site.json --trust
merge request.json receipts --revoked trained.txt --output merged.json
verify merged.json --receipts receipts
weights -s usps -t mnist --sample 5 --seed 1 --label-aware --size 8 --preprocess unit --data-dir data
weights -s mnist -s usps --sample 5 --label-cost 1 --data-dir data
export runs/one/fedavg --format safetensors --output model.out --data-dir data --trust
config check exp.toml --set schedule.batch_size=8 --trust
data list --data-dir data
data fetch mnist --data-dir data
data show mnist --data-dir data
flower app app exp.toml --set schedule.batch_size=8
flower certificates keys --host localhost --node one --days 2
flower certificates keys --renew
flower deploy machines keys --node one --host localhost --listen 127.0.0.1 --port 8443
    --target /srv/fl --allow-app DIGEST
flower digest app
flower fingerprint keys/keys/one.pub
flower run app --run-config schedule.rounds=2
flower deploy open keys --any-app
flower node --allow-app DIGEST --allow-model DIGEST --min-examples 8 --max-questions 99 --max-steps 9999
    --privacy 'epsilon=4 delta=1e-5 clip_norm=1 steps=100' --version
flower node --any-app --version
""".replace("DIGEST", "0123456789abcdef" * 4)


def lines() -> list[list[str]]:
    """Lines that go on are indented."""
    return [shlex.split(line) for line in LINES.strip().replace("\n    ", " ").splitlines()]


def test_no_option_is_left_without_a_command_line() -> None:
    # tests/cli/test_run.py and tests/cli/test_evaluate.py use each of these.
    of_parts: dict[tuple[str, ...], Any] = {("run",): method_options(), ("evaluate",): attack_options()}
    for path, command in every_command(typer.main.get_command(app)).items():
        used = {word for line in lines() if tuple(line[: len(path)]) == path for word in line if word.startswith("-")}
        for parameter in command.params:
            names = {*parameter.opts, *parameter.secondary_opts}
            if parameter.param_type_name == "option" and parameter.name not in of_parts.get(path, ()):
                assert names & used, f"wafl {' '.join(path)} {'/'.join(names)} is in no line of this file"


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::wafl.RadiusWarning", "ignore::wafl.ConcavityWarning")
def test_every_line_succeeds(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("WAFL_DATA", raising=False)
    monkeypatch.setenv("WAFL_PRIVACY", "")  # which a line sets for its own process, here this one
    monkeypatch.setattr("wafl.flower.ops.loopback.submit", lambda *_: "completed")  # needs a SuperLink
    Path("exp.toml").write_text(EXPERIMENT)
    Path("data").mkdir()
    write_keys(Path())
    Path("mine").mkdir()
    save: Any = np.savez
    save("mine/site.npz", x=np.random.default_rng(0).uniform(size=(20, 1, 8, 8)), y=np.arange(20) % 10)
    Path("sites").mkdir()
    for name in ("site", "other"):
        write_keys(Path(), name)[1].rename(f"sites/{name}.pub")
    Path("q.toml").write_text("own_sampling = false\nliars = 0\n")
    Path("trained.txt").write_bytes(Path("issuer.pub.pem").read_bytes())
    draw = np.random.default_rng(0)
    for name, side in (("mnist", 28), ("usps", 16)):
        images = {f"x_{part}": draw.integers(0, 256, (30, side, side), np.uint8) for part in ("train", "test")}
        save(f"data/{name}.npz", **images, y_train=np.arange(30) % 10, y_test=np.arange(30) % 10)
    for line in lines():
        with monkeypatch.context() as patch:
            if line[0] == "serve":  # goes on until Ctrl-C
                patch.setattr("wafl.studies.pages.live.Server.serve_forever", lambda *_: None)
            result = CliRunner().invoke(app, line)
        assert result.exit_code == 0, f"wafl {shlex.join(line)}\n{result.output}\n{result.exception!r}"
