"""Statements about the next client as files: against a slow proof, and against changes of a leaf of the JSON.

The slow proof knows nothing of the library's: it moves examples over a grid of the plane, and counts places exactly.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from dataclasses import replace
from fractions import Fraction
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import wafl
from tests.oracles.betting import HEDGE, log_capital
from tests.promises.files import forge, publish_next_client, status, write_keys
from tests.promises.mutations import check_mutations, grid_losses, priced
from wafl.promises.bets import rank_of
from wafl.promises.promise import digest_of, whole_file

Content = dict[str, Any]
COUNT, SIZE = 7, 6

KINDS: dict[str, dict[str, Any]] = {
    "loss, nothing moves": {"radius": 0.0},
    "loss, l2": {"radius": 0.3},
    "loss, l_inf, of examples": {"radius": 0.2, "norm": math.inf, "own_sampling": False},
    "error": {"radius": 0.1, "metric": "error", "share": 0.6},
    "loss, at the highest confidence": {"radius": 0.0, "share": 0.5, "confidence": None},
    "loss, of examples, at the highest confidence": {
        "radius": 0.2,
        "own_sampling": False,
        "share": 0.6,
        "confidence": None,
    },
    "loss, l2, one of eight without an answer": {"radius": 0.3, "share": 0.5, "confidence": 0.5, "silent": 1},
    "error, of examples, two of nine without an answer": {
        "radius": 0.1,
        "metric": "error",
        "own_sampling": False,
        "share": 0.5,
        "silent": 2,
    },
}


@cache
def model() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(2, 3)).double()


@cache
def world() -> tuple[wafl.Federation, wafl.Federation]:
    rng = np.random.default_rng(0)
    pairs = [(np.clip(rng.uniform(size=2) + 0.2 * rng.normal(size=(SIZE, 2)), 0.0, 1.0), np.arange(SIZE) % 3)
             for _ in range(COUNT + 5)]  # fmt: skip
    clients = wafl.Federation.from_arrays(pairs, bounds=(0.0, 1.0), num_classes=3, test_fraction=0.5)
    return clients.set_apart(list(range(5, COUNT + 5)))


def options_of(kind: str) -> dict[str, Any]:
    """Return the options of a statement; clients that do not answer are invited by name."""
    options = {"share": 0.7, "confidence": 0.7, **KINDS[kind]}
    silent = [f"silent {number}" for number in range(options.pop("silent", 0))]
    return {**options, "invited": [*world()[1].names, *silent]} if silent else options


@cache
def issued(kind: str) -> Content:
    options = options_of(kind)
    promise = publish_next_client(model(), *world(), **options)
    return json.loads(json.dumps(promise.content))


def written(content: Content, folder: Path) -> Path:
    file = folder / "next.json"
    file.write_bytes(whole_file(content, None))
    return file


@cache
def losses(metric: str, index: int) -> np.ndarray:
    """Of every example of a held-out client, train and test, after every move of the grid."""
    unseen = world()[1]
    parts = [part.of(index) for part in (unseen.train, unseen.test)]
    x = np.concatenate([each.double().numpy() for each, _ in parts])
    y = np.concatenate([each.numpy() for _, each in parts])
    return grid_losses(model(), metric, x, y)


def phi(claim: Content, table: np.ndarray, gamma: float | None) -> np.ndarray:
    return priced(claim, table, 1e30 if gamma is None else gamma)


def firstplace_of(share: Fraction | None, count: int, level: Fraction) -> int:
    """The smallest place that will do, from the definitions, with fractions."""
    for index in range(1, count + 1):
        if share is None:
            good = Fraction(index, count + 1) >= 1 - level
        else:
            ways = [math.comb(count, k) * share**k * (1 - share) ** (count - k) for k in range(index, count + 1)]
            good = sum(ways) <= level
        if good:
            return index
    return count + 1


def capital(values: np.ndarray, bet: float, delta: float, most: float) -> float:
    """The largest mean that a gambler who bets that it is smaller does not refute, by bisection."""
    if bet * most >= 1.0:  # a gambler who could lose more than all of the capital
        return most
    low, high = 0.0, most
    for _ in range(60):
        mean = (low + high) / 2.0
        won = sum(share * np.exp(log_capital(values, mean, part * bet)) for share, part in HEDGE)
        low, high = (low, mean) if won >= 1.0 / delta else (mean, high)
    return high


def slow_proof(content: Content) -> str | None:
    """Why the file is not true of these clients, from the printed page and the grid; None if it is."""
    claim, witness, unseen = content["claim"], content["witnesses"][0], world()[1]
    if claim["model"] != digest_of(model()):
        return "another model"
    names = [client["name"] for client in claim["clients"]]
    drawn, silent = len(names) + len(claim.get("missing", ())), len(claim.get("missing", ()))
    if len(set(names)) != len(names) or set(names) != set(unseen.names):
        return "other clients"
    held = unseen.train.joined(unseen.test)
    for client in claim["clients"]:
        if (
            client["examples"] != SIZE
            or client["sha256"] != held.of_clients([unseen.names.index(client["name"])]).digest()
        ):
            return "other examples"
    gamma = witness["gamma"]
    offset = 0.0 if gamma is None else gamma * claim["rows"][0]["radius"] ** 2
    tables = [phi(claim, losses(claim["metric"], unseen.names.index(name)), gamma) for name in names]
    corners = np.array([[a, b] for a in (0.0, 0.5, 1.0) for b in (0.0, 0.5, 1.0)])
    most = 1.0
    if claim["metric"] == "loss":
        most = max(
            phi(claim, grid_losses(model(), "loss", corners, np.full(9, label)), gamma).max() for label in range(3)
        )
    for claimed in claim["rows"]:
        delta = 1 - Fraction(repr(claimed.get("confidence", claim["confidence"])))
        if claimed["about"] == "mean":
            means = [*(each.mean() for each in tables), *[most] * silent]
            least = capital(np.array(means), witness["bet"], float(delta), most)
        else:
            share = None if claimed["share"] is None else Fraction(repr(claimed["share"]))
            index = firstplace_of(share, drawn, delta / 2 if claim["own_sampling"] else delta)
            if index > len(names):
                return "too few clients"
            values = [each.mean() for each in tables]
            if claim["own_sampling"]:
                bets = zip(tables, witness["draws"]["bets"], strict=True)
                values = [capital(each, bet, float(delta / 2 / drawn), most) for each, bet in bets]
            least = sorted(values)[index - 1]
        least = min(offset + least, 1.0 if claim["metric"] == "error" else math.inf)
        # The grid finds a little less than the best move.
        if claimed["value"] < least * (1.0 - 1e-9):
            return f"{claimed['about']}: {claimed['value']} is below {least}"
    return None


def check_kind(kind: str, folder: Path, share: float) -> None:
    check_mutations(
        issued(kind), share, folder, lambda file: wafl.verify(file, model=model(), data=world()[1]), slow_proof
    )


@pytest.mark.parametrize("kind", KINDS)
def test_some_changes_of_a_file_are_refused_or_true(kind: str, tmp_path: Path) -> None:
    check_kind(kind, tmp_path, 0.02)


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_every_change_of_a_file_is_refused_or_true(kind: str, tmp_path: Path) -> None:
    check_kind(kind, tmp_path, 1.0)


@pytest.mark.parametrize("kind", KINDS)
def test_a_file_is_recomputed_with_model_and_data_and_attested_without(kind: str, tmp_path: Path) -> None:
    file, unseen = written(issued(kind), tmp_path), world()[1]
    checked = wafl.verify(file, model=model(), data=unseen)
    assert (checked.ok, checked.recomputed, checked.share) == (True, True, 1.0)
    missing = {"missing"} if "missing" in issued(kind)["claim"] else set[str]()
    noted = {name for name, each in status(checked).items() if each == "noted"}
    assert noted == {"draws", "bounds", "issued"} | missing
    assert ("gave no finite answer, which counts as infinity: silent 0" in str(checked.promise)) == bool(missing)
    assert "It is proven, not tested." in str(checked.promise)
    for given in ({}, {"model": model()}, {"data": unseen}):
        without = wafl.verify(file, **given)
        assert set(status(without).values()) == {"attested", "noted"}
        assert (without.ok, without.recomputed, without.share) == (True, False, 0.0)
        assert "the issuer's word" in str(without.promise)


@pytest.mark.parametrize("kind", KINDS)
def test_what_is_published_is_about_what_is_found(kind: str) -> None:
    """Linear models: the checker's means are at most 6% larger here."""
    options = options_of(kind)
    share, sampled = options.pop("share"), options.pop("own_sampling", True)
    claimed = wafl.next_client(model(), *world(), **options)
    published = {each["about"]: each["value"] for each in issued(kind)["claim"]["rows"]}
    assert published["mean"] <= 1.06 * claimed.mean()
    assert published["share"] <= 1.06 * claimed.share(share, own_sampling=sampled)
    assert published["next"] <= 1.06 * claimed.next(own_sampling=sampled)


