"""What goes wrong on Flower, with real processes: each fault is survived, or the run stops and goes on later.

    make test-flower          (.venv/bin/python -m tests.flower_matrix [NAME ...])

``--patience 4`` makes servers wait four times as long for nodes, on a machine that is busy with something else.
Prints ``survived`` or ``lost`` for each, with what happened. A run is survived if it ends with the parameters that
those clients give, bit for bit, that its history says took part.
"""

from __future__ import annotations

import argparse
import json
import math
import re
import shutil
import sys
import tempfile
import time
import tomllib
import traceback
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import numpy as np
from cryptography import x509
from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePrivateKey
from cryptography.hazmat.primitives.hashes import SHA384
from cryptography.hazmat.primitives.serialization import Encoding, load_pem_private_key
from examples.flower_hospitals.deployed import Deployed
from flwr.common.config import flatten_dict

import wafl
from tests.oracles.flower import equal, replay
from tests.oracles.overrides import HOSTILE
from tests.oracles.programs import pause, restart, restart_link, resume, stop
from wafl.config.read import parse_experiment
from wafl.data.splits import draw_unseen
from wafl.flower.ops.app import simulate, write_app
from wafl.flower.ops.guard import app_digest
from wafl.flower.ops.loopback import Program, RunHandle, find_tool
from wafl.flower.ops.tls import make_certificates
from wafl.flower.wire.values import FORMAT
from wafl.parts.schedule import Schedule
from wafl.receipts.questions import Questions
from wafl.receipts.reply import Reply, reply_of
from wafl.results.saved import load_run
from wafl.studies.study import Study

ROUNDS, RATE = 4, 0.1
ALONE = {"OMP_NUM_THREADS": "1"}


class Stage:
    """Clients in folders, an app, and a SuperLink with nodes; one scenario each."""

    def __init__(
        self,
        base: Path,
        sites: int = 3,
        more: Sequence[dict[str, Any]] = (),
        in_memory: bool = False,
        patience: float = 1.0,
        content: Mapping[str, Any] | None = None,
        **flower: Any,
    ) -> None:
        self.base, self.sites, self.folder, self.in_memory = base, sites, base / "study", in_memory
        self.clients = wafl.load_dataset("digits").partition(num_clients=sites, iid=True, test_fraction=0.0)
        for client in range(sites):
            folder = base / "data" / str(client)
            folder.mkdir(parents=True)
            x, y = self.clients.train.of(client)
            np.savez(folder / f"site-{client:02d}.npz", x=x.numpy(), y=y.numpy())
        # Nodes without keys of their own are new ones to Flower after a restart, so names cannot belong to keys here.
        settings = {"nodes": sites, "min_nodes": sites, "wait": 60.0, "round_timeout": 25.0, "names_by_key": False}
        settings |= flower
        settings |= {name: patience * settings[name] for name in ("wait", "round_timeout")}
        described = {
            "name": "matrix",
            "schedule": {"rounds": ROUNDS, "local_epochs": 1, "learning_rate": RATE},
            "methods": [{"method": "WAFL", "gamma": 1.0}, *more],
            "flower": settings,
            **(content or {}),
        }
        write_app(base / "app", parse_experiment(described, "matrix"))

    def __enter__(self) -> Stage:
        (self.base / "tmp").mkdir()
        root = Path(__file__).parents[1]
        local_value = {**ALONE, "TMPDIR": str(self.base / "tmp"), "PYTHONPATH": f"{root / 'src'}:{root}"}
        self.loopback = Deployed(self.base / "flower", environment=local_value, in_memory=self.in_memory).__enter__()
        return self

    def __exit__(self, *error: Any) -> None:
        self.loopback.__exit__(*error)

    def start(self, site: int) -> None:
        self.loopback.add_node(str(site), {"data": str(self.base / "data" / str(site))})

    def submit(self, **changes: Any) -> RunHandle:
        return self.loopback.submit(self.base / "app", {"folder": str(self.folder), **changes})

    def begin(self, rounds: int) -> RunHandle:
        """All nodes are there, and the run has finished this number of rounds."""
        for site in range(self.sites):
            self.start(site)
        self.loopback.wait_for_nodes(self.sites, timeout=600.0)
        run = self.submit()
        self.wait_for_rounds(rounds)
        return run

    def rounds_done(self) -> int:
        metrics = self.folder / "metrics.jsonl"
        return len(metrics.read_text().splitlines()) if metrics.exists() else 0

    def wait_for_rounds(self, count: int, seconds: float = 900.0) -> None:
        deadline = time.monotonic() + seconds
        while self.rounds_done() < count:
            if time.monotonic() > deadline:
                raise TimeoutError(f"{self.rounds_done()} of {count} rounds within {seconds:g} s")
            time.sleep(0.1)

    def history(self) -> Any:
        return load_run(self.folder / "wafl").history

    def left_out(self) -> list[list[int]]:
        return [sorted({client for client, _ in record.excluded}) for record in self.history()]

    def check(self, without: Sequence[int] = ()) -> None:
        """Finished, with the parameters that follow from who took part; some clients were never among them."""
        if json.loads((self.folder / "results.json").read_text())["finished"] is not True:
            raise AssertionError("the study is not finished")
        saved = load_run(self.folder / "wafl")
        expected = replay(
            self.clients.of_clients([client for client in range(self.sites) if client not in without]),
            wafl.WAFL(gamma=1.0),
            Schedule(rounds=ROUNDS, local_epochs=1, learning_rate=RATE),
            saved.history,
        )
        if not equal(saved.params, expected):
            raise AssertionError("the parameters do not come from the clients that took part")


