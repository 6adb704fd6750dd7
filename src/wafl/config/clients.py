"""Create clients from the section ``data`` of an experiment file."""

from dataclasses import replace

from wafl.base.errors import ConfigError
from wafl.config.experiment import Data
from wafl.config.own_code import imported
from wafl.data import load_dataset
from wafl.data.federation import Federation
from wafl.data.named.natural import NATURAL


def make_clients(data: Data) -> Federation:
    """Return all clients of an experiment, including clients that never train."""
    return with_classes(_made_or_loaded(data), data.num_classes)


def with_classes(clients: Federation, declared: int | None) -> Federation:
    """Return the clients with the number of classes that an experiment declares, if it declares one."""
    if declared is None or declared == clients.num_classes:
        return clients
    if clients.num_classes is None or clients.num_classes > declared or clients.classes is not None:
        has = "no classes" if clients.num_classes is None else f"{clients.num_classes} classes"
        raise ConfigError(f"data.num_classes = {declared}, but the clients have {has}: correct it, or leave it out")
    return replace(clients, num_classes=declared)


def _made_or_loaded(data: Data) -> Federation:
    if data.source is not None:
        clients = imported("data.source", data.source)()
        if not isinstance(clients, Federation):
            raise ConfigError(f"data.source = {data.source!r} returned {type(clients).__name__}, not a wafl.Federation")
        return clients
    apart = {"dataset", "source", "data_dir", "num_classes", "unseen", "unseen_seed", "unseen_shift", "unseen_severity"}
    options = data.model_dump(exclude=apart, exclude_none=True)
    if data.sizes is not None:
        options["sizes"] = tuple(data.sizes)
    ways = ("labels_per_client", "dirichlet", "iid", "by_group")
    if data.dataset not in NATURAL and not any(options.get(way) for way in ways):
        raise ConfigError("data: give one of labels_per_client, dirichlet, iid = true or by_group = true")
    return load_dataset(data.dataset, data.data_dir).partition(**options)
