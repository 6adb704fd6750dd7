"""Measure the coverage of prediction sets at clients that neither trained nor calibrated, by method.

    python -m research prediction-sets [--smallest]

Digits on clients with few labels each, multinomial logistic regression by FedAvg, the margin as the score, 90% coverage
promised. Half of the clients never train; each repetition draws anew which of these calibrate. All methods have the
same scores, and one evaluator measures their thresholds on the other clients:

- *pooled*: split conformal prediction on all calibration examples together;
- *FedCP*: the ``ceil(coverage (N + K))``-th smallest of N pooled scores of K clients (Lu et al. 2023);
- *largest*: the largest threshold of a single calibration client;
- *example* and *client*: ours.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from statistics import fmean, stdev
from typing import Any

import numpy as np

import wafl
from benchmarks import options
from research.markdown import table
from wafl.sets.answers import Client
from wafl.sets.coverage import Coverage
from wafl.sets.held_out import read_clients
from wafl.sets.search import search
from wafl.sets.target import Target

COVERAGE, CONFIDENCE, CALIBRATE = 0.9, 0.9, 19
Threshold = Callable[[Sequence[Client]], float]


def ranked(scores: Sequence[float], rank: int) -> float:
    """Return the score of this rank, or infinity if there are fewer."""
    return sorted(scores)[rank - 1] if rank <= len(scores) else math.inf


def pooled(clients: Sequence[Client], correction: int) -> float:
    """Return the ``ceil(coverage (N + correction))``-th smallest of all scores."""
    scores = [score for client in clients for score in client.scores]
    return ranked(scores, math.ceil(round(COVERAGE * (len(scores) + correction), 9)))


def largest(clients: Sequence[Client]) -> float:
    """Return the largest of the clients' own split conformal thresholds."""
    return max(ranked(each.scores, math.ceil(round(COVERAGE * (each.size + 1), 9))) for each in clients)


def ours(target: Target) -> Threshold:
    """Return the threshold of prediction sets."""
    ready = target.supported(CALIBRATE)
    return lambda clients: search(clients, None, ready.holds(CALIBRATE))


METHODS: dict[str, Threshold] = {
    "pooled": lambda clients: pooled(clients, 1),
    "FedCP": lambda clients: pooled(clients, len(clients)),
    "largest": largest,
    "example": ours(Target(COVERAGE, "example")),
    "client": ours(Target(COVERAGE, "client", CONFIDENCE)),
}


def measure(num_clients: int, labels: int, rounds: int, repetitions: int) -> dict[str, list[Coverage]]:
    """Return what each method covered, repetition by repetition."""
    clients = wafl.load_dataset("digits").partition(num_clients, labels_per_client=labels, seed=0)
    seen, unseen = clients.hold_out(0.5, seed=0)
    schedule: dict[str, Any] = {"rounds": rounds, "local_epochs": 1, "learning_rate": 0.1}
    run = wafl.fit(wafl.models.mlr(seen), seen, wafl.FedAvg(), seed=0, progress=False, **schedule)
    scorer = wafl.prediction_sets(run, unseen, coverage=0.5, training=seen).scorer
    every = read_clients(scorer, unseen)
    results: dict[str, list[Coverage]] = {name: [] for name in METHODS}
    for seed in range(repetitions):
        order = np.random.default_rng(seed).permutation(unseen.num_clients)
        names = [unseen.names[index] for index in order]
        calibration = [every[name] for name in names[:CALIBRATE]]
        others = {name: every[name] for name in names[CALIBRATE:]}
        for name, threshold in METHODS.items():
            results[name].append(Coverage.of(others, threshold(calibration), COVERAGE, of_classes=True))
    return results


def shown(values: Sequence[float], digits: int = 1) -> str:
    """Return a mean with the standard deviation over repetitions."""
    return f"{fmean(values):.{digits}f} ± {stdev(values) if len(values) > 1 else 0.0:.{digits}f}"


def main(argv: Sequence[str] | None = None) -> None:
    """Run the command."""
    parser = options.make_parser(__doc__)
    parser.add_argument("--clients", type=int, default=80)
    parser.add_argument("--labels", type=int, default=3, help="labels per client")
    parser.add_argument("--rounds", type=int, default=30)
    parser.add_argument("--repetitions", type=int, default=50, help="draws of the clients that calibrate")
    given = options.read(parser, argv, clients=44, rounds=1, repetitions=2)
    results = measure(given.clients, given.labels, given.rounds, given.repetitions)
    rows = [
        [
            name,
            shown([100.0 * each.mean for each in measured]),
            shown([100.0 * each.share for each in measured]),
            shown([each.size for each in measured], 2),
            shown([100.0 * sum(each.full) / sum(each.examples) for each in measured]),
        ]
        for name, measured in results.items()
    ]
    print(table(["sets", "labels covered (%)", "clients covered (%)", "classes per set", "full sets (%)"], rows))
    print(
        f"\nDigits, {given.clients} clients with {given.labels} labels each, half of them unseen, {CALIBRATE} of these "
        f"calibrate; logistic regression; {COVERAGE:.0%} promised, to the client with {CONFIDENCE:.0%} confidence. "
        f"± is the standard deviation over {given.repetitions} draws of the calibration clients."
    )
