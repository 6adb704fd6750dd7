"""A node's operator allows apps by their digests: Flower's own SuperNode code takes those, and refuses all others."""

from __future__ import annotations

import os
import time
from dataclasses import dataclass, replace
from functools import wraps
from inspect import signature
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from zipfile import BadZipFile

import pytest
from flwr.app import Message, Metadata, RecordDict
from flwr.app.message.message import make_message
from flwr.cli.install import install_from_fab
from flwr.common.config import flatten_dict
from flwr.common.constant import ErrorCode
from flwr.supercore.constant import TaskType
from flwr.supercore.fab import Fab
from flwr.supercore.inflatable.inflatable_object import get_object_tree
from flwr.supercore.run import Run, RunNotRunningException
from flwr.supernode import start_client_internal
from flwr.supernode.nodestate import NodeState

from tests.oracles.overrides import HOSTILE
from wafl.config.read import parse_experiment
from wafl.flower.ops import guard, supernode
from wafl.flower.ops.app import write_app
from wafl.flower.ops.supernode import GuardedState, guarded
from wafl.flower.wire.run_config import to_run_config

RUN = 7
EXPERIMENT = {
    "name": "trial",
    "methods": [{"method": "FedAvg", "client_weights": "uniform"}, {"method": "WAFL", "gamma": 1.0}],
    "schedule": {"rounds": 1},
}
KEYS = flatten_dict(to_run_config(parse_experiment(EXPERIMENT, "here")))
"""What a SuperLink lets a Flower run change: it refuses other keys itself."""


