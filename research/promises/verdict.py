"""The verdict on promises: their coverage with its exact p-value, and their tightness."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

from research.significance import holm


def p_value(covered: int, sealed: int, calibration: int, rank: int) -> float:
    """Return the probability that at most ``covered`` sealed clients are covered by the calibration's number at a rank.

    Sealed and calibration clients are exchangeable, and the sealed ones share one calibration draw, so the number of
    covered clients is ``BetaBinomial(sealed, place, calibration + 1 - place)``; ties only make it larger.

    >>> round(p_value(0, 1, 19, 19), 3)
    0.05
    """
    from scipy.stats import betabinom

    return float(betabinom(sealed, rank, calibration + 1 - rank).cdf(covered))


def tightness(ratios: Sequence[float], confidence: float) -> float | None:
    """Return 1 over the ratio of result to promise, at the rank of the confidence; None beyond the last."""
    rank = math.ceil(round((len(ratios) + 1) * confidence, 9))
    return 1.0 / max(sorted(ratios)[rank - 1], 1e-12) if rank <= len(ratios) else None


def verdicts(rows: Sequence[Mapping[str, Any]], level: float) -> list[dict[str, Any]]:
    """Return one verdict per statement, method and task, from all their folds; no p-value for own sampling."""
    groups: dict[tuple[str, str], list[dict[str, Any]]] = {}
    for key in dict.fromkeys((row["statement"], row["method"], row["task"]) for row in rows):
        folds = [row for row in rows if (row["statement"], row["method"], row["task"]) == key]
        groups.setdefault(key[:2], []).append(dict(zip(("statement", "method", "task"), key, strict=True)) | _of(folds))
    for listed in groups.values():
        tested = [each for each in listed if each.get("p") is not None]
        for each, adjusted in zip(tested, holm([each["p"] for each in tested]), strict=True):
            each |= {"p_holm": adjusted, "failed": adjusted < level}
    return [each for listed in groups.values() for each in listed]


def _of(folds: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    from scipy.stats import binom

    promised = [row for row in folds if row["promised"] is not None]
    if not promised:
        return {"sealed": 0, "says_nothing": folds[0]["why"]}
    covered = [sum(value <= row["promised"] for value in row["happened"]) for row in promised]
    total, share = (
        sum(len(row["happened"]) for row in promised),
        sum(covered) / sum(len(row["happened"]) for row in promised),
    )
    numbers = zip(covered, promised, strict=True)
    p = [p_value(hit, len(row["happened"]), row["calibration"], row["place"]) for hit, row in numbers]
    ratios = [value / row["promised"] for row in promised for value in row["happened"]]
    confidence = min(row["confidence"] for row in promised)
    # The bootstrap over clients draws a binomial number of covered ones.
    low, high = (float(end) / total for end in binom(total, share).interval(0.95))
    return {
        "confidence": confidence,
        "promised": [row["promised"] for row in promised],
        "sealed": total,
        "covered": sum(covered),
        "expected": sum(len(row["happened"]) * row["place"] / (row["calibration"] + 1) for row in promised) / total,
        "interval": [low, high],
        "p": None if promised[0]["own_sampling"] else min(1.0, len(p) * min(p)),
        "tightness": tightness(ratios, confidence),
    }
