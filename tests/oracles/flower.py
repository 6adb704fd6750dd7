"""The expected end of training on Flower: the same queries, answered in this process by the same clients."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import torch
from torch import Tensor

import wafl
from wafl.parts.schedule import Schedule
from wafl.results.history import Record
from wafl.tasks.structured import make_task
from wafl.train.checks.watch import lowest_gamma
from wafl.train.client_task import ClientTask
from wafl.train.lanes.lanes import Lanes
from wafl.train.server import Algorithm
from wafl.train.trust.faults import without


def replay(
    clients: wafl.Federation, method: wafl.Method, schedule: Schedule, history: Sequence[Record]
) -> dict[str, Tensor]:
    """Return the final parameters if each round leaves out the clients that the history lists as left out."""
    task = make_task(wafl.models.mlr(clients))
    sizes = clients.train.num_examples.tolist()
    lowest = partial(lowest_gamma, method.objective, task)
    algorithm = Algorithm(method, schedule, sizes, lowest)
    lanes = Lanes(ClientTask(task, method.objective, schedule.local_work, clients.train, local=method.local))
    state = algorithm.init(task.initial())
    while (query := algorithm.ask(state)) is not None:
        excluded = history[query.round].excluded
        of_kind = [client for client, why in excluded if why.startswith("loss: ") == (query.kind == "loss")]
        answered = without(query, of_kind)
        state = algorithm.tell(state, answered, lanes.run([answered])[0])
    assert state.round == len(history)
    return {name: value.clone() for name, value in task.unflatten(state.params).items()}


def equal(one: dict[str, Tensor], other: dict[str, Tensor]) -> bool:
    return one.keys() == other.keys() and all(torch.equal(one[name], other[name]) for name in one)
