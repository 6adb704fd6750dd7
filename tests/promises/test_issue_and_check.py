"""Certificates as files, against plain recomputation, exact arithmetic, and whoever changes a byte."""

import json
import math
from dataclasses import replace
from hashlib import sha256
from importlib import import_module

import mpmath
import numpy as np
import pytest
import torch
from cryptography.hazmat.primitives.asymmetric.ec import SECP256R1, generate_private_key
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat, PublicFormat
from torch import nn

import wafl
from tests.oracles import objective as oracles
from tests.oracles import phi as phi_oracles
from tests.oracles import theory
from tests.theory.test_certificates import NORMS, a_case, certificates_of, clients_of, hinge
from wafl.promises.in_words import rounded_up
from wafl.promises.issue import to_bytes
from wafl.theory.certificates.mixture import Mixture
from wafl.theory.certificates.rounding import allowance, magnitudes


def promise_of(case, radii=(0.0, 0.3), norm=2, **options):
    given = {"client_weights": wafl.weights.fixed(case.weights), "loss": case.loss, **options}
    return wafl.issue(case.model, clients_of(case), radii=radii, norm=norm, **given)


def write_keys(folder, name="issuer"):
    """A private and a public key, as openssl writes them."""
    key = Ed25519PrivateKey.generate()
    private, public = folder / f"{name}.pem", folder / f"{name}.pub.pem"
    private.write_bytes(key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()))
    public.write_bytes(key.public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo))
    return private, public


def saved(tmp_path, case=None, key=None, **options):
    file = tmp_path / "certificate.json"
    promise_of(a_case("mlr") if case is None else case, **options).save(file, key=key)
    return file


def forge(file, change):
    """Change a certificate and seal it again, as anyone without the key can."""
    content = json.loads(file.read_bytes())
    content.pop("checksum")
    signature = content.pop("signature", None)
    change(content)
    content["checksum"] = sha256(to_bytes(content)).hexdigest()
    file.write_bytes(to_bytes(content if signature is None else {**content, "signature": signature}))


def status(found):
    return {line.name: line.status for line in found.lines}


@pytest.mark.parametrize("norm", NORMS)
@pytest.mark.parametrize("name", ["mlr", "regression"])
def test_a_promise_is_the_best_certificate_rounded_upwards(name, norm):
    case = a_case(name)
    radii = [0.0, 0.1, 2.0]
    rows = certificates_of(case, radii, norm, achieved=False).rows
    for row, found in zip(promise_of(case, radii, norm).content["certificates"], rows, strict=True):
        assert found.best <= row["value"] <= found.best * (1.0 + 1e-10) + 1e-10
        assert 0.0 < row["rounding"] < 1e-10


@pytest.mark.parametrize("norm", NORMS)
def test_what_is_promised_follows_from_the_definition_of_the_surrogate(norm):
    case = a_case("regression")
    (row,) = promise_of(case, [0.3], norm).content["certificates"]
    residual = theory.plain_outputs(case.model, case.x)[:, 0] - case.y
    phi = theory.squared_error_phi(case.model.weight.detach().numpy()[0], residual, row["gamma"], norm)
    exact = row["gamma"] * 0.3**2 + case.share @ phi
    assert exact <= row["value"] <= exact * (1.0 + 1e-9)


def exact_mean_loss(weight, bias, x, y):
    """The mean cross-entropy, with 60 digits."""
    with mpmath.workdps(60):
        total = mpmath.mpf(0)
        for row, label in zip(x, y, strict=True):
            pairs = [[mpmath.mpf(float(a)) * mpmath.mpf(float(b)) for a, b in zip(w, row, strict=True)] for w in weight]
            s = [mpmath.fsum(pair) + mpmath.mpf(float(b)) for pair, b in zip(pairs, bias, strict=True)]
            total += mpmath.log(mpmath.fsum(mpmath.exp(each - s[label]) for each in s))
        return total / len(y)


def test_what_float64_loses_is_less_than_what_is_added():
    lost = []
    for seed in range(12):
        rng = np.random.default_rng(seed)
        scale = 10.0 ** rng.uniform(0, 6)  # large inputs whose outputs cancel
        weight, bias = rng.normal(size=(3, 8)), rng.normal(size=3)
        x, y = scale * rng.normal(size=(10, 8)), rng.integers(0, 3, 10)
        x[:, 4:] = -x[:, :4] + rng.normal(size=(10, 4)) / scale
        weight[:, 4:] = weight[:, :4]
        model = oracles.linear_model(weight, bias)
        mixture = Mixture.of(model, wafl.Federation.from_arrays([(x, y)], test_fraction=0.0, num_classes=3))
        computed = mixture.answers(None, [{}]).value[0, 0].item()
        exact = exact_mean_loss(weight, bias, x, y)
        added = allowance(mixture.task, mixture.params, [10], max(magnitudes(mixture)), 0.0, 2, computed)
        lost.append(float(exact - mpmath.mpf(computed)))
        assert abs(lost[-1]) <= added
    assert max(lost) > 0.0  # some computed means were too small


