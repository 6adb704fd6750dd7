"""``wafl certify`` and ``wafl verify``: what they write, what they say, and how they end."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from typer.testing import CliRunner

import wafl
from tests.promises.files import forge, publish, write_keys
from wafl.cli.commands.certificates import read_data
from wafl.cli.main import app
from wafl.data.preprocessing import Preprocessing


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A folder with the data of clients, one file each, a run on them and its certificate; and the run."""
    folder = tmp_path_factory.mktemp("certified")
    (folder / "data").mkdir()
    draw = np.random.default_rng(0)
    pairs = [(draw.normal(size=(6, 2)), np.arange(6) % 2) for _ in range(3)]
    for name, (x, y) in zip("abc", pairs, strict=True):
        np.savez(folder / "data" / f"{name}.npz", x=x, y=y)
    clients = wafl.Federation.from_arrays(pairs, names=list("abc"), test_fraction=0.0)
    run = wafl.fit(wafl.models.mlr(clients), clients, wafl.FedAvg(), rounds=1, local_steps=1)
    run.save(folder / "run")
    publish(run, clients, radii=[0.5]).save(folder / "certificate.json")
    return folder, run


@pytest.fixture
def run(folder, tmp_path, monkeypatch):
    """The run, in a working folder with a copy of all its files."""
    original, run = folder
    shutil.copytree(original, tmp_path, dirs_exist_ok=True)
    monkeypatch.chdir(tmp_path)
    return run


def call(*words):
    return CliRunner().invoke(app, [*words])


def test_a_certificate_is_verified_with_files_of_data_and_without_a_key_says_what_that_means(run):
    result = call("verify", "certificate.json", "--model", "run", "--data", "data")
    assert result.exit_code == 0, result.output
    assert "so they only detect accidents" in " ".join(result.output.split())
    words = result.output.split("certificate.json: no signature was checked")[1]
    assert ("attested" in words, words.count("noted")) == (False, 1)  # when it was issued
    assert result.output.startswith("PROVEN: every value was recomputed from the model and the data")
    assert "Recomputed: 100.0% of the clients' weight" in " ".join(words.split())
    assert "| 0.5 | " in result.output, "the statement in words"
    alone = call("verify", "certificate.json")
    assert (alone.exit_code, alone.output.split(":")[0]) == (3, "ATTESTED")
    assert call("verify", "certificate.json", "--accept", "attested").exit_code == 0
    assert call("verify", "certificate.json", "--accept", "wrong").exit_code == 2
    assert "Recomputed: 0.0% of the clients' weight" in " ".join(alone.output.split())


def test_a_wrong_line_ends_with_status_1_and_a_refused_file_with_2(run, tmp_path):
    _, public = write_keys(tmp_path)
    refused = call("verify", "certificate.json", "--key", str(public))
    assert (refused.exit_code, "is not signed" in refused.output) == (2, True)
    forge(Path("certificate.json"), lambda content: content["claim"]["rows"][0].update(value=0.0))
    wrong = call("verify", "certificate.json")
    assert (wrong.exit_code, "wrong" in wrong.output) == (1, True)
    missing = call("verify", "nothing.json")
    assert (missing.exit_code, "is not a file" in missing.output) == (2, True)


def test_a_run_whose_data_cannot_be_made_again_is_not_certified_from_the_command_line(run):
    result = call("certify", "run")
    assert result.exit_code == 2
    assert "do not record how to load their data: use wafl from Python" in " ".join(result.output.split())


def test_a_statement_about_the_next_client_is_signed_only_as_a_file(run):
    result = call("next-client", "run", "--sign", "key.pem")
    assert (result.exit_code, "give --output too" in result.output) == (2, True)


def test_bytes_are_prepared_as_in_training_and_other_numbers_are_taken_as_they_are(run):
    draw = np.random.default_rng(0).integers(0, 256, (6, 2), np.uint8)
    prepare = Preprocessing("unit", "pixels in [0, 1]", (0.0, 1.0), None, torch.tensor(255.0))
    of_images = replace(run, intake=replace(run.intake, prepare=prepare))
    for x in (draw, draw / 255.0):
        Path("images").mkdir(exist_ok=True)
        np.savez("images/site.npz", x=x, y=np.arange(6) % 2)
        result = read_data(Path("images"), of_images, None)
        np.testing.assert_allclose(result.train.x.numpy(), draw / 255.0, rtol=1e-6)


WRONG = {
    "certify run -o x.md": "x.md is the name of the page in words: name the certificate x.json",
    "certify run -o data": "data is a folder: give the name of a file, such as data/name.json",
    "certify run -o certificate.json/x.json": "certificate.json is not a folder: make it first",
    "certify run --radii -1": "radius=-1.0 must be 0 or lie in",
    "certify run --sign nope.pem": "nope.pem is not a file: pass the file of a private key",
    "next-client run -o x.md": "x.md is the name of the page in words",
    "prediction-sets run -o data": "data is a folder: give the name of a file",
    "verify certificate.json --model run --key nope.pem": "nope.pem is not a file: pass the file of a public key",
    "verify empty.json --model run --data data": "empty.json is not a certificate, or was changed: it does not say",
    "audit empty.json --model run --data data": "empty.json is not a certificate, or was changed: it does not say",
}


@pytest.mark.parametrize("words", WRONG)
def test_a_wrong_argument_is_refused_before_a_run_is_loaded(words, run, monkeypatch):
    Path("empty.json").write_text("{}")
    monkeypatch.setattr("wafl.cli.commands.certificates.only_run", lambda _: pytest.fail("it began"))
    result = call(*words.split())
    assert result.exit_code == 2
    assert WRONG[words] in " ".join(result.output.split())


def test_data_in_no_folder_are_refused(run):
    result = call("verify", "certificate.json", "--model", "run", "--data", "nowhere")
    assert result.exit_code == 2
    assert "data='nowhere' is not a folder: give one with a file NAME.npz" in " ".join(result.output.split())
