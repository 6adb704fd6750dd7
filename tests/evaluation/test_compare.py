"""One table for many runs: every row equals a separate evaluation."""

import csv
import json

import numpy as np
import pytest
import torch
from torch import nn

import wafl
from wafl import shifts
from wafl.results.history import History
from wafl.tasks.layout import Layout

OPTIONS = {"rounds": 2, "local_steps": 3, "batch_size": 16, "learning_rate": 0.2}


@pytest.fixture(scope="module")
def clients() -> wafl.Federation:
    data = wafl.load_dataset("digits")
    small = wafl.Dataset("digits", data.x_train[:240], data.y_train[:240], data.x_test[:60], data.y_test[:60], 10, 16)
    return small.partition(8, labels_per_client=4, test_fraction=0.4, seed=1)


@pytest.fixture(scope="module")
def swept(clients) -> list[wafl.Run]:
    return wafl.sweep(wafl.models.mlr(clients), clients, wafl.WAFL(), {"gamma": [0.5, 2.0, 8.0]}, **OPTIONS)


@pytest.fixture(scope="module")
def network(clients) -> wafl.Run:
    model = wafl.models.cnn(clients, channels=(2, 3))
    return wafl.fit(model, clients, wafl.FedAvg(), rounds=1, local_steps=2, batch_size=8)


def as_run(module: nn.Module, name: str = "mine", num_classes: int | None = 3) -> wafl.Run:
    params = {key: value.detach() for key, value in module.named_parameters()}
    return wafl.Run(name, params, module, Layout.of(module), History(), torch.ones(1), {}, num_classes)


def check_rows(table: wafl.Comparison, runs: dict, clients, attacks, shares, seed: int = 0) -> None:
    """Every row against a separate evaluation, in the order of runs, attacks and shares."""
    wanted = [
        (name, attack, share)
        for name in runs
        for attack in attacks
        for share in (shares if attack is not None else (0.0,))
    ]
    assert [(row.run, row.attacked) for row in table.rows] == [(name, share) for name, _, share in wanted]
    for row, (name, attack, share) in zip(table.rows, wanted, strict=True):
        score = wafl.evaluate(runs[name], clients, attack=attack, attacked=share, seed=seed)
        assert row.score.attack == score.attack
        assert (row.score.unit, row.score.seed) == (score.unit, seed)
        for mine, other in zip(row.score.per_client, score.per_client, strict=True):
            assert (mine.name, mine.attacked, mine.num_examples) == (other.name, other.attacked, other.num_examples)
            assert mine.accuracy == pytest.approx(other.accuracy, abs=1e-6)
            assert mine.loss == pytest.approx(other.loss, rel=1e-6, abs=1e-6)
            assert mine.weight == pytest.approx(other.weight, abs=1e-6)


@pytest.mark.slow
def test_a_sweep_under_every_kind_of_attack_equals_separate_evaluations(clients, swept):
    runs = {f"gamma {index}": run for index, run in enumerate(swept)}
    attacks = [
        None,
        wafl.PGD(epsilon=0.05, steps=4),
        wafl.FGSM(epsilon=0.1),
        wafl.PGD(epsilon=0.3, steps=4),
        wafl.WassersteinShift(radius=0.4),
        wafl.FGSM(epsilon=0.2),
        wafl.PGD(epsilon=0.2, steps=4, step_size=0.03),
        wafl.PGD(epsilon=0.8, steps=3, norm=2, bounds=(0.0, 1.0)),
        shifts.rotation(severity=0.3),
        shifts.label_shift(severity=1.0),
        wafl.PGD(epsilon=0.1, steps=2, random_start=True),
        wafl.PGD(epsilon=0.3, steps=2, random_start=True),
        shifts.shot_noise(severity=0.4, bounds=(0.0, 1.0)),
    ]
    table = wafl.compare(runs, clients, attacks=attacks, attacked=(0.25, 1.0), seed=3)
    check_rows(table, runs, clients, attacks, (0.25, 1.0), seed=3)
    accuracies = [[row.score.accuracy for row in table.rows if row.run == name] for name in runs]
    assert len(set(map(tuple, accuracies))) == 3, "runs that score alike would hide a mix-up"


def test_networks_and_linear_models_can_be_compared(clients, swept, network):
    runs = {"one": swept[0], "network": network, "two": swept[2]}
    attacks = [wafl.FGSM(epsilon=0.1), None, wafl.PGD(epsilon=0.1, steps=2), shifts.blur(severity=0.5)]
    check_rows(wafl.compare(runs, clients, attacks=attacks), runs, clients, attacks, (1.0,))


def test_models_that_look_the_same_are_not_merged():
    """A module may compute with a number that its repr and its parameters do not show."""

    class Scaled(nn.Module):
        def __init__(self, scale: float) -> None:
            super().__init__()
            self.layer, self.scale = nn.Linear(3, 3), scale
            self.layer.weight.data, self.layer.bias.data = torch.eye(3), torch.zeros(3)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.scale * self.layer(x)

    x = np.random.default_rng(0).random((20, 3)).astype(np.float32)
    clients = wafl.Federation.from_arrays([(x, x.argmax(1))], num_classes=3)
    runs = {"plus": as_run(Scaled(1.0)), "minus": as_run(Scaled(-1.0))}
    table = wafl.compare(runs, clients)
    check_rows(table, runs, clients, [None], (1.0,))
    assert [row.score.accuracy for row in table.rows] == [1.0, 0.0]