def test_everything_is_recomputed_from_the_file_the_model_and_the_data(tmp_path):
    case = a_case("mlr")
    private, public = write_keys(tmp_path)
    file = saved(tmp_path, case, private)
    found = wafl.verify(file, model=case.model, data=clients_of(case), key=public)
    assert found.ok
    assert found.signed
    assert {name for name, each in status(found).items() if each == "attested"} == {"issued", "versions"}
    alone = status(wafl.verify(file))
    assert {name for name, each in alone.items() if each == "recomputed"} == {"statement", "weights", "values"}
    assert status(wafl.verify(file, model=case.model))["constants"] == "recomputed"
    assert found.values == promise_of(case).values


def test_a_client_checks_its_own_numbers_with_its_own_data(tmp_path):
    case = a_case("mlr")
    file = saved(tmp_path, case)
    mine = wafl.Federation.from_arrays(case.pairs()[1:2], names=["client 1"], test_fraction=0.0)
    found = wafl.verify(file, model=case.model, data=mine)
    assert found.ok
    assert "of 1 of 3 clients" in str(found)
    forge(file, lambda content: content["clients"][1].update(loss=content["clients"][1]["loss"] - 1e-6))
    assert status(wafl.verify(file, model=case.model, data=mine))["losses"] == "wrong"
    stranger = wafl.Federation.from_arrays(case.pairs()[1:2], names=["other"], test_fraction=0.0)
    with pytest.raises(
        ValueError, match="the data are those of other, and the certificate is about client 0, client 1"
    ):
        wafl.verify(file, model=case.model, data=stranger)


def test_one_changed_byte_is_refused(tmp_path):
    private, public = write_keys(tmp_path)
    file = saved(tmp_path, key=private)
    written = file.read_bytes()
    rng = np.random.default_rng(0)
    for place in [*rng.choice(len(written), 60, replace=False), len(written) - 1]:
        spoiled = bytearray(written)
        spoiled[place] ^= 1 << rng.integers(8)
        file.write_bytes(bytes(spoiled))
        with pytest.raises(ValueError, match=r"was changed|not signed"):
            wafl.verify(file, key=public)
    for spoiled in (written + b" ", written.replace(b"\n", b"\r\n"), written[:-1]):
        file.write_bytes(spoiled)
        with pytest.raises(ValueError, match="was changed"):
            wafl.verify(file, key=public)


def test_only_the_key_shows_that_a_sealed_forgery_is_one(tmp_path):
    private, public = write_keys(tmp_path)
    file = saved(tmp_path, key=private)
    forge(file, lambda content: content.update(issued="2020-01-01T00:00:00+00:00"))
    assert wafl.verify(file).ok
    with pytest.raises(ValueError, match="was not signed with this key, or was changed since"):
        wafl.verify(file, key=public)


def test_a_file_without_a_signature_or_with_another_is_refused(tmp_path):
    private, public = write_keys(tmp_path)
    with pytest.raises(ValueError, match="is not signed: ask who issued it"):
        wafl.verify(saved(tmp_path), key=public)
    _, other = write_keys(tmp_path, "other")
    with pytest.raises(ValueError, match="was not signed with this key"):
        wafl.verify(saved(tmp_path, key=private), key=other)


def test_keys_of_other_kinds_are_refused(tmp_path):
    private, public = write_keys(tmp_path)
    curve = tmp_path / "curve.pem"
    curve.write_bytes(generate_private_key(SECP256R1()).private_bytes(
        Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()
    ))  # fmt: skip
    with pytest.raises(ValueError, match=r"curve\.pem is not an Ed25519 key"):
        saved(tmp_path, key=curve)
    with pytest.raises(ValueError, match="holds no private key without a password"):
        saved(tmp_path, key=public)
    with pytest.raises(ValueError, match="holds no public key"):
        wafl.verify(saved(tmp_path, key=private), key=private)
    with pytest.raises(FileNotFoundError):
        saved(tmp_path, key=tmp_path / "missing.pem")