def completed(run: RunHandle, seconds: float = 1800.0) -> None:
    status = run.wait(seconds)
    if status != "finished:completed":
        raise AssertionError(f"the run ended as {status}:\n{run.log()[-2000:]}")


def killed(stage: Stage) -> str:
    """A SuperNode is killed in the middle of a round."""
    run = stage.begin(1)
    stage.loopback.nodes["1"].kill()
    completed(run)
    stage.check()
    return f"left out: {stage.left_out()}"


def hangs(stage: Stage) -> str:
    """A SuperNode hangs for a while, and comes back."""
    run = stage.begin(1)
    pause(stage.loopback.nodes["1"])
    stage.wait_for_rounds(2)
    resume(stage.loopback.nodes["1"])
    completed(run)
    stage.check()
    return f"left out: {stage.left_out()}"


def joins_late(stage: Stage) -> str:
    """A SuperNode comes when training has begun, and takes part from then on."""
    for site in (0, 1):
        stage.start(site)
    stage.loopback.wait_for_nodes(2, timeout=600.0)
    run = stage.submit()
    stage.wait_for_rounds(1)
    stage.start(2)
    completed(run)
    sizes = [len(record.cohort) for record in stage.history()]
    if sizes[0] != 2 or sizes[-1] != 3:
        raise AssertionError(f"cohorts of {sizes} clients")
    return f"clients asked: {sizes}"


def lies(stage: Stage) -> str:
    """One of four SuperNodes trains on images a thousand times as bright, with labels of another digit."""
    x, y = stage.clients.train.of(3)
    np.savez(stage.base / "data" / "3" / "site-03.npz", x=1000.0 * x.numpy(), y=9 - y.numpy())
    completed(stage.begin(0))
    message = [[*dict(record.shortened), *dict(record.excluded)] for record in stage.history()]
    if message != [[3]] * ROUNDS:
        raise AssertionError(f"shortened or left out: {message}")
    accuracy = wafl.evaluate(load_run(stage.folder / "wafl"), replace(stage.clients, test=stage.clients.train)).accuracy
    return f"named in every round; accuracy {accuracy:.3f}"


