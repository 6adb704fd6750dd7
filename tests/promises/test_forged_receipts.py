"""Forged requests, receipts and merged files: each attack that we could think of, and what becomes of it."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from dataclasses import asdict, replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

import wafl
from tests.promises.files import write_keys
from tests.receipts.sites import GRID, Content, Sites, drawn, forge
from wafl.promises.promise import to_bytes
from wafl.promises.receipts import Numbers, Receipt, Request, now, read, signed
from wafl.promises.sign import public_digits, read_key, sign
from wafl.receipts.questions import Questions

QUESTIONS = Questions(grid=GRID, coverage=0.6, confidence=0.6)


class Case:
    """Nine sites, a request, their receipts, and what was merged from these."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.sites = folder, Sites(folder, 9)
        self.request = self.sites.asked(QUESTIONS)
        self.request.save(folder / "request.json")
        self.numbers = drawn(0, self.sites.names, QUESTIONS)
        self.receipts = self.sites.reply_all(self.request, self.numbers)
        self.merged = folder / "next-client.json"
        self.merge().save(self.merged)

    def receipt(self, name: str) -> Path:
        return self.receipts / f"{name}.json"

    def merge(self, **options: Any) -> Any:
        return wafl.receipts.merge(self.folder / "request.json", self.receipts, **options)

    def verify(self, **options: Any) -> Any:
        return wafl.receipts.verify(self.merged, receipts=self.receipts, **options)

    def sign(self, name: str, change: Callable[[Content], Any], domain: str | None = None) -> Path:
        """Change a receipt as its own site can, and sign it, in the domain of receipts or another one."""
        content = json.loads(self.receipt(name).read_bytes())
        change(content)
        del content["signature"]
        message = (f"{content['kind']}, format 1\n" if domain is None else domain).encode() + to_bytes(content)
        content["signature"] = sign(message, self.sites.site(name))
        self.receipt(name).write_bytes(to_bytes(content))
        return self.receipt(name)


@pytest.fixture
def case(tmp_path: Path) -> Case:
    return Case(tmp_path)


def rejection(case: Case, name: str = "c4", **options: Any) -> str:
    """Return why the receipt of a site does not count; the site is then missing, and all others count."""
    result = case.merge(**options)
    assert set(result.rejected) == {str(case.receipt(name))}
    assert result.merged.missing == (name,)
    assert set(result.merged.replies) == set(case.sites.names) - {name}
    assert case.verify().clients[name].status != "recomputed"
    return result.rejected[str(case.receipt(name))]


BETTER = Numbers(30, (0.0,), (0.0,), ((9.0, 0.0, 0.0, 0.0),), "")
UNREADABLE: dict[str, Callable[[str], str]] = {
    "nothing": lambda _: "",
    "not JSON": lambda text: text[:-9],
    "a list": lambda text: f"[{text}]",
    "nested": lambda _: "[" * 100_000,
    "NaN": lambda text: text.replace('"values": [\n   ', '"values": [\n   NaN,\n   '),
    "Infinity": lambda text: text.replace('"examples": ', '"examples": Infinity, "e": '),
    "1e999": lambda text: text.replace('"values": [\n   ', '"values": [\n   1e999,\n   '),
    "a whole number of 400 digits": lambda text: text.replace('"examples": ', f'"examples": {"9" * 400}'),
    "a name twice": lambda text: text.replace('"reply": {', '"reply": null, "reply": {'),
    "another field": lambda text: text.replace('"format": 1', '"format": 1,\n "more": 1'),
    "another order": lambda text: json.dumps(dict(reversed(json.loads(text).items())), indent=1) + "\n",
    "another layout": lambda text: json.dumps(json.loads(text)),
    "a space at the end": lambda text: f"{text} ",
    "capital digits": lambda text: text.replace(json.loads(text)["key"], json.loads(text)["key"].upper()),
    "another kind": lambda text: text.replace("wafl receipt", "wafl request"),
    "another format": lambda text: text.replace('"format": 1', '"format": 2'),
    "a number as text": lambda text: text.replace('"format": 1', '"format": "1"'),
    "true for 1": lambda text: text.replace('"format": 1', '"format": true'),
}


