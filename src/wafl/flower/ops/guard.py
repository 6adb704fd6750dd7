"""Decide which apps a node runs: apps with allowed digests, unchanged bytes and an open run config."""

import re
import shutil
import warnings
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from hashlib import sha256
from io import BytesIO
from pathlib import Path
from typing import Any, Self
from zipfile import ZipFile

from flwr.cli.build import build_fab_from_disk
from flwr.common.config import get_fab_config, get_metadata_from_config, get_project_dir
from flwr.supercore.fab import Fab
from flwr.supercore.run import Run

from wafl.flower.ops.deployment import check_digest
from wafl.flower.wire.overrides import AppConfig

PLAIN = re.compile(r"[\w.+-]+/[\w.+-]+ [\w.+-]+", re.ASCII)
"""The publisher, name and version of an app whose folder is at its apparent path."""
INFO, CACHE = ".info/", "__pycache__"


def bundle(app: Path) -> bytes:
    """Return the app in a folder as the bytes that ``flwr run`` sends."""
    if not (app / "pyproject.toml").is_file():
        raise FileNotFoundError(f"{app} contains no pyproject.toml: pass the folder of an app, as for flwr run")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # Flower's own
        return build_fab_from_disk(app)


def app_digest(app: Path) -> str:
    """Return the digest of the app in a folder, by which a node's operator allows it."""
    return sha256(bundle(app)).hexdigest()


class RefusedError(ValueError):
    """An app must not run here; the text explains why, without any of the node's data."""


@dataclass(frozen=True)
class Guard:
    """The rule that decides whether an app runs; without ``allowed`` digests, the app's origin is not checked here."""

    allowed: frozenset[str]

    @classmethod
    def of(cls, digests: Iterable[str]) -> Self:
        """Return the guard that allows these digests."""
        return cls(frozenset(map(check_digest, digests)))

    def knows(self, fab: Fab) -> bool:
        """Return whether these bytes may run, under the digest that comes with them."""
        digest = sha256(fab.content).hexdigest()
        return fab.hash_str == digest and (not self.allowed or digest in self.allowed)

    def check(self, run: Run, fab: Fab | None, run_config: Mapping[str, Any]) -> None:
        """Raise an error unless a Flower run has the bytes, the folder and the run config of an allowed app."""
        if fab is None or not self.knows(fab) or run.fab_hash != fab.hash_str:
            raise RefusedError(f"the app {run.fab_hash[:64]} is not allowed here, or its bytes have a different digest")
        project = get_fab_config(fab.content)
        name = get_metadata_from_config(project)
        if (run.fab_id, run.fab_version) != name or not PLAIN.fullmatch(" ".join(name)):
            given = f"{run.fab_id[:100]!r} {run.fab_version[:100]!r}"
            raise RefusedError(f"the Flower run calls its app {given}, and its bytes call it {name[0]!r} {name[1]!r}")
        for given in (run_config, run.override_config):  # each separately: merged, one would hide the other
            AppConfig.of(project).on_node(given)
        compare(get_project_dir(*name, fab.hash_str), fab.content)


def compare(folder: Path, content: bytes) -> None:
    """Remove Python's caches from this folder; remove another app in it, too, and raise an error."""
    if not folder.exists():
        return
    for cache in list(folder.rglob(CACHE)):
        shutil.rmtree(cache)
    with ZipFile(BytesIO(content)) as archive:
        packed = {name: archive.read(name) for name in archive.namelist() if not name.startswith(INFO)}
    paths = [path for path in folder.rglob("*") if not path.is_dir() or path.is_symlink()]
    files = {path.relative_to(folder).as_posix(): b"" if path.is_symlink() else path.read_bytes() for path in paths}
    changed = sorted(name for name in {*packed, *files} if packed.get(name) != files.get(name) and name[-1] != "/")
    if changed:
        shutil.rmtree(folder)
        raise RefusedError(f"{changed[0]} of the app has changed since it was unpacked on this node")
