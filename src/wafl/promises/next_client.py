"""Check a merged file: signatures, ranks and sums, from the request and the receipts alone.

No code is shared with the search (:mod:`wafl.receipts.conclusion`), whose results are checked by their definitions. A
bound on the next client's number is the c_k with a rank among K: exactly ``rank`` of the c_k are at most the bound, and
fewer are below it. A threshold of prediction sets is the first in the grid that is high enough: the threshold is high
enough, and the previous one is not. All comparisons are exact, in fractions.
"""

import math
import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from fractions import Fraction
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import ClassVar

from wafl.base.describe import rounded_up
from wafl.promises.checker import Line
from wafl.promises.receipts import Asked, Merged, Receipt, Request, Stated, collect, is_signed
from wafl.promises.sign import public_digits
from wafl.promises.verdict import Checked, Verdict

USUAL = Fraction(95, 100)
NOUNS = {"loss": "a loss", "error": "an error rate"}


@dataclass(frozen=True)
class CheckedMerge(Checked):
    """The result of :func:`wafl.receipts.verify`.

    The line of a receipt is about its signature and, with data, its numbers.
    """

    VERDICTS: ClassVar[Mapping[Verdict, str]] = {
        "PROVEN": "PROVEN: the signatures and the arithmetic; that sites measured truly is their word (see below)",
        "ATTESTED": "ATTESTED: nothing is refuted, but not every receipt was checked",
        "WRONG": "WRONG: do not rely on this file",
    }
    page: str
    """The statements in words, what is proven, and what rests on the honesty of sites."""


def check(
    merged: Merged, receipts: Iterable[Path] | None = None, key: str | os.PathLike[str] | None = None
) -> CheckedMerge:
    """Check every line; `receipts` are the files of the sites, and `key` is the owner's public key."""
    request = merged.request
    if key is not None and public_digits(key, private=False) != request.owner:
        raise ValueError(f"the request was signed with the key {request.owner}, not with this one: do not rely on it")
    signed = is_signed(request)
    by = f"by the key {request.owner}, for answers until {request.deadline}"
    found = [Line("request", "recomputed", f"signed {request.issued} {by}") if signed else _unsigned(request)]
    if (why := _of_population(merged)) is not None:
        found.append(Line("sites", "wrong", why))
    accepted, rejected = collect([] if receipts is None else receipts, request)
    clients = {name: _site(merged, name, accepted.get(name)) for name in request.invited}
    if rejected:
        reasons = "; ".join(f"{file}: {why}" for file, why in list(rejected.items())[:3])
        found.append(Line("receipts", "noted", f"{len(rejected)} files do not count: {reasons}"))
    counted = [clients[name] for name in (*merged.replies, *merged.small) if name in clients]
    done = sum(line.status == "recomputed" for line in counted)
    whole = signed and done == len(counted)
    found += _statements(merged, whole)
    return CheckedMerge(tuple(found), clients, done / max(len(counted), 1), signed and key is not None, page(merged))


def _unsigned(request: Request) -> Line:
    return Line("request", "wrong", f"not signed by its owner's key {request.owner}, or changed since")


def _of_population(merged: Merged) -> str | None:
    """Explain why the sites of a file are not the invited sites, each once; return None if they are."""
    listed = [*merged.replies, *merged.small, *merged.missing]
    if len(set(listed)) < len(listed):
        return f"{next(name for name in listed if listed.count(name) > 1)!a} is listed twice"
    if strange := set(listed) ^ set(merged.request.invited):
        return f"{min(strange)!a} was not invited, or was invited and left out"
    return None


def _site(merged: Merged, name: str, receipt: Receipt | None) -> Line:
    """Return the line of an invited site: the file's statement about it, checked against its receipt."""
    if name in merged.missing:
        extra = "" if receipt is None else ", although there is a receipt"
        return Line(name, "noted", f"counts as infinity: no receipt that counts{extra}")
    small, reply = name in merged.small, merged.replies.get(name)
    says = "too few examples" if small else f"{0 if reply is None else reply.examples:,} examples"
    if receipt is None:
        return Line(name, "attested", f"{says}; its receipt is not here, or does not count")
    if receipt.reply != reply or small is not (receipt.reply is None):
        return Line(name, "wrong", "its receipt has other numbers")
    estimated = f"; only estimates after a move: {reply.reason}" if reply is not None and reply.reason else ""
    return Line(name, "recomputed", f"{says}, signed {receipt.issued}{estimated}")