@pytest.mark.parametrize("change", UNREADABLE.values(), ids=UNREADABLE)
def test_a_receipt_that_is_not_written_as_here_is_not_read(change: Callable[[str], str], case: Case) -> None:
    file = case.receipt("c4")
    text = change(file.read_text())
    assert text != file.read_text()
    file.write_text(text)
    assert "is not a receipt, or was changed" in rejection(case)


LIES: dict[str, tuple[Callable[[Content], Any], str]] = {
    "a negative number": (lambda reply: reply.update(values=[-0.5]), "negative or not finite"),
    "a huge number": (lambda reply: reply.update(uppers=[1e300]), "negative or not finite"),
    "an error above 1": (lambda reply: reply.update(values=[1.5]), "error rate above 1"),
    "too few examples": (lambda reply: reply.update(examples=19), "is about 19 examples, and 20 or more"),
    "more examples than anyone has": (lambda reply: reply.update(examples=10**200), "is about 1e+200 examples"),
    "two numbers": (lambda reply: reply.update(values=[0.5, 0.5]), "one number for each radius"),
    "no upper bound": (lambda reply: reply.update(uppers=[None]), "lacks one"),
    "rising counts": (lambda reply: reply.update(above=[[3.0, 4.0, 0.0, 0.0]]), "above a higher threshold"),
    "parts of a score": (lambda reply: reply.update(above=[[3.5, 1.0, 0.0, 0.0]]), "parts of a score"),
    "too many scores": (lambda reply: reply.update(above=[[99.0, 4.0, 0.0, 0.0]]), "all of its scores"),
    "too few thresholds": (lambda reply: reply.update(above=[[3.0]]), "at each threshold"),
    "a line in a reason": (lambda reply: reply.update(reason="x\nPROVEN: all"), "cannot be printed"),
    "a reason that is turned around": (lambda reply: reply.update(reason="\u202ex"), "cannot be printed"),
    "a long reason": (lambda reply: reply.update(reason="x" * 1001), "cannot be printed"),
}


@pytest.mark.parametrize(("change", "message"), LIES.values(), ids=LIES)
def test_numbers_that_no_site_can_have_do_not_count_though_they_are_signed(
    change: Callable[[Content], Any], message: str, case: Case
) -> None:
    case.sign("c4", lambda content: change(content["reply"]))
    result = case.merge()
    (why,) = result.rejected.values()
    assert message in why
    assert result.merged.missing == ("c4",)


def test_a_signature_counts_for_its_own_bytes_and_domain_alone(case: Case) -> None:
    whole = case.receipt("c4").read_bytes()
    case.sign("c4", lambda content: None)
    assert case.receipt("c4").read_bytes() == whole, "signatures are deterministic"
    for domain in ("", "wafl request, format 1\n", "wafl receipt, format 2\n", "wafl next client, format 1\n"):
        case.sign("c4", lambda content: None, domain)
        assert "its signature is not by the owner of its key" in rejection(case)
    case.receipt("c4").write_bytes(whole)
    forge(case.receipt("c4"), lambda content: content["reply"].update(values=[0.0]))
    assert "or the receipt was changed later" in rejection(case)
    case.receipt("c4").write_bytes(whole)
    forge(case.receipt("c4"), lambda content: content.update(key=case.sites.key("c3")))
    assert "its signature is not by the owner of its key" in rejection(case)
    case.receipt("c4").write_bytes(case.receipt("c3").read_bytes())
    assert case.merge().merged.missing == ("c3", "c4"), "the receipt of another site, twice"


def test_a_receipt_for_another_request_with_the_same_model_does_not_count(case: Case) -> None:
    for changes in ({"nonce": "1" * 32}, {"model": "b" * 64}, {"unit": "volts"}):
        case.sites.reply(case.sites.asked(QUESTIONS, **changes), "c4", BETTER)
        assert rejection(case) == "it answers a different request"
    other = replace(QUESTIONS, minimum=21)
    case.sites.reply(case.sites.asked(other), "c4", BETTER)
    assert rejection(case) == "it answers a different request"


