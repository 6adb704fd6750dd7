"""What follows from the replies of calibration clients, against a plain reference that counts and sorts."""

from __future__ import annotations

import json
import math
from fractions import Fraction
from typing import Any

import mpmath
import numpy as np
import pytest
import torch

import wafl
from wafl.receipts.conclusion import Conclusion
from wafl.receipts.questions import Questions, default_grid
from wafl.receipts.reply import Reply, TooFewExamplesError, reply_of, upper_mean

GRID = (-1.0, 0.0, 0.5, 2.0)


def drawn(seed: int, count: int, questions: Questions) -> dict[str, Reply]:
    """Replies of clients with a few scores each, counted one by one."""
    random = np.random.default_rng(seed)
    replies: dict[str, Reply] = {}
    for index in range(count):
        size = int(random.integers(20, 40))
        scores = random.normal(size=size).round(1)
        above = tuple(float(sum(score > threshold for score in scores)) for threshold in questions.thresholds)
        value = float((scores > 0).mean())
        upper = min(value + 0.3, 1.0) if questions.own_sampling else None
        replies[f"c{index}"] = Reply(size, (value,), (upper,), (above,))
    return replies


def rank_of(values: list[float], level: Fraction, count: int, liars: int) -> float:
    """The smallest number that at least ``level (K + 1) + liars`` of the numbers do not exceed."""
    needed = next(rank for rank in range(count + 2) if Fraction(rank) >= level * (count + 1)) + liars
    return next(value for value in sorted(values) if sum(other <= value for other in values) >= needed)


@pytest.mark.parametrize("liars", [0, 2])
@pytest.mark.parametrize("missing", [0, 1, 3])
@pytest.mark.parametrize("confidence", [None, 0.75, 0.5])
def test_bounds_and_thresholds_are_those_of_a_plain_count(liars: int, missing: int, confidence: float | None) -> None:
    questions = Questions(grid=GRID, coverage=0.6, confidence=confidence, liars=liars)
    replies = drawn(liars + 10 * missing, 17 - missing, questions)
    lost = tuple(f"m{index}" for index in range(missing))
    conclusion = Conclusion(questions, "0" * 64, "input units", replies, ("tiny",), lost)
    count = 17
    assert conclusion.count == count
    by = {(each.kind, each.own_sampling): each for each in (*conclusion.next, *conclusion.sets)}
    for own_sampling, halves in ((False, 1), (True, 2)):
        most = 1 - Fraction(halves * (liars + 1), count + 1)
        level = min(Fraction(95, 100), most) if confidence is None else Fraction(confidence)
        if level > most:
            assert by["next", own_sampling].value is None
            continue
        share = (1 + level) / 2 if own_sampling else level
        numbers = [each.uppers[0] if own_sampling else each.values[0] for each in replies.values()]
        everyone = [float(number or 0.0) for number in numbers] + [math.inf] * missing
        row = by["next", own_sampling]
        assert row.value == rank_of(everyone, share, count, liars)
        assert row.confidence == pytest.approx(float(level), abs=1e-6)
    row = by["sets", False]
    most = 1 - Fraction(liars + 1, count + 1)
    level = min(Fraction(95, 100), most) if confidence is None else Fraction(confidence)
    rank = math.ceil(level * (count + 1)) + liars
    fitting = [
        threshold
        for index, threshold in enumerate(GRID)
        if sum(Fraction(each.above[0][index]) <= Fraction(2, 5) * each.examples for each in replies.values()) >= rank
    ]
    assert row.value == min(fitting, default=math.inf)


@pytest.mark.parametrize("liars", [0, 1])
def test_the_next_example_is_covered_by_the_threshold_of_a_plain_sum(liars: int) -> None:
    questions = Questions(grid=GRID, coverage=0.6, about="example", liars=liars, confidence=0.5)
    replies = drawn(5, 11, questions)
    conclusion = Conclusion(questions, "0" * 64, "input units", replies, missing=("gone",))
    fitting = [
        threshold
        for index, threshold in enumerate(GRID)
        if sum(Fraction(each.above[0][index]) / each.examples for each in replies.values()) + 1 + liars + 1
        <= Fraction(2, 5) * 13
    ]
    assert conclusion.sets[0].value == min(fitting, default=math.inf)


