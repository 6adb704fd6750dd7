"""Run Flower's SuperNode with a state that starts no task of an app unless the guard allows it.

No part of Flower is replaced: a SuperNode uses the state that it receives, and asks the state for every task. The
answer to a disallowed app is Flower's error 7, and the node continues.
"""

import os
import sys
import time
from collections.abc import Mapping, Sequence
from inspect import signature
from logging import ERROR, WARNING, getLogger
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from flwr.app import Error, Message
from flwr.common.constant import ISOLATION_MODE_PROCESS, ISOLATION_MODE_SUBPROCESS, ErrorCode
from flwr.supercore.constant import HTTP_SERVER_SHUTDOWN_TIMEOUT, TaskType
from flwr.supercore.exit import add_exit_handler
from flwr.supercore.fab import Fab
from flwr.supercore.object_store import ObjectStoreFactory
from flwr.supercore.utils import get_flwr_home
from flwr.supercore.version import package_version
from flwr.supernode.cli import flower_supernode
from flwr.supernode.cli.flower_supernode import (
    SuperNodeLifespanConfig,
    _parse_supernode_lifespan_config,  # pyright: ignore[reportPrivateUsage]
    _start_supernode_http_api,  # pyright: ignore[reportPrivateUsage]
)
from flwr.supernode.nodestate import InMemoryNodeState, NodeStateFactory
from flwr.supernode.start_client_internal import (
    _insert_message,  # pyright: ignore[reportPrivateUsage]
    start_client_internal,
)

from wafl.flower.node.allowed import ALLOWED, allowed_models
from wafl.flower.node.keeper import keep
from wafl.flower.node.keepsakes import state_folder
from wafl.flower.node.ledger import Ledger
from wafl.flower.node.limits import Limits, variable
from wafl.flower.node.private import Private
from wafl.flower.ops.guard import Guard, RefusedError

log = getLogger("flwr").log
KNOWN = ("1.41.", "1.42.")
"""The versions of Flower whose SuperNode is known to ask its state for every task."""
NO_TASK, PAUSE = 0, 5.0


class GuardedState(InMemoryNodeState):
    """A SuperNode's state that rejects disallowed apps, and answers in their place."""

    def __init__(self, factory: ObjectStoreFactory, guard: Guard) -> None:
        super().__init__(factory.store())
        self._guard = guard
        self._refused: dict[int, str] = {}
        self._answer = ""

    def store_fab(self, fab: Fab) -> str:
        """Store an app if the guard allows it, and return its digest."""
        return super().store_fab(fab) if self._guard.knows(fab) else fab.hash_str

    def create_task(self, task_type: str, run_id: int, *args: Any, **options: Any) -> int | None:
        """Start a task if the guard allows its app; otherwise log the reason."""
        # An answer that was not sent, because its Flower run had ended, must not be taken for that to this message.
        self.delete_messages(message_ids=[self._answer])
        self.object_store.delete(self._answer)
        self._refused.pop(run_id, None)
        try:
            self._check(task_type, run_id)
        except Exception as error:  # whatever the error is, the app does not run
            why = str(error) if isinstance(error, ValueError) else "it cannot be checked; the node's own log says why"
            self._refused[run_id] = why
            log(ERROR, "Flower run %d does not run here: %s", run_id, error)
            return NO_TASK
        return super().create_task(task_type, run_id, *args, **options)

    def _check(self, task_type: str, run_id: int) -> None:
        run = self.get_run(run_id)
        context = None if run is None else self.get_run_series_context(run.series_id)
        if run is None or context is None or task_type != TaskType.CLIENT_APP:
            raise RefusedError("only the ClientApp of a Flower run runs here")
        self._guard.check(run, self.get_fab(run.fab_hash), context.run_config)

    def store_message(self, message: Message) -> str | None:
        """Store a message, or answer it if its app is not allowed."""
        why = self._refused.get(message.metadata.run_id)
        if why is None or message.metadata.reply_to_message_id:
            return super().store_message(message)
        reply = Message(Error(ErrorCode.INVALID_FAB, why), reply_to=message)
        _insert_message(reply, self, self.object_store)
        self._answer = reply.metadata.message_id
        return message.metadata.message_id