@pytest.fixture(scope="module")
def app(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("apps") / "app"
    write_app(folder, parse_experiment(EXPERIMENT, "here"))
    return folder


@dataclass
class SuperLink:
    """Has a message of a Flower run for a SuperNode, and says which app it is for."""

    fab: Fab
    run: Run
    running: bool = True

    @classmethod
    def with_app(cls, content: bytes, **overrides: Any) -> SuperLink:
        digest = guard.sha256(content).hexdigest()
        run = replace(Run.create_empty(RUN), fab_id="wafl/trial", fab_version="1.0.0", fab_hash=digest)
        return cls(Fab(digest, content, {}), replace(run, override_config=overrides))

    def receive(self, state: NodeState, entities: dict[str, str] | None = None) -> None:
        """A SuperNode receives the message."""
        metadata = Metadata(self.run.run_id, "", 1, state.get_node_id(), "", "", time.time(), 60.0, "query")
        message = make_message(metadata, RecordDict())
        metadata.__dict__["_message_id"] = message.object_id
        start_client_internal._pull_and_store_message(  # pyright: ignore[reportPrivateUsage]
            state=state,
            object_store=state.object_store,
            node_config={},
            receive=lambda: (message, get_object_tree(message)),
            get_run=lambda _: self.run,
            get_fab=lambda *_: self.fab,
            pull_object=lambda *_: b"",
            confirm_message_received=self._confirm,
            trusted_entities=entities,
        )

    def ask(self, state: NodeState, entities: dict[str, str] | None = None) -> Message | None:
        """What a SuperNode replies before any app runs; None if the app's turn has come."""
        self.receive(state, entities)
        replies = state.get_messages_legacy(is_reply=True)
        assert len(replies) + len(state.get_tasks()) == 1, "an answer, or a task"
        for reply in replies:
            assert state.object_store.get(reply.metadata.message_id), "what is sent is there"
            state.delete_messages(message_ids=[reply.metadata.message_id])
        return replies[0] if replies else None

    def _confirm(self, *_: Any) -> None:
        if not self.running:
            raise RunNotRunningException


def node(*allowed: str) -> NodeState:
    state = guarded(guard.Guard.of(allowed)).state()
    state.set_node_id(5)
    return state


def refusal(reply: Message | None) -> str:
    assert reply is not None
    assert reply.error.code == ErrorCode.INVALID_FAB
    return str(reply.error.reason)


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("FLWR_HOME", str(tmp_path / "home"))
    return tmp_path / "home"


def test_an_app_whose_digest_is_allowed_runs(app: Path) -> None:
    harmless = {"folder": "/srv/runs 12:30/one", "norm": 1.0, "schedule.rounds": 5, "output": "C:\\runs"}
    link = SuperLink.with_app(guard.bundle(app), **harmless)
    assert link.ask(node(guard.app_digest(app), "0" * 64)) is None
    assert link.ask(node()) is None, "whose apps run is then for Flower's trusted entities to say"


@pytest.mark.parametrize("what", ["another app", "a changed app"])
def test_any_other_app_is_refused_before_it_is_unpacked(app: Path, home: Path, what: str) -> None:
    content, allowed = guard.bundle(app), guard.app_digest(app)
    if what == "another app":
        allowed = "0" * 64
    else:
        content += b"\0"
    state, link = node(allowed), SuperLink.with_app(content)
    assert "is not allowed here" in refusal(link.ask(state))
    assert state.get_fab(link.fab.hash_str) is None
    assert not (home / "apps").exists()
    assert "is not allowed here" in refusal(link.ask(state)), "nor the next time"


def test_a_refusal_that_came_too_late_is_no_answer_to_the_next_message(app: Path) -> None:
    state, link = node(guard.app_digest(app)), SuperLink.with_app(guard.bundle(app))
    stranger = SuperLink.with_app(guard.bundle(app) + b"\0")
    stranger.run, stranger.running = replace(stranger.run, run_id=RUN + 1), False
    stranger.receive(state)
    assert link.ask(state) is None


@pytest.mark.parametrize(
    ("key", "value"), [pair for pair in HOSTILE if pair[0] in KEYS], ids=lambda part: str(part)[:40]
)
def test_a_hostile_override_is_refused(app: Path, key: str, value: Any) -> None:
    content = guard.bundle(app)
    state, link = node(guard.app_digest(app)), SuperLink.with_app(content, **{key: KEYS[key]})
    assert link.ask(state) is None
    (task,) = state.get_tasks()
    state.task_store.clear()  # pyright: ignore[reportAttributeAccessIssue, reportUnknownMemberType]
    assert task.type == TaskType.CLIENT_APP
    hostile = SuperLink(link.fab, replace(link.run, run_id=RUN + 1, override_config={key: value}))
    assert f"run config: {key}" in refusal(hostile.ask(state))
    # The runs of a series share a context: the first one would now get the other's run config, whatever its own says.
    assert f"run config: {key}" in refusal(link.ask(state))


@pytest.mark.parametrize(
    "change",
    [
        {"fab_version": "2.0.0"}, {"fab_version": "1.0.0/../../elsewhere"}, {"fab_id": "wafl/other"},
        {"fab_id": "../wafl/trial"}, {"fab_hash": "0" * 64}, {"fab_hash": ""},
        {"primary_task_type": TaskType.AGENT_APP},
    ],
    ids=str,
)  # fmt: skip
def test_allowed_bytes_under_another_name_are_refused(app: Path, change: dict[str, str]) -> None:
    link = SuperLink.with_app(guard.bundle(app))
    link.run = replace(link.run, **change)
    assert refusal(link.ask(node(guard.app_digest(app))))


@pytest.mark.parametrize("digest", ["", "0" * 64])
def test_allowed_bytes_under_another_digest_are_refused(app: Path, digest: str) -> None:
    link = SuperLink.with_app(guard.bundle(app))
    link.fab.hash_str = digest
    assert "its bytes have a different digest" in refusal(link.ask(node(guard.app_digest(app))))


def test_other_bytes_under_an_allowed_digest_are_refused(app: Path) -> None:
    link = SuperLink.with_app(guard.bundle(app))
    link.fab.content = b"another"
    with pytest.raises(Exception, match="not a zip file"):  # Flower looks into it first, and ends
        link.ask(node(guard.app_digest(app)))
    link.fab.content = guard.bundle(app) + b"\0"
    assert "its bytes have a different digest" in refusal(link.ask(node(guard.app_digest(app))))


@pytest.mark.parametrize("change", ["a changed file", "another file", "a missing file", "a link"])
def test_a_folder_that_was_changed_is_refused_and_unpacked_anew(app: Path, tmp_path: Path, change: str) -> None:
    (tmp_path / "app").mkdir()
    (tmp_path / "app" / "pyproject.toml").write_bytes((app / "pyproject.toml").read_bytes())
    (tmp_path / "app" / "mine.py").write_text("SIZE = 1\n")
    content = guard.bundle(tmp_path / "app")
    state, link = node(guard.app_digest(tmp_path / "app")), SuperLink.with_app(content)
    folder = install_from_fab(content, skip_prompt=True)
    (folder / "__pycache__").mkdir()
    (folder / "__pycache__" / "mine.cpython-311.pyc").write_bytes(b"planted")
    assert link.ask(state) is None
    assert not (folder / "__pycache__").exists()
    state.task_store.clear()  # pyright: ignore[reportAttributeAccessIssue, reportUnknownMemberType]
    if change == "another file":
        (folder / "torch.py").write_text("1 / 0")
    else:
        (folder / "mine.py").unlink()
    if change == "a changed file":
        (folder / "mine.py").write_text("SIZE = 2\n")
    elif change == "a link":
        (tmp_path / "elsewhere.py").write_text("SIZE = 1\n")
        (folder / "mine.py").symlink_to(tmp_path / "elsewhere.py")
    file = "torch.py" if change == "another file" else "mine.py"
    assert refusal(link.ask(state)) == f"{file} of the app has changed since it was unpacked on this node"
    assert not folder.exists()
    assert link.ask(state) is None


def test_flowers_trusted_entities_are_asked_too(app: Path) -> None:
    """Nothing of ours signs an app: without a signature it does not run, allowed or not."""
    link = SuperLink.with_app(guard.bundle(app))
    reply = link.ask(node(guard.app_digest(app)), {"fpk_somebody": "ssh-ed25519 AAAA"})
    assert refusal(reply) == "The FAB could not be verified."
    assert link.fab.verifications == {}


def test_a_node_starts_only_if_it_knows_which_apps_it_runs(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, home: Path
) -> None:
    started: list[tuple[dict[str, Any], str]] = []
    monkeypatch.setattr(supernode, "flower_supernode", lambda: started.append(({}, os.environ["FLWR_HOME"])))
    monkeypatch.setattr(supernode, "_start_supernode_http_api", lambda *_: (None, None))

    @wraps(start_client_internal.start_client_internal)
    def start(**options: Any) -> None:
        started.append((options, os.environ["FLWR_HOME"]))
        raise SystemExit

    monkeypatch.setattr(supernode, "start_client_internal", start)
    monkeypatch.setenv("WAFL_STATE", "")
    entities = tmp_path / "entities.yaml"
    entities.write_text("fpk_one: ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIJXcGTFtjaZS1fZ/0y0QW3bl0dZFMPTyPaHVZq0ZQoQ0")
    arguments = ["--insecure", "--superlink", "localhost:8000", "--node-config", 'data="/srv/wafl/data"']
    trusting = [*arguments, f"--trusted-entities={entities}"]
    (tmp_path / "none.yaml").write_text("{}")
    trusting_none = [*arguments, f"--trusted-entities={tmp_path / 'none.yaml'}"]
    for given, allowed, any_app in (
        (arguments, (), False), (trusting_none, (), False), (arguments, ("0" * 64,), True), (trusting, (), True),
    ):  # fmt: skip
        with pytest.raises(ValueError, match="which apps does this node run"):
            supernode.run_node(given, allowed, any_app=any_app)
    assert not started
    supernode.run_node(arguments, (), any_app=True)
    assert started.pop() == ({}, str(home)), "it is flower-supernode"
    for given, allowed in ((arguments, ("0" * 64,)), (trusting, ()), (trusting, ("0" * 64,))):
        monkeypatch.setenv("FLWR_HOME", str(home))
        with pytest.raises(SystemExit):
            supernode.run_node(given, allowed)
        options, apps = started.pop()
        assert isinstance(options["state_factory"].state(), GuardedState)
        assert options["node_config"] == {"data": "/srv/wafl/data"}
        assert bool(options["trusted_entities"]) == (given is trusting)
        assert apps != str(home), "a separate folder"
        assert not Path(apps).exists(), "which is gone at the end"
        assert os.environ["WAFL_STATE"] == str(home / "wafl"), "what clients keep stays where it was"
    with pytest.raises(ValueError, match="checked only with 'subprocess'"):
        supernode.run_node([*arguments, "--isolation", "process"], ("0" * 64,))
    monkeypatch.setattr(supernode, "package_version", "1.43.0")
    with pytest.raises(ValueError, match=r"flwr 1\.43\.0 is not known to ask before it runs apps"):
        supernode.run_node(arguments, ("0" * 64,))
    assert not started


@pytest.mark.parametrize("digest", ["", "abc", "0" * 63, "G" * 64, "0" * 64 + "\n"])
def test_what_is_not_a_digest_is_refused(digest: str) -> None:
    with pytest.raises(ValueError, match="give its digest, 64 digits"):
        guard.Guard.of([digest])


def test_the_digest_is_of_what_the_folder_holds(app: Path, tmp_path: Path) -> None:
    before = guard.app_digest(app)
    assert guard.app_digest(app) == before
    write_app(tmp_path / "app", parse_experiment(EXPERIMENT, "here"))
    assert guard.app_digest(tmp_path / "app") == before, "the same experiment is the same app anywhere"
    (tmp_path / "app" / "mine.py").write_text("print('hello')\n")
    assert guard.app_digest(tmp_path / "app") != before
    with pytest.raises(FileNotFoundError, match=r"contains no pyproject\.toml: pass the folder of an app"):
        guard.app_digest(tmp_path)


def test_bytes_that_are_no_archive_do_not_end_a_node(app: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Flower's loop ends with an error then, and returns; the node begins it again, and nothing else."""
    with pytest.raises(BadZipFile):
        SuperLink.with_app(b"no archive").receive(node(guard.app_digest(app)))
    begun: list[dict[str, Any]] = []

    def loop(**options: Any) -> None:
        begun.append(options)
        if len(begun) == 3:
            raise SystemExit

    loop.__signature__ = signature(start_client_internal.start_client_internal)  # type: ignore[attr-defined]
    monkeypatch.setattr(supernode, "start_client_internal", loop)
    monkeypatch.setattr(supernode, "_start_supernode_http_api", lambda *_: (None, None))
    monkeypatch.setattr(supernode, "add_exit_handler", lambda _: None)
    monkeypatch.setattr(supernode, "PAUSE", 0.0)
    config = SimpleNamespace(
        host="127.0.0.1", port=9094, isolation="subprocess", health_server_address="127.0.0.1:9098"
    )
    with pytest.raises(SystemExit):
        supernode._start(config, guarded(guard.Guard.of([])))  # type: ignore[arg-type]
    assert [each["isolation"] for each in begun] == ["subprocess", "process", "process"]
    assert [each["health_server_address"] for each in begun] == ["127.0.0.1:9098", None, None]
