"""The domain tasks: two of MNIST, USPS and SVHN are clients, and the third is a target that none of them has seen.

An experiment file names its clients by ``data.source``; :func:`target_of` gives the target that belongs to them. Each
domain has at most :data:`LIMIT` training examples: client weights by size are those of the whole data sets.
"""

from __future__ import annotations

from functools import cache

import torch

from wafl.config.experiment import Experiment
from wafl.config.plan import make_clients
from wafl.data import load_dataset
from wafl.data.federation import Federation
from wafl.data.named.domains import Domains, domains
from wafl.shifts import rotation

LIMIT = 6000
TASKS = {
    "to_usps": ("mnist", "svhn", "usps"),
    "to_svhn": ("mnist", "usps", "svhn"),
    "to_mnist": ("usps", "svhn", "mnist"),
}
"""By the name of the function that makes the clients: the two sources and the target."""
ANGLES = (0.0, 25.0, 50.0)
"""In degrees, of the digits that stand in for the three domains: two sources, and a target that is turned further."""


def to_usps() -> Federation:
    """MNIST and SVHN as clients."""
    return task("to_usps").clients


def to_svhn() -> Federation:
    """MNIST and USPS as clients."""
    return task("to_svhn").clients


def to_mnist() -> Federation:
    """USPS and SVHN as clients."""
    return task("to_mnist").clients


def turned_digits() -> Federation:
    """Upright and turned digits as clients."""
    return _turned().clients


def clients_of(name: str) -> Federation:
    """The clients of a task, by the name of the function that makes them."""
    return _turned().clients if name == "turned_digits" else task(name).clients


def target_of(source: str | None) -> Federation | None:
    """The target that belongs to clients; None if they are tested on their own data."""
    if source is None:
        return None
    name = source.rpartition(":")[2]
    return _turned().target if name == "turned_digits" else task(name).target


def data_sets(source: str) -> list[str]:
    """The data sets that clients and target are made of."""
    return list(TASKS.get(source.rpartition(":")[2], ("digits",)))


@cache
def task(name: str) -> Domains:
    *sources, target = TASKS[name]
    return domains(sources, target, preprocess="unit", limit=LIMIT)


@cache
def _turned() -> Domains:
    """Three parts of the digits, each turned by its own angle; the third is the target."""
    turned = [rotation(severity=angle / 90.0) for angle in ANGLES]
    clients = load_dataset("digits").partition(num_clients=3, iid=True, skew=turned, preprocess="unit")
    parts = [clients.of_clients([0, 1]), clients.of_clients([2])]
    return Domains(*parts)


def statistics(experiment: Experiment) -> dict[str, float | int | str]:
    """The numbers of the paper's tables about data: clients, examples, labels and sizes."""
    clients = make_clients(experiment.data)
    sizes = torch.tensor(clients.num_examples, dtype=torch.float64)
    held = (clients.label_counts() > 0).sum(1)
    return {
        "data": experiment.data.dataset,
        "clients": clients.num_clients,
        "examples": int(sizes.sum()),
        "training": len(clients.train.y),
        "test": len(clients.test.y),
        "labels_per_client": float(held.double().mean()),
        "mean_size": float(sizes.mean()),
        "std_size": float(sizes.std(correction=0)),
        "min_size": int(sizes.min()),
        "max_size": int(sizes.max()),
    }