def test_a_client_checks_its_own_line_with_its_own_data(tmp_path: Path) -> None:
    file, unseen = written(issued("loss, l2"), tmp_path), world()[1]
    mine = unseen.of_clients([3])
    checked = wafl.verify(file, model=model(), data=mine)
    assert (checked.ok, checked.recomputed, checked.share) == (True, False, pytest.approx(1 / COUNT))
    assert checked.clients[mine.names[0]].status == "recomputed"
    for change in (
        lambda witness: witness["means"].__setitem__(3, witness["means"][3] * (1.0 - 1e-6)),
        lambda witness: witness["draws"]["paid"][0].__setitem__(3, witness["draws"]["paid"][0][3] * (1.0 - 1e-6)),
    ):
        content = json.loads(json.dumps(issued("loss, l2")))
        change(content["witnesses"][0])
        assert (
            wafl.verify(written(content, tmp_path), model=model(), data=mine).clients[mine.names[0]].status == "wrong"
        )


def without_the_hardest(content: Content) -> None:
    """Leave out the client with the largest mean, as a cheater would for a smaller number."""
    worst = int(np.argmax(content["witnesses"][0]["means"]))
    draws = content["witnesses"][0]["draws"]
    for numbers in (content["claim"]["clients"], content["witnesses"][0]["means"], draws["bets"], *draws["paid"]):
        del numbers[worst]
    weigh(content)


