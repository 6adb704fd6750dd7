"""Whether a model and a loss suit the data, checked before any work starts."""

from __future__ import annotations

import torch
from torch import Tensor

from wafl.core.task import Problem


def check_fitness(problem: Problem, x: Tensor, y: Tensor, num_classes: int | None) -> None:
    """Try ``x [1, 1, ...]`` and ``y [1, 1]``: the model must accept the inputs, and its outputs must suit the labels.

    ``num_classes=None`` means regression.
    """
    try:
        outputs = problem.task.outputs(problem.params, x)
        width = outputs.shape[-1]
    except (RuntimeError, ValueError, TypeError, IndexError, AttributeError) as error:
        raise ValueError(f"the model does not take examples of shape {tuple(x.shape[2:])}: {error}") from error
    if outputs.ndim != 3:
        raise ValueError(
            f"the model gives an output of shape {tuple(outputs.shape[2:])} for an example: it must give one vector"
        )
    if not bool(torch.isfinite(outputs).all()):
        raise ValueError("the model gives NaN or infinity for the first example, before any training")
    loss = problem.output_loss
    if loss.labels == "classes":
        if num_classes is None:
            raise ValueError(
                f"loss={loss.name!r} needs integer labels, these are floating-point: use loss='squared_error'"
            )
        if width < num_classes:
            raise ValueError(
                f"the model has {width} outputs for {num_classes} classes: give it one per class, "
                f"or correct the labels, which go up to {num_classes - 1}"
            )
    if loss.labels == "targets":
        targets = int(y[0, 0].numel())
        if num_classes is not None or width != targets:
            raise ValueError(
                f"loss={loss.name!r} needs floating-point targets, one per output: got {width} outputs, "
                f"{targets} targets of type {y.dtype}"
            )
    if not bool(torch.isfinite(problem.loss(x, y)).all()):
        raise ValueError(f"loss {loss.name} is NaN or infinite for the first example, before any training")