def test_a_key_that_was_not_invited_or_trained_or_is_revoked_or_signs_twice_does_not_count(case: Case) -> None:
    whole = case.receipt("c4").read_bytes()
    stranger, _ = write_keys(case.folder, "stranger")
    digits = public_digits(stranger, private=True)
    plain = replace(read(Receipt, case.receipt("c4")), key=digits)
    signed(plain, stranger).save(case.receipt("c4"))
    assert "was not invited" in rejection(case)
    trained = case.sites.asked(QUESTIONS, trained=(digits,))
    signed(replace(plain, request=trained.digest), stranger).save(case.receipt("c4"))
    result = wafl.receipts.merge(trained, [case.receipt("c4")])
    assert "belongs to a client that took part in training" in result.rejected[str(case.receipt("c4"))]
    case.receipt("c4").write_bytes(whole)
    public = read_key(case.folder / "invited" / "c4.pub", private=False)
    spellings = {
        "hexadecimal": f"# gone\n\n{case.sites.key('c4').upper()}  # stolen\r\n".encode(),
        "PEM": (case.folder / "invited" / "c4.pub").read_bytes(),
        "OpenSSH": public.public_bytes(Encoding.OpenSSH, PublicFormat.OpenSSH) + b" c4@north\n",
    }
    for spelling in spellings.values():
        (case.folder / "revoked.txt").write_bytes(spelling)
        result = case.merge(revoked=case.folder / "revoked.txt")
        assert result.rejected == {str(case.receipt("c4")): f"its key {case.sites.key('c4')} is revoked"}
        assert result.merged.missing == ("c4",)
    (case.receipts / "c4 again.json").write_bytes(whole)
    result = case.merge()
    assert set(result.rejected.values()) == {"c4 has signed more than one receipt"}
    assert (len(result.rejected), result.merged.missing) == (2, ("c4",))
    assert case.verify().verdict == "ATTESTED", "the merged file chose one of two"


def test_a_late_receipt_does_not_count(case: Case) -> None:
    late = (now() + timedelta(days=2)).isoformat()
    case.sites.reply(case.request, "c4", case.numbers["c4"], issued=late)
    assert f"it is dated {late}, after the deadline" in rejection(case)
    in_another_zone = case.request.deadline.replace("+00:00", "-01:00")
    case.sites.reply(case.request, "c4", case.numbers["c4"], issued=in_another_zone)
    assert "after the deadline" in rejection(case)
    case.sign("c4", lambda content: content.update(issued="yesterday"))
    assert "does not say when" in rejection(case)


MERGED: dict[str, tuple[Callable[[Content], Any], str]] = {
    "a better number": (lambda file: file["replies"]["c4"].update(values=[0.0]), "WRONG"),
    "swapped replies": (
        lambda file: file["replies"].update(c3=file["replies"]["c4"], c4=file["replies"]["c3"]),
        "WRONG",
    ),
    "a site left out": (lambda file: file["replies"].pop("c4"), "WRONG"),
    "a site that was not invited": (lambda file: file["replies"].update(c9=file["replies"]["c4"]), "WRONG"),
    "a site listed twice": (lambda file: file["missing"].append("c4"), "WRONG"),
    "a site called too small": (lambda file: file["small"].append(file["replies"].popitem()[0]), "WRONG"),
    "a site called missing": (lambda file: file["missing"].append(file["replies"].popitem()[0]), "WRONG"),
    "a statement left out": (lambda file: file["statements"].pop(), "WRONG"),
    "a statement twice": (lambda file: file["statements"].append(file["statements"][0]), "WRONG"),
    "statements in another order": (lambda file: file["statements"].reverse(), "WRONG"),
    "another radius": (lambda file: file["statements"][0].update(radius=0.5), "WRONG"),
    "another kind of statement": (lambda file: file["statements"][0].update(own_sampling=True), "WRONG"),
    "a value of 0": (lambda file: file["statements"][0].update(value=0.0), "WRONG"),
    "other questions": (lambda file: file["request"]["questions"].update(coverage=0.5), "WRONG"),
    "fewer liars": (lambda file: file["request"]["questions"].update(minimum=10), "WRONG"),
    "another model": (lambda file: file["request"].update(model="c" * 64), "WRONG"),
    "another unit": (lambda file: file["request"].update(unit="volts"), "WRONG"),
    "a later deadline": (lambda file: file["request"].update(deadline="2999-01-01T00:00:00+00:00"), "WRONG"),
    "another nonce": (lambda file: file["request"].update(nonce="2" * 32), "WRONG"),
    "a site that was never invited": (lambda file: file["request"]["invited"].pop("c4"), "WRONG"),
}