def other_data(stage: Stage) -> str:
    """One of four SuperNodes has examples of another shape, and takes no part."""
    np.savez(stage.base / "data" / "3" / "site-03.npz", x=np.zeros((40, 5), np.float32), y=np.arange(40) % 3)
    run = stage.begin(0)
    completed(run)
    if "its examples have shape (5,)" not in run.log() or any(len(record.cohort) != 3 for record in stage.history()):
        raise AssertionError(run.log())
    stage.check(without=[3])
    return "refused by name, and the others trained"


def two_at_once(stage: Stage) -> str:
    """Two Flower runs share the nodes and the machine: no message of either is lost."""
    first = stage.begin(1)
    second = stage.loopback.submit(stage.base / "app", {"folder": str(stage.base / "second")})
    completed(first)
    completed(second)
    stage.check()
    for run in (first, second):
        if "asking again" in run.log() or "Unavailable" in run.log():
            raise AssertionError(run.log())
    one, other = (load_run(folder / "wafl").params for folder in (stage.folder, stage.base / "second"))
    if not equal(one, other):
        raise AssertionError("the two runs differ")
    return "both are whole, and the same"


def link_restarted(stage: Stage) -> str:
    """The SuperLink is killed and restarted; the run is submitted again and goes on from its checkpoint."""
    run = stage.begin(2)
    stage.loopback.link.kill()
    done = stage.rounds_done()
    time.sleep(2.0)
    restart_link(stage.loopback)
    stage.loopback.flwr("stop", str(run.id))
    stage.loopback.wait_for_nodes(3, timeout=600.0)
    completed(stage.submit())
    stage.check()
    return f"after {done} rounds; left out: {stage.left_out()}"


def stops_and_goes_on(stage: Stage) -> str:
    """Too few clients are left: the run stops with its state saved, and goes on when they are back."""
    run = stage.begin(2)
    for node in stage.loopback.nodes.values():
        node.kill()
    status = run.wait(1800.0)
    if status != "finished:failed" or "TooFewRepliesError" not in run.log():
        raise AssertionError(f"the run ended as {status}")
    done = stage.rounds_done()
    for node in stage.loopback.nodes.values():
        restart(node)
    stage.loopback.wait_for_nodes(3, timeout=600.0)
    completed(stage.submit())
    stage.check()
    return f"stopped after {done} rounds, said why, went on"


def twenty_nodes(stage: Stage) -> str:
    """Twenty SuperNodes, one client each."""
    for site in range(20):
        stage.start(site)
    stage.loopback.wait_for_nodes(20, timeout=300.0)
    began = time.monotonic()
    completed(stage.submit(), 2400.0)
    stage.check()
    return f"{(time.monotonic() - began) / ROUNDS:.0f} s a round; left out: {stage.left_out()}"


SITES, ABSENT = 12, 10
ASKED = {
    "data": {"unseen": ABSENT / SITES},
    "schedule": {"rounds": 1, "local_epochs": 1, "learning_rate": RATE},
    "questions": {"radii": [0.0, 0.1], "confidence": 0.5, "coverage": 0.7},
}