def test_the_saved_files_contain_the_table(clients, swept, tmp_path):
    runs = {"a, with a comma": swept[0], "b": swept[1]}
    table = wafl.compare(runs, clients, attacks=[None, wafl.FGSM(epsilon=0.1)], attacked=(0.5, 1.0))
    table.save(tmp_path / "new" / "folder")
    records = json.loads((tmp_path / "new" / "folder" / "comparison.json").read_text())
    with (tmp_path / "new" / "folder" / "comparison.csv").open(newline="") as file:
        lines = list(csv.DictReader(file))
    assert len(table.rows) == len(records) == len(lines) == 6
    for row, record, line in zip(table.rows, records, lines, strict=True):
        summary = row.score.summary()
        assert (record["run"], record["attacked"]) == (row.run, row.attacked)
        assert {name: record[name] for name in summary} == summary
        assert (line["run"], float(line["attacked"]), line["attack"]) == (row.run, row.attacked, row.score.attack)
        for name in ("accuracy", "loss", "low", "high", "client_accuracy", "std", "worst_client", "worst_10"):
            assert float(line[name]) == summary[name]
        assert line["unit"] == "pixels in [0, 1]"
        assert (line["clean_accuracy"] == "") == (row.attacked == 1.0)
        assert (line["attacked_accuracy"] == "") == (row.attacked == 0.0)
    assert sorted(path.name for path in (tmp_path / "new" / "folder").iterdir()) == [
        "comparison.csv", "comparison.json",
    ]  # fmt: skip


def test_rows_are_named_by_keys_or_by_methods(clients, swept, network):
    assert [row.run for row in wafl.compare([swept[0], network], clients).rows] == ["WAFL (gamma=0.5)", "FedAvg"]
    assert [row.run for row in wafl.compare([network, network], clients).rows] == ["FedAvg 0", "FedAvg 1"]
    table = wafl.compare(swept, clients)
    assert [row.run for row in table.rows] == [f"WAFL (gamma={gamma})" for gamma in (0.5, 2.0, 8.0)]
    for row, run in zip(table.rows, swept, strict=True):
        assert row.score.loss == pytest.approx(wafl.evaluate(run, clients).loss)
    assert [row.run for row in wafl.compare({"z": swept[0], "a": swept[1]}, clients).rows] == ["z", "a"]


def test_shares_keep_the_order_given(clients, swept):
    table = wafl.compare(swept[:1], clients, attacks=wafl.FGSM(epsilon=0.1), attacked=(0.5, 0.25))
    assert [row.attacked for row in table.rows] == [0.5, 0.25]


def test_no_runs_bad_seeds_and_no_test_examples_are_refused(clients, swept):
    for nothing in ([], {}):
        with pytest.raises(ValueError, match="there are no runs to compare"):
            wafl.compare(nothing, clients)
    with pytest.raises(ValueError, match="seed=-1"):
        wafl.compare(swept, clients, seed=-1)
    bare = wafl.load_dataset("digits").partition(5, iid=True, test_fraction=0.0)
    with pytest.raises(ValueError, match="no client has test examples"):
        wafl.compare(swept, bare)


@pytest.mark.parametrize("attacks", ["autoattack", ["pgd"]])
def test_an_attack_by_name_is_refused(clients, swept, attacks):
    with pytest.raises((TypeError, ValueError), match=r"'autoattack'|'pgd'"):
        wafl.compare(swept, clients, attacks=attacks)


def test_unseen_clients_are_scored_in_every_row_as_evaluate_scores_them(clients, tmp_path):
    seen, unseen = clients.hold_out(0.4)
    runs = wafl.sweep(wafl.models.mlr(seen), seen, wafl.FedAvg(), {"seed": [4, 7]}, **OPTIONS)
    attacks = [None, wafl.FGSM(epsilon=0.1, bounds=None), wafl.PGD(epsilon=0.2, steps=3, bounds=None)]
    table = wafl.compare({"FedAvg": runs}, seen, attacks=attacks, attacked=(0.5, 1.0), unseen=unseen)
    assert [(row.run, row.seed) for row in table.rows] == [("FedAvg", 4)] * 5 + [("FedAvg", 7)] * 5
    for row in table.rows:
        run = runs[0] if row.seed == 4 else runs[1]
        attack = next(each for each in attacks if row.score.attack == (each.describe(seen.unit) if each else "none"))
        score = wafl.evaluate(run, seen, attack=attack, attacked=row.attacked, unseen=unseen)
        for name in ("train", "unseen"):
            mine, other = getattr(row.score, name), getattr(score, name)
            assert [each.name for each in mine.per_client] == [each.name for each in other.per_client]
            assert mine.accuracy == pytest.approx(other.accuracy, abs=1e-9)
    table.save(tmp_path)
    with (tmp_path / "comparison.csv").open() as file:
        records = list(csv.DictReader(file))
    assert float(records[0]["participation_gap"]) == pytest.approx(table.rows[0].score.participation_gap)
    assert [record["seed"] for record in records] == ["4"] * 5 + ["7"] * 5