def test_keys_of_openssh_sign_too(tmp_path):
    key = Ed25519PrivateKey.generate()
    private, public = tmp_path / "id_ed25519", tmp_path / "id_ed25519.pub"
    private.write_bytes(key.private_bytes(Encoding.PEM, PrivateFormat.OpenSSH, NoEncryption()))
    public.write_bytes(key.public_key().public_bytes(Encoding.OpenSSH, PublicFormat.OpenSSH))
    assert wafl.verify(saved(tmp_path, key=private), key=public).signed


FORGERIES = {
    "a smaller value": ("values", lambda c: c["certificates"][1].update(value=c["certificates"][1]["value"] - 1e-9)),
    "a smaller surrogate": ("surrogates", lambda c: c["certificates"][1]["clients"].__setitem__(0, 0.1)),
    "a gamma of zero": ("values", lambda c: c["certificates"][1].update(gamma=0.0)),
    "another gamma": ("surrogates", lambda c: c["certificates"][1].update(gamma=0.9 * c["certificates"][1]["gamma"])),
    "smaller constants": ("constants", lambda c: c["constants"]["L_zz"].update(value=0.01)),
    "no rounding": ("rounding", lambda c: c["certificates"][1].update(rounding=0.0)),
    "a smaller magnitude": ("losses", lambda c: [client.update(magnitude=0.5) for client in c["clients"]]),
    "weights that do not sum to 1": ("weights", lambda c: c["clients"][0].update(weight=0.1)),
    "another statement": ("statement", lambda c: c["statement"].append("It is safe.")),
    "more examples": ("examples", lambda c: c["clients"][0].update(examples=1000)),
}


@pytest.mark.parametrize("name", FORGERIES)
def test_a_forgery_is_found(tmp_path, name):
    line, change = FORGERIES[name]
    case = a_case("mlr")
    file = saved(tmp_path, case)
    forge(file, change)
    found = wafl.verify(file, model=case.model, data=clients_of(case))
    assert not found.ok
    assert status(found)[line] == "wrong"


def surrogates_line(file, case, claimed):
    """What verify says about surrogates if that of the first client is claimed to be this."""
    forge(file, lambda content: content["certificates"][0]["clients"].__setitem__(0, claimed))
    found = wafl.verify(file, model=case.model, data=clients_of(case))
    (line,) = [line for line in found.lines if line.name == "surrogates"]
    return line


def test_a_number_with_other_digits_is_proven_again_and_one_below_the_truth_is_wrong(tmp_path):
    """On another machine a search may end earlier or later, which moves its number, but never below the truth."""
    case = a_case("mlr")
    file = saved(tmp_path, case, radii=(2.0,))
    (row,) = json.loads(file.read_bytes())["certificates"]
    weight, (x, y) = case.model.weight.detach().numpy(), case.pairs()[0]
    examples = zip(theory.plain_outputs(case.model, x), y, strict=True)
    truth = np.mean([phi_oracles.brute_force_phi(weight, *example, row["gamma"], 2) for example in examples])
    published = row["clients"][0]
    assert published - truth > 1e-4, "a case in which the search leaves a gap"
    for claimed in (published + 1e-6, published - 1e-6, truth + 0.1 * (published - truth)):
        line = surrogates_line(file, case, float(claimed))
        assert (line.status, "not the same digits, at radius 2" in line.why) == ("recomputed", True), claimed
    for claimed in (0.99 * truth, truth - 1e-4):
        line = surrogates_line(file, case, float(claimed))
        assert (line.status, "below what a finer search proves" in line.why) == ("wrong", True), claimed
    assert surrogates_line(file, case, published).why == "of all 3 clients"


def test_another_model_or_other_examples_are_found(tmp_path):
    case = a_case("mlr")
    file = saved(tmp_path, case)
    weight = case.model.weight.detach().clone()
    weight[0, 0] += 1e-12
    other = oracles.linear_model(weight.numpy(), case.model.bias.detach().numpy())
    assert status(wafl.verify(file, model=other))["model"] == "wrong"
    moved = replace(case, x=case.x + 1e-12)
    assert status(wafl.verify(file, data=clients_of(moved)))["examples"] == "wrong"


@pytest.mark.slow
def test_networks_are_promised_what_their_layers_prove_and_others_nothing(tmp_path, monkeypatch):
    torch.manual_seed(0)
    for name in ("largest_slope", "largest_curvature"):  # a search, which proves nothing and takes seconds
        monkeypatch.setattr(import_module("wafl.theory.constants.estimates"), name, lambda *_: 1.0)
    case = a_case("mlr")
    relu = replace(case, model=nn.Sequential(nn.Linear(2, 4), nn.ReLU(), nn.Linear(4, 3)).double())
    file = saved(tmp_path, relu)
    rows = json.loads(file.read_bytes())["certificates"]
    assert [row["proof"] for row in rows] == ["slope", "duality"]  # of the margins' own Lipschitz constants
    assert wafl.verify(file, model=relu.model, data=clients_of(relu)).ok
    with pytest.raises(wafl.PreconditionError, match="nothing is proven about this model"):
        promise_of(case, loss=hinge)
    given = saved(tmp_path, case, loss=hinge, curvature=2.0)
    found = wafl.verify(given, model=case.model, data=clients_of(case), loss=hinge)
    assert status(found)["constants"] == "attested"