def next_client(stage: Stage) -> str:
    """Twelve SuperNodes, ten of which never train: asked about the next client, one answers NaN, and one dies."""
    _, unseen = draw_unseen(SITES, ABSENT / SITES, 0)
    broken, dying = unseen[3], unseen[7]
    for site in range(SITES):
        if site == broken:
            stage.loopback.add_node(str(site), {"data": f"tests.oracles.nan_site:site_{site:02d}"})
        else:
            stage.start(site)
    stage.loopback.wait_for_nodes(SITES, timeout=900.0)
    completed(stage.submit(), 2400.0)
    folder = stage.folder / "wafl"
    run = stage.submit(task="next-client", folder=str(folder))
    deadline = time.monotonic() + 900.0
    while "asking 10 clients" not in run.log():
        if time.monotonic() > deadline:
            raise TimeoutError(run.log()[-2000:])
        time.sleep(0.2)
    stage.loopback.nodes[str(dying)].kill()
    completed(run, 2400.0)
    content, questions = json.loads((folder / "next-client.json").read_text()), Questions.of(ASKED["questions"])
    names = {f"site-{site:02d}": site for site in unseen}
    lost = [name for name, site in names.items() if site in (broken, dying)]
    if content["missing"] != lost or set(content["replies"]) != {*names} - {*lost}:
        raise AssertionError(f"missing: {content['missing']}, expected {lost}")
    model = load_run(folder).module
    for name, reply in content["replies"].items():
        if Reply.of(reply, questions) != reply_of(questions, model, stage.clients.of_clients([names[name]]), ABSENT):
            raise AssertionError(f"the reply of {name} does not fit its examples")
    ordered = sorted([*(reply["values"][0] for reply in content["replies"].values()), math.inf, math.inf])
    first = content["statements"][0]
    if first["value"] != ordered[math.ceil(0.5 * (ABSENT + 1)) - 1]:
        raise AssertionError(f"{first} does not follow from {ordered}")
    return first["sentence"]


def turned_away(closed: Deployed, base: Path, tried: Mapping[str, Sequence[str]]) -> list[str]:
    """What SuperNodes with these options say at the SuperLink: all must end with an error, and none gets in."""
    limits = ["--max-retries", "1", "--max-wait-time", "5"]
    outside: list[Program] = []
    for index, given in enumerate(tried.values()):
        at = ["--superlink", closed.door, "--host", "127.0.0.1", "--port", str(closed._reserve_port())]
        command = [find_tool("flower-supernode"), *at, *given, *limits]
        outside.append(Program(command, base / f"{index}.log", closed._environment(f"outside-{index}")))
    for what, program in zip(tried, outside, strict=True):
        try:
            status = program.process.wait(600.0)
        finally:
            program.kill()
        if status == 0 or "SuperNode ID" in program.output():
            raise AssertionError(f"{what}: ended with {status}: {program.output()}")
    return [program.output() for program in outside]


def keys(stage: Stage) -> str:
    """SuperNodes at a SuperLink with TLS and keys: who has no registered key, or trusts no server, does not get in."""
    local_value, foreign = (make_certificates(stage.base / name, nodes=["a", "b"]) for name in ("own", "foreign"))
    ca, wrong_ca = ["--root-certificates", str(local_value.ca)], ["--root-certificates", str(foreign.ca)]
    key, other = (["--auth-supernode-private-key", str(local_value.node_key(name))] for name in ("a", "b"))
    tried = {"without a key": ca, "with an unregistered key": [*ca, *other], "--insecure": ["--insecure"]}
    tried |= {"with another CA, as if the SuperLink were an impostor": [*wrong_ca, *key]}
    with Deployed(stage.base / "closed", certificates=local_value, environment=ALONE) as closed:
        node = closed.add_node("a", {"data": str(stage.base / "data" / "0")}, key="a")
        closed.wait_for_nodes(1, timeout=600.0)
        turned_away(closed, stage.base, tried)
        if closed.nodes_online() != 1:
            raise AssertionError("somebody got in")
        closed.flwr("supernode", "unregister", str(closed.node_id("a")))
        node.process.wait(600.0)
    return f"{len(tried)} kept out, and a revoked node ended"


