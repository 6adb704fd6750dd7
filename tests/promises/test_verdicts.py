"""The verdict on a file: what it takes to be PROVEN, what is only noted, and digests that tell models apart."""

import math
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn
from typer.testing import CliRunner

import wafl
from tests.promises.files import forge, publish, status
from wafl.base.fingerprint import model_digest
from wafl.cli.main import app
from wafl.promises.promise import digest_of

FORMAT_2 = Path(__file__).parent / "files_of_old_formats" / "format_2.json"
"""Written by ``wafl.issue`` before files had format 3, about ``a_model()`` and ``two_clients()``."""


def a_model() -> nn.Sequential:
    model = nn.Sequential(nn.Linear(2, 3))
    with torch.no_grad():
        model[0].weight.copy_(torch.tensor([[1.0, 0.0], [0.0, 1.0], [-1.0, -1.0]]))
        model[0].bias.zero_()
    return model


def two_clients(names: tuple[str, ...] = ("a", "b"), sizes: tuple[int, ...] = (6, 6)) -> wafl.Federation:
    rng = np.random.default_rng(0)
    pairs = [(rng.normal(size=(size, 2)).round(3), np.arange(size) % 3) for size in sizes]
    return wafl.Federation.from_arrays(pairs, test_fraction=0.0, names=list(names))


def test_a_file_of_format_2_is_proven_again_and_a_change_in_it_is_not(tmp_path: Path) -> None:
    checked = wafl.verify(FORMAT_2, model=a_model(), data=two_clients())
    assert (checked.verdict, checked.share) == ("PROVEN", 1.0)
    assert checked.promise.parts.format == 2
    file = tmp_path / "copy.json"
    file.write_bytes(FORMAT_2.read_bytes())
    assert wafl.verify(file).verdict == "ATTESTED"
    forge(file, lambda content: content["claim"]["rows"][1].update(value=0.9 * content["claim"]["rows"][1]["value"]))
    assert wafl.verify(file, model=a_model(), data=two_clients()).verdict == "WRONG"


def test_what_is_saved_is_proven_and_the_table_has_both_numbers(tmp_path: Path) -> None:
    certificate = wafl.certify(a_model(), two_clients(), radii=[0.0, 0.5])
    assert "published" not in str(certificate)
    page = certificate.save(tmp_path / "certificate.json")
    assert page == tmp_path / "certificate.md"
    header, *rows, _, last = str(certificate).splitlines()
    assert header.split() == ["radius", "achieved", "certified", "published", "simple", "gamma"]
    for row, line in zip(certificate.rows, rows, strict=True):
        assert row.certified is not None
        published = certificate.published.values[row.radius]
        assert [float(cell) for cell in line.split()[2:4]] == pytest.approx([row.certified, published], abs=1.1e-4)
        assert float(line.split()[2]) >= row.certified
        assert float(line.split()[3]) >= published
    assert last.startswith("published is what the file states")
    checked = wafl.verify(tmp_path / "certificate.json", model=a_model(), data=two_clients())
    assert (checked.verdict, checked.promise.values) == ("PROVEN", certificate.published.values)


@pytest.mark.parametrize("network", [False, True])
def test_the_explanation_of_both_columns_is_true_with_a_confidence(network: bool) -> None:
    """Both columns are then proven with gammas and bets of their own, and either can be the smaller one."""
    rng = np.random.default_rng(0)
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2)) if network else nn.Linear(3, 2)
    x, y = rng.uniform(size=(3, 2, 60, 3)), rng.integers(0, 2, size=(3, 2, 60))
    pairs = [(x[i, 0], y[i, 0], x[i, 1], y[i, 1]) for i in range(3)]
    clients = wafl.Federation.from_arrays(pairs, bounds=(0.0, 1.0), num_classes=2)
    result = wafl.certify(model, clients, radii=[0.0, 0.1, 0.5], split="test", confidence=0.9, achieved=False)
    published = result.published.values
    more = [published[row.radius] / (row.certified or math.nan) - 1.0 for row in result.rows]
    last = str(result).splitlines()[-1]
    assert min(more) < -1e-3
    assert f"up to {-min(more):.1%} smaller" in last
    assert (f" or {max(more):.1%} larger" in last) == (max(more) >= 5e-4)
    assert last.endswith("; both are proven")
    assert "with its own gammas and bets" in last


