"""Real processes: a SuperLink and two SuperNodes with TLS and keys, one of which is killed in the second round."""

from __future__ import annotations

import json
import time
from pathlib import Path

import numpy as np
import pytest

import wafl
from tests.oracles.flower import equal, replay
from wafl.flower.ops.app import write_app
from wafl.flower.ops.certificates import make_certificates
from wafl.flower.ops.loopback import Loopback
from wafl.run import load_run
from wafl.runs.read import parse_experiment
from wafl.schedule import Schedule

SITES = {"north": (0, 2), "east": (1,)}
KILLED = "east"
ROUNDS, EPOCHS, RATE = 2, 1, 0.1


@pytest.fixture(scope="module")
def clients() -> wafl.Federation:
    return wafl.load_dataset("digits").partition(num_clients=3, labels_per_client=4, test_fraction=0.0)


def site_folder(base: Path, clients: wafl.Federation, site: str) -> Path:
    """Data that only this node reads."""
    folder = base / "data" / site
    folder.mkdir(parents=True)
    for client in SITES[site]:
        x, y = clients.train.of(client)
        np.savez(folder / f"ward-{client}.npz", x=x.numpy(), y=y.numpy())
    return folder


def wait_for_round(metrics: Path, count: int, seconds: float) -> None:
    deadline = time.monotonic() + seconds
    while not (metrics.exists() and len(metrics.read_text().splitlines()) >= count):
        assert time.monotonic() < deadline, f"no round {count} within {seconds} s"
        time.sleep(0.2)


@pytest.mark.processes
def test_training_with_keys_survives_a_node_that_is_killed(clients: wafl.Federation, tmp_path: Path) -> None:
    experiment = parse_experiment(
        {
            "name": "wards",
            "schedule": {"rounds": ROUNDS, "local_epochs": EPOCHS, "learning_rate": RATE},
            "methods": [{"method": "WAFL", "gamma": 1.0}],
            "flower": {"nodes": 2, "min_nodes": 2, "wait": 90.0, "round_timeout": 30.0},
        },
        "here",
    )
    write_app(tmp_path / "app", experiment)
    certificates = make_certificates(tmp_path / "keys", nodes=[*SITES, "stranger"])
    folder = tmp_path / "study"
    alone = {"OMP_NUM_THREADS": "1"}
    with Loopback(tmp_path / "flower", certificates=certificates, environment=alone) as loopback:
        for site in SITES:
            loopback.add_node(site, {"data": str(site_folder(tmp_path, clients, site))}, key=site)
        loopback.wait_for_nodes(2, timeout=90.0)
        run = loopback.submit(tmp_path / "app", {"folder": str(folder)})
        stranger = loopback.add_node("stranger", key="stranger", register=False)
        wait_for_round(folder / "metrics.jsonl", 1, 120.0)
        loopback.nodes[KILLED].kill()
        assert run.wait(240.0) == "finished:completed", run.log()
        assert stranger.process.wait(30) == 1
        assert "Exit Code: 305" in stranger.said(), "a node whose key nobody registered is refused"
        programs = [loopback.link, *loopback.nodes.values()]
        assert any(program.family() for program in programs)
    assert not any(program.family() for program in programs), "every process is gone"

    assert json.loads((folder / "results.json").read_text())["finished"] is True
    saved = load_run(folder / "wafl")
    left_out = [{client for client, _ in record.excluded} for record in saved.history]
    assert left_out == [set(), set(SITES[KILLED])], "its clients, in the round in which it was killed"
    method = wafl.WAFL(gamma=1.0)
    schedule = Schedule(ROUNDS, None, None, EPOCHS, 64, RATE)
    assert equal(saved.params, replay(clients, method, schedule, saved.history))