def _statements(merged: Merged, whole: bool) -> list[Line]:
    """Return a line for each statement that the questions request, in their order."""
    asked = merged.request.questions
    wanted = [
        (kind, radius, own)
        for kind in ("next", "sets")
        for radius in asked.radii
        for own in (False, True)
        if not own or (asked.own_sampling and radius == 0 and (kind == "next" or asked.about == "client"))
    ]
    lines = list[Line]()
    if [(each.kind, each.radius, each.own_sampling) for each in merged.statements] != wanted:
        lines.append(Line("statements", "wrong", "they are not those that the questions ask for"))
    for each in merged.statements:
        name = f"radius {each.radius:g}: {each.kind}{', distribution' if each.own_sampling else ''}"
        try:
            why = _refuted(each, merged)
        except ValueError:  # a radius that the questions do not request
            why = "it answers no question"
        status = "recomputed" if whole else "attested"
        lines.append(Line(name, status, sentence(each, merged)) if why is None else Line(name, "wrong", why))
    return lines


def _refuted(stated: Stated, merged: Merged) -> str | None:
    """Explain why a statement does not follow from the replies, or return None if it does."""
    asked, count = merged.request.questions, merged.count
    index, own, of_example = asked.radii.index(stated.radius), stated.own_sampling, False
    if stated.kind == "sets" and asked.about == "example":
        level, of_example = None, True
        missed = _missed(asked, index)
        supported = missed * (count + 1) >= asked.liars + 1
    else:
        level, missed = _level(asked, count, own), 1 - exact(asked.coverage)
        supported = level is not None
    if not supported or stated.value is None:
        fits = not supported and stated.value is None and stated.confidence is None
        return None if fits else f"{count} sites support {'another' if supported else 'no such'} statement"
    if stated.confidence != level:
        return f"{count} sites and these questions have the confidence {level}"
    value = math.inf if stated.value == "inf" else stated.value
    rank = 0 if level is None else _rank(level, count, asked.liars, own)
    if stated.kind == "next":
        numbers = [(each.uppers if own else each.values)[index] for each in merged.replies.values()]
        known = [*(math.inf if each is None else each for each in numbers), *[math.inf] * len(merged.missing)]
        low, high = sum(each < value for each in known), sum(each <= value for each in known)
        return None if low < rank <= high else f"{high} of {count} numbers are at most {value:g}, the rank is {rank}"

    def is_high_enough(place: int) -> bool:
        counts = [(each.examples, each.above[index][place]) for each in merged.replies.values()]
        if of_example:
            above = sum((Fraction(high) / size for size, high in counts), Fraction(len(merged.missing)))
            return above + asked.liars + 1 <= missed * (count + 1)
        failure = float((1 - exact(level or 0.0)) / 2 / count)
        most = {size: _most_above(size, float(missed), failure) if own else missed * size for size, _ in counts}
        return sum(Fraction(high) <= most[size] for size, high in counts) >= rank

    if value != math.inf and value not in asked.grid:
        return f"{value:g} is not a threshold of the grid"
    place = len(asked.grid) if value == math.inf else asked.grid.index(value)
    if place < len(asked.grid) and not is_high_enough(place):
        return f"the threshold {value:g} is too low for these counts"
    return f"the threshold {value:g} is higher than these counts take" if place and is_high_enough(place - 1) else None


def exact(number: float) -> Fraction:
    """Return the simple fraction that rounds to a number, or else the decimal that Python prints."""
    simple = Fraction(number).limit_denominator(10**6)
    return simple if float(simple) == number else Fraction(repr(number))


def _level(asked: Asked, count: int, own: bool) -> float | None:
    """Return the confidence of a statement; None if K sites support none, or not the one that is asked for."""
    most = 1 - Fraction((2 if own else 1) * (asked.liars + 1), count + 1)
    if asked.confidence is not None:
        return asked.confidence if exact(asked.confidence) <= most else None
    return float(USUAL) if most >= USUAL else math.floor(most * 10**6) / 10**6 if most > 0 else None


def _rank(level: float, count: int, liars: int, own: bool) -> int:
    share = (1 + exact(level)) / 2 if own else exact(level)
    return math.ceil(share * (count + 1)) + liars


