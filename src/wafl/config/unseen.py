"""Shift the data of clients that never train, as an experiment requires."""

from dataclasses import replace

import torch

from wafl.base.bounds import Box
from wafl.base.errors import ConfigError
from wafl.config import experiment as config
from wafl.data.examples import Examples
from wafl.data.federation import Federation
from wafl.shifts import MOVES, Shift


def check_unseen(experiment: config.Experiment) -> None:
    """Raise ConfigError for a shift without unseen clients, and for options that need the nodes' examples."""
    if experiment.data.unseen_shift is not None and experiment.data.unseen is None:
        raise ConfigError("data.unseen_shift shifts clients that never train: give data.unseen, their share")
    asked = {"data.unseen_shift": experiment.data.unseen_shift, "evaluation.certified": experiment.evaluation.certified}
    for key, value in asked.items():
        if value is not None and experiment.engine == "flower":
            raise ConfigError(f"{key} needs the clients' examples here: leave it out of engine = 'flower'")


def make_shift(data: config.Data, bounds: Box | None) -> Shift | None:
    """Build the shift of an experiment's unseen clients, within the bounds of their data, or return None."""
    if data.unseen_shift is None:
        return None
    return MOVES[data.unseen_shift](severity=data.unseen_severity).within(bounds)


def shifted(clients: Federation, data: config.Data) -> Federation:
    """Return unseen clients with the experiment's shift of all examples; test examples have the later indices."""
    shift = make_shift(data, clients.bounds)
    if shift is None:
        return clients
    splits, first = list[Examples](), 0
    for split in (clients.train, clients.test):
        rows = torch.arange(first, first := first + len(split.y))
        splits.append(Examples(shift.apply(split.x, rows=rows), split.y, split.offsets))
    return replace(clients, train=splits[0], test=splits[1], shift=shift.describe(clients.unit))
