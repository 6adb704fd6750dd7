"""Open a node's own data: a folder or a function that the node's configuration names, and never the server."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import lru_cache
from pathlib import Path
from typing import Any, Self

import torch
from torch import Tensor

from wafl.base.errors import ConfigError
from wafl.config.clients import make_clients, with_classes
from wafl.config.experiment import Data
from wafl.config.own_code import imported
from wafl.data import client_files as data_folder
from wafl.data.federation import Federation
from wafl.train.lanes.lanes import free_bytes


@dataclass(frozen=True)
class Site:
    """The clients on a node: ``rows`` contains the row of each in ``federation``, by name.

    ``numbers`` are their indices among all clients, if the node knows them. The data are its ``own`` if its
    configuration names them; otherwise they are a part of the experiment's data set.
    """

    federation: Federation
    rows: Mapping[str, int]
    numbers: Mapping[str, int] | None = None
    own: bool = False
    small: Mapping[str, int] = field(default_factory=dict[str, int])
    """The clients that take no part because they have too few training examples, and their numbers of examples."""
    units: Mapping[str, Tensor] = field(default_factory=dict[str, Tensor])
    """The unit of each training example of each client, counted from 0, if the node is private."""

    def size(self, name: str) -> int:
        """Return the number of training examples of a client, or of its units."""
        if name in self.units:
            return len(self.units[name].unique())
        return int(self.federation.train.num_examples[self.rows[name]])

    def without_small(self, least: int) -> Self:
        """Return the site without the clients that have fewer training examples."""
        sizes = {name: self.size(name) for name in self.rows}
        rows = {name: row for name, row in self.rows.items() if sizes[name] >= least}
        return replace(self, rows=rows, small={name: size for name, size in sizes.items() if size < least})


def open_site(node_config: Mapping[str, Any], data: Data) -> Site:
    """Open the data that the node's configuration names: ``data`` is a folder or ``module:function``.

    Without it, the node takes part ``partition-id`` of ``num-partitions`` of the experiment's data set (simulations).
    """
    source = node_config.get("data")
    if source is None:
        return _partition(node_config, data)
    if not isinstance(source, str) or not source:
        raise ConfigError(f"node config: data={source!r} must be a folder or 'module:function'")
    is_function = ":" in source and not Path(source).is_dir()
    federation = imported("node config: data", source)() if is_function else read_folder(Path(source))
    if not isinstance(federation, Federation):
        raise ConfigError(f"node config: data={source!r} returned {type(federation).__name__}, not a wafl.Federation")
    if federation.train.prepare.takes_numbers:
        raise ConfigError(
            f"node config: data={source!r} uses standardize=True, with the means of this node alone: other nodes have "
            "others. Subtract means and divide by scales that all nodes have agreed on"
        )
    rows = {name: row for row, name in enumerate(federation.names)}
    return Site(with_classes(federation, data.num_classes), rows, own=True)


def read_folder(folder: Path) -> Federation:
    """Read a federation with one client per file of a folder; a file must fit into this machine's memory."""
    return data_folder.read_folder(folder, free_bytes(torch.device("cpu")))


def _partition(node_config: Mapping[str, Any], data: Data) -> Site:
    number, count = node_config.get("partition-id"), node_config.get("num-partitions")
    if not isinstance(number, int) or not isinstance(count, int) or not 0 <= number < count:
        raise ConfigError(
            f"node config has no data: give data='FOLDER' or data='module:function'; for trials, give partition-id and "
            f"num-partitions for a part of the experiment's data set (partition-id={number!r}, "
            f"num-partitions={count!r})"
        )
    federation = _everyone(data.model_dump_json())
    rows = {name: row for row, name in enumerate(federation.names) if row % count == number}
    if not rows:
        raise ConfigError(
            f"{count} nodes for {federation.num_clients} clients leave partition {number} empty: use fewer nodes"
        )
    return Site(federation, rows, rows)


@lru_cache(maxsize=1)
def _everyone(data: str) -> Federation:
    """Load all clients of the experiment, cached for the simulated nodes of one process.

    Preprocessing statistics exclude the clients that take no part in training.
    """
    about = Data.model_validate_json(data)
    everyone = make_clients(about)
    if about.unseen is None:
        return everyone
    prepare = everyone.hold_out(about.unseen, seed=about.unseen_seed)[0].train.prepare
    return everyone.prepared_by(prepare)
