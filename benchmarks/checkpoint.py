"""Measure the cost of a checkpoint after every round of a CNN, against the same training without checkpoints.

    python -m benchmarks.checkpoint [--smallest]

McMahan's CNN on images of 28 x 28 pixels (random ones: only the time counts), 20 clients of 128, cohort 10, one local
epoch; both sides in turn, several times over.
"""

from __future__ import annotations

import statistics
import tempfile
import time
from collections.abc import Sequence

import torch

import wafl
from benchmarks import options
from wafl.train.checkpoint.checkpoint import Checkpoint


def main(argv: Sequence[str] | None = None) -> None:
    parser = options.make_parser(__doc__)
    parser.add_argument("--rounds", type=int, default=4)
    parser.add_argument("--turns", type=int, default=5)
    parser.add_argument("--examples", type=int, default=160, help="per client, a fifth of them for testing")
    given = options.read(parser, argv, rounds=1, turns=1, examples=10)
    draw = torch.Generator().manual_seed(0)
    shape, labels = (given.examples, 1, 28, 28), torch.arange(given.examples) % 10
    pairs = [(torch.rand(shape, generator=draw), labels) for _ in range(20)]
    clients = wafl.Federation.from_arrays(pairs, test_fraction=0.2)
    model = wafl.models.cnn(clients)
    without: list[float] = []
    with_checkpoints: list[float] = []
    for _ in range(given.turns):
        without.append(seconds(model, clients, given.rounds, None))
        with tempfile.TemporaryDirectory() as folder:
            with_checkpoints.append(seconds(model, clients, given.rounds, Checkpoint(folder)))
    plain, kept = statistics.median(without), statistics.median(with_checkpoints)
    size = sum(value.numel() for value in model.parameters())
    print(f"CNN of {size:,} parameters, medians of {given.turns} turns of {given.rounds} rounds")
    each, kept_each = plain / given.rounds, kept / given.rounds
    print(f"without checkpoints {each:.3f} s per round, with one every round {kept_each:.3f} s")
    print(f"a checkpoint costs {100.0 * (kept / plain - 1.0):.1f}% of a round (the goal: under 5%)")


def seconds(model: wafl.models.CNN, clients: wafl.Federation, rounds: int, checkpoint: Checkpoint | None) -> float:
    began = time.perf_counter()
    wafl.fit(
        model, clients, wafl.FedAvg(), rounds=rounds, cohort=10, local_epochs=1, learning_rate=0.05,
        checkpoint=checkpoint,
    )  # fmt: skip
    return time.perf_counter() - began


if __name__ == "__main__":
    main()