def expired(stage: Stage) -> str:
    """The certificate of the SuperLink expires: a SuperNode that was there does not connect to it again."""
    local_value = make_certificates(stage.base / "own", nodes=["a"])
    with Deployed(stage.base / "closed", certificates=local_value, environment=ALONE) as closed:
        node = closed.add_node("a", {"data": str(stage.base / "data" / "0")}, key="a")
        closed.wait_for_nodes(1, timeout=600.0)
        stop(node)
        valid = x509.load_pem_x509_certificate(local_value.server_cert.read_bytes())
        now, key = datetime.now(UTC), load_pem_private_key(local_value.ca_key.read_bytes(), None)
        late = x509.CertificateBuilder(
            valid.issuer, valid.subject, valid.public_key(), valid.serial_number, extensions=list(valid.extensions)
        )
        late = late.not_valid_before(now - timedelta(days=9)).not_valid_after(now - timedelta(days=1))
        assert isinstance(key, EllipticCurvePrivateKey)
        local_value.server_cert.write_bytes(late.sign(key, SHA384()).public_bytes(Encoding.PEM))
        restart_link(closed)
        known = [
            "--root-certificates",
            str(local_value.ca),
            "--auth-supernode-private-key",
            str(local_value.node_key("a")),
        ]
        (message,) = turned_away(closed, stage.base, {"after the certificate expired": known})
    if "certificate has expired" not in message:
        raise AssertionError(message)
    return "kept away, and its log says why"


def start_changed(stage: Stage, site: int, changes: Mapping[str, str]) -> None:
    """Start a SuperNode with a separate wafl, in which these texts of what travels are others."""
    path = stage.base / "changed"
    shutil.copytree(Path(wafl.__file__).parent, path / "wafl", ignore=shutil.ignore_patterns("__pycache__"))
    file = path / "wafl" / "flower" / "wire" / "values.py"
    for old, new in changes.items():
        if file.read_text().count(old) != 1:
            raise AssertionError(f"{old!r} is not once in {file}")
        file.write_text(file.read_text().replace(old, new))
    usual = dict(stage.loopback._variables)
    stage.loopback._variables["PYTHONPATH"] = str(path)
    stage.start(site)
    stage.loopback._variables = usual


def another_version(stage: Stage) -> str:
    """One of four SuperNodes has another version of wafl, whose messages have another format."""
    for site in range(3):
        stage.start(site)
    start_changed(stage, 3, {f"\nFORMAT = {FORMAT}\n": "\nFORMAT = 99\n", "{version('wafl-learn')}": "99.0"})
    stage.loopback.wait_for_nodes(4, timeout=600.0)
    run = stage.submit()
    completed(run)
    stage.check(without=[3])
    message = f"the server's messages have format {FORMAT}, this node's wafl-learn 99.0 has format 99"
    if message not in run.log() or any(len(record.cohort) != 3 for record in stage.history()):
        raise AssertionError(run.log())
    return "refused with both numbers, and the others trained"


def gigabyte(stage: Stage) -> str:
    """One of four SuperNodes replies in the first round with a gigabyte in place of its model.

    The SuperLink keeps it in memory: its database locks while a gigabyte is written, and nodes end.
    """
    for site in range(3):
        stage.start(site)
    usual = 'return with_arrays(content, "vectors", **vectors)'
    large = "if query.queries[0].round == 0:\n        vectors = {name: torch.rand(2**28) for name in vectors}\n"
    start_changed(stage, 3, {usual: f"{large}    {usual}"})
    stage.loopback.wait_for_nodes(4, timeout=600.0)
    completed(stage.submit())
    stage.check()
    first, *others = stage.history()
    why = [reason for client, reason in first.excluded if client == 3]
    if "expected float32 of (1, 650)" not in str(why) or any(record.excluded for record in others):
        raise AssertionError(f"left out: {why}, then {stage.left_out()}")
    return f"refused after {first.seconds:.0f} s; from the second round on, whose model has its size, all take part"


def simulated_200(stage: Stage) -> str:
    """Flower simulates 200 nodes with one client each: all take part in every round."""
    content = {
        "name": "many",
        "data": {"num_clients": 200, "iid": True},
        "schedule": {"rounds": 2, "local_epochs": 1, "learning_rate": RATE},
        "methods": [{"method": "WAFL", "gamma": 1.0}],
        "attack": {"kind": "none"},
        "flower": {"nodes": 200, "round_timeout": 600.0},
    }
    here, on_nodes = (
        Study.create(parse_experiment({**content, "engine": engine}, "many"), stage.base / engine)
        for engine in ("embedded", "flower-sim")
    )
    here.run()
    simulate(on_nodes)
    one, other = (load_run(next(study.folder.path.rglob("run.json")).parent) for study in (here, on_nodes))
    rounds = [(len(record.cohort), len(record.excluded)) for record in other.history]
    if rounds != [(200, 0)] * 2 or not equal(one.params, other.params):
        raise AssertionError(f"asked and left out: {rounds}")
    return "the same parameters as embedded"