def test_names_of_missing_clients_are_those_of_no_others(tmp_path: Path) -> None:
    kind = "loss, l2, one of eight without an answer"
    for missing in (["silent 0", "silent 0"], [issued(kind)["claim"]["clients"][0]["name"]], ["a\nPROVEN"], []):
        content = json.loads(json.dumps(issued(kind)))
        content["claim"]["missing"] = missing
        with pytest.raises(ValueError, match=r"listed twice|cannot be printed|a field that no certif"):
            wafl.verify(written(content, tmp_path))


def test_numbers_of_eight_clients_are_not_proven_by_the_seven_that_answered(tmp_path: Path) -> None:
    kind = "loss, l2, one of eight without an answer"
    answered: dict[str, Any] = {**options_of(kind), "invited": None}
    fewer = publish_next_client(model(), *world(), **answered).parts.claim.rows
    content = json.loads(json.dumps(issued(kind)))
    for row, other in zip(content["claim"]["rows"], fewer, strict=True):
        assert row["about"] == other.about
        assert row["value"] > other.value
        row["value"] = other.value
    assert not wafl.verify(written(content, tmp_path), model=model(), data=world()[1]).ok


def weigh(content: Content) -> None:
    """Give all clients the same weight."""
    for client in content["claim"]["clients"]:
        client["weight"] = 1.0 / len(content["claim"]["clients"])


