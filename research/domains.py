"""The domain tasks: two of MNIST, USPS and SVHN are clients, and the third is a target that none of them has seen.

An experiment file names its clients by ``data.source``; :func:`target_of` gives the target that belongs to them. Each
domain has at most :data:`LIMIT` training examples: client weights by size use the whole data sets. With the
ending ``_whole`` a task has all of them, standardized by the sources' pixels, as in the paper.
"""

from collections.abc import Iterable
from functools import cache, partial
from pathlib import Path
from typing import TYPE_CHECKING

import torch

from wafl.data import load_dataset
from wafl.data.federation import Federation
from wafl.data.named.cache import locate
from wafl.data.named.domains import Domains, domains
from wafl.data.named.natural import NATURAL
from wafl.shifts import rotation
from wafl.weights import distance

if TYPE_CHECKING:
    from wafl.config.experiment import Experiment

LIMIT = 6000
TASKS = {
    "to_usps": ("mnist", "svhn", "usps"),
    "to_svhn": ("mnist", "usps", "svhn"),
    "to_mnist": ("usps", "svhn", "mnist"),
}
"""The two sources and the target of each task, by the name of the function that makes its clients."""
WHOLE = "_whole"
"""The suffix of the tasks with all examples, standardized."""
TURNED = "turned_digits"
ANGLES = (0.0, 25.0, 50.0)
"""The angles, in degrees, of the digits that replace the three domains: two sources, and a target rotated farther."""


def clients_of(name: str) -> Federation:
    """Return the clients of a task, by the name of the function that makes them."""
    return task(name).clients


to_usps, to_svhn, to_mnist, turned_digits = (partial(clients_of, name) for name in (*TASKS, TURNED))
to_usps_whole, to_svhn_whole, to_mnist_whole = (partial(clients_of, name + WHOLE) for name in TASKS)
"""The functions that experiment files name: each returns the clients of its task."""


def target_of(source: str | None) -> Federation | None:
    """Return the target of these clients, or None if they are tested on their own data."""
    return None if source is None else task(source.rpartition(":")[2]).target


def data_sets(source: str) -> list[str]:
    """Return the data sets of clients and target."""
    return list(TASKS.get(source.rpartition(":")[2].removesuffix(WHOLE), ("digits",)))


def missing(names: Iterable[str], folder: Path) -> str | None:
    """Return the first of these data sets that is not in the data folder; nothing is downloaded."""
    for name in names:
        here = NATURAL[name].find(folder) if name in NATURAL else name == "digits" or locate(name, folder)
        if not here:
            return name
    return None


@cache
def task(name: str) -> Domains:
    """Return the clients and the target of a task; for rotated digits, parts of the digits, each with its own angle."""
    if name != TURNED:
        *sources, target = TASKS[name.removesuffix(WHOLE)]
        if name.endswith(WHOLE):
            return domains(sources, target, preprocess="zscore")
        return domains(sources, target, preprocess="unit", limit=LIMIT)
    turned = [rotation(severity=angle / 90.0) for angle in ANGLES]
    clients = load_dataset("digits").partition(num_clients=3, iid=True, skew=turned, preprocess="unit")
    return Domains(clients.of_clients([0, 1]), clients.of_clients([2]))


def statistics(experiment: "Experiment") -> list[dict[str, float | int | str]]:
    """Return the numbers of the paper's tables 2 and 3 about data: clients or domains, examples, labels and sizes."""
    if experiment.data.source is not None:
        return _of_domains(experiment.data.source.rpartition(":")[2])
    from wafl.config.plan import make_clients

    clients = make_clients(experiment.data)
    sizes = torch.tensor(clients.num_examples, dtype=torch.float64)
    held = (clients.label_counts() > 0).sum(1)
    row: dict[str, float | int | str] = {
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
    return [row]


def _of_domains(name: str) -> list[dict[str, float | int | str]]:
    """Return the sizes of a task's whole data sets, and their distances in W_2^2, from 300 images each."""
    task_data, names = task(name), TASKS.get(name, [f"{angle:g}" for angle in ANGLES])
    images = [x for x, _ in map(task_data.clients.train.of, (0, 1))] + [task_data.target.train.of(0)[0]]
    rows: list[dict[str, float | int | str]] = []
    for label, domain in zip(names, images, strict=True):
        whole = load_dataset("digits" if name == TURNED else label)
        sizes = {"training": len(whole.y_train), "test": len(whole.y_test)}
        far = {
            f"W_2^2 to {other}": distance(domain, others, sample=300).value
            for other, others in zip(names, images, strict=True)
        }
        shape = "x".join(map(str, whole.x_train.shape[2:]))
        rows.append({"data": label, "original_size": shape, "labels": whole.num_classes or 0, **sizes, **far})
    return rows
