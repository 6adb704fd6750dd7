"""Five hospitals with a microscope each, made from scikit-learn's breast cancer data.

    python examples/flower_hospitals/data.py

repeats the choice of learning rates, weight decay and gamma.
"""

from __future__ import annotations

import itertools
import statistics
import warnings
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sklearn.datasets import load_breast_cancer

import wafl

MALIGNANT = (0.25, 0.5, 0.3, 0.4, 0.4)
"""The share of malignant tumors in each hospital."""
MAGNIFICATION = (1.0, 1.0, 1.0, 1.1, 1.3)
"""The factor by which its microscope shows everything too large."""
TUNING = range(100, 110)
"""Seeds of the deals that the settings were chosen on."""

_TUMORS: Any = load_breast_cancer()
_X: NDArray[np.float64] = _TUMORS.data
_Y: NDArray[np.int64] = 1 - _TUMORS.target.astype(np.int64)
_CENTER, _SCALE = _X.mean(0), _X.std(0)  # constants that are known to all
_DIMENSION = np.array([2 if "area" in name else int("radius" in name or "perimeter" in name)
                       for name in _TUMORS.feature_names])  # fmt: skip


@dataclass(frozen=True)
class Hospital:
    """Nuclei of cells of each tumor, as 30 measurements, and whether it is malignant."""

    name: str
    measured: NDArray[np.float64]
    y: NDArray[np.int64]

    def seen(self, magnification: float = 1.0) -> NDArray[np.float32]:
        """The measurements in standard units, if the microscope had magnified them this much more."""
        return ((self.measured * magnification**_DIMENSION - _CENTER) / _SCALE).astype(np.float32)

    def arrays(self) -> dict[str, Any]:
        """What its file holds: three quarters of the tumors to train on, a quarter to test on."""
        x, held_out = self.seen(), len(self.y) // 4
        return {"x": x[held_out:], "y": self.y[held_out:], "x_test": x[:held_out], "y_test": self.y[:held_out]}


def make_hospitals(seed: int) -> list[Hospital]:
    """Deal the tumors out, none twice; the fifth hospital's measurements are still without its microscope's error."""
    random = np.random.default_rng(seed)
    benign, malignant = (random.permutation(np.flatnonzero(label == _Y)) for label in (0, 1))
    size = len(_Y) // len(MALIGNANT)
    hospitals: list[Hospital] = []
    for number, share in enumerate(MALIGNANT, start=1):
        count = round(share * size)
        (mine, malignant), (others, benign) = np.split(malignant, [count]), np.split(benign, [size - count])
        rows = random.permutation(np.concatenate([mine, others]))
        error = MAGNIFICATION[number - 1] if number < len(MALIGNANT) else 1.0
        hospitals.append(Hospital(f"hospital-{number}", _X[rows] * error**_DIMENSION, _Y[rows]))
    return hospitals


def federation(hospitals: Sequence[Hospital]) -> wafl.Federation:
    """The same hospitals in one process."""
    parts, names = [hospital.arrays() for hospital in hospitals], [hospital.name for hospital in hospitals]
    train = wafl.Federation.from_arrays([(part["x"], part["y"]) for part in parts], test_fraction=0.0, names=names)
    test = wafl.Federation.from_arrays([(part["x_test"], part["y_test"]) for part in parts], test_fraction=0.0)
    return replace(train, test=test.train)


def score(run: wafl.Run, x: NDArray[np.float32], y: NDArray[np.int64]) -> tuple[float, float]:
    """Accuracy in percent, and mean cross-entropy."""
    client = wafl.Federation.from_arrays([(x, y)], test_fraction=0.0, num_classes=2)
    result = wafl.evaluate(run, replace(client, test=client.train))
    return 100 * (result.accuracy or 0.0), result.loss


def main() -> None:
    """Every setting is trained at hospitals 1 to 3 and tested at the fourth; the fifth is never looked at."""
    warnings.simplefilter("ignore", wafl.ConcavityWarning)
    rates = [0.03, 0.1, 0.3]
    grids: list[tuple[wafl.Method, dict[str, list[float]]]] = [
        (wafl.FedAvg(), {"learning_rate": rates, "weight_decay": [0.0, 0.01, 0.03, 0.1, 0.3]}),
        (wafl.WAFL(), {"learning_rate": rates, "gamma": [0.3, 0.5, 1.0, 2.0, 4.0]}),
    ]
    for method, grid in grids:
        scores: dict[tuple[float, ...], list[tuple[float, float]]] = {}
        for seed in TUNING:
            *three, fourth = make_hospitals(seed)[:4]
            clients = federation(three)
            runs = wafl.sweep(
                wafl.models.mlr(clients), clients, method, grid, rounds=8, local_epochs=5, batch_size=16, seed=seed
            )
            for point, run in zip(itertools.product(*grid.values()), runs, strict=True):
                scores.setdefault(point, []).append(score(run, fourth.seen(), fourth.y))
        means = {
            point: [statistics.fmean(values) for values in zip(*result, strict=True)]
            for point, result in scores.items()
        }
        for point in sorted(means, key=lambda point: means[point][1]):
            settings = ", ".join(f"{key} {value:g}" for key, value in zip(grid, point, strict=True))
            print(f"{method.name} {settings}: accuracy {means[point][0]:.2f}, loss {means[point][1]:.4f}")


if __name__ == "__main__":
    main()