def guarded(guard: Guard) -> NodeStateFactory:
    """Return the factory of a SuperNode's guarded state."""
    states = NodeStateFactory(ObjectStoreFactory())
    states.state_instance = GuardedState(states.objectstore_factory, guard)
    return states


def run_node(
    arguments: Sequence[str],
    allowed: Sequence[str],
    *,
    any_app: bool = False,
    models: Sequence[str] = (),
    limits: Mapping[str, int | str | None] | None = None,
) -> None:
    """Run ``flower-supernode`` here, with apps of ``allowed`` digests, of trusted entities, or ``any_app``.

    ``models`` are the digests of models for questions about the next client; ``limits`` are options of the node's
    configuration (:mod:`wafl.flower.node.limits`, :mod:`wafl.flower.node.private`).
    """
    guard = Guard.of(allowed)
    if models:
        os.environ[ALLOWED] = ",".join(models)
        allowed_models({})
    os.environ |= {variable(key): str(value) for key, value in (limits or {}).items() if value is not None}
    Limits.of({})
    Private.of({})
    if not any_app and not package_version.startswith(KNOWN):
        raise ValueError(f"flwr {package_version} is not known to ask before it runs apps: install 'flwr>=1.41,<1.43'")
    before, sys.argv = sys.argv, ["flower-supernode", *arguments]
    with TemporaryDirectory(prefix="wafl-node-", ignore_cleanup_errors=True) as home:
        try:
            config = _parse_supernode_lifespan_config()
            if any_app == bool(allowed or config.trusted_entities):
                raise ValueError(
                    "which apps does this node run? Give --allow-app DIGEST (`wafl flower digest` prints it) or "
                    "--trusted-entities FILE, or both; or --any-app alone, which lets the server run any code here"
                )
            if not any_app and config.isolation != ISOLATION_MODE_SUBPROCESS:
                raise ValueError(
                    f"--isolation {config.isolation}: apps are checked only with 'subprocess', the default"
                )
            os.environ["WAFL_STATE"] = os.environ.get("WAFL_STATE") or str(get_flwr_home() / "wafl")
            if (private := Private.of(config.node_config)) is not None:
                keep(Ledger(state_folder(config.node_config)), private.privacy, Path(home) / "ledger")
            if any_app:
                log(WARNING, "This node runs any app that the SuperLink sends: --allow-app limits it to some.")
                flower_supernode()
                return
        finally:
            sys.argv = before
        os.environ["FLWR_HOME"] = str(Path(home).resolve())  # where apps are unpacked
        _start(config, guarded(guard))


def _start(config: SuperNodeLifespanConfig, states: NodeStateFactory) -> None:
    """Start ``flower-supernode`` with these states."""
    server, thread = _start_supernode_http_api(config, states)

    def stop() -> None:
        server.should_exit = True
        thread.join(HTTP_SERVER_SHUTDOWN_TIMEOUT)
        server.force_exit = True

    add_exit_handler(stop)
    known = signature(start_client_internal).parameters
    options = {name: value for name, value in vars(config).items() if name in known}
    host = f"[{config.host}]" if ":" in config.host else config.host
    while True:
        start_client_internal(state_factory=states, runtime_api_address=f"{host}:{config.port}", **options)
        # It returns only if it could not read what the SuperLink sent, such as an app that is not an archive.
        log(ERROR, "The SuperLink sent something that cannot be read: this node connects again in %g s", PAUSE)
        time.sleep(PAUSE)
        # The process that runs apps, and the process that answers health checks, already exist.
        options |= {"isolation": ISOLATION_MODE_PROCESS, "health_server_address": None}