@pytest.mark.parametrize(("change", "verdict"), MERGED.values(), ids=MERGED)
def test_a_merged_file_that_was_changed_is_wrong(change: Callable[[Content], Any], verdict: str, case: Case) -> None:
    assert case.verify(key=case.sites.public).verdict == "PROVEN"
    forge(case.merged, change)
    assert case.verify().verdict == verdict
    assert wafl.receipts.verify(case.merged).verdict in ("WRONG", "ATTESTED"), "never proven without receipts"


def test_a_small_site_without_a_receipt_is_never_proven(case: Case) -> None:
    """A site that did not answer would count as infinity; calling it too small leaves it out."""
    case.sites.reply(case.request, "c4", None)
    honest = case.merge()
    honest.save(case.merged)
    assert (honest.merged.small, case.verify().verdict) == (("c4",), "PROVEN")
    case.receipt("c4").unlink()
    assert case.verify().verdict == "ATTESTED"


def test_a_request_of_another_owner_proves_nothing_about_these_receipts(case: Case) -> None:
    other, public = write_keys(case.folder, "other")
    easier = {**asdict(case.request.questions), "minimum": 10}

    def change(file: Content) -> None:
        file["request"]["questions"] = easier
        file["request"]["owner"] = public_digits(other, private=True)
        content = {name: value for name, value in file["request"].items() if name != "signature"}
        file["request"]["signature"] = sign(b"wafl request, format 1\n" + to_bytes(content), other)

    forge(case.merged, change)
    checked = case.verify()
    assert (checked.verdict, checked.share) == ("ATTESTED", 0.0)
    with pytest.raises(ValueError, match="the request was signed with the key"):
        case.verify(key=case.sites.public)
    assert case.verify(key=public).verdict == "ATTESTED"


REQUESTS: dict[str, tuple[dict[str, Any], str]] = {
    "a line in a name": ({"invited": {"c0\nPROVEN: all": "1" * 64}}, "can be printed"),
    "an escape in a name": ({"invited": {"\x1b[2J": "1" * 64}}, "can be printed"),
    "a name that is turned around": ({"invited": {"north\u202e": "1" * 64}}, "can be printed"),
    "an invisible letter": ({"invited": {"north\u200b": "1" * 64}}, "can be printed"),
    "a space around a name": ({"invited": {" north": "1" * 64}}, "can be printed"),
    "no name": ({"invited": {"": "1" * 64}}, "can be printed"),
    "a long name": ({"invited": {"n" * 101: "1" * 64}}, "can be printed"),
    "one key twice": ({"invited": {"a": "1" * 64, "b": "1" * 64}}, "a and b have the same key"),
    "a capital key": ({"invited": {"a": "A" * 64}}, "lowercase"),
    "a site that trained": ({"invited": {"a": "1" * 64}, "trained": ("1" * 64,)}, "a was invited with the key"),
    "no site": ({"invited": {}}, "invites no site"),
    "a line in the unit": ({"unit": "x\ny"}, "can be printed"),
    "a unit that ends its quotes": ({"unit": "x'), with 99% confidence. Also, it has ('"}, "must have no single quote"),
    "no deadline": ({"deadline": "soon"}, "no deadline"),
    "a day as deadline": ({"deadline": "2999-01-01"}, "no deadline"),
    "no nonce": ({"nonce": "7"}, "no nonce"),
    "a short digest": ({"model": "abc"}, "lowercase"),
}
ASKED: dict[str, tuple[dict[str, Any], str]] = {
    "falling radii": ({"radii": (0.5, 0.0)}, "must rise"),
    "a negative radius": ({"radii": (-0.5,)}, "negative"),
    "no radius": ({"radii": ()}, "1 to 10 radii"),
    "radii for forty questions": ({"radii": tuple(index / 100 for index in range(11))}, "1 to 10 radii"),
    "a grid that stands": ({"grid": (0.0, 0.0)}, "must rise"),
    "no grid": ({"grid": ()}, "1 to 64 thresholds"),
    "a grid for forty questions": ({"grid": tuple(map(float, range(65)))}, "1 to 64 thresholds"),
    "an infinite threshold": ({"grid": (0.0, math.inf)}, "not finite"),
    "a huge threshold": ({"grid": (0.0, 1e51)}, "not finite"),
    "all labels": ({"coverage": 1.0}, "between 0 and 1"),
    "certainty": ({"confidence": 1.0}, "between 0 and 1"),
    "gammas for nothing": ({"gammas": (1.0,)}, "gammas"),
    "another norm": ({"norm": 3.0}, "norm"),
    "no minimum": ({"minimum": 0}, "minimum"),
    "negative liars": ({"liars": -1}, "liars"),
}