@pytest.mark.parametrize("liars", [1, 3])
def test_whatever_liars_answer_the_bound_is_that_of_the_honest_or_more(liars: int) -> None:
    """Against every client's true number: the worst that liars can do is to answer 0, or to be too small to count."""
    questions = Questions(grid=GRID, coverage=0.6, confidence=0.5, liars=liars, own_sampling=False)
    honest = drawn(3, 15, questions)
    truth = Conclusion(Questions(grid=GRID, coverage=0.6, confidence=0.5, own_sampling=False), "", "", honest)
    lie = Reply(30, (0.0,), (None,), ((0.0,) * len(GRID),))
    names = sorted(honest, key=lambda name: honest[name].values[0])
    for start in range(len(names) - liars + 1):
        lying = names[start : start + liars]
        told = {**honest, **dict.fromkeys(lying, lie)}
        conclusion = Conclusion(questions, "", "", told)
        gone = {name: reply for name, reply in honest.items() if name not in lying}
        hidden = Conclusion(questions, "", "", gone, small=tuple(lying))
        for each in (conclusion, hidden):
            assert each.next[0].value is not None
            assert each.next[0].value >= (truth.next[0].value or 0.0)
            assert (each.sets[0].value or 0.0) >= (truth.sets[0].value or 0.0)


def test_too_few_clients_support_nothing_and_say_so() -> None:
    questions = Questions(confidence=0.9)
    conclusion = Conclusion(questions, "", "", drawn(0, 3, Questions(grid=default_grid("margin"))))
    assert [each.value for each in (*conclusion.next, *conclusion.sets)] == [None] * 4
    assert "at most 75% confidence" in str(conclusion)
    alone = Conclusion(Questions(), "", "", {}, missing=("a",))
    assert "nothing follows" in alone.next[0].sentence


def test_a_conclusion_is_plain_json(tmp_path: Any) -> None:
    questions = Questions(grid=GRID)
    conclusion = Conclusion(questions, "0" * 64, "input units", drawn(1, 5, questions), missing=("a",))
    content = json.loads(conclusion.save(tmp_path / "next-client.json").read_text())
    assert content["statements"][0]["value"] == "inf"
    assert content["missing"] == ["a"]
    assert {name: Reply.of(each, questions) for name, each in content["replies"].items()} == conclusion.replies