def test_the_table_has_both_numbers_with_points_and_for_bounds_of_zero_too(tmp_path: Path) -> None:
    certificate = wafl.certify(a_model(), two_clients(), radii=[0.0, 0.5], achieved=False)
    certificate.save(tmp_path / "points.json", points=2)
    assert "published" in str(certificate).splitlines()[0]
    assert certificate.published.parts.labels is None
    certificate.save(tmp_path / "plain.json")
    assert wafl.verify(tmp_path / "plain.json").promise.parts.labels is None
    rng = np.random.default_rng(0)
    pair = (x := rng.normal(size=(9, 2)), (x[:, 0] > 0).astype(np.int64))
    model = nn.Linear(2, 2, bias=False).double()
    with torch.no_grad():
        model.weight.copy_(torch.tensor([[-1.0, 0.0], [1.0, 0.0]]))
    never = wafl.certify(model, wafl.Federation.from_arrays([pair], test_fraction=0.0), radii=[0.0], metric="error")
    assert 0.0 < never.published.values[0.0] < 1e-11, "with room for another machine"
    assert str(never).splitlines()[-1].endswith("up to 0.0% larger")


def test_options_that_no_file_can_state_are_refused_by_name(tmp_path: Path) -> None:
    clients = two_clients()
    for options in ({"label_cost": 2.0}, {"cost_matrix": [1.0, 2.0]}, {"space": "0"}):
        model = nn.Sequential(*a_model(), nn.Linear(3, 3)) if "space" in options else a_model()
        certificate = wafl.certify(model, clients, radii=[0.1], achieved=False, **options)  # type: ignore[arg-type]
        with pytest.raises(wafl.PreconditionError, match=f"with {next(iter(options))} cannot be saved"):
            certificate.save(tmp_path / "certificate.json")
    assert not list(tmp_path.iterdir())


def test_a_client_with_only_its_own_data_gets_a_verdict_on_its_line(tmp_path: Path) -> None:
    clients = two_clients()
    file = tmp_path / "certificate.json"
    publish(a_model(), clients, radii=[0.5]).save(file)
    mine = clients.of_clients([1])
    checked = wafl.verify(file, model=a_model(), data=mine)
    assert checked.verdict == "ATTESTED"
    assert [checked.verdict_of(name) for name in ("a", "b")] == ["ATTESTED", "PROVEN"]
    with pytest.raises(ValueError, match="'c' is not in the certificate: its clients are a, b"):
        checked.verdict_of("c")
    forge(file, lambda content: content["witnesses"][0]["means"].__setitem__(1, 0.0))
    assert wafl.verify(file, model=a_model(), data=mine).verdict_of("b") == "WRONG"
    other = a_model().double()
    assert wafl.verify(file, model=other, data=mine).verdict_of("b") == "WRONG"


