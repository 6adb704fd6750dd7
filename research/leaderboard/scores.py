"""How well a model does on clients that it has not seen, as they are and under the declared shift."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from statistics import fmean

import torch
from torch import Tensor

from research.leaderboard.tasks import NaturalTask
from wafl.attacks import Attack
from wafl.data.federation import Federation
from wafl.evaluation.score import worst_count
from wafl.results.run import Run
from wafl.shifts import Shift

Scores = dict[str, dict[str, float]]
"""By track: accuracy, loss, the accuracy of the worst tenth of the clients and, of two classes, the AUC; in percent."""


@dataclass(frozen=True)
class Model:
    """A tested model: ``predict(x, who)`` returns logarithms of probabilities ``[N, classes]`` of clients' examples.

    Attacks follow the slopes of ``run``; a model without one is not moved by them. A model with ``alone`` is fitted to
    the tested clients' training examples, and is tested only on their other examples.
    """

    predict: Callable[[Tensor, Tensor], Tensor]
    run: Run | None = None
    alone: bool = False

    @classmethod
    def of(cls, run: Run) -> "Model":
        """Return the model of a trained run."""
        return cls(lambda x, who: run.module(x).log_softmax(-1), run)


@dataclass(frozen=True)
class Predicted:
    """A model's predictions of tested examples: logarithms of probabilities by track, one array per shift."""

    logs: Mapping[str, list[Tensor]]
    y: Tensor
    who: Tensor

    def mean(self, measure: Callable[[Tensor, Tensor, Tensor], dict[str, float]]) -> Scores:
        """Return the mean over the shifts of a track of what ``measure(logs, y, who)`` returns."""
        every = {track: [measure(each, self.y, self.who) for each in logs] for track, logs in self.logs.items()}
        return {track: {name: fmean(each[name] for each in some) for name in some[0]} for track, some in every.items()}


@torch.no_grad()
def predicted(model: Model, task: NaturalTask, clients: Federation, seed: int) -> Predicted:
    """Return the predictions of a model on both tracks."""
    examples = clients.test if model.alone else clients.examples
    who = torch.repeat_interleave(torch.arange(clients.num_clients), examples.num_examples)
    x, y = examples.x, examples.y

    def under(attack: Attack) -> Tensor:
        if isinstance(attack, Shift):
            return model.predict(attack.apply(x, seed), who)
        return model.predict(x if model.run is None else attack.within(clients.bounds)(model.run, x, y, seed=seed), who)

    shifted = [under(attack) for attack in task.shifts()]
    return Predicted({"clean": [model.predict(x, who)], "shift": shifted}, y, who)


def scores(model: Model, task: NaturalTask, clients: Federation, seed: int) -> Scores:
    """Return the scores of a model; under several shifts, their mean."""
    return predicted(model, task, clients, seed).mean(metrics)


def metrics(logs: Tensor, y: Tensor, who: Tensor) -> dict[str, float]:
    """Return the metrics of logarithms of probabilities."""
    right = (logs.argmax(-1) == y).double()
    each = torch.stack([right[who == client].mean() for client in who.unique()])
    worst = each.topk(worst_count(0.1, len(each)), largest=False).values
    result = {"accuracy": right.mean(), "worst": worst.mean()}
    if logs.shape[-1] == 2:
        result["auc"] = _auc(logs[:, 1] - logs[:, 0], y)
    loss = -logs.double().gather(1, y[:, None]).mean()
    return {"loss": float(loss), **{name: 100.0 * float(value) for name, value in result.items()}}


def _auc(values: Tensor, y: Tensor) -> Tensor:
    """Return the probability that an example of class 1 has a larger value than one of class 0; ties count half."""
    from scipy.stats import rankdata

    ranks, ones = torch.from_numpy(rankdata(values.numpy())), int(y.sum())
    return (ranks[y == 1].mean() - (ones + 1) / 2.0) / (len(y) - ones)
