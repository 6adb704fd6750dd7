"""Write the files of a deployment, one folder per machine, in which nodes can make only the calls that they need."""

import re
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.resources import files
from ipaddress import ip_address
from pathlib import Path

from wafl.base.errors import FolderError
from wafl.base.files import write_whole
from wafl.flower.ops.tls import Certificates

CALLS = (
    "activate-node", "deactivate-node", "send-node-heartbeat", "pull-messages", "push-messages", "get-run", "get-fab",
    "push-object", "pull-object", "confirm-message-received",
)  # fmt: skip
"""The calls of a registered SuperNode; the proxy passes no other calls."""
PORT, CONTROL_PORT, HEALTH_PORT = 8000, 9093, 9099
NODE_PORT, NODE_HEALTH_PORT = 9094, 9098
RESTART = 65
"""The seconds after which a killed node may return: Flower waits for two heartbeats, at 30 s each."""
QUIET = {
    "FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION": "1",
    "FLWR_DISABLE_UPDATE_CHECK": "1",
    "FLWR_TELEMETRY_ENABLED": "0",
}
TARGET, NODE_KEY = "/srv/wafl", "node.key"
SAFE_PATH = re.compile(r"/[A-Za-z0-9._/-]*")
DIGEST = re.compile(r"[0-9a-f]{64}")
NGINX = "/usr/sbin/nginx"


@dataclass(frozen=True)
class Deployment:
    """A federation to deploy: its certificates, and the server's host and port for nodes.

    ``target`` is the folder for its files on every machine. ``allowed`` are digests of the apps that nodes run;
    ``any_app`` instead allows all apps. ``listen`` is the server's address for nodes. Without it, only the server's own
    machine can reach the proxy.
    """

    certificates: Certificates
    host: str
    port: int = PORT
    target: str = TARGET
    allowed: tuple[str, ...] = ()
    any_app: bool = False
    listen: str = "127.0.0.1"

    def __post_init__(self) -> None:
        if not 1 <= self.port <= 65535 or self.port in (CONTROL_PORT, HEALTH_PORT):
            used = f"{CONTROL_PORT} and {HEALTH_PORT}, which the SuperLink uses"
            raise ValueError(f"port is {self.port}: give 1 to 65535, except {used}")
        ip_address(self.listen)
        if not SAFE_PATH.fullmatch(self.target):
            raise ValueError(f"target {self.target!r}: give an absolute path of letters, digits, '.', '_', '-' and '/'")
        if self.any_app == bool(self.allowed):
            raise ValueError("which apps do nodes run? Give --allow-app DIGEST, or --any-app for any app that is sent")
        for digest in self.allowed:
            check_digest(digest)

    def server(self) -> dict[str, str]:
        """Return the texts of the server's files, by name."""
        return {
            "nginx.conf": proxy_config(f"{self._door}:{self.port}", f"127.0.0.1:{CONTROL_PORT}"),
            "container-nginx.conf": proxy_config(f"{self.port}", f"127.0.0.1:{CONTROL_PORT}"),  # Docker has the door
            "superlink.service": self._fill("superlink.service", environment=_units()),
            "proxy.service": self._fill("proxy.service", nginx=NGINX),
            "config.toml": self._fill("config.toml", ca="ca.crt"),
            "compose.yaml": self._fill("server-compose.yaml", environment=_yaml()),
            "state/config.toml": self._fill("config.toml", ca="/etc/wafl/ca.crt"),
            "Dockerfile": self._fill("Dockerfile"),
        }

    def node(self, name: str) -> dict[str, str]:
        """Return the texts of a node's files, by name."""
        return {
            "supernode.service": self._fill("supernode.service", node=name, environment=_units()),
            "compose.yaml": self._fill("node-compose.yaml", node=name, environment=_yaml()),
            "Dockerfile": self._fill("Dockerfile"),
        }

    @property
    def _door(self) -> str:
        return f"[{self.listen}]" if ":" in self.listen else self.listen

    def _fill(self, template: str, **values: str) -> str:
        from wafl import __version__

        common = {
            "allowed": "".join(f" --allow-app {digest}" for digest in self.allowed) or " --any-app",
            "control_port": str(CONTROL_PORT),
            "health_port": str(HEALTH_PORT),
            "node_port": str(NODE_PORT),
            "node_health_port": str(NODE_HEALTH_PORT),
            "host": self.host,
            "door": self._door,
            "folder": self.target.rstrip("/"),
            "port": str(self.port),
            "restart": str(RESTART),
            "version": __version__,
        }
        return filled(template, common | values)


def write_deployment(folder: Path, deployment: Deployment, nodes: Sequence[str]) -> list[Path]:
    """Write one folder for the server and one per node to a new or empty folder, and return these folders."""
    certificates = deployment.certificates
    for name in nodes:
        if not certificates.node_key(name).is_file():
            make = f"wafl flower certificates {certificates.folder} --node {name}"
            raise FileNotFoundError(f"{certificates.node_key(name)} is missing: make it with {make}")
    make_empty(folder)
    server, machines = folder / "server", [folder / "nodes" / name for name in nodes]
    keys = {file.name: file for file in (certificates.ca, certificates.server_cert, certificates.server_key)}
    _write_folder(server, deployment.server(), keys)
    for machine in machines:
        keys = {certificates.ca.name: certificates.ca, NODE_KEY: certificates.node_key(machine.name)}
        _write_folder(machine, deployment.node(machine.name), keys)
        (machine / "data").mkdir()
        (machine / "state").mkdir()
    return [server, *machines]


def make_empty(folder: Path) -> None:
    """Create a folder, unless it exists and is empty; raise FolderError if it is not empty."""
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise FolderError(f"{folder} exists already and is not empty: choose another folder, or remove it")
    folder.mkdir(parents=True, exist_ok=True)


def proxy_config(listen: str, control: str) -> str:
    """Return the configuration of a proxy between nodes, at ``listen``, and the SuperLink, at ``control``."""
    return filled("nginx.conf", {"listen": listen, "control": control, "calls": "|".join(CALLS)})


def check_digest(digest: str) -> str:
    """Return the digest; raise ValueError if it is not one."""
    if not DIGEST.fullmatch(digest):
        raise ValueError(f"app {digest!r}: give its digest, 64 digits 0-9a-f, as `wafl flower digest` prints it")
    return digest


def _write_folder(folder: Path, texts: Mapping[str, str], copied: Mapping[str, Path]) -> None:
    folder.mkdir(mode=0o700, parents=True)
    for name, text in texts.items():
        (folder / name).parent.mkdir(exist_ok=True)
        write_whole(folder / name, text.encode())
    for name, file in copied.items():
        shutil.copy(file, folder / name)  # with the file's mode


def filled(template: str, values: Mapping[str, str]) -> str:
    """Return the text of a template, with these values filled in."""
    text = files("wafl.flower.ops").joinpath("templates", template).read_text(encoding="utf-8")
    return re.sub(r"\{\{(\w+)\}\}", lambda match: values[match[1]], text)


def _units() -> str:
    return "\n".join(f"Environment={name}={value}" for name, value in QUIET.items())


def _yaml() -> str:
    return "\n".join(f'      {name}: "{value}"' for name, value in QUIET.items())
