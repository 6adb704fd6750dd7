"""Run a private node, which adds noise in every local step and answers no other queries."""

import os
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any, Self

import numpy as np
import torch
from torch import Tensor

from wafl.base.errors import ConfigError
from wafl.config.experiment import Data
from wafl.data.preprocessing import STATISTICS
from wafl.data.unpack import read_npz
from wafl.flower.node.ledger import Ledger
from wafl.flower.node.limits import variable
from wafl.flower.node.site import Site
from wafl.flower.wire.values import NodeQuery, WireError
from wafl.parts.messages import Replies
from wafl.train.client_task import ClientTask
from wafl.train.lanes.lanes import free_bytes
from wafl.train.privacy.records import RecordPrivacy, Units, check_computable, private_replies, why_not_private
from wafl.train.spec import Spec

PRIVACY, GROUP = "privacy", "group"
"""A key of a node's configuration (also an option of `wafl flower node`), and a word in its value."""
ANSWERED = ("query.hello", "train")
"""The types of messages that a private node answers."""
EXAMPLE = "'epsilon=4 delta=1e-5 clip_norm=1 steps=100'"


@dataclass(frozen=True)
class Private:
    """The noise of a node; its units are examples, or groups of examples with the same value of ``group``."""

    privacy: RecordPrivacy
    group: str = ""

    @classmethod
    def of(cls, node_config: Mapping[str, Any]) -> Self | None:
        """Return the privacy in a node's configuration, or in its environment; None if there is none."""
        text = str(node_config.get(PRIVACY) or os.environ.get(variable(PRIVACY), ""))
        if not text:
            return None
        given = {word.partition("=")[0]: word.partition("=")[2] for word in text.split()}
        names = [field.name for field in fields(RecordPrivacy)]
        if set(given) - {GROUP} != set(names):
            raise ConfigError(f"{PRIVACY}={text!r} must set {', '.join(names)}, and may set {GROUP}, as in {EXAMPLE}")
        group = given.pop(GROUP, "")
        try:
            steps = int(given.pop("steps"))
            return cls(RecordPrivacy(**{name: float(value) for name, value in given.items()}, steps=steps), group)
        except ValueError as error:
            raise ConfigError(f"{PRIVACY}={text!r}: {error}") from error

    @property
    def words(self) -> str:
        """The privacy in words, for the server."""
        unit = f"each {self.group}" if self.group else "each example"
        return f"epsilon {self.privacy.epsilon:g} and delta {self.privacy.delta:g} for {unit}"

    def site(self, site: Site, source: Any, data: Data) -> Site:
        """Return the site with the unit of each training example; raise an error if other facts depend on the data."""
        clients = site.federation
        if clients.train.prepare.name in STATISTICS:
            raise ConfigError(
                f"{PRIVACY}: the data are standardized by their own statistics, which change with every example: "
                "prepare them with fixed numbers"
            )
        if site.own and clients.num_classes is not None and data.num_classes is None:
            raise WireError("a private node does not count its classes: write num_classes into [data] of the app")
        site = replace(site, units={name: self._units(site, name, source) for name in site.rows})
        if self.privacy.delta >= (most := 1.0 / max(map(site.size, site.rows))):
            raise ConfigError(
                f"{PRIVACY}: delta={self.privacy.delta:g} must be well below {most:g}, one over the units"
            )
        return site

    def _units(self, site: Site, name: str, source: Any) -> Tensor:
        size = int(site.federation.train.num_examples[site.rows[name]])
        if not self.group:
            return torch.arange(size)
        file = Path(str(source)) / f"{name}.npz"
        groups = read_npz(file, [self.group], free_bytes(torch.device("cpu"))) if file.is_file() else {}
        if self.group not in groups or groups[self.group].shape != (size,):
            raise ConfigError(f"{PRIVACY}: {file} must have an array {self.group!r} with one value per row of x")
        return torch.from_numpy(np.unique(groups[self.group], return_inverse=True)[1])

    def check_kind(self, kind: str) -> None:
        """Raise WireError for a message that cannot be answered with noise."""
        if kind not in ANSWERED:
            raise WireError(
                "this node is private: it trains with noise, and sends no losses, tests or statistics of its examples"
            )

    def answer(
        self, query: NodeQuery, spec: Spec, client: ClientTask, rows: Mapping[int, int], site: Site, ledger: Ledger
    ) -> list[Replies]:
        """Count the steps of this query, take them, and return the replies. ``rows`` contains each client's row."""
        first = query.queries[0]
        why = "asks for iterates" if first.iterates else why_not_private(spec, client, first.params)
        if why is not None:
            raise WireError(f"this node is private: {query.entry} {why}")
        check_computable(client, first)
        clients = {number: Units(row, site.units[query.names[number]]) for number, row in rows.items()}
        steps = Counter[str]()
        for number in (number for each in query.queries for number in each.clients):
            steps[query.names[number]] += clients[number].steps(client.work)
        ledger.spend(steps, self.privacy)
        return [private_replies(client, each, clients, self.privacy) for each in query.queries]
