"""Scores against their definitions, in plain numpy."""

import dataclasses
import json
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from wafl import Score
from wafl.base.random import Key, Purpose, bits
from wafl.evaluation.score import ClientScore, averaged


def score_of(accuracies, losses, sizes, attacked=None, weights=None, **options) -> Score:
    count = len(sizes)
    attacked = attacked if attacked is not None else [False] * count
    weights = weights if weights is not None else [size / sum(sizes) for size in sizes]
    accuracies = accuracies if accuracies is not None else [None] * count
    clients = [
        ClientScore(f"client {i}", *values)
        for i, values in enumerate(zip(accuracies, losses, sizes, attacked, weights, strict=True))
    ]
    return Score(clients, **options)


ACCURACIES = [0.5, 0.9, 0.25, 1.0, 0.75, 0.6, 0.8, 0.95, 0.3, 0.7, 0.85]
LOSSES = [1.5, 0.2, 2.5, 0.05, 0.8, 1.1, 0.6, 0.15, 2.0, 0.9, 0.4]
SIZES = [10, 40, 4, 8, 12, 5, 20, 2, 30, 9, 7]
ATTACKED = [True, False, True, False, False, True, False, False, True, False, False]
SCORE = score_of(ACCURACIES, LOSSES, SIZES, ATTACKED, attack="l_inf PGD", unit="pixels", seed=3)


@st.composite
def scores(draw):
    count = draw(st.integers(1, 25))
    many = {"min_size": count, "max_size": count}
    share = st.floats(0.0, 1.0)
    regression = draw(st.booleans())
    return (
        None if regression else draw(st.lists(share, **many)),
        draw(st.lists(st.floats(0.0, 10.0), **many)),
        draw(st.lists(st.integers(1, 50), **many)),
        draw(st.lists(st.booleans(), **many)),
    )