def twice(content: Content, **changed: Any) -> None:
    """List the client with the smallest mean once more."""
    best = int(np.argmin(content["witnesses"][0]["means"]))
    draws = content["witnesses"][0]["draws"]
    content["claim"]["clients"].append({**content["claim"]["clients"][best], **changed})
    for numbers in (content["witnesses"][0]["means"], draws["bets"], *draws["paid"]):
        numbers.append(numbers[best])
    weigh(content)


def test_a_client_listed_twice_is_refused_and_one_under_another_name_recomputes_nothing(tmp_path: Path) -> None:
    content = json.loads(json.dumps(issued("loss, l2")))
    twice(content)
    with pytest.raises(ValueError, match="a client is listed twice"):
        wafl.verify(written(content, tmp_path))
    content["claim"]["clients"][-1]["name"] = "ghost"
    checked = wafl.verify(written(content, tmp_path), model=model(), data=world()[1])
    assert not checked.recomputed
    assert "the issuer's word" in str(checked.promise)


def test_a_client_that_is_left_out_is_noticed_by_whoever_has_its_data(tmp_path: Path) -> None:
    content = json.loads(json.dumps(issued("loss, l2")))
    without_the_hardest(content)
    checked = wafl.verify(written(content, tmp_path), model=model(), data=world()[1])
    assert status(checked)["draws"] == "wrong"
    assert not checked.ok


@pytest.mark.parametrize("level", [0.71, 0.9, 0.99])
def test_another_confidence_with_the_same_values_is_wrong(level: float, tmp_path: Path) -> None:
    content = json.loads(json.dumps(issued("loss, l2")))
    content["claim"]["confidence"] = level
    checked = wafl.verify(written(content, tmp_path), model=model(), data=world()[1])
    assert status(checked)["radius 0.3, mean"] == "wrong"
    assert status(checked)["radius 0.3, next"] == "wrong"


CHANGES: dict[str, Callable[[Content], object]] = {
    "a share of everyone": lambda c: c["claim"]["rows"][1].update(share=1.0),
    "a mean of a share": lambda c: c["claim"]["rows"][0].update(share=0.5),
    "a sampling that is a number": lambda c: c["claim"].update(own_sampling=1),
    "no bets for own sampling": lambda c: c["witnesses"][0].update(draws=None),
    "bets without own sampling": lambda c: c["claim"].update(own_sampling=False),
    "a negative bet": lambda c: c["witnesses"][0].update(bet=-1.0),
    "about something else": lambda c: c["claim"]["rows"][0].update(about="everyone"),
    "about a mixture": lambda c: c["claim"]["rows"][0].update(about="mixture"),
    "of a part": lambda c: c["claim"].update(part="test"),
    "several radii": lambda c: c["claim"]["rows"][0].update(radius=0.1),
    "clients of more weight": lambda c: [
        c["claim"]["clients"][i].update(weight=w / 7) for i, w in ((0, 0.5), (1, 1.5))
    ],
}


@pytest.mark.parametrize("change", CHANGES)
def test_what_does_not_fit_together_is_refused(change: str, tmp_path: Path) -> None:
    content = json.loads(json.dumps(issued("loss, l2")))
    CHANGES[change](content)
    with pytest.raises(ValueError, match="is not a certificate, or was changed"):
        wafl.verify(written(content, tmp_path))


@pytest.mark.parametrize("bet", [0.0, 1.0])
def test_a_bet_that_is_too_bold_or_nothing_proves_nothing(bet: float, tmp_path: Path) -> None:
    content = json.loads(json.dumps(issued("error")))
    content["witnesses"][0]["bet"] = content["witnesses"][0]["draws"]["bets"][0] = bet
    checked = wafl.verify(written(content, tmp_path), model=model(), data=world()[1])
    assert (
        [line.status for line in checked.lines[1:4]] == ["wrong"] * 3 if bet else ["wrong", "recomputed", "recomputed"]
    )


