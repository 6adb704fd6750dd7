"""Real processes: a private node that is killed in a round, and whose files somebody restores, spends what it has once.

The other node is not private, so each run goes on without the private one.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import pytest
from examples.flower_hospitals.deployed import Deployed

import wafl
from tests.oracles.programs import restart
from wafl.config.read import parse_experiment
from wafl.flower.node.ledger import Ledger
from wafl.flower.ops.app import write_app
from wafl.flower.ops.guard import app_digest
from wafl.flower.ops.loopback import RunHandle
from wafl.results.saved import load_run
from wafl.train.privacy.records import RecordPrivacy

pytestmark = [pytest.mark.processes, pytest.mark.slow]
PRIVATE, OTHER = "north", "east"
STEPS, ROUNDS = 3, 6
WORDS = f"epsilon=4 delta=1e-5 clip_norm=1 steps={STEPS}"
COST = RecordPrivacy(4.0, 1e-5, 1.0, STEPS).cost
REFUSED = "has privacy left for 0 local steps in all runs"
PATIENCE = 300.0


def spent(file: Path) -> float:
    """What a file shows of what the private node's client has spent, in steps; 0 if it shows nothing."""
    return json.loads(file.read_bytes())["spent"].get(PRIVATE, 0.0) / COST if file.exists() else 0.0


def wait_until_spent(file: Path, steps: int, run: RunHandle) -> None:
    deadline = time.monotonic() + PATIENCE
    while spent(file) < steps - 0.5:
        assert not run.done(), f"the run ended before {steps} steps: {run.log()}"
        assert time.monotonic() < deadline, f"{steps} steps were not taken within {PATIENCE} s"
        time.sleep(0.01)


@dataclass
class Outcome:
    """What happened: by phase, how the run ended, and what each file showed of what was spent after it."""

    status: dict[str, str] = field(default_factory=dict)
    log: dict[str, str] = field(default_factory=dict)
    files: dict[str, list[float]] = field(default_factory=dict)
    taken_part: dict[str, int] = field(default_factory=dict)
    at_the_kill: float = 0.0


@pytest.fixture(scope="module")
def outcome(tmp_path_factory: pytest.TempPathFactory) -> Outcome:
    base = tmp_path_factory.mktemp("private")
    clients = wafl.load_dataset("digits").partition(num_clients=2, iid=True, test_fraction=0.0)
    for client, site in enumerate((PRIVATE, OTHER)):
        (base / "data" / site).mkdir(parents=True)
        x, y = clients.train.of(client)
        np.savez(base / "data" / site / f"{site}.npz", x=x.numpy(), y=y.numpy())
    experiment = parse_experiment(
        {
            "name": "private",
            "data": {"num_classes": 10},
            "schedule": {"rounds": ROUNDS, "local_steps": 1, "learning_rate": 0.1},
            "methods": [{"method": "FedAvg"}],
            # without a key, a node that starts again is another one to Flower, so names cannot belong to keys
            "flower": {"nodes": 2, "min_nodes": 2, "wait": 90.0, "round_timeout": 20.0, "names_by_key": False},
        },
        "here",
    )
    write_app(base / "app", experiment)
    allowed, state, home = [app_digest(base / "app")], base / "state", base / "home"
    environment = {"OMP_NUM_THREADS": "1", "XDG_STATE_HOME": str(home)}
    result = Outcome()
    with Deployed(base / "flower", environment=environment) as loopback:
        config = {"data": str(base / "data" / PRIVATE), "state": str(state)}
        node = loopback.add_node(PRIVATE, config, allowed=allowed, options=[f"--privacy={WORDS}"])
        loopback.add_node(OTHER, {"data": str(base / "data" / OTHER)}, allowed=allowed)
        loopback.wait_for_nodes(2, PATIENCE)
        own = state / "privacy.json"

        def begin(phase: str, rounds: int) -> RunHandle:
            return loopback.submit(base / "app", {"folder": str(base / phase), "schedule.rounds": rounds})

        def end(phase: str, run: RunHandle) -> None:
            result.status[phase], result.log[phase] = run.wait(PATIENCE), run.log()
            client = json.loads((base / phase / "roster.json").read_text())["names"].index(PRIVATE)
            history = load_run(base / phase / "fedavg").history
            result.taken_part[phase] = sum(client not in dict(record.excluded) for record in history)
            (copy,) = (home / "wafl" / "privacy").glob("*.json")
            result.files[phase] = [spent(own), spent(copy)]

        run = begin("killed", ROUNDS)
        wait_until_spent(own, 1, run)
        (copy,) = (home / "wafl" / "privacy").glob("*.json")
        old = own.read_bytes()
        wait_until_spent(own, 2, run)
        node.kill()
        result.at_the_kill = spent(own)
        restart(node)
        end("killed", run)

        for file in (own, copy):
            file.write_bytes(old)
        end("restored", begin("restored", 1))
    return result


