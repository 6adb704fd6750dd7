"""Requests and receipts with models and data: the numbers equal the embedded calls', and are given once."""

from __future__ import annotations

import math
import time
from dataclasses import asdict, replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import wafl
from tests.promises.files import write_keys
from tests.receipts.sites import Sites, drawn
from wafl.promises.receipts import Receipt, now, read
from wafl.receipts import answered
from wafl.receipts.answered import Answered, AnsweredBeforeError
from wafl.receipts.questions import Questions
from wafl.receipts.reply import Reply, reply_of
from wafl.tasks.losses import SquaredError

COUNT = 7


def clients(classes: bool = True, size: int = 30) -> wafl.Federation:
    rng = np.random.default_rng(0)
    pairs = []
    for index in range(COUNT):
        x = rng.normal(size=(size + index, 3)) + 0.3 * index
        pairs.append((x, (x[:, 0] > 0).astype(int) if classes else x @ [1.0, -1.0, 0.5]))
    names = [f"c{index}" for index in range(COUNT)]
    return wafl.Federation.from_arrays(pairs, names=names, test_fraction=0.2)


def model(outputs: int = 2) -> nn.Module:
    torch.manual_seed(0)
    return nn.Linear(3, outputs)


ASKED: dict[str, tuple[dict[str, Any], bool]] = {
    "usual": ({}, True),
    "loss": ({"metric": "loss", "own_sampling": False}, True),
    "radii": ({"radii": (0.0, 0.2), "norm": math.inf, "confidence": 0.5}, True),
    "example": ({"about": "example", "coverage": 0.7, "radii": (0.0, 0.1), "gammas": (2.0,)}, True),
    "scores": ({"score": "aps", "confidence": 0.5}, True),
    "regression": (
        {"metric": "loss", "score": "residual", "grid": (0.1, 1.0, 10.0), "own_sampling": False, "radii": (0.0, 0.1)},
        False,
    ),
}


@pytest.mark.parametrize(("values", "classes"), ASKED.values(), ids=ASKED)
def test_numbers_and_statements_are_those_of_the_embedded_calls(
    values: dict[str, Any], classes: bool, tmp_path: Path
) -> None:
    everyone, module = clients(classes), model(2 if classes else 1)
    loss = "cross_entropy" if classes else "squared_error"
    questions, sites = Questions(**values), Sites(tmp_path, COUNT)
    request = wafl.receipts.request(module, questions, invite=tmp_path / "invited", key=sites.owner, loss=loss)
    request.save(tmp_path / "request.json")
    replies: dict[str, Reply] = {}
    for index, name in enumerate(sites.names):
        own = everyone.of_clients([index])
        options: dict[str, Any] = {"key": sites.site(name), "state": tmp_path / "state", "loss": loss}
        receipt = wafl.receipts.receipt(tmp_path / "request.json", module, own, owner=sites.public, **options)
        file = receipt.save(tmp_path / "receipts" / f"{name}.json")
        replies[name] = reply_of(questions, module, own, COUNT, loss)
        told = read(Receipt, file).reply
        assert told is not None
        assert Reply.of(asdict(told), questions) == replies[name], "bit for bit, after a file"
    result = wafl.receipts.merge(tmp_path / "request.json", tmp_path / "receipts")
    assert (result.rejected, dict(result.conclusion.replies)) == ({}, replies)
    result.save(tmp_path / "next-client.json")
    options = {"receipts": tmp_path / "receipts", "key": sites.public, "loss": loss}
    checked = wafl.receipts.verify(
        tmp_path / "next-client.json", model=module, data=everyone.of_clients([2]), **options
    )
    assert checked.verdict == "PROVEN", str(checked)
    assert checked.clients["c2"].why.endswith("its numbers follow from these data and this model")
    other = everyone.of_clients([3])
    wrong = wafl.receipts.verify(tmp_path / "next-client.json", model=module, data=other, client="c2", **options)
    assert (wrong.verdict, wrong.clients["c2"].status, wrong.clients["c3"].status) == ("WRONG", "wrong", "recomputed")
    if questions.radii == (0.0,) and questions.about == "client" and classes:
        sets = wafl.prediction_sets(
            module, everyone, coverage=questions.coverage, score=questions.score, grid=questions.thresholds,
            confidence=questions.confidence,
        )  # fmt: skip
        assert result.merged.statements[-1 - questions.own_sampling].value in (sets.threshold, "inf")
        assert (sets.threshold == math.inf) is (result.merged.statements[-1 - questions.own_sampling].value == "inf")


@pytest.fixture
def sites(tmp_path: Path) -> Sites:
    return Sites(tmp_path, COUNT)


def ask(sites: Sites, module: nn.Module | None = None, **options: Any) -> Any:
    values: dict[str, Any] = {"own_sampling": False, **options.pop("questions", {})}
    questions = Questions(**values)
    return wafl.receipts.request(
        module or model(), questions, invite=sites.folder / "invited", key=sites.owner, **options
    )


