"""Federations of given sizes."""

import numpy as np

import wafl


def client_arrays(client: int, count: int, classes: int = 3) -> tuple[np.ndarray, np.ndarray]:
    """Rows that are all different, with a label that can be read off the row."""
    tag = 10_000 * client + np.arange(count)
    return np.stack([tag, -tag], axis=1).astype(np.float64), tag % classes


def federation_of(sizes: list[int], **options) -> wafl.Federation:
    return wafl.Federation.from_arrays([client_arrays(i, n) for i, n in enumerate(sizes)], **options)
