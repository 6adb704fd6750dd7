"""Ask all clients questions that change nothing: each replies with two numbers per setting, and sends no examples."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from wafl.base.shown import one_more
from wafl.data.examples import Examples
from wafl.objectives import Objective
from wafl.parts.messages import Query
from wafl.parts.schedule import LocalWork
from wafl.tasks.task import Task
from wafl.train.client_task import ClientTask
from wafl.train.lanes.lanes import Lanes


@dataclass(frozen=True)
class SurveyReplies:
    """Means over each client's examples, ``[settings, clients]``, of value and transport cost, and the known sizes."""

    value: Tensor
    cost: Tensor
    sizes: tuple[int, ...] = ()


class Survey:
    """A question to every client: the effect of an objective on its examples at fixed parameters, per setting."""

    def __init__(self, task: Task, params: Tensor, examples: Examples, objective: Objective | None) -> None:
        self._params = params
        self._clients, self._sizes = tuple(range(examples.num_clients)), tuple(examples.num_examples.tolist())
        self._lanes = Lanes(ClientTask(task, objective, LocalWork(1, None, 1), examples))

    def ask(self, scalars: Sequence[Mapping[str, float]], seed: int = 0) -> SurveyReplies:
        """Return one row of replies for each setting of the objective's scalars, all from one request."""
        weights = torch.ones(len(self._clients), dtype=torch.float64)
        queries = [Query("loss", 0, seed, self._clients, weights, self._params, each) for each in scalars]
        replies = self._lanes.run(queries)
        one_more("questions to all clients")
        return SurveyReplies(
            torch.stack([reply.loss for reply in replies]).double().cpu(),
            torch.stack([reply.cost for reply in replies]).double().cpu(),
            self._sizes,
        )
