"""A node's own data: a folder or a function, named by the node's own configuration and never by the server."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import numpy as np
import torch

from wafl.core.errors import ConfigError
from wafl.data.arrays import Client
from wafl.data.federation import Federation
from wafl.data.labels import count_classes
from wafl.data.unpack import read_npz
from wafl.engine.memory import free_bytes
from wafl.runs.config import Data
from wafl.runs.own_code import imported
from wafl.runs.plan import make_clients


@dataclass(frozen=True)
class Site:
    """The clients that a node holds: ``rows`` says, by name, where each is in ``federation``.

    ``numbers`` are their places among all clients, if the node knows them.
    """

    federation: Federation
    rows: Mapping[str, int]
    numbers: Mapping[str, int] | None = None


def open_site(node_config: Mapping[str, Any], data: Data) -> Site:
    """The data that the node's configuration names: ``data`` is a folder or ``module:function``.

    Without it, the node takes part ``partition-id`` of ``num-partitions`` of the experiment's data set (simulations).
    """
    source = node_config.get("data")
    if source is None:
        return _part(node_config, data)
    if not isinstance(source, str) or not source:
        raise ConfigError(f"node config: data={source!r} must be a folder or 'module:function'")
    federation = read_folder(Path(source)) if ":" not in source or Path(source).is_dir() else _called(source)
    return Site(federation, {name: row for row, name in enumerate(federation.names)})


def read_folder(folder: Path) -> Federation:
    """One client per file ``NAME.npz``, with arrays ``x`` and ``y``, and for tests ``x_test`` and ``y_test``."""
    files = sorted(folder.glob("*.npz"))
    if not files:
        raise ConfigError(f"node config: data={str(folder)!r} holds no .npz file: give each client one, with x and y")
    parts = [_read_file(file) for file in files]
    names = [file.stem for file in files]
    tested = [name for name, part in zip(names, parts, strict=True) if len(part) == 4]
    if tested and len(tested) != len(names):
        raise ConfigError(
            f"{folder}: {', '.join(tested)} have x_test and y_test, the others do not: give them to all or none"
        )
    # Classes that no client of this node has may be at others.
    labels = [part[key] for part in parts for key in ("y", "y_test") if key in part]
    return Federation.from_arrays(
        [cast("Client", tuple(part.values())) for part in parts],
        test_fraction=None if tested else 0.0,
        names=names,
        num_classes=count_classes(labels),
    )


def _read_file(file: Path) -> dict[str, np.ndarray[Any, Any]]:
    wanted = ("x", "y", "x_test", "y_test")
    try:
        found = read_npz(file, wanted, free_bytes(torch.device("cpu")))
    except Exception as error:  # a damaged archive may raise anything
        raise ConfigError(f"{file} cannot be read: {error}") from error
    if set(found) not in ({"x", "y"}, set(wanted)):
        has = ", ".join(found) or "none"
        raise ConfigError(f"{file} holds {has} of x, y, x_test, y_test: give the first two or all")
    if found["y"].dtype.kind in "OSUT":
        raise ConfigError(f"{file} has text as labels, which nodes would number differently: save the classes' numbers")
    return found


def _called(source: str) -> Federation:
    federation = imported("node config: data", source)()
    if not isinstance(federation, Federation):
        raise ConfigError(f"node config: data={source!r} returned {type(federation).__name__}, not a wafl.Federation")
    return federation


def _part(node_config: Mapping[str, Any], data: Data) -> Site:
    part, parts = node_config.get("partition-id"), node_config.get("num-partitions")
    if not isinstance(part, int) or not isinstance(parts, int) or not 0 <= part < parts:
        raise ConfigError(
            f"node config has no data: give data='FOLDER' or data='module:function'; for trials, give partition-id and "
            f"num-partitions for a part of the experiment's data set (partition-id={part!r}, num-partitions={parts!r})"
        )
    federation = make_clients(data)
    rows = {name: row for row, name in enumerate(federation.names) if row % parts == part}
    if not rows:
        raise ConfigError(
            f"{parts} nodes for {federation.num_clients} clients leave partition {part} empty: use fewer nodes"
        )
    return Site(federation, rows, rows)