def _missed(asked: Asked, index: int) -> Fraction:
    """Return the share of the next examples that may be missed, less the cost of their moves."""
    radius = asked.radii[index]
    gammas = iter(asked.gammas or ())
    prices = [next(gammas) if each > 0 else 0.0 for each in asked.radii]
    return 1 - exact(asked.coverage) - Fraction(prices[index] * radius**2)


@cache
def _most_above(size: int, missed: float, failure: float) -> int:
    """Return the largest c with ``P(Binomial(size, missed) <= c) <= failure``; -1 if there is none."""
    mean = size * missed
    count = max(0, math.floor(mean - 20.0 * math.sqrt(mean * (1.0 - missed))))  # fewer have a chance below 1e-80
    ways = math.lgamma(size + 1) - math.lgamma(count + 1) - math.lgamma(size - count + 1)
    chance = math.exp(ways + count * math.log(missed) + (size - count) * math.log1p(-missed))
    total = chance
    while total <= failure * (1.0 - 1e-9) and count < size:
        chance *= (size - count) / (count + 1) * missed / (1.0 - missed)
        count, total = count + 1, total + chance
    return count - 1


def sentence(stated: Stated, merged: Merged) -> str:
    """Return a statement in words."""
    asked, count = merged.request.questions, merged.count
    who = f"the next client with at least {asked.minimum} example{'s' * (asked.minimum != 1)}"
    norm = "l_inf" if asked.norm == "inf" else f"l{asked.norm:g}"
    moved = f" moved by at most {stated.radius:g} ({norm}, W_2, '{merged.request.unit}')" if stated.radius else ""
    where = f"on its {'distribution' if stated.own_sampling else f'examples{moved}'}"
    if stated.kind == "next":
        estimated = stated.radius > 0 and any(reply.reason for reply in merged.replies.values())
        noun = "an estimated " + NOUNS[asked.metric].partition(" ")[2] if estimated else NOUNS[asked.metric]
        value = math.inf if stated.value in ("inf", None) else stated.value
        what = f"{who} has {noun} of at most {rounded_up(float(value or 0.0))} {where}"
    else:
        covers = f"at least {percent(asked.coverage)} of its {where.removeprefix('on its ')}"
        if asked.about == "example":
            covers = f"its next example{moved} with probability at least {percent(asked.coverage)}"
        finite = isinstance(stated.value, float)
        things = "numbers" if asked.score.endswith("residual") else "labels"
        which = f"{things} whose {asked.score} is at most {stated.value:.6g}" if finite else f"all {things}"
        what = f"for {who}, the set of {which} covers {covers}"
    if stated.value is None:
        return f"nothing follows about {who} {where}: {count} sites support no such statement"
    if stated.confidence is None:
        return what
    fallen = asked.confidence is None and exact(stated.confidence) < USUAL
    most = f", the most that {count} site{'s support' if count != 1 else ' supports'}" if fallen else ""
    how = f"with {percent(stated.confidence)} confidence{most}"
    if stated.value == "inf" and stated.kind == "next":
        return f"nothing follows about {who} {where} {how}: too few sites replied"
    return f"{what}, {how}"


def percent(share: float) -> str:
    """Return a share in percent, rounded down to two decimal places.

    >>> percent(0.95), percent(0.833333)
    ('95%', '83.33%')
    """
    return f"{math.floor(exact(share) * 10**4) / 100:g}%"


def page(merged: Merged) -> str:
    """Return the statements in words, what is proven, and what rests on the honesty of sites."""
    request, liars = merged.request, merged.request.questions.liars
    text = files("wafl.promises").joinpath("receipts.md").read_text(encoding="utf-8")
    lying = f" Each statement stays true whatever {liars} of the sites replied." if liars else ""
    return text.rstrip("\n").format(
        model=f"SHA-256 {request.model[:16]}...",
        invited=len(request.invited),
        replied=len(merged.replies),
        small=len(merged.small),
        minimum=request.questions.minimum,
        missing=len(merged.missing),
        statements="\n".join(f"- {sentence(each, merged)}" for each in merged.statements),
        liars=lying,
        owner=request.owner,
        issued=request.issued,
        deadline=request.deadline,
        trained=len(request.trained),
    )
