"""The model card: what the hub reads of it, and what it says."""

from __future__ import annotations

import xml.etree.ElementTree as Xml
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

import wafl
from tests.promises.files import publish
from wafl.cli.main import app


@pytest.fixture(scope="module")
def card(tmp_path_factory: pytest.TempPathFactory) -> Path:
    seen, unseen = wafl.load_dataset("digits").partition(num_clients=6, iid=True, seed=0).hold_out(0.34)
    run = wafl.fit(wafl.models.mlr(seen), seen, wafl.WAFL(gamma=1.0), rounds=2, local_epochs=1)
    attack = wafl.PGD(epsilon=0.1, steps=3)
    scores = [wafl.evaluate(run, seen, unseen=unseen), wafl.evaluate(run, seen, attack=attack, unseen=unseen)]
    return run.card(tmp_path_factory.mktemp("hub") / "card", scores=scores, certificate=publish(run, seen, radii=[0.5]))


def test_the_hub_reads_four_results_by_its_own_classes(card: Path) -> None:
    hub: Any = pytest.importorskip("huggingface_hub")
    read = hub.ModelCard.load(card).data
    results = read.eval_results
    assert read.library_name == "wafl-learn"
    assert [result.metric_type for result in results] == ["accuracy"] * 4
    assert results[1].dataset_name.endswith("that never trained")
    assert results[2].metric_value < results[0].metric_value  # under attack


def test_the_card_holds_its_certificate_in_words_and_as_a_file_and_a_badge(card: Path) -> None:
    text = card.read_text()
    assert "| distance at most | expected loss at most |" in text
    assert (card.parent / "certificate.json").is_file()
    badge = Xml.fromstring((card.parent / "badge.svg").read_text())
    assert badge.attrib["aria-label"].startswith("certified loss: at most")
    assert badge.attrib["aria-label"].endswith("within 0.5")
    assert "Not proven" not in text


def test_the_card_of_a_certificate_that_was_not_checked_says_so_first(card: Path, tmp_path: Path) -> None:
    clients = wafl.load_dataset("digits").partition(num_clients=2, iid=True)
    run = wafl.fit(wafl.models.mlr(clients), clients, wafl.FedAvg(), rounds=1, local_steps=1)
    promise = wafl.verify(card.parent / "certificate.json").promise
    assert not promise.proven
    text = run.card(tmp_path / "card", certificate=promise).read_text()
    assert text.index("Not proven: these numbers are the issuer's word") < text.index("badge.svg")
    badge = Xml.fromstring((tmp_path / "card" / "badge.svg").read_text())
    assert badge.attrib["aria-label"].startswith("attested loss: at most")


def test_a_card_never_overwrites(card: Path) -> None:
    clients = wafl.load_dataset("digits").partition(num_clients=2, iid=True)
    run = wafl.fit(wafl.models.mlr(clients), clients, wafl.FedAvg(), rounds=1, local_steps=1)
    with pytest.raises(FileExistsError, match="choose another folder"):
        run.card(card.parent)


def test_the_command_tests_and_certifies_the_run_and_writes_its_card(tmp_path: Path) -> None:
    clients = wafl.load_dataset("digits").partition(num_clients=2, labels_per_client=10, sizes=(40, 4))
    run = wafl.fit(wafl.models.mlr(clients), clients, wafl.FedAvg(), rounds=1, local_steps=1)
    run.save(tmp_path / "run")
    done = CliRunner().invoke(app, ["export", str(tmp_path / "run"), "--format", "card"])
    assert done.exit_code == 0, done.output
    text = (tmp_path / "run" / "card" / "README.md").read_text()
    assert text.count("| that trained, on held-out examples |") == 2  # with and without an attack
    assert (tmp_path / "run" / "card" / "certificate.json").is_file()