def test_files_that_are_no_certificates_are_refused(tmp_path):
    file = tmp_path / "certificate.json"
    for content in (b"", b"[]", b"{}", b'{"format": 2}', b'{"format": 1}', b"\xff"):
        file.write_bytes(content)
        with pytest.raises(ValueError, match="is not a certificate, or was changed"):
            wafl.verify(file)
    saved(tmp_path)
    for change in (
        lambda c: c["clients"].pop(),
        lambda c: c["clients"][0].update(loss="small"),
        lambda c: c["claim"].update(norm="l3"),
        lambda c: c.pop("certificates"),
    ):
        forge(saved(tmp_path), change)
        with pytest.raises(ValueError, match=r"not a certificate|norm 'l3' is not one of l1, l2, l_inf"):
            wafl.verify(file)
    with pytest.raises(ValueError, match=r"name the certificate promise\.json"):
        promise_of(a_case("mlr")).save(tmp_path / "promise.md")


def test_the_page_says_no_less_than_the_file(tmp_path):
    promise = promise_of(a_case("mlr"), [0.0, 0.1, 1.0])
    page = promise.save(tmp_path / "certificate.json").read_text()
    cells = [line.split("|") for line in page.splitlines() if line.startswith("| ") and "distance" not in line]
    printed = {float(cell[1]): float(cell[2]) for cell in cells if "---" not in cell[1]}
    assert printed.keys() == promise.values.keys()
    for radius, value in promise.values.items():
        assert value <= printed[radius] <= value + 1.1e-4
    assert str(promise) + "\n" == page
    for value in (0.1, 0.3, 1e-9, 123.4567, math.pi):
        assert value <= float(rounded_up(value)) <= value + 1.0001e-4


def test_a_digest_is_of_what_the_model_computes():
    model = nn.Sequential(nn.Linear(2, 3), nn.Tanh(), nn.Linear(3, 2))
    same = nn.Sequential(nn.Linear(2, 3), nn.Tanh(), nn.Linear(3, 2))
    same.load_state_dict(model.state_dict())
    other = nn.Sequential(model[0], nn.ReLU(), model[2])
    from wafl.promises.issue import digest_of

    assert digest_of(model) == digest_of(same) != digest_of(other)
    with torch.no_grad():
        same[0].bias[0] += 1e-6
    assert digest_of(model) != digest_of(same)


def a_bounded_case():
    rng = np.random.default_rng(0)
    pairs = [(rng.uniform(size=(20, 2)), np.arange(20) % 2) for _ in range(2)]
    return oracles.linear_model(rng.normal(size=(2, 2)), rng.normal(size=2)), wafl.Federation.from_arrays(
        pairs, bounds=(0.0, 1.0)
    )


def test_a_promise_beyond_the_sample_is_that_of_certify_and_is_recomputed(tmp_path):
    model, clients = a_bounded_case()
    options = {"radii": [0.0, 0.2, 50.0], "part": "test", "confidence": 0.9}
    promise, found = wafl.issue(model, clients, **options), wafl.certify(model, clients, achieved=False, **options)
    for row, each in zip(promise.content["certificates"], found.rows, strict=True):
        assert each.best <= row["value"] <= each.best + 1e-10
    assert [row["proof"] for row in promise.content["certificates"]] == ["slope", "duality", "duality"]
    page = promise.save(tmp_path / "certificate.json").read_text()
    assert "populations that these examples were drawn from" in page
    assert "probability of at most 0.1" in page
    checked = wafl.verify(tmp_path / "certificate.json", model=model, data=clients)
    assert {name for name, each in status(checked).items() if each == "attested"} == {"draws", "issued", "versions"}
    assert checked.ok


BEYOND = {
    "a smaller second moment": ("surrogates", lambda row: row["sampling"]["seconds"].__setitem__(0, 0.0)),
    "a smaller range": ("range", lambda row: row["sampling"].update(most=0.1)),
    "a larger level": ("values", lambda row: row["sampling"].update(level=0.5)),
}


