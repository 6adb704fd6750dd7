"""Compute the class means of clients at a layer of the model from which training starts."""

import torch
from torch import Tensor

from wafl.base.threads import one_thread
from wafl.data.examples import Examples
from wafl.objectives.ball.client_cost_matrix import ClassMeans, class_means, joined
from wafl.tasks.gpu.precision import computing
from wafl.tasks.task import Task

ROWS = 256
"""The number of examples whose outputs are computed together."""


def starting(layer: str) -> str:
    """Describe the layer in the unit of a cost matrix."""
    return f" at layer {layer!r} of the starting model"


def output_shape(layer: str, task: Task, start: Tensor, input_shape: tuple[int, ...]) -> tuple[int, ...]:
    """Return the shape of a layer's output for one example."""
    return tuple(task.features_of_one(start, start.new_zeros(1, *input_shape), layer).shape[1:])


def class_means_at(layer: str, task: Task, start: Tensor, examples: Examples, least: int = 2) -> ClassMeans:
    """Return the class means of a layer's outputs, as :func:`class_means` does for examples.

    Each client's examples are computed alone and on one thread, so other clients change no bit: a node with some of the
    clients computes the same means.
    """
    parts: list[ClassMeans] = []
    with one_thread(), computing("float32", start.device), torch.no_grad():
        for client, (begin, end) in enumerate(zip(examples.offsets[:-1], examples.offsets[1:], strict=True)):
            if begin == end:
                continue
            chunks = torch.arange(int(begin), int(end)).split(ROWS)
            rows = (examples.rows(chunk, start.dtype).to(start.device) for chunk in chunks)
            outputs = torch.cat([task.features_of_one(start, x, layer).cpu() for x in rows])
            y = examples.y[int(begin) : int(end)]
            parts.append(class_means(outputs, y, torch.full((len(y),), client), least))
    return joined(parts)
