"""A node's operator allows apps by their digests: Flower's own SuperNode code takes those, and refuses all others."""

from __future__ import annotations

import sys
import time
from pathlib import Path

import pytest
from flwr.app import Message, Metadata, RecordDict
from flwr.app.message.message import make_message
from flwr.common.constant import ErrorCode
from flwr.common.serde import fab_from_proto, run_from_proto
from flwr.proto.fab_pb2 import Fab, GetFabRequest, GetFabResponse
from flwr.proto.run_pb2 import GetRunRequest, GetRunResponse, Run
from flwr.proto.transport_pb2 import Scalar
from flwr.supercore.inflatable.inflatable_object import get_object_tree
from flwr.supercore.object_store import ObjectStoreFactory
from flwr.supernode import fleet_http_connection, start_client_internal
from flwr.supernode.cli.flower_supernode import _parse_supernode_lifespan_config  # pyright: ignore[reportPrivateUsage]
from flwr.supernode.fleet_http_client import FleetHttpClient
from flwr.supernode.nodestate import NodeState, NodeStateFactory

from wafl.flower.ops import guard
from wafl.flower.ops.app import trial_experiment, write_app

RUN = 7


@pytest.fixture(scope="module")
def app(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("apps") / "app"
    write_app(folder, trial_experiment())
    return folder


class SuperLink:
    """Answers a SuperNode that has a message of a Flower run."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, content: bytes, **overrides: str) -> None:
        fab = Fab(hash_str=guard.sha256(content).hexdigest(), content=content)
        values = {key: Scalar(string=value) for key, value in overrides.items()}
        run = Run(run_id=RUN, fab_hash=fab.hash_str, override_config=values, status=None)
        monkeypatch.setattr(FleetHttpClient, "GetRun", lambda *_: GetRunResponse(run=run))
        monkeypatch.setattr(FleetHttpClient, "GetFab", lambda *_: GetFabResponse(fab=fab))


def reply_of(
    state: NodeState, store: ObjectStoreFactory, client: FleetHttpClient, entities: dict[str, str]
) -> Message | None:
    """What a SuperNode replies before any app runs; None if the app's turn has come."""
    metadata = Metadata(RUN, "", 1, state.get_node_id(), "", "", time.time(), 60.0, "query")
    message = make_message(metadata, RecordDict())
    metadata.__dict__["_message_id"] = message.object_id
    start_client_internal._pull_and_store_message(  # pyright: ignore[reportPrivateUsage]
        state=state,
        object_store=store.store(),
        node_config={},
        receive=lambda: (message, get_object_tree(message)),
        get_run=lambda run: run_from_proto(client.GetRun(GetRunRequest(run_id=run)).run),
        get_fab=lambda digest, run: fab_from_proto(client.GetFab(GetFabRequest(hash_str=digest, run_id=run)).fab),
        pull_object=lambda *_: b"",
        confirm_message_received=lambda *_: None,
        trusted_entities=entities,
    )
    replies = state.get_messages_legacy(is_reply=True)
    assert len(replies) <= 1
    return replies[0] if replies else None


def ask(watch: guard.Guard) -> tuple[Message | None, bool]:
    """The SuperNode's reply, and whether it has kept the app to run it."""
    store = ObjectStoreFactory()
    state = NodeStateFactory(objectstore_factory=store).state()
    state.set_node_id(5)
    with watch.client()("https://fl.example.org:8000") as client:
        reply = reply_of(state, store, client, watch.entities())
    return reply, state.get_run(RUN) is not None


def test_an_app_whose_digest_is_allowed_runs(app: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    harmless = {"folder": "/srv/runs 12:30/one", "seeds": "[0, 1]", "attack.kind": "none", "output": "C:\\runs"}
    SuperLink(monkeypatch, guard.bundle(app), **harmless)
    assert ask(guard.Guard([guard.app_digest(app), "0" * 64])) == (None, True)


@pytest.mark.parametrize("what", ["another app", "a changed app", "code in the run config"])
def test_any_other_app_is_refused_before_it_is_unpacked(
    app: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, what: str
) -> None:
    content, overrides = guard.bundle(app), {}
    allowed = guard.app_digest(app)
    if what == "another app":
        allowed = "0" * 64
    elif what == "a changed app":
        content += b"\0"
    else:
        overrides = {"model.kind": "shutil:rmtree"}
    SuperLink(monkeypatch, content, **overrides)
    reply, kept = ask(guard.Guard([allowed]))
    assert reply is not None
    assert reply.error.code == ErrorCode.INVALID_FAB
    assert not kept
    why = "model.kind='shutil:rmtree' names code" if overrides else "its digest is not allowed here"
    assert why in caplog.text


def test_a_signature_that_comes_with_an_app_does_not_count(app: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A SuperLink that has seen the guard's signature of one app cannot use it for another."""
    watch = guard.Guard([guard.app_digest(app)])
    good = watch.sign(RUN, GetFabResponse(fab=Fab(content=guard.bundle(app)))).fab.verifications
    SuperLink(monkeypatch, b"another")
    bad = GetFabResponse(fab=Fab(content=b"another", verifications=dict(good)))
    monkeypatch.setattr(FleetHttpClient, "GetFab", lambda *_: bad)
    reply, kept = ask(watch)
    assert reply is not None
    assert not kept


def test_without_the_guard_at_its_side_a_node_refuses_every_app(app: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """If Flower changed so that the guard were not asked, nothing would run: the safe side."""
    SuperLink(monkeypatch, guard.bundle(app))
    watch = guard.Guard([guard.app_digest(app)])
    monkeypatch.setattr(watch, "client", lambda: FleetHttpClient)
    reply, kept = ask(watch)
    assert reply is not None
    assert not kept


def test_a_node_with_allowed_apps_trusts_its_own_guard_and_nobody_else(monkeypatch: pytest.MonkeyPatch) -> None:
    found: list[tuple[list[str], bool]] = []

    def supernode() -> None:
        config = _parse_supernode_lifespan_config()
        client = fleet_http_connection.FleetHttpClient
        assert issubclass(client, FleetHttpClient)
        found.append((list(config.trusted_entities or {}), client is not FleetHttpClient))
        assert config.node_config == {"data": "/srv/wafl/data"}

    monkeypatch.setattr(guard, "flower_supernode", supernode)
    before = sys.argv
    arguments = ["--insecure", "--superlink", "localhost:8000", "--node-config", 'data="/srv/wafl/data"']
    guard.run_node(arguments, ["0" * 64])
    guard.run_node(arguments, [])
    assert found == [([guard.ENTITY], True), ([], False)], "without digests, it is flower-supernode"
    assert (sys.argv, fleet_http_connection.FleetHttpClient) == (before, FleetHttpClient)
    with pytest.raises(ValueError, match="exclude each other"):
        guard.run_node([*arguments, "--trusted-entities=mine.yaml"], ["0" * 64])


@pytest.mark.parametrize("digest", ["", "abc", "0" * 63, "G" * 64, "0" * 64 + "\n"])
def test_what_is_not_a_digest_is_refused(digest: str) -> None:
    with pytest.raises(ValueError, match="give its digest, 64 digits"):
        guard.Guard([digest])


def test_the_digest_is_of_what_the_folder_holds(app: Path, tmp_path: Path) -> None:
    before = guard.app_digest(app)
    assert guard.app_digest(app) == before
    write_app(tmp_path / "app", trial_experiment())
    assert guard.app_digest(tmp_path / "app") == before, "the same experiment is the same app anywhere"
    (tmp_path / "app" / "mine.py").write_text("print('hello')\n")
    assert guard.app_digest(tmp_path / "app") != before
    with pytest.raises(FileNotFoundError, match=r"holds no pyproject\.toml: give the folder of an app"):
        guard.app_digest(tmp_path)