@pytest.mark.parametrize(("changes", "message"), [*REQUESTS.values(), *ASKED.values()], ids=[*REQUESTS, *ASKED])
def test_a_request_that_nobody_should_answer_is_neither_signed_nor_read(
    changes: dict[str, Any], message: str, case: Case
) -> None:
    file = case.folder / "request.json"
    content = json.loads(file.read_bytes())
    if set(changes) <= set(content):
        with pytest.raises(ValueError, match=message):
            case.sites.asked(QUESTIONS, **changes)
        content.update({name: list(value) if isinstance(value, tuple) else value for name, value in changes.items()})
    else:
        content["questions"].update(changes)
    del content["signature"]
    if not any(isinstance(each, tuple) and math.inf in each for each in changes.values()):
        message_bytes = b"wafl request, format 1\n" + to_bytes(content)
        content["signature"] = sign(message_bytes, case.sites.owner)
        file.write_bytes(to_bytes(content))
    else:  # what no program of ours writes
        file.write_text(json.dumps({**content, "signature": "0" * 128}, indent=1) + "\n")
        message = "not JSON compliant"
    with pytest.raises(ValueError, match=message):
        read(Request, file)
    with pytest.raises(ValueError, match="is not a request, or was changed"):
        case.merge()


def test_a_request_that_was_changed_is_answered_and_merged_by_nobody(case: Case) -> None:
    forge(case.folder / "request.json", lambda content: content["questions"].update(coverage=0.5))
    with pytest.raises(ValueError, match="the request was not signed by its owner, or was changed since"):
        case.merge()


def test_keys_are_read_from_every_usual_place(case: Case) -> None:
    sites = case.folder / "all"
    sites.mkdir()
    public = read_key(case.folder / "invited" / "c4.pub", private=False)
    (sites / "north.pub").write_bytes(public.public_bytes(Encoding.OpenSSH, PublicFormat.OpenSSH))
    (sites / "south.pub.pem").write_bytes(public.public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo))
    module = wafl.models.mlr(wafl.load_dataset("digits").partition(num_clients=2, iid=True))
    options: dict[str, Any] = {"key": case.sites.owner}
    few = Questions(own_sampling=False)
    with pytest.raises(ValueError, match="north and south have the same key"):
        wafl.receipts.request(module, few, invite=sites, **options)
    (sites / "south.pub.pem").write_bytes((case.folder / "invited" / "c5.pub").read_bytes())
    keys = [case.sites.key(name) for name in ("c6", "c7", "c5")]
    (case.folder / "trained.txt").write_text("\n".join(["# these", *keys, keys[0].upper()]))
    with pytest.raises(ValueError, match="south was invited with the key of a client that took part in training"):
        wafl.receipts.request(module, few, invite=sites, trained=case.folder / "trained.txt", **options)
    pair = b"".join((case.folder / "invited" / f"{name}.pub").read_bytes() for name in ("c6", "c7"))
    (case.folder / "trained.txt").write_bytes(pair)
    request = wafl.receipts.request(module, few, invite=sites, trained=case.folder / "trained.txt", **options)
    assert request.trained == tuple(sorted(keys[:2]))
    assert list(request.invited) == ["north", "south"]
    for text, message in (("ssh-rsa AAAA", "is not a public key"), ("7" * 63, "is not a public key")):
        (case.folder / "trained.txt").write_text(text)
        with pytest.raises(ValueError, match=message):
            wafl.receipts.request(module, few, invite=sites, trained=case.folder / "trained.txt", **options)
    with pytest.raises(ValueError, match="cannot be read: pass a file of public keys"):
        wafl.receipts.request(module, few, invite=sites, trained=case.folder / "nothing.txt", **options)
    (sites / "north.pem").write_bytes((sites / "north.pub").read_bytes())
    with pytest.raises(ValueError, match="two keys named north"):
        wafl.receipts.request(module, few, invite=sites, **options)