def test_the_command_has_the_verdict_of_one_client(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    clients = two_clients()
    run = wafl.fit(wafl.models.mlr(clients), clients, wafl.FedAvg(), rounds=1, local_steps=1, progress=False)
    run.save("run")
    wafl.certify(run, clients, radii=[0.5]).save("certificate.json")
    Path("mine").mkdir()
    one = clients.train.of_clients([1])
    np.savez("mine/b.npz", x=one.raw.numpy(), y=one.y.numpy())
    words = ["verify", "certificate.json", "--model", "run", "--data", "mine"]
    codes = {name: CliRunner().invoke(app, [*words, *more]).exit_code for name, more in {
        "all": [], "b": ["--client", "b"], "a": ["--client", "a"], "c": ["--client", "c"],
        "accepted": ["--accept", "attested"],
    }.items()}  # fmt: skip
    assert codes == {"all": 3, "b": 0, "a": 3, "c": 2, "accepted": 0}


def test_clients_that_are_left_out_and_other_weights_are_noted(tmp_path: Path) -> None:
    file, clients = tmp_path / "certificate.json", two_clients(sizes=(6, 12))
    publish(a_model(), clients.of_clients([0]), radii=[0.5]).save(file)
    checked = wafl.verify(file, model=a_model(), data=clients)
    assert checked.verdict == "PROVEN"
    (line,) = (line for line in checked.lines if line.name == "left out")
    assert (line.status, line.why) == ("noted", "data of clients that are not in the certificate: b")
    publish(a_model(), clients, radii=[0.5], client_weights=wafl.weights.uniform()).save(file)
    (line,) = (line for line in wafl.verify(file).lines if line.name == "weights")
    assert line.why == "not by examples: a has 50.0% of the weight and 33.3% of them"
    publish(a_model(), clients, radii=[0.5]).save(file)
    assert "weights" not in status(wafl.verify(file))


def test_digests_tell_types_of_numbers_and_scales_of_data_apart() -> None:
    model, double = a_model(), a_model().double()
    assert digest_of(model) != digest_of(double)
    assert model_digest(model) == model_digest(double), "without the numbers, only their types tell them apart"
    assert model_digest(model, dtypes=True) != model_digest(double, dtypes=True)
    x = np.random.default_rng(0).integers(0, 256, size=(30, 1, 2, 2), dtype=np.uint8)
    pairs = [(x[:10], np.arange(10) % 3), (x[10:], np.arange(20) % 3)]
    both = wafl.Federation.from_arrays(pairs, test_fraction=0.0, preprocess="zscore").train.of_clients([0])
    alone = wafl.Federation.from_arrays(pairs[:1], test_fraction=0.0, preprocess="zscore").train
    assert not torch.equal(both.x, alone.x)
    assert both.digest() == alone.digest(), "why there is a new format"
    assert both.digest(statistics=True) != alone.digest(statistics=True)


@pytest.mark.parametrize("change", [str.upper, lambda text: f" {text}", lambda text: text[:-2]])
def test_a_signature_has_one_spelling(tmp_path: Path, change) -> None:
    from tests.promises.files import write_keys

    private, public = write_keys(tmp_path)
    file = tmp_path / "certificate.json"
    publish(a_model(), two_clients(), radii=[0.5]).save(file, key=private)
    assert wafl.verify(file, key=public).signed
    data = file.read_text()
    signature = data.split('"of": "')[1].split('"')[0]
    file.write_text(data.replace(signature, change(signature)))
    with pytest.raises(ValueError, match="its signature is not 128 lowercase hexadecimal digits"):
        wafl.verify(file, key=public)


def unproven_file(folder: Path, **options) -> tuple[nn.Module, wafl.Federation, Path]:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(2, 4), nn.LayerNorm(4), nn.Linear(4, 3)).double()
    clients, file = two_clients(), folder / "certificate.json"
    publish(model, clients, radii=[0.0, 0.5], **options).save(file)
    return model, clients, file


def test_data_refute_a_claim_about_a_model_without_a_proof(tmp_path: Path) -> None:
    model, clients, file = unproven_file(tmp_path)
    assert "LayerNorm" in wafl.verify(file).promise.parts.attested  # type: ignore[operator]
    assert wafl.verify(file, model=model, data=clients).verdict == "ATTESTED"
    honest = file.read_bytes()
    for index, part in ((0, [0, 1]), (0, [1]), (1, [0, 1])):
        file.write_bytes(honest)
        forge(file, lambda content, index=index: content["claim"]["rows"][index].update(value=0.001))
        checked = wafl.verify(file, model=model, data=clients.of_clients(part))
        assert checked.verdict == "WRONG"
        assert [line.status for line in checked.lines[1:3]].count("wrong") == 1
        assert wafl.verify(file, data=clients).verdict == "ATTESTED", "without the model nothing is measured"


def test_an_attack_refutes_what_the_loss_at_rest_does_not(tmp_path: Path) -> None:
    model, clients, file = unproven_file(tmp_path)
    with torch.no_grad():
        rest = float(nn.functional.cross_entropy(model(clients.train.x.double()), clients.train.y))
    forge(file, lambda content: content["claim"]["rows"][1].update(value=1.0001 * rest))
    assert wafl.verify(file, model=model, data=clients).verdict == "WRONG"


def test_rounding_and_some_clients_of_a_signed_loss_refute_nothing(tmp_path: Path) -> None:
    model, clients, file = unproven_file(tmp_path)
    with torch.no_grad():
        rest = float(nn.functional.cross_entropy(model(clients.train.x.double()), clients.train.y))
    for factor, verdict in ((1.0 - 1e-9, "ATTESTED"), (1.0 - 1e-5, "WRONG")):
        forge(file, lambda content, factor=factor: content["claim"]["rows"][0].update(value=factor * rest))
        assert wafl.verify(file, model=model, data=clients).verdict == verdict

    def signed(outputs: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return nn.functional.cross_entropy(outputs, y, reduction="none") - 1.0

    model, clients, file = unproven_file(tmp_path, loss=signed)
    forge(file, lambda content: [row.update(value=0.0) for row in content["claim"]["rows"]])
    checked = wafl.verify(file, model=model, data=clients.of_clients([0]), loss=signed)
    assert checked.verdict == "ATTESTED"
