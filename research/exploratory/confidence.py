"""Compare the bound by betting and the bound that it replaced with the truth, on draws of real clients.

    python -m research confidence [--smallest] [--draws 1000]

Hospitals and people with a smartwatch are clients; digits, breast cancer and wine (scikit-learn brings them) are split
into clients with different labels. A linear model is trained with FedAvg on a third of each client's examples. The
truth is the mean loss of each client's other examples, from which tests of the given size are drawn with replacement.
The table has the mean distances of both bounds from the truth at 95%, their ratio, the share of draws in which betting
covered the truth, and the least ratio of bets that know the truth. For the errors of one client, it has the bound of
Clopper and Pearson.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, cast

import numpy as np
import torch
from numpy.typing import NDArray
from scipy import stats
from sklearn import datasets
from sklearn.preprocessing import MinMaxScaler

import wafl
from benchmarks import options
from wafl.theory.certificates.sampling import Domain, Sample, largest_surrogate
from wafl.theory.constants.assumptions import data_free_constants, task_of

Array = NDArray[np.float64]
DELTA = 0.05
CASES = (
    ("hospitals", 0, 10),
    ("smartwatch", 0, 30),
    ("digits", 10, 30),
    ("digits", 10, 100),
    ("breast_cancer", 1, 63),
    ("breast_cancer", 5, 20),
    ("wine", 4, 15),
)
"""Data, clients (0: the data's own clients), and test examples of each client."""


@dataclass(frozen=True)
class World:
    """Losses (or errors) of a trained model on its training examples and on all that may be drawn, by client."""

    trained: list[Array]
    others: list[Array]
    most: float


def main(argv: Sequence[str] | None = None) -> None:
    """Run the command."""
    parser = options.make_parser(__doc__)
    parser.add_argument("--draws", type=int, default=1000)
    given = options.read(parser, argv, draws=10)
    print("| data, clients x tests | truth | largest | Bernstein | betting | ratio | knowing the truth | covered |")
    for name, clients, size in CASES:
        print(show(name, clients, size, given.draws), flush=True)
    print("| errors of one client | truth | Bernstein | betting | Clopper and Pearson | covered |")
    for name, size in (("digits", 200), ("breast_cancer", 63)):
        print(show_errors(name, size, given.draws), flush=True)


def scaled(x: Array) -> Array:
    """Return features scaled to [0, 1]."""
    return MinMaxScaler().fit_transform(x).clip(0.0, 1.0)


def natural(name: str) -> tuple[Array, Any, list[Any]]:
    """Return all examples, and the rows of each client that has at least 12."""
    every = wafl.load_dataset(name).partition(by_group=True, test_fraction=0.0).train
    x, y = every.rows(torch.arange(len(every.y)), torch.float64).flatten(1).numpy(), every.y.numpy()
    rows = np.split(np.arange(len(y)), every.offsets[1:-1].numpy())
    return scaled(x), y, [each for each in rows if len(each) >= 12]


def split(name: str, clients: int) -> tuple[Array, Any, list[Any]]:
    """Return all examples, and each client's rows: half along the first principal component, the others from all."""
    x, y = getattr(datasets, f"load_{name}")(return_X_y=True)
    x, rng = scaled(x), np.random.default_rng(0)
    order = np.lexsort((x @ np.linalg.svd(x - x.mean(0), full_matrices=False)[2][0], y))
    parts = np.array_split(order, 2 * clients)[::2] if clients > 1 else [order]
    mixed = [np.concatenate([rows, rng.choice(len(x), len(rows), replace=False)]) for rows in parts]
    return x, y, [np.unique(rows) for rows in mixed]


def world(name: str, clients: int, *, errors: bool = False) -> World:
    """Return a linear model of the first third of each client's examples, in a random order."""
    x, y, owned = natural(name) if clients == 0 else split(name, clients)
    pairs: list[tuple[Any, ...]] = []
    rng = np.random.default_rng(1)
    for each in owned:
        rows, cut = rng.permutation(each), len(each) // 3
        pairs.append((x[rows[:cut]], y[rows[:cut]], x[rows[cut:]], y[rows[cut:]]))
    federation = wafl.Federation.from_arrays(pairs, bounds=(0.0, 1.0), num_classes=int(y.max()) + 1)
    run = wafl.fit(
        wafl.models.mlr(federation), federation, wafl.FedAvg(), rounds=60, local_epochs=2, learning_rate=0.5,
        check_optimum=False,
    )  # fmt: skip
    task, params = task_of(run)
    steep = data_free_constants(task, params, x.shape[1], 2)["L_z"]
    most = 1.0 if errors else largest_surrogate(task, params, Domain.of(federation), steep, math.inf, 2)

    def values(part: Any) -> Array:
        outputs = task.outputs(params[None], torch.as_tensor(part[0], dtype=params.dtype)[None])[0].detach()
        labels = torch.as_tensor(part[1])
        return ((outputs.argmax(1) != labels).double() if errors else task.loss.value(outputs, labels)).numpy()

    return World([values(each[:2]) for each in pairs], [values(each[2:]) for each in pairs], most)


def moments(xs: Sequence[Array], most: float) -> Sample:
    """Return the sizes, means and second moments of samples."""
    return Sample([len(x) for x in xs], [float(x.mean()) for x in xs], [float((x**2).mean()) for x in xs], most)


def bernstein(sample: Sample, weights: Array, centers: Sequence[float]) -> float:
    """Return the empirical Bernstein bound that certificates used before (Maurer and Pontil, COLT 2009)."""
    log, share = math.log(2.0 / DELTA), weights / np.array(sample.sizes)
    means, seconds, middle = (np.array(each) for each in (sample.means, sample.seconds, centers))
    spread = (share**2 * sample.sizes * (seconds - 2.0 * middle * means + middle**2)).sum()
    far = ((share * np.maximum(middle, sample.most - middle)) ** 2).max() * log / 2.0
    margin = math.sqrt(2.0 * log) * (math.sqrt(spread + far) + math.sqrt(far)) + log * share.max() * sample.most / 3.0
    return float(weights @ means + margin)


def compare(
    values: Sequence[Array], trained: Sample, size: int, draws: int, more: Callable[[Sample], float]
) -> tuple[float, Array, float]:
    """Return the truth, the mean distances from it (Bernstein, betting, more), and how often betting covered it."""
    rng, weights = np.random.default_rng(1), np.full(len(values), 1.0 / len(values))
    truth = float(np.mean([x.mean() for x in values]))
    bets = trained.bets(weights.tolist(), [size] * len(values), DELTA)
    rows: list[tuple[float, float, float]] = []
    for _ in range(draws):
        sample = moments([rng.choice(x, size) for x in values], trained.most)
        upper = sample.upper_mean(weights.tolist(), bets, DELTA)
        rows.append((bernstein(sample, weights, trained.means), upper, more(sample)))
    far = np.array(rows) - truth
    return truth, far.mean(0), float((far[:, 1] >= 0).mean())


def show(name: str, clients: int, size: int, draws: int) -> str:
    """Return one line of the table of losses."""
    at = world(name, clients)
    truth, far, covered = compare(at.others, moments(at.trained, at.most), size, draws, lambda _: 0.0)
    cells = (f"{name}, {len(at.others)} x {size}", f"{truth:.3f}", f"{at.most:.1f}", f"{far[0]:.3f}", f"{far[1]:.3f}")
    ratios = f"{far[1] / far[0]:.2f} | {least_distance(at, size) / far[0]:.2f}"
    return f"| {' | '.join(cells)} | {ratios} | {covered:.1%} |"


def least_distance(at: World, size: int) -> float:
    """Return the distance above the truth that bets with knowledge of all losses refute in the mean logarithm.

    The capital's logarithm at m is ``W - N log((R - m) / N)``, as in ``theory/certificates/sampling.py``.
    """
    means, count = np.array([x.mean() for x in at.others]), size * len(at.others)
    weight, distances = 1.0 / len(at.others), list[float]()
    for part in np.linspace(0.01, 0.99, 99):
        theta = part / (at.most - means).max()
        bets = theta / (1.0 + theta * means)
        won = size * sum(np.log1p(-bet * x).mean() for bet, x in zip(bets, at.others, strict=True))
        won -= size * np.log(size * bets / weight).sum()
        distances.append((weight / bets).sum() - count * math.exp((won - math.log(1.0 / DELTA)) / count))
    return float(min(distances) - means.mean())


def show_errors(name: str, size: int, draws: int) -> str:
    """Return one line of the table of errors."""
    at = world(name, 1, errors=True)

    def exact(sample: Sample) -> float:
        wrong = round(sample.means[0] * size)
        return 1.0 if wrong == size else float(cast(Any, stats).beta.ppf(1.0 - DELTA, wrong + 1, size - wrong))

    truth, far, covered = compare(at.others, moments(at.trained, 1.0), size, draws, exact)
    return f"| {name}, {size} | {truth:.3f} | {' | '.join(f'{each:.3f}' for each in far)} | {covered:.1%} |"


if __name__ == "__main__":
    main()