def test_it_is_signed_as_certificates_are(tmp_path: Path) -> None:
    private, public = write_keys(tmp_path)
    file = tmp_path / "next.json"
    page = publish_next_client(model(), *world(), confidence=0.7).save(file, key=private)
    assert wafl.verify(file, key=public).signed
    assert "at least 0.7" in page.read_text()
    forge(file, lambda content: content["claim"]["rows"][0].update(value=100.0))
    assert wafl.verify(file).ok
    with pytest.raises(ValueError, match="was not signed with this key, or was changed since"):
        wafl.verify(file, key=public)
    with pytest.raises(ValueError, match="does not describe its labels' examples"):
        wafl.audit(file, model(), world()[1])


def test_the_page_says_no_less_than_the_file() -> None:
    promise = publish_next_client(model(), *world(), radius=0.1, confidence=0.7, share=0.7)
    cells = [line.split("|")[1:3] for line in str(promise).splitlines() if line.startswith("| ")][2:]
    for (who, printed), (name, value) in zip(cells, promise.values.items(), strict=True):
        assert value <= float(printed) <= value + 1.1e-4, name
        assert ("0.7 of all clients" in who) == (name == "share 0.7")


def test_what_nothing_can_be_said_about_is_left_out_or_refused_with_a_remedy() -> None:
    seen, unseen = world()
    few = unseen.of_clients(range(4))
    alone = unseen.of_clients([0])
    for metric in ("loss", "error"):
        assert set(publish_next_client(model(), seen, few, metric=metric).values) == {"mean", "next"}
        assert set(publish_next_client(model(), seen, alone, metric=metric).values) == {"mean"}
    free = [replace(each, bounds=None) for each in (seen, unseen)]
    with pytest.raises(wafl.PreconditionError, match=r"own sampling error needs bounds.*own_sampling=False"):
        publish_next_client(model(), *free)
    promise = publish_next_client(model(), *free, own_sampling=False, confidence=0.7, share=0.7)
    assert set(promise.values) == {"share 0.7", "next"}
    little = publish_next_client(model(), free[0], replace(alone, bounds=None), own_sampling=False)
    assert set(little.values) == {"next"}
    assert little.parts.claim.rows[0].confidence == 0.5
    with pytest.raises(ValueError, match=r"share=1\.5 must lie between 0 and 1"):
        publish_next_client(model(), seen, unseen, share=1.5)
    other = nn.Sequential(nn.Linear(2, 4), nn.ELU(), nn.Linear(4, 3)).double()
    with pytest.raises(wafl.PreconditionError, match="needs a proven L_z"):
        publish_next_client(other, seen, unseen)


def test_a_network_is_promised_what_its_layers_prove(tmp_path: Path) -> None:
    torch.manual_seed(0)
    network = nn.Sequential(nn.Linear(2, 4), nn.Tanh(), nn.Linear(4, 3)).double()
    file = tmp_path / "next.json"
    publish_next_client(network, *world(), radius=0.2, confidence=0.7, share=0.7).save(file)
    assert wafl.verify(file, model=network, data=world()[1]).recomputed
    network[1].forward = lambda x: 10.0 * x
    assert wafl.verify(file, model=network, data=world()[1]).share == 0.0


@pytest.mark.parametrize("count", [1, 4, 19, 60])
def test_places_are_those_of_exact_fractions(count: int) -> None:
    for level in (Fraction(1, 20), Fraction(1, 40), Fraction(1, 3)):
        assert rank_of(None, count, level) == firstplace_of(None, count, level)
        for share in (0.1, 0.5, 0.9):
            assert rank_of(share, count, level) == firstplace_of(Fraction(repr(share)), count, level)