EVIL = """
open({ran!r}, "w")
from wafl.flower.app.client import make_client_app
client_app = make_client_app()
"""
GREET = """
import time
from logging import INFO
from flwr.app import Message
from flwr.serverapp import ServerApp
from wafl.flower.wire.logs import log
from wafl.flower.wire.values import config_only
server_app = ServerApp()

@server_app.main()
def main(grid, context):
    began = time.monotonic()
    asked = [Message(config_only("query", sizes=False), node, "query.hello") for node in grid.get_node_ids()]
    for reply in grid.send_and_receive(asked, timeout=400.0):
        said = reply.error.reason if reply.has_error() else dict(reply.content["reply"])["names"]
        log(INFO, "after %.0f s: %s", time.monotonic() - began, said)
"""
RUNS_COMMAND = (
    '{kind="yaml\\u003aunsafe_load", options={stream="!!python/object/apply:os.system [touch $FLWR_HOME/ran]"}}'
)


def changed_app(stage: Stage, name: str, component: str, code: str) -> Path:
    """The stage's app with a component of another module."""
    app = stage.base / name
    shutil.copytree(stage.base / "app", app)
    text = (app / "pyproject.toml").read_text()
    text = text.replace(f"wafl.flower.app.{component}:{component}_app", f"{name}:{component}_app")
    (app / "pyproject.toml").write_text(text)
    (app / f"{name}.py").write_text(code)
    return app


def begin_guarded(stage: Stage, app: Path) -> None:
    """All nodes are there, and allow this app alone."""
    for site in range(stage.sites):
        data = {"data": str(stage.base / "data" / str(site))}
        stage.loopback.add_node(str(site), data, allowed=[app_digest(app)])
    stage.loopback.wait_for_nodes(stage.sites, timeout=600.0)


def strangers_app(stage: Stage) -> str:
    """Nodes that allow one app get a stranger's; and while they train, another module into the app's folder."""
    ran = stage.base / "ran"
    stranger = changed_app(stage, "evil", "client", EVIL.format(ran=str(ran)))
    begin_guarded(stage, stage.base / "app")
    status = stage.loopback.submit(stranger, {"flower.wait": 5.0}).wait(600.0)
    nodes = stage.loopback.nodes.values()
    if status != "finished:failed" or not all("is not allowed here" in node.output() for node in nodes):
        raise AssertionError(f"the stranger's run ended as {status}")
    run = stage.submit()
    stage.wait_for_rounds(1)
    app = next((stage.base / "tmp").glob("wafl-node-*/apps/*"))
    (app / "torch.py").write_text(f"open({str(ran)!r}, 'w')\n")
    completed(run)
    stage.check()
    if ran.exists() or not any("torch.py of the app has changed" in node.output() for node in nodes):
        raise AssertionError("code that was not allowed ran, or no one noticed it")
    return f"refused; then left out: {stage.left_out()}"


