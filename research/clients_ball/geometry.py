"""The clients' metric, and which clients are farthest along their first direction."""

from __future__ import annotations

from contextlib import suppress

import numpy as np
import torch

from research.clients_ball.objectives import Array, Examples
from wafl.objectives.ball.client_cost_matrix import client_cost_matrix


def root_of(examples: Examples) -> Array:
    """Return the matrix A of ``cost_matrix="clients"``; radius 1 is the distance of a left-out client.

    If a client has a single example per class, or classes by themselves show no difference between clients, a
    client's offsets from the class means count as one class. If that shows none either, A is round.
    """
    for together in (False, True) if _repeated(examples) else (True,):
        x, y = examples.x, examples.y
        if together:
            x, y = x - _class_means(examples)[y], np.zeros_like(y)
        with suppress(ValueError):
            given = (torch.from_numpy(each) for each in (x, y, examples.owner))
            return client_cost_matrix(*given).matrix.numpy()
    return np.eye(examples.x.shape[1])


def scores(examples: Examples) -> Array:
    """Return each client's place along the first direction in which the clients' class means differ.

    The products of clients' differences from the mean, summed over classes, are of two halves of their examples, so
    that noise cancels. Their largest eigenvector has the places.
    """
    classes, clients = (examples.classes if _repeated(examples) else 1), examples.clients
    x = examples.x - _class_means(examples)[examples.y]
    y = examples.y if classes > 1 else np.zeros_like(examples.y)
    halves = np.zeros((2, clients, classes, x.shape[1]))
    for client in range(clients):
        for label in range(classes):
            rows = np.flatnonzero((examples.owner == client) & (y == label))
            if len(rows) > 1:
                cut = (len(rows) + 1) // 2
                for half, part in enumerate((rows[:cut], rows[cut:])):
                    halves[half, client, label] = np.sqrt(len(rows)) * x[part].mean(0)
    first, second = halves.reshape(2, clients, -1)
    products = first @ second.T
    return np.linalg.eigh(products + products.T)[1][:, -1]


def _repeated(examples: Examples) -> bool:
    """Return whether most classes of a client have several examples."""
    counts = np.bincount(examples.owner * examples.classes + examples.y)
    return bool(np.median(counts[counts > 0]) >= 2)


def _class_means(examples: Examples) -> Array:
    counts = np.maximum(1, np.bincount(examples.y, minlength=examples.classes))[:, None]
    return examples.targets.T @ examples.x / counts
