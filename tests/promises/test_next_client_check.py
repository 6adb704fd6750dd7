"""The checker of merged receipts: it proves what follows, and nothing else."""

from __future__ import annotations

import json
import math
from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest

import wafl
from tests.receipts.sites import GRID, Sites, drawn, forge
from wafl.promises.next_client import _most_above  # pyright: ignore[reportPrivateUsage]
from wafl.receipts.questions import Questions

CASES: dict[str, dict[str, Any]] = {
    "usual": {"coverage": 0.6},
    "asked": {"coverage": 0.6, "confidence": 0.5},
    "a simple fraction": {"coverage": 0.6, "confidence": 5 / 6, "own_sampling": False},
    "liars": {"coverage": 0.6, "confidence": 0.5, "liars": 2, "own_sampling": False},
    "loss": {"coverage": 0.5, "metric": "loss", "confidence": 0.6},
    "radii": {"coverage": 0.5, "radii": (0.0, 0.1, 0.5), "confidence": 0.6, "own_sampling": False},
    "example": {"coverage": 0.6, "about": "example"},
    "example, moved": {"coverage": 0.5, "about": "example", "radii": (0.1,), "gammas": (0.7,), "own_sampling": False},
    "too few": {"coverage": 0.999, "about": "example", "confidence": 0.99, "own_sampling": False},
}


def merged(folder: Path, case: dict[str, Any], count: int = 13, missing: int = 0, small: int = 0) -> Sites:
    """Merge the receipts of sites with random numbers into ``next-client.json``."""
    questions, sites = Questions(grid=GRID, **case), Sites(folder, count)
    request = sites.asked(questions)
    request.save(folder / "request.json")
    known = drawn(count + missing, sites.names, questions)
    replies = {name: None if index < small else known[name] for index, name in enumerate(sites.names)}
    sites.reply_all(request, {name: replies[name] for name in sites.names[: count - missing]})
    wafl.receipts.merge(request, folder / "receipts").save(folder / "next-client.json")
    return sites


def verdict(folder: Path, **options: Any) -> str:
    return wafl.receipts.verify(folder / "next-client.json", receipts=folder / "receipts", **options).verdict


@pytest.mark.parametrize(("missing", "small"), [(0, 0), (2, 1)])
@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_what_follows_is_proven_and_what_is_next_to_it_is_wrong(
    case: dict[str, Any], missing: int, small: int, tmp_path: Path
) -> None:
    sites = merged(tmp_path, case, missing=missing, small=small)
    assert verdict(tmp_path, key=sites.public) == "PROVEN"
    file = tmp_path / "next-client.json"
    whole = file.read_bytes()
    content = json.loads(whole)
    for index, row in enumerate(content["statements"]):
        radius = content["request"]["questions"]["radii"].index(row["radius"])
        if row["kind"] == "sets":
            choices = [*GRID, "inf", None]
        else:
            column = "uppers" if row["own_sampling"] else "values"
            numbers = sorted({reply[column][radius] for reply in content["replies"].values()})
            choices = [*numbers, "inf", None, numbers[0] / 2]
        assert row["value"] in choices
        place = choices.index(row["value"])
        for other in {*choices[max(place - 1, 0) : place + 2], None} - {row["value"]}:  # rank off by one, both ways
            forge(file, lambda content, index=index, other=other: content["statements"][index].update(value=other))
            assert verdict(tmp_path) == "WRONG", (row, other)
            file.write_bytes(whole)
        for level in (0.999, None if row["confidence"] is not None else 0.5):
            forge(file, lambda content, index=index, level=level: content["statements"][index].update(confidence=level))
            assert verdict(tmp_path) == "WRONG", (row, level)
            file.write_bytes(whole)


@pytest.mark.parametrize(
    ("size", "missed", "failure"),
    [(20, 0.1, 0.01), (43, 0.1, 0.01), (44, 0.1, 0.01), (500, 0.2, 1e-5), (60, 0.9, 0.001), (400, 0.05, 1e-6)],
)
def test_the_binomial_bound_is_that_of_exact_sums(size: int, missed: float, failure: float) -> None:
    p, total, most = Fraction(missed), Fraction(0), -1
    for count in range(size + 1):
        total += math.comb(size, count) * p**count * (1 - p) ** (size - count)
        if total > Fraction(failure):
            break
        most = count
    assert _most_above(size, missed, failure) == most


def test_without_receipts_nothing_is_proven_and_the_page_says_what_rests_on_honesty(tmp_path: Path) -> None:
    sites = merged(tmp_path, CASES["asked"], missing=1)
    checked = wafl.receipts.verify(tmp_path / "next-client.json")
    assert (checked.verdict, checked.share, checked.signed) == ("ATTESTED", 0.0, False)
    assert str(checked).startswith("ATTESTED: nothing is refuted, but not every receipt was checked")
    proven = wafl.receipts.verify(tmp_path / "next-client.json", receipts=tmp_path / "receipts", key=sites.public)
    assert (proven.verdict, proven.share, proven.signed) == ("PROVEN", 1.0, True)
    assert str(proven).startswith("PROVEN: the signatures and the arithmetic")
    words = (tmp_path / "next-client.md").read_text()
    assert proven.page == words.rstrip("\n")
    for part in ("a site chose its data", "at two sites", "one owner can have two keys", "the site's word", "50% conf"):
        assert part in words.lower()
    (tmp_path / "receipts" / "c3.json").unlink()
    assert verdict(tmp_path) == "ATTESTED"


def test_all_missing_and_all_small_are_statements_too(tmp_path: Path) -> None:
    for name, options in (("missing", {"missing": 5}), ("small", {"small": 5})):
        folder = tmp_path / name
        folder.mkdir()
        merged(folder, {"coverage": 0.6}, count=5, **options)
        assert verdict(folder) == "PROVEN"
        values = {row["value"] for row in json.loads((folder / "next-client.json").read_bytes())["statements"]}
        assert values == ({"inf"} if name == "missing" else {None})
        assert "nothing follows" in (folder / "next-client.md").read_text()


def test_a_file_for_another_checker_is_told_where_to_go(tmp_path: Path) -> None:
    merged(tmp_path, {"coverage": 0.6}, count=5)
    with pytest.raises(ValueError, match=r"wafl.receipts.verify checks what wafl merge writes"):
        wafl.verify(tmp_path / "next-client.json")
    with pytest.raises(ValueError, match="does not say that it is a next client"):
        wafl.receipts.verify(tmp_path / "request.json")


def test_a_unit_is_quoted_so_that_it_is_no_part_of_what_is_stated(tmp_path: Path) -> None:
    sites, questions = Sites(tmp_path, 9), Questions(own_sampling=False, radii=(0.1,), confidence=0.9)
    unit = "x), with 99% confidence. Also, its error rate is at most 0.0001 (l2"
    request = sites.asked(questions, unit=unit)
    receipts = sites.reply_all(request, drawn(0, sites.names, questions))
    wafl.receipts.merge(request, receipts).save(tmp_path / "n.json")
    page = wafl.receipts.verify(tmp_path / "n.json", receipts=receipts).page
    assert page.count(unit) == page.count(f"(l2, W_2, '{unit}'), with 90% confidence") == 2