def reply(sites: Sites, request: Any, data: wafl.Federation, **options: Any) -> Receipt:
    given: dict[str, Any] = {"key": sites.site("c2"), "state": sites.folder / "state", **options}
    return wafl.receipts.receipt(request, given.pop("model", model()), data, **given)


def test_a_site_with_too_few_examples_signs_that_and_leaves_the_population(sites: Sites) -> None:
    request, everyone = ask(sites, questions={"minimum": 33, "own_sampling": False}), clients()
    for index, name in enumerate(sites.names):
        receipt = reply(sites, request, everyone.of_clients([index]), key=sites.site(name))
        assert (receipt.reply is None) is (index < 3)
        receipt.save(sites.folder / "receipts" / f"{name}.json")
    result = wafl.receipts.merge(request, sites.folder / "receipts")
    assert (result.merged.small, result.merged.count) == (("c0", "c1", "c2"), 4)
    assert "the most that 4 sites support" in str(result)
    assert "| have fewer than 33 examples, so that this is not about sites like them | 3 |" in str(result)


def test_numbers_about_nearly_the_same_examples_are_given_once(sites: Sites) -> None:
    request, everyone = ask(sites), clients(size=60)
    own = everyone.of_clients([2])
    first = reply(sites, request, own)
    assert reply(sites, request, own).reply == first.reply, "the same numbers reveal nothing new"
    x, y = own.train.raw, own.train.y

    def changed(count: int, extra: int = 0) -> wafl.Federation:
        rows = torch.arange(extra, len(y))
        moved = x[rows].clone()
        moved[:count] += 1.0
        return wafl.Federation.from_arrays([(moved, y[rows])], names=["c2"], test_fraction=0.0)

    all_of_it = changed(0)
    with pytest.raises(AnsweredBeforeError, match="fewer than 20 of its examples have changed"):
        reply(sites, request, all_of_it)
    state = {"state": sites.folder / "other state"}
    reply(sites, request, all_of_it, **state)
    for few in (changed(1), changed(0, extra=1), changed(19)):
        with pytest.raises(AnsweredBeforeError, match="fewer than 20"):
            reply(sites, request, few, **state)
    reply(sites, request, changed(20), **state)
    with pytest.raises(AnsweredBeforeError, match="fewer than 20"):
        reply(sites, request, changed(1), **state)  # of the first answer, not of the last one
    again = ask(sites)
    reply(sites, again, all_of_it, **state)  # another request with the same questions: the same numbers
    other = ask(sites, questions={"coverage": 0.8})
    with pytest.raises(AnsweredBeforeError, match=r"other numbers about the same examples .* \(--again\)"):
        reply(sites, other, all_of_it, **state)
    assert reply(sites, other, all_of_it, again=True, **state).reply is not None
    with pytest.raises(AnsweredBeforeError, match="fewer than 20"):
        reply(sites, other, changed(1), again=True, **state)


def test_two_answers_at_once_are_not_both_given(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(answered, "PATIENCE", 0.0)
    one, other = Answered(tmp_path), Answered(tmp_path)
    own = clients().of_clients([2])
    with one.once("c2", "one model", own, other="no"):
        with pytest.raises(AnsweredBeforeError, match="another process"), other.once("c2", "another", own, other="no"):
            pytest.fail("both answer")
        with other.once("c3", "another", own, other="no"):
            pass
    told = pytest.raises(AnsweredBeforeError, match="it has answered about one model")
    with told, other.once("c2", "another", own, other="no"):
        pytest.fail("both answer")


def test_another_loss_or_preparation_is_another_question(sites: Sites) -> None:
    """The owner writes both into the model's folder: each would show more of the same examples."""
    rng = np.random.default_rng(0)
    pairs = [(rng.integers(0, 256, (30, 3)).astype(np.uint8), np.arange(30) % 2)]
    own = wafl.Federation.from_arrays(pairs, names=["c2"], test_fraction=0.2, preprocess="unit")
    prepare = replace(own.train.prepare, scale=torch.tensor([255.0, 1e9, 1e9]))
    one_pixel = replace(own.prepared_by(prepare), unit=own.unit)
    first, losses = ("margin(0, 0.001)", "margin(0.5, 0.001)", "squared_error"), {"metric": "loss"}
    for loss in first[:1] * 2:
        reply(sites, ask(sites, questions=losses, unit=own.unit, loss=loss), own, loss=loss)
    for data, loss in ((own, first[1]), (own, first[2]), (one_pixel, first[0])):
        request = ask(sites, questions=losses, unit=own.unit, loss=loss)
        with pytest.raises(AnsweredBeforeError, match=r"other numbers .* \(--again\)"):
            reply(sites, request, data, loss=loss)


def test_no_upper_bound_follows_from_bounds_that_examples_leave(sites: Sites) -> None:
    own = clients().of_clients([2])
    low, high = own.examples.span()
    request = ask(sites, questions={"metric": "loss", "own_sampling": True})
    with pytest.raises(ValueError, match=r"outside bounds=\(-1e-06, 1e-06\), from which the largest loss follows"):
        reply(sites, request, replace(own, bounds=(-1e-6, 1e-6)))
    told = reply(sites, request, replace(own, bounds=(low, high))).reply
    assert told is not None
    assert told.uppers[0] is not None


def test_a_site_answers_no_request_that_is_not_for_it(sites: Sites, tmp_path: Path) -> None:
    request, own = ask(sites), clients().of_clients([2])
    stranger, public = write_keys(tmp_path, "stranger")
    cases: list[tuple[dict[str, Any], str]] = [
        ({"key": stranger}, "was not invited"),
        ({"owner": public}, "not with this one: do not rely on it"),
        ({"model": model(3)}, "and the request is about"),
        ({"loss": "squared_error"}, "the request is about 'cross_entropy'"),
        ({"data": replace(own, unit="volts")}, "the data are in 'volts'"),
        ({"data": clients()}, "a receipt is about 1 client, and these data have 7"),
        ({"key": tmp_path / "none.pem"}, "is not a file"),
        ({"request": replace(request, nonce="1" * 32)}, "was not signed by its owner"),
    ]
    for changes, message in cases:
        options = {"request": request, "data": own, **changes}
        with pytest.raises(ValueError, match=message):
            reply(sites, options.pop("request"), options.pop("data"), **options)
    assert not (tmp_path / "state").exists(), "nothing was answered"
    over = sites.asked(Questions(), model=request.model, deadline=(now() - timedelta(seconds=1)).isoformat())
    with pytest.raises(ValueError, match=r"the deadline .* has passed"):
        reply(sites, over, own)
    nan = replace(own, train=replace(own.train, raw=own.train.x * math.nan))
    with pytest.raises(ValueError, match="NaN"):
        reply(sites, request, nan)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"questions": {"confidence": 0.9}}, "support at most 87.5% confidence"),
        ({"questions": {"liars": 7}}, "7 sites support no statement about the next client: invite more$"),
        ({"questions": {"liars": 3, "own_sampling": True}}, "invite more, or use own_sampling = false"),
        ({"deadline": "2020-01-01"}, "has passed: pass a later one"),
        ({"deadline": "soon"}, "must be a date or a time"),
        ({"trained": "nothing.txt"}, "cannot be read"),
    ],
)
def test_what_cannot_be_answered_is_not_asked(options: dict[str, Any], message: str, sites: Sites) -> None:
    with pytest.raises(ValueError, match=message):
        ask(sites, **options)


