"""What a checkpoint after every round costs a CNN, against the same training without any.

    .venv/bin/python benchmarks/checkpoint.py

McMahan's CNN on images of 28 x 28 pixels (random ones: only the time counts), 20 clients of 128, cohort 10, one local
epoch; both sides in turn, several times over.
"""

from __future__ import annotations

import statistics
import tempfile
import time

import torch

import wafl
from wafl.engine.checkpoint import Checkpoint

ROUNDS, TURNS = 4, 5


def main() -> None:
    draw = torch.Generator().manual_seed(0)
    pairs = [(torch.rand(160, 1, 28, 28, generator=draw), torch.arange(160) % 10) for _ in range(20)]
    clients = wafl.Federation.from_arrays(pairs, test_fraction=0.2)
    model = wafl.models.cnn(clients)
    without, with_checkpoints = [], []
    for _ in range(TURNS):
        without.append(seconds(model, clients, None))
        with tempfile.TemporaryDirectory() as folder:
            with_checkpoints.append(seconds(model, clients, Checkpoint(folder)))
    plain, kept = statistics.median(without), statistics.median(with_checkpoints)
    size = sum(value.numel() for value in model.parameters())
    print(f"CNN of {size:,} parameters, medians of {TURNS} turns of {ROUNDS} rounds")
    print(f"without checkpoints {plain / ROUNDS:.3f} s a round, with one every round {kept / ROUNDS:.3f} s")
    print(f"a checkpoint costs {100.0 * (kept / plain - 1.0):.1f}% of a round (asked: under 5%)")


def seconds(model: wafl.models.CNN, clients: wafl.Federation, checkpoint: Checkpoint | None) -> float:
    began = time.perf_counter()
    wafl.fit(
        model, clients, wafl.FedAvg(), rounds=ROUNDS, cohort=10, local_epochs=1, learning_rate=0.05,
        checkpoint=checkpoint,
    )  # fmt: skip
    return time.perf_counter() - began


if __name__ == "__main__":
    main()