@pytest.mark.parametrize("name", BEYOND)
def test_a_forgery_beyond_the_sample_is_found(tmp_path, name):
    line, change = BEYOND[name]
    model, clients = a_bounded_case()
    file = tmp_path / "certificate.json"
    wafl.issue(model, clients, radii=[0.2], part="test", confidence=0.9).save(file)
    forge(file, lambda content: change(content["certificates"][0]))
    assert status(wafl.verify(file, model=model, data=clients))[line] == "wrong"


@pytest.mark.parametrize("norm", NORMS)
def test_a_promised_error_rate_is_that_of_certify_and_is_recomputed(tmp_path, norm):
    case = a_case("mlr")
    file = saved(tmp_path, case, radii=[0.0, 0.1, 50.0], norm=norm, metric="error")
    found = certificates_of(case, [0.0, 0.1, 50.0], norm, metric="error")
    checked = wafl.verify(file, model=case.model, data=clients_of(case))
    assert {name for name, each in status(checked).items() if each == "attested"} == {"issued", "versions"}
    assert checked.ok
    for value, row in zip(checked.values.values(), found.rows, strict=True):
        assert row.value <= value <= min(row.value + 1e-9, 1.0)
    assert "its error rate" in file.with_suffix(".md").read_text()
    assert "| distance at most | error rate at most |" in checked.content["statement"]


def test_no_error_is_missed_that_float64_cannot_see():
    """Examples on the line between two classes, whose leads of the first are rounding."""
    rng = np.random.default_rng(0)
    weight = np.outer([1.0, -1.0], rng.normal(size=6)) * 1e3
    x = rng.normal(size=(200, 6))
    x -= np.outer(x @ weight[0], weight[0]) / (weight[0] @ weight[0])
    y = np.zeros(200, dtype=np.int64)
    clients = wafl.Federation.from_arrays([(x, y)], test_fraction=0.0, num_classes=2)
    model = oracles.linear_model(weight, np.zeros(2))
    assert 0.2 < wafl.certify(model, clients, radii=[0.0], metric="error")[0].value < 0.8  # as float64 sees it
    assert wafl.issue(model, clients, radii=[0.0], metric="error").values == {0.0: 1.0}


ERRORS = {
    "a smaller value": ("values", lambda row: row.update(value=row["value"] - 1e-9)),
    "a smaller surrogate": ("surrogates", lambda row: row["clients"].__setitem__(0, 0.0)),
    "no slack": ("rounding", lambda row: row.update(slack=0.0)),
    "no rounding": ("rounding", lambda row: row.update(rounding=0.0)),
    "a slope": ("values", lambda row: row.update(proof="slope")),
}


@pytest.mark.parametrize("name", ERRORS)
def test_a_forged_error_rate_is_found(tmp_path, name):
    line, change = ERRORS[name]
    case = a_case("mlr")
    file = saved(tmp_path, case, radii=[0.1], metric="error")
    forge(file, lambda content: change(content["certificates"][0]))
    assert status(wafl.verify(file, model=case.model, data=clients_of(case)))[line] == "wrong"


def test_a_promised_error_rate_beyond_the_sample_needs_no_bounds(tmp_path):
    model, clients = a_bounded_case()
    options = {"radii": [0.0, 0.02], "part": "test", "confidence": 0.9, "metric": "error"}
    clients = replace(clients, bounds=None)
    promise, found = wafl.issue(model, clients, **options), wafl.certify(model, clients, achieved=False, **options)
    for row, each in zip(promise.content["certificates"], found.rows, strict=True):
        assert each.value <= row["value"] <= min(each.value + 1e-9, 1.0)
    file = tmp_path / "certificate.json"
    promise.save(file)
    assert wafl.verify(file, model=model, data=clients).ok
    forge(file, lambda content: content["certificates"][0]["sampling"].update(most=0.5))
    assert status(wafl.verify(file, model=model, data=clients))["range"] == "wrong"


def test_a_file_whose_metric_does_not_fit_its_rows_is_refused(tmp_path):
    forge(saved(tmp_path), lambda content: content["claim"].update(metric="error"))
    with pytest.raises(ValueError, match="its metric and its certificates do not belong together"):
        wafl.verify(tmp_path / "certificate.json")
    with pytest.raises(ValueError, match="points are about the loss"):
        promise_of(a_case("mlr"), metric="error", points=2)


def test_a_confidence_without_its_sample_is_refused(tmp_path):
    forge(saved(tmp_path), lambda content: content["claim"].update(confidence=0.9))
    with pytest.raises(ValueError, match="its confidence and its sampling do not belong together"):
        wafl.verify(tmp_path / "certificate.json")