@settings(max_examples=60, deadline=None)
@given(scores())
def test_every_number_of_a_score_matches_its_definition(case):
    accuracies, losses, sizes, attacked = case
    score = score_of(accuracies, losses, sizes, attacked)
    total = sum(sizes)
    assert score.loss == pytest.approx(sum(n * v for n, v in zip(sizes, losses, strict=True)) / total)
    assert score.client_loss == pytest.approx(sum(losses) / len(losses))
    values = losses if accuracies is None else accuracies
    mean = sum(values) / len(values)
    assert score.std == pytest.approx(math.sqrt(sum((v - mean) ** 2 for v in values) / len(values)), abs=1e-7)
    order = sorted(losses, reverse=True) if accuracies is None else sorted(accuracies)
    for percent in (1, 10, 20, 50, 100):
        count = max(1, -(-percent * len(order) // 100))
        assert score.worst(percent / 100) == pytest.approx(sum(order[:count]) / count)
    if accuracies is None:
        assert score.accuracy is None
        assert score.client_accuracy is None
        assert score.worst_client.loss == max(losses)
    else:
        assert score.accuracy == pytest.approx(sum(n * v for n, v in zip(sizes, accuracies, strict=True)) / total)
        assert score.client_accuracy == pytest.approx(mean)
        assert score.worst_client.accuracy == min(accuracies)


@pytest.mark.parametrize("share", [0.0, -0.1, 1.1, math.nan])
def test_a_share_outside_zero_to_one_is_refused(share):
    with pytest.raises(ValueError, match=r"share=.* must lie in \(0, 1\]"):
        SCORE.worst(share)


def test_attacked_and_clean_clients_are_scored_separately():
    for part, wanted in ((SCORE.attacked, True), (SCORE.clean, False)):
        chosen = [i for i, flag in enumerate(ATTACKED) if flag == wanted]
        assert [client.name for client in part.per_client] == [f"client {i}" for i in chosen]
        sizes = np.array(SIZES)[chosen]
        assert part.accuracy == pytest.approx((sizes @ np.array(ACCURACIES)[chosen]) / sizes.sum())
        assert part.loss == pytest.approx((sizes @ np.array(LOSSES)[chosen]) / sizes.sum())
        assert (part.attack, part.unit, part.seed) == ("l_inf PGD", "pixels", 3)
    assert score_of([0.5], [1.0], [3], [True]).clean is None
    assert score_of([0.5], [1.0], [3], [False]).attacked is None


# ---------------------------------------------------------------- bootstrap


def plain_bootstrap(values, weights, seed: int, level: float, draws: int) -> tuple[float, float]:
    """The same draws, pooled one resample at a time, with quantiles interpolated by hand."""
    count = len(values)
    words = bits(Key.of(seed), Purpose.BOOTSTRAP, draws * count).tolist()
    pooled = []
    for draw in range(draws):
        chosen = [word % count for word in words[draw * count : (draw + 1) * count]]
        total = sum(weights[i] for i in chosen)
        pooled.append(sum(weights[i] * values[i] for i in chosen) / total)
    pooled.sort()
    ends = []
    for q in ((1 - level) / 2, (1 + level) / 2):
        index = q * (draws - 1)
        low = math.floor(index)
        ends.append(pooled[low] + (index - low) * (pooled[min(low + 1, draws - 1)] - pooled[low]))
    return ends[0], ends[1]


@pytest.mark.parametrize(("level", "draws"), [(0.95, 1000), (0.5, 137), (0.99, 400)])
def test_the_interval_equals_a_plain_bootstrap_of_clients(level, draws):
    assert SCORE.interval(level, draws) == pytest.approx(plain_bootstrap(ACCURACIES, SIZES, 3, level, draws))
    regression = score_of(None, LOSSES, SIZES, seed=9)
    assert regression.interval(level, draws) == pytest.approx(plain_bootstrap(LOSSES, SIZES, 9, level, draws))


@pytest.mark.parametrize("level", [0.0, 1.0, 95, math.nan])
def test_a_level_outside_zero_to_one_is_refused(level):
    with pytest.raises(ValueError, match=r"level=.* must lie in \(0, 1\)"):
        SCORE.interval(level)


# ---------------------------------------------------------------- summaries


def test_the_summary_is_complete_and_can_be_written_as_json():
    summary = SCORE.summary()
    assert json.loads(json.dumps(summary)) == summary
    assert (summary["attack"], summary["unit"]) == ("l_inf PGD", "pixels")
    for name in ("accuracy", "loss", "client_accuracy", "client_loss", "std"):
        assert summary[name] == getattr(SCORE, name)
    assert (summary["low"], summary["high"]) == SCORE.interval()
    assert summary["worst_client"] == 0.25
    assert (summary["worst_10"], summary["worst_20"]) == (SCORE.worst(0.1), SCORE.worst(0.2))
    assert (summary["attacked_accuracy"], summary["clean_loss"]) == (SCORE.attacked.accuracy, SCORE.clean.loss)


def test_the_repr_shows_accuracy_loss_clients_and_attack():
    assert repr(score_of([0.5, 1.0], [1.0, 0.0], [1, 3])) == (
        "Score(accuracy=0.8750, loss=0.2500, 2 clients, attack='none')"
    )
    assert repr(score_of(None, [1.0, 0.0], [1, 3])) == "Score(loss=0.2500, 2 clients, attack='none')"


@pytest.mark.parametrize("accuracies", [ACCURACIES, None])
def test_a_gap_is_positive_if_the_model_does_worse_there(accuracies):
    def better(values, by):
        return None if values is None else [value + by for value in values]

    losses = [value + 2.0 for value in LOSSES]
    train = score_of(better(accuracies, 0.2), better(losses, -0.3), SIZES)
    unseen = score_of(better(accuracies, -0.1), better(losses, 0.5), SIZES)
    score = dataclasses.replace(score_of(accuracies, losses, SIZES), train=train, unseen=unseen)
    assert score.out_of_sample_gap == pytest.approx(0.2 if accuracies else 0.3)
    assert score.participation_gap == pytest.approx(0.1 if accuracies else 0.5)
    summary = score.summary()
    assert summary["participation_gap"] == score.participation_gap
    assert summary["unseen_worst_10"] == unseen.worst(0.1) == unseen.worst_tenth
    assert (summary["unseen_low"], summary["unseen_high"]) == unseen.interval()
    assert summary["train_loss"] == train.loss
    assert json.dumps(summary)


def test_a_score_without_unseen_clients_has_no_gap():
    assert SCORE.participation_gap is None
    assert SCORE.out_of_sample_gap is None
    assert not [name for name in SCORE.summary() if "unseen" in name or "gap" in name]


def test_the_average_of_scores_is_that_of_each_client():
    other = score_of([1.0 - value for value in ACCURACIES], [2.0 * value for value in LOSSES], SIZES, ATTACKED, seed=3)
    unseen = [score_of([0.2, 0.4], [1.0, 2.0], [3, 5]), score_of([0.4, 0.8], [2.0, 4.0], [3, 5])]
    pair = [dataclasses.replace(score, unseen=part) for score, part in zip((SCORE, other), unseen, strict=True)]
    mean = averaged(pair)
    assert [client.accuracy for client in mean.per_client] == pytest.approx([0.5] * len(SIZES))
    assert [client.loss for client in mean.per_client] == pytest.approx([1.5 * value for value in LOSSES])
    assert mean.unseen is not None
    assert [client.accuracy for client in mean.unseen.per_client] == pytest.approx([0.3, 0.6])
    assert mean.train is None
    assert averaged([SCORE]) is SCORE
