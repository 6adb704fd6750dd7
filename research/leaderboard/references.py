"""What methods are held against, from scikit-learn: shares of the labels, boosted trees, and each client alone."""

from collections.abc import Callable
from typing import Any, cast

import torch
from sklearn.dummy import DummyClassifier
from sklearn.ensemble import HistGradientBoostingClassifier
from sklearn.linear_model import LogisticRegression
from torch import Tensor

from wafl.data.federation import Federation
from wafl.tuning.space import Setting

ALONE = "alone"
REFERENCES: dict[str, Callable[..., Any]] = {
    "majority": DummyClassifier,
    "boosted tree": lambda **options: cast(Any, HistGradientBoostingClassifier)(early_stopping=False, **options),
    ALONE: lambda **options: LogisticRegression(max_iter=1000, **options),
}
"""The classifiers, by their names in the registration."""


def fitted(name: str, seen: Federation, tested: Federation, setting: Setting) -> Callable[[Tensor, Tensor], Tensor]:
    """Return a reference as a function of examples and their clients, fitted on all seen clients, or on each one alone.

    It returns logarithms of probabilities; none is 0, since p from n examples counts as ``(n p + 1) / (n + classes)``.
    """
    alone, classes = name == ALONE, seen.num_outputs
    data = (
        [tested.train.of(client) for client in range(tested.num_clients)] if alone else [(seen.train.x, seen.train.y)]
    )
    models = [
        (REFERENCES[name](**setting) if len(y.unique()) > 1 else DummyClassifier()).fit(x.flatten(1).numpy(), y.numpy())
        for x, y in data
    ]

    def predict(x: Tensor, who: Tensor) -> Tensor:
        probabilities = torch.zeros(len(x), classes, dtype=torch.float64)
        for index, (model, (_, y)) in enumerate(zip(models, data, strict=True)):
            rows = (who == index).nonzero() if alone else torch.arange(len(x))[:, None]
            if len(rows):
                predicted = torch.from_numpy(model.predict_proba(x[rows[:, 0]].flatten(1).numpy())).double()
                probabilities[rows, torch.from_numpy(model.classes_)] = predicted
                probabilities[rows[:, 0]] = (len(y) * probabilities[rows[:, 0]] + 1.0) / (len(y) + classes)
        return probabilities.log()

    return predict