def test_a_node_that_is_killed_in_a_round_has_counted_every_step_that_it_took(outcome: Outcome) -> None:
    assert outcome.status["killed"] == "finished:completed", outcome.log["killed"]
    assert outcome.at_the_kill == pytest.approx(2.0)
    assert outcome.files["killed"] == pytest.approx([STEPS, STEPS]), "it has taken its last step after the kill"
    assert 1 <= outcome.taken_part["killed"] <= STEPS, "a counted step may be lost, and none is taken that was not"


def test_a_node_that_has_spent_everything_refuses_and_the_run_goes_on(outcome: Outcome) -> None:
    assert REFUSED in outcome.log["killed"]
    assert outcome.taken_part["killed"] < ROUNDS


def test_restored_files_bring_no_privacy_back_while_the_node_runs(outcome: Outcome) -> None:
    assert outcome.status["restored"] == "finished:completed", outcome.log["restored"]
    assert outcome.taken_part["restored"] == 0
    assert REFUSED in outcome.log["restored"]


SPEND = """
import sys
from pathlib import Path
from wafl.flower.node.ledger import Ledger
from wafl.flower.wire.values import WireError
from wafl.train.privacy.records import RecordPrivacy

ledger, taken = Ledger(Path(sys.argv[1])), 0
sys.stdin.readline()
try:
    while True:
        ledger.spend({"north": 1}, RecordPrivacy(4.0, 1e-5, 1.0, 40))
        taken += 1
        print("step", flush=True)
except WireError:
    print("refused", flush=True)
"""


def test_two_processes_spend_no_more_than_one_budget_also_if_one_is_killed(tmp_path: Path) -> None:
    steps, folder = 40, tmp_path / "state"
    environment: Mapping[str, str] = {**os.environ, "XDG_STATE_HOME": str(tmp_path / "home")}
    command, pipe = [sys.executable, "-c", SPEND, str(folder)], subprocess.PIPE
    with ExitStack() as stack:
        killed, other = (
            stack.enter_context(
                subprocess.Popen(
                    command, stdin=pipe, stdout=pipe, stderr=subprocess.DEVNULL, text=True, env=environment
                )
            )
            for _ in range(2)
        )
        for process in (killed, other):
            assert process.stdin is not None
            process.stdin.write("begin\n")
            process.stdin.flush()
        assert killed.stdout is not None
        assert other.stdout is not None
        assert killed.stdout.readline() == "step\n"
        killed.kill()
        taken = [1 + killed.stdout.read().count("step"), other.stdout.read().count("step")]
    assert taken[1] > 0
    assert steps - 1 <= sum(taken) <= steps, "a step that was counted when the kill came was not taken"
    cost = RecordPrivacy(4.0, 1e-5, 1.0, steps).cost
    shown = [json.loads(file.read_bytes())["spent"]["north"] / cost for file in files(folder, tmp_path / "home")]
    assert shown == pytest.approx([steps, steps])


def files(folder: Path, home: Path) -> tuple[Path, ...]:
    return (Ledger(folder).files[0], *(home / "wafl" / "privacy").glob("*.json"))