def test_the_upper_bound_has_the_divergence_that_the_failure_allows() -> None:
    for mean, count, most, failure in (
        (0.0, 20, 1.0, 0.05),
        (0.2, 50, 1.0, 0.01),
        (1.5, 400, 4.0, 1e-4),
        (1.0, 9, 1.0, 0.1),
    ):
        upper = upper_mean(mean, count, most, failure)
        if upper == most:
            assert mean == most
            continue
        with mpmath.workdps(40):
            p, q = mpmath.mpf(mean) / most, mpmath.mpf(upper) / most
            left = p * mpmath.log(p / q) if p else mpmath.mpf(0)
            divergence = left + (1 - p) * mpmath.log((1 - p) / (1 - q))
            limit = mpmath.log(1 / mpmath.mpf(failure)) / count
            assert limit <= divergence <= limit * (1 + mpmath.mpf("1e-6"))


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"radii": (0.1, 0.0)}, "must rise"),
        ({"radii": tuple(range(11))}, "radii has 11 numbers: give at most 10"),
        ({"grid": (0.0, 0.0)}, "must rise"),
        ({"grid": tuple(range(65))}, "at most 64"),
        ({"score": "residual"}, "has the unit of the targets"),
        ({"score": "aps", "radii": (0.1,)}, "use 'margin' or 'residual'"),
        ({"about": "example", "radii": (0.0, 0.1)}, "one number for each radius above 0"),
        ({"gammas": (1.0,)}, "are for about='example'"),
        ({"coverage": 1.0}, "coverage=1.0 must"),
        ({"minimum": 0}, "minimum=0 must"),
        ({"liars": -1}, "liars=-1 must"),
        ({"radius": 0.1}, "did you mean 'radii'"),
        ({"metric": "auc"}, "metric='auc' must be loss or error"),
    ],
)
def test_questions_that_cannot_be_asked_are_refused(values: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Questions.of(values)


def test_the_same_questions_have_one_digest(tmp_path: Any) -> None:
    file = tmp_path / "q.toml"
    file.write_text('norm = "inf"\nradii = [0, 1]\n')
    questions = Questions.read(file)
    assert questions == Questions(norm=math.inf, radii=(0.0, 1.0))
    assert Questions.of(json.loads(json.dumps(questions.content))).digest == questions.digest
    assert Questions(grid=default_grid("margin")).digest == Questions().digest != questions.digest
    file.write_text("norm = ")
    with pytest.raises(ValueError, match="is not a TOML file"):
        Questions.read(file)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"examples": 19}, "at least 20 examples"),
        ({"examples": 30.0}, "at least 20 examples"),
        ({"values": [math.nan]}, "must"),
        ({"values": [-0.1]}, "must"),
        ({"values": [True]}, "must have numbers"),
        ({"values": [0.1, 0.1]}, "must have 1 entries"),
        ({"uppers": [None]}, "uppers must contain a number for radius 0"),
        ({"above": [[3.0, 4.0, 0.0, 0.0]]}, "above must not rise"),
        ({"above": [[31.0, 4.0, 0.0, 0.0]]}, "more scores than"),
        ({"more": 1}, "a reply must have"),
    ],
)
def test_a_reply_of_another_kind_is_refused(changes: dict[str, Any], message: str) -> None:
    questions = Questions(grid=GRID)
    content = {"examples": 30, "values": [0.1], "uppers": [0.3], "above": [[9.0, 4.0, 1.0, 0.0]], "reason": ""}
    assert Reply.of(content, questions).examples == 30
    with pytest.raises(ValueError, match=message):
        Reply.of({**content, **changes}, questions)


def test_a_reply_is_about_one_client_with_enough_examples_and_known_bounds() -> None:
    clients = wafl.load_dataset("digits").partition(num_clients=99, iid=True)
    model = wafl.models.mlr(clients)
    with pytest.raises(TooFewExamplesError, match="fewer than 20"):
        reply_of(Questions(minimum=20), model, clients.of_clients([0]), 5)
    with pytest.raises(ValueError, match="a reply is about 1 client"):
        reply_of(Questions(), model, clients, 5)
    with pytest.raises(wafl.PreconditionError, match="support no statement about a distribution"):
        reply_of(Questions(minimum=1), model, clients.of_clients([0]), 1)
    loss = reply_of(Questions(metric="loss", minimum=1), model, clients.of_clients([0]), 9)
    assert loss.values[0] == pytest.approx(math.log(10.0), rel=1e-12)
    assert loss.uppers[0] is not None
    assert loss.uppers[0] >= loss.values[0]


@pytest.mark.parametrize("liars", [0, 1])
def test_the_upper_bound_of_a_reply_shares_the_failure_among_all_that_were_invited(liars: int) -> None:
    """With 9 clients 80% are supported; 10% pay for 9 bounds. With a liar these are 60% and 20%."""
    clients = wafl.load_dataset("digits").partition(num_clients=20, iid=True).of_clients([3])
    reply = reply_of(Questions(liars=liars), wafl.models.mlr(clients), clients, 9)
    assert reply.values == (1.0,), "all outputs of an untrained model are equal"
    assert reply.uppers == (1.0,)
    model = wafl.models.mlr(clients)
    for value in model.parameters():
        torch.nn.init.normal_(value, generator=torch.Generator().manual_seed(0))
    reply = reply_of(Questions(liars=liars), model, clients, 9)
    expected = upper_mean(reply.values[0], reply.examples, 1.0, (1.0 + liars) / 10.0 / 9.0)
    assert reply.uppers[0] == pytest.approx(expected, rel=1e-6)
