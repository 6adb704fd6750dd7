"""Compute the features of a frozen backbone once, if the ball comes after it, and train clients on them."""

from dataclasses import is_dataclass, replace

import torch
from torch import Tensor

from wafl.data.examples import Examples
from wafl.tasks.fitness import find_traits
from wafl.tasks.modes.dropout import Site, recorded
from wafl.tasks.modes.layers import after, output_of
from wafl.tasks.structured import make_task
from wafl.tasks.task import Task
from wafl.train.client_task import ClientTask


def with_fixed_features(client: ClientTask) -> ClientTask:
    """Return the same work on a layer's outputs, if the ball is there and no earlier parameter is trained."""
    objective = client.objective
    if objective is None or objective.space is None or not objective.moves:  # no ball uses the layer
        return client
    layer = objective.space
    if not is_dataclass(objective) or client.task.num_statistics:
        return client  # learned statistics change the features
    start = client.task.initial()
    x = client.examples.rows(torch.zeros(2, dtype=torch.int64, device=start.device), start.dtype)
    features = _fixed_features(client.task, layer, start, x)
    head = None if features is None else _head(client.task, layer, start, x, features)
    if features is None or head is None:
        return client
    y = client.examples.y[:1]
    find_traits(head, start[None], features[None, :1], (y.to(start) if y.is_floating_point() else y)[None])
    chunks = torch.arange(len(client.examples.y), device=start.device).split(256)
    batches = (client.examples.rows(chunk, start.dtype)[None] for chunk in chunks)
    outputs = torch.cat([client.task.features(start[None], batch, layer)[0] for batch in batches]).detach()
    examples = Examples(outputs, client.examples.y, client.examples.offsets)
    return replace(client, task=head, examples=examples, objective=objective.changed(space=None))


def _fixed_features(task: Task, layer: str, start: Tensor, x: Tensor) -> Tensor | None:
    """Return the layer's outputs at two examples, or None if they depend on trained or dropped values."""
    dropped: list[Site] = []
    with recorded(dropped), torch.enable_grad():
        trained = start.detach().requires_grad_()
        features = output_of(task.module, layer, lambda: task.call(trained, x, trains=True))
    fixed = not features.requires_grad and not dropped and len(features) == len(x)
    return features if fixed else None


def _head(task: Task, layer: str, start: Tensor, x: Tensor, features: Tensor) -> Task | None:
    """Return the task of the layers after this layer, or None if they also use the inputs."""
    given = x.long() if task.traits.integers else x
    head = make_task(after(task.module, layer, given), task.loss, start.device)
    if head.num_params != task.num_params:
        return None
    with torch.no_grad():
        same = torch.equal(head.call(start, features), task.call(start, x))
    return head if same else None
