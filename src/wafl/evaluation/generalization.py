"""Training, test and unseen data in plain numbers, over several seeds (Yuan et al., ICLR 2022)."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from typing import Any

from wafl.evaluation.score import Score, averaged

PARTS = ("train", "test", "unseen")
"""What clients that train hold for training and for testing, and what clients that never train hold."""


def generalization(scores: Sequence[Score]) -> dict[str, Any] | None:
    """A method's three numbers with their intervals and worst tenths, and the two gaps; None without unseen clients.

    Numbers are accuracies in percent, or losses, with their mean and standard deviation over the scores, one per seed.
    An interval is over clients: a bootstrap of each client's mean over the seeds.
    """
    scale = 1.0 if scores[0].accuracy is None else 100.0
    parts: dict[str, list[Score]] = {name: [] for name in PARTS}
    for score in scores:
        if score.train is None or score.unseen is None:
            return None
        for name, part in zip(PARTS, (score.train, score, score.unseen), strict=True):
            parts[name].append(part)

    def numbers(values: Sequence[float | None]) -> dict[str, Any]:
        return spread([scale * value for value in values if value is not None])

    return {
        **{
            name: {
                **numbers([part.value for part in found]),
                "interval": [scale * end for end in averaged(found).interval()],
                "worst_tenth": numbers([part.worst_tenth for part in found]),
            }
            for name, found in parts.items()
        },
        "out_of_sample_gap": numbers([score.out_of_sample_gap for score in scores]),
        "participation_gap": numbers([score.participation_gap for score in scores]),
    }


def spread(values: Sequence[float]) -> dict[str, Any]:
    """The mean and standard deviation of values, one per seed, and the values themselves."""
    deviation = statistics.stdev(values) if len(values) > 1 else 0.0
    return {"mean": statistics.fmean(values), "std": deviation, "seeds": list(values)}