def hostile_overrides(stage: Stage) -> str:
    """The allowed app, whose server greets nodes and no more, with values by -c that name code in all known ways."""
    app = changed_app(stage, "greet", "server", GREET)
    begin_guarded(stage, app)
    project = tomllib.loads((app / "pyproject.toml").read_text())
    local_value = flatten_dict(project["tool"]["flwr"]["app"]["config"])
    tried = [
        (key, value) for key, value in (("methods.fedavg.client_weights", RUNS_COMMAND), *HOSTILE) if key in local_value
    ]
    for key, value in tried:
        run = stage.loopback.submit(app, {key: value})
        completed(run)
        message = re.findall(r"after (\d+) s: .*", run.log())
        if not all(f"run config: {key}" in line for line in re.findall(r"after \d+ s: .*", run.log())) or not message:
            raise AssertionError(f"{key} = {value!r} got through: {run.log()}")
        print(f"  {key} = {str(value)[:60]!r}: refused after {message} s", flush=True)
    if ran := list(stage.base.rglob("ran")):
        raise AssertionError(f"a command ran: {ran}")
    run = stage.loopback.submit(app, {"schedule.rounds": 2, "folder": "os:system"})
    completed(run)
    if "site-00" not in run.log():
        raise AssertionError(f"the allowed app did not run: {run.log()}")
    return f"{len(tried)} refused, and then the app ran"


SCENARIOS: dict[str, tuple[Callable[[Stage], str], dict[str, Any]]] = {
    "killed": (killed, {}),
    "hangs": (hangs, {}),
    "joins late": (joins_late, {"min_nodes": 2, "wait": 15.0, "round_timeout": 120.0}),
    "lies": (lies, {"sites": 4, "round_timeout": 120.0}),
    "other data": (other_data, {"sites": 4, "min_nodes": 3, "round_timeout": 120.0}),
    "two at once": (two_at_once, {"round_timeout": 120.0}),
    "keys": (keys, {"sites": 1}),
    "expired": (expired, {"sites": 1}),
    "another version": (another_version, {"sites": 4, "min_nodes": 3, "wait": 300.0, "round_timeout": 120.0}),
    "a gigabyte": (gigabyte, {"sites": 4, "wait": 300.0, "round_timeout": 300.0, "in_memory": True}),
    "200 simulated": (simulated_200, {"sites": 1}),
    "SuperLink restarted": (link_restarted, {"round_timeout": 120.0}),
    "too few left": (stops_and_goes_on, {"wait": 120.0, "round_timeout": 60.0}),
    "stranger's app": (strangers_app, {"sites": 2, "wait": 120.0, "round_timeout": 90.0}),
    "overrides": (
        hostile_overrides,
        {"sites": 1, "wait": 5.0, "more": [{"method": "FedAvg", "client_weights": "uniform"}]},
    ),
    "next client": (
        next_client,
        {"sites": SITES, "round_timeout": 300.0, "wait": 300.0, "in_memory": True, "content": ASKED},
    ),
    "20 nodes": (twenty_nodes, {"sites": 20, "round_timeout": 400.0, "wait": 400.0, "in_memory": True}),
}
"""What happens, and how its stage differs from the usual one."""


def main() -> int:
    parser = argparse.ArgumentParser(description="The fault matrix of wafl on Flower, with real processes.")
    parser.add_argument("names", nargs="*", help=f"of {', '.join(SCENARIOS)}; default: all")
    parser.add_argument("--patience", type=float, default=1.0, help="how much longer servers wait than usual")
    given = parser.parse_args()
    names = given.names or list(SCENARIOS)
    lost = 0
    for name in names:
        base = Path(tempfile.mkdtemp(prefix="wafl-matrix-"))
        began = time.monotonic()
        scenario, options = SCENARIOS[name]
        try:
            with Stage(base, patience=given.patience, **options) as stage:
                message, outcome = scenario(stage), "survived"
        except Exception as error:
            lost += 1
            message, outcome = f"{type(error).__name__}: {error}", "LOST"
            traceback.print_exc()
            print(f"logs: {base}", file=sys.stderr)
        print(f"{name:<20} {outcome:<9} {time.monotonic() - began:5.0f} s  {message}", flush=True)
        if outcome == "survived":
            shutil.rmtree(base, ignore_errors=True)
    print(f"{len(names) - lost} survived, {lost} lost")
    return 1 if lost else 0


if __name__ == "__main__":
    sys.exit(main())