def test_a_deadline_includes_its_day_and_own_losses_are_named(sites: Sites) -> None:
    assert ask(sites, deadline="2999-01-31").deadline == "2999-01-31T23:59:59+00:00"
    assert ask(sites, deadline="2999-01-31T12:00:00+01:00").deadline == "2999-01-31T12:00:00+01:00"
    assert ask(sites, loss=SquaredError()).loss == "squared_error"
    assert ask(sites, loss=lambda outputs, y: outputs.sum(-1)).loss.startswith("a loss of your own")
    request = ask(sites)
    assert ask(sites).nonce != request.nonce
    with pytest.raises(ValueError, match="has no public keys"):
        wafl.receipts.request(model(), Questions(), invite=sites.folder / "receipts", key=sites.owner)


def test_a_site_checks_only_its_own_line(sites: Sites) -> None:
    request, everyone = ask(sites), clients()
    reply(sites, request, everyone.of_clients([2])).save(sites.folder / "receipts" / "c2.json")
    wafl.receipts.merge(request, [sites.folder / "receipts" / "c2.json"]).save(sites.folder / "n.json")
    options: dict[str, Any] = {"receipts": sites.folder / "receipts", "data": everyone.of_clients([2])}
    with pytest.raises(ValueError, match="give the model too"):
        wafl.receipts.verify(sites.folder / "n.json", **options)
    with pytest.raises(ValueError, match="'north' was not invited"):
        wafl.receipts.verify(sites.folder / "n.json", model=model(), client="north", **options)
    missing = wafl.receipts.verify(sites.folder / "n.json", model=model(), client="c3", **options)
    assert (missing.clients["c3"].status, missing.verdict) == ("noted", "PROVEN")
    checked = wafl.receipts.verify(sites.folder / "n.json", model=model(), **options)
    assert checked.verdict_of("c2") == "PROVEN"


@pytest.mark.slow
def test_a_thousand_receipts_are_merged_within_5_seconds_of_processor_time(tmp_path: Path) -> None:
    count, questions = 1000, Questions(radii=(0.0, 0.1, 0.2))
    sites = Sites(tmp_path, count)
    request = sites.asked(questions)
    receipts = sites.reply_all(request, drawn(0, sites.names, questions))
    wafl.receipts.merge(request, [])  # loads what is loaded once
    began = time.process_time()
    result = wafl.receipts.merge(request, receipts)
    seconds = time.process_time() - began
    print(f"merged 1,000 receipts in {seconds:.2f} s")
    assert len(result.merged.replies) == count
    assert seconds <= 5.0
    result.save(tmp_path / "next-client.json")
    began = time.process_time()
    assert wafl.receipts.verify(tmp_path / "next-client.json", receipts=receipts).verdict == "PROVEN"
    print(f"verified in {time.process_time() - began:.2f} s")
