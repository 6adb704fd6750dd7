"""Convert a ball at a layer's output, or with a cost matrix, to a round ball of another model's inputs.

At a layer, the examples are its outputs, and the model is the rest of the network. With a cost matrix A, the examples
are ``A^-1 x``, and the model is ``u -> model(A u)``. So every result on round balls applies there too.
"""

import copy
import math
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from wafl.data.examples import CHUNK, Examples
from wafl.data.federation import Federation
from wafl.objectives.ball.client_cost_matrix import check_size, class_means, cost_matrix_of_means
from wafl.objectives.ball.cost_matrix import CLIENTS, CostMatrix, ball_unit, check_cost_matrix
from wafl.results.run import Run
from wafl.tasks.fitness import check_fitness
from wafl.tasks.modes.layers import Beside, Head, after
from wafl.tasks.problem import Problem
from wafl.tasks.structure.sequence import is_plain, members
from wafl.tasks.task import Loss
from wafl.theory.constants.assumptions import task_of
from wafl.train.embedded import first_example


def at_layer(
    model: Run | nn.Module, clients: Federation, layer: str, loss: Loss | None = None
) -> tuple[nn.Module, Federation]:
    """Return the model after a layer, and the layer's outputs as examples.

    The inputs are added to the examples if the rest of the model may read them.
    """
    task, params = task_of(model, loss, traced=False)
    first = first_example(clients, params)
    check_fitness(Problem(task, params[None]), *first, clients.num_classes)
    x = first[0].long() if task.traits.integers else first[0]
    head = after(copy.deepcopy(task.module), layer, x[0])
    if isinstance(head, Head):
        head = Beside(head, task.features(params[None], first[0], layer)[0], x[0])

    def outputs(examples: Examples) -> Examples:
        parts = [params.new_zeros(0)]
        for rows in torch.arange(len(examples.y)).split(CHUNK):
            x = examples.rows(rows, params.dtype)
            features = task.features(params[None], x[None], layer)[0].detach()
            parts.append(head.join(features, x) if isinstance(head, Beside) else features)
        return Examples(torch.cat(parts[1:] or parts), examples.y, examples.offsets)

    train, test = outputs(clients.train), outputs(clients.test)
    unit = ball_unit(clients.unit, layer, None)
    return head, replace(clients, train=train, test=test, unit=unit, bounds=None, recipe=None, columns=None)


def with_cost_matrix(
    model: Run | nn.Module, clients: Federation, cost_matrix: CostMatrix
) -> tuple[nn.Module, Federation]:
    """Return the model of ``A u``, and the examples ``u = A^-1 x``."""
    inputs, matrix = clients.input_shape, cost_matrix.matrix
    cost_matrix.check_fits(_features(model, clients))
    if isinstance(model, Beside):  # the inputs beside the features stay where they are
        matrix = torch.block_diag(matrix, torch.eye(math.prod(inputs) - len(matrix), dtype=matrix.dtype))

    def rounded(examples: Examples) -> Examples:
        x = examples.prepare(examples.raw[:], torch.float64)
        u = torch.linalg.solve(matrix, x.flatten(1).T).T.reshape(x.shape)
        return Examples(u, examples.y, examples.offsets)

    task, _ = task_of(model)
    stretched = _stretched(task.module, matrix, inputs)
    unit = ball_unit(clients.unit, None, cost_matrix)
    train, test = rounded(clients.train), rounded(clients.test)
    return stretched, replace(clients, train=train, test=test, unit=unit, bounds=None, recipe=None, columns=None)


def _stretched(model: nn.Module, matrix: Tensor, inputs: tuple[int, ...]) -> nn.Module:
    """Return the model of ``A u``; a linear first layer absorbs A into its weights, which gives the tightest bounds."""
    layers = members(model) if is_plain(model, nn.Sequential) else [model]
    flat = [each for each in layers if not (is_plain(each, nn.Flatten) or is_plain(each, nn.Identity))]
    linear = flat[0] if flat and isinstance(flat[0], nn.Linear) and is_plain(flat[0], nn.Linear) else None
    if linear is not None and linear.in_features == len(matrix) and _only_there(model, linear.weight):
        with torch.no_grad():
            linear.weight.copy_(linear.weight @ matrix)
        return model
    first = nn.Linear(len(matrix), len(matrix), bias=False, dtype=torch.float64)
    first.weight = nn.Parameter(matrix.clone(), requires_grad=False)
    flattens = len(inputs) == 1 or isinstance(layers[0], nn.Flatten)
    return nn.Sequential(nn.Flatten(), first, *([] if flattens else [nn.Unflatten(1, inputs)]), *layers)


def _features(model: Run | nn.Module, clients: Federation) -> int:
    """Return the number of features that move."""
    return model.features if isinstance(model, Beside) else math.prod(clients.input_shape)


def _only_there(model: nn.Module, weight: Tensor) -> bool:
    """Return whether exactly one layer uses this weight, so that a change for its first use affects no other layer."""
    return sum(value is weight for _, value in model.named_parameters(remove_duplicate=False)) == 1


def moved(
    model: Run | nn.Module, clients: Federation, space: str | None, cost_matrix: Any, loss: Loss | None
) -> tuple[Run | nn.Module, Federation]:
    """Return the model and the examples where the ball is round; at a layer, the cost matrix is about its outputs."""
    if space is not None:
        model, clients = at_layer(model, clients, space, loss)
    chosen = check_cost_matrix(cost_matrix)
    if chosen == CLIENTS:
        train, features = clients.train, _features(model, clients)
        check_size((features,))
        owner = torch.repeat_interleave(torch.arange(train.num_clients), train.num_examples)
        means = class_means(train.x.flatten(1)[:, :features], train.y, owner)
        chosen = cost_matrix_of_means(means, "" if space is None else f" at layer {space!r} of this model")
    return with_cost_matrix(model, clients, chosen) if isinstance(chosen, CostMatrix) else (model, clients)
