"""The leaderboard: clients for tuning and tests differ, steps and trials are equal, and numbers repeat."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from scipy import ndimage
from sklearn.ensemble import HistGradientBoostingClassifier
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import log_loss, roc_auc_score

import wafl
from research.leaderboard import measure as board
from research.leaderboard.measure import extended, leaderboard, read
from research.leaderboard.references import fitted
from research.leaderboard.rows import MethodRow
from research.leaderboard.scores import Model, scores
from research.leaderboard.tasks import NaturalTask
from research.old_cost_matrix import old_cost_matrix
from research.promises import tasks as promised

FULL = read("full")
SMALL = wafl.Federation.from_arrays(
    [(np.random.default_rng(index).normal(size=(40, 3)).astype(np.float32), np.arange(40) % 2) for index in range(6)],
    seed=1,
)


def quiet(_: str) -> None:
    pass


def here(name: str) -> NaturalTask:
    task = FULL.tasks[name]
    if task.missing:
        pytest.skip(f"{name} is not here")
    return task


@pytest.mark.parametrize("name", ["smartwatch", "pols", "hospitals", "authorities"])
def test_no_client_is_unseen_that_methods_were_tuned_on(name: str) -> None:
    task = here(name)
    tuned = {client for fold in task.tuning for part in fold for client in part.names}
    splits = [task.split(number) for number in FULL.table["seeds_test"]]
    for seen, unseen in splits:
        assert not tuned & set(unseen.names)
        assert not set(seen.names) & set(unseen.names)
        assert tuned < set(seen.names)
    assert len({unseen.names for _, unseen in splits}) > 1, "splits differ"


@pytest.mark.parametrize("name", ["smartwatch", "peterson-kinds", "turned-digits"])
def test_every_tuning_client_judges_once_and_never_what_it_trained(name: str) -> None:
    folds = here(name).tuning
    judges = [client for _, part in folds for client in part.names]
    assert len(judges) == len(set(judges)) == folds[0][0].num_clients + folds[0][1].num_clients
    assert all(not set(seen.names) & set(part.names) for seen, part in folds)


def test_clients_have_five_angles() -> None:
    """A digit turned by an angle, whatever library turns it: the unseen clients' digits look like no other's."""
    digits = wafl.load_dataset("digits").partition(20, iid=True, preprocess="unit", seed=0)
    seen, unseen = FULL.tasks["turned-digits"].split(0)
    for index, angle in enumerate((0, 15, 30, 45, 60)):
        upright = digits.train.of(index)[0].double()[:, 0]
        turned = ndimage.rotate(upright, angle, axes=(1, 2), reshape=False, order=1, mode="nearest")
        inputs = unseen.train.of(0)[0] if index == 4 else seen.train.of(index)[0]
        # Clients keep whole gray levels, of which there are 16.
        assert np.abs(inputs.numpy()[:, 0] - turned)[:, 2:6, 2:6].max() < 0.5 / 16 + 1e-6


def test_the_unseen_angle_is_never_trained_or_tuned_on() -> None:
    task = FULL.tasks["turned-digits"]
    seen, unseen = task.split(201)
    assert (seen.num_clients, unseen.num_clients) == (16, 4)
    assert [int(name.split()[1]) % 5 for name in unseen.names] == [4] * 4
    assert all(int(name.split()[1]) % 5 < 4 for fold in task.tuning for part in fold for name in part.names)


def test_given_again_it_gives_the_same_bits_and_trains_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = leaderboard([], "smoke", tmp_path / "one", 1, quiet)
    monkeypatch.setattr(board, "do", lambda *_: 1 / 0)
    again = leaderboard([], "smoke", tmp_path / "one", 1, quiet)
    assert json.dumps(again) == json.dumps(first)
    assert leaderboard([], "smoke", tmp_path / "one", 0, quiet)["results"] == first["results"]
    result = first["results"]["turned-digits"]
    assert list(result) == ["FedAvg", "WAFL", "AFL", "majority", "pooled"]
    assert all(len(row["splits"]) == 2 for row in result.values())
    assert first["registered"] == FULL.stamp
    next((tmp_path / "one").glob("*/*WAFL_test-202.json")).unlink()
    assert leaderboard([], "smoke", tmp_path / "one", 0, quiet)["unfinished"] == {"turned-digits": ["WAFL"]}
    monkeypatch.undo()
    assert leaderboard([], "smoke", tmp_path / "one", 1, quiet)["results"] == first["results"]


def test_nothing_is_trained_where_nothing_is_kept(tmp_path: Path) -> None:
    result = leaderboard([], "smoke", tmp_path, 0, quiet)
    assert result["results"] == {}
    assert result["unfinished"] == {"turned-digits": ["FedAvg", "WAFL", "AFL", "majority", "pooled"]}


def test_data_that_are_not_here_are_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WAFL_DATA", str(tmp_path))
    assert leaderboard(["femnist"], "full", tmp_path, 0, quiet)["absent"] == {"femnist": "femnist"}


def test_unknown_names_are_refused_before_any_work(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="unknown data 'digit': use one of femnist"):
        leaderboard(["digit"], "full", tmp_path, 1, quiet)
    with pytest.raises(ValueError, match="scale='small' must be full or smoke"):
        leaderboard([], "small", tmp_path, 1, quiet)


@pytest.mark.parametrize("cohort", [None, 3])
def test_clients_take_as_many_steps_and_examples_together_under_every_method(cohort: int | None) -> None:
    task = FULL.tasks["turned-digits"]
    task = NaturalTask(task.name, {**task.about, **({"cohort": cohort} if cohort else {})}, task.seed)
    clients = task.split(0)[0].of_clients(range(6))
    asked = cohort or 6
    for row in (row for row in FULL.rows.values() if isinstance(row, MethodRow) and "declared" not in row.about):
        schedule = row._candidate(task, clients).schedule  # pyright: ignore[reportPrivateUsage]
        everyone = 1 if "pooled" in row.about else 6 if row.name == "AFL" else schedule.get("cohort", 6)
        steps = schedule["rounds"] * schedule["local_steps"] * everyone * schedule["batch_size"]
        assert steps == 40 * 5 * asked * 32, row.name


@pytest.mark.parametrize("name", ["FedAvg", "WAFL", "WAFL, radius auto", "CVaR"])
def test_all_try_the_same_rates_and_then_their_options_or_what_replaces_them(name: str) -> None:
    task, row = FULL.tasks["turned-digits"], FULL.rows[name]
    rates, local_value = (
        row.first(task, [0.1, 0.2]),
        {"WAFL": {"gamma", "norm"}, "CVaR": {"alpha"}}.get(name, set[str]()),
    )
    assert [each["learning_rate"] for each in rates] == [0.1, 0.2]
    assert all({*each} == {*local_value, "learning_rate"} for each in rates)
    options = row.second(task, rates[1])
    usual = set[str]() if local_value else {"label_smoothing", "average_last"}
    assert len(options) == FULL.table["trials"]["settings"]
    assert all({*each} == {*local_value, *usual, "weight_decay", "learning_rate"} for each in options)
    assert {each["learning_rate"] for each in options} == {0.2}
    assert len({json.dumps(each) for each in options}) == len(options)


def test_a_grid_grows_where_someone_is_best_at_its_end_and_not_forever() -> None:
    trials = {"rates": [1.0, 2.0, 4.0], "doublings": 2, "extensions": 2}
    assert extended([1.0, 2.0, 4.0], {2.0, None}, trials) == []
    assert extended([1.0, 2.0, 4.0], {1.0, 4.0}, trials) == [0.5, 0.25, 8.0, 16.0]
    assert extended([1.0, 2.0, 4.0, 8.0, 16.0], {4.0}, trials) == []
    assert extended([1.0, 2.0, 4.0, 8.0, 16.0], {16.0}, trials) == [32.0, 64.0]
    assert extended([1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0], {64.0}, trials) == []


def test_scores_are_those_of_evaluate_and_of_scikit_learn() -> None:
    task = NaturalTask("measured", {**FULL.tasks["pols"].about}, 0)
    task.__dict__["images"] = False
    run = wafl.fit(wafl.models.mlr(SMALL), SMALL, wafl.FedAvg(), rounds=2, local_steps=2, learning_rate=0.5)
    result = scores(Model.of(run), task, SMALL, 7)
    judged = wafl.evaluate(run, SMALL, unseen=SMALL).unseen
    assert judged is not None
    assert result["clean"]["accuracy"] == pytest.approx(100.0 * (judged.accuracy or 0.0))
    assert result["clean"]["loss"] == pytest.approx(judged.loss, rel=1e-5)
    assert result["clean"]["worst"] == pytest.approx(100.0 * judged.worst_tenth)
    whole = SMALL.train.joined(SMALL.test)
    outputs = run.module(whole.x).detach()
    assert result["clean"]["auc"] == pytest.approx(100.0 * roc_auc_score(whole.y, outputs[:, 1] - outputs[:, 0]))
    moved = [run.module(shift.apply(whole.x, 7)).argmax(-1) for shift in task.shifts()]  # pyright: ignore[reportAttributeAccessIssue]
    each = [100.0 * float((labels == whole.y).double().mean()) for labels in moved]
    assert result["shift"]["accuracy"] == pytest.approx(sum(each) / 3)


def test_an_attack_moves_images_against_the_run() -> None:
    task = FULL.tasks["turned-digits"]
    seen, unseen = task.split(0)
    run = wafl.fit(wafl.models.mlr(seen), seen, wafl.FedAvg(), rounds=3, local_steps=2, learning_rate=0.5)
    whole = replace(unseen, test=unseen.train.joined(unseen.test))
    attacked = wafl.evaluate(run, whole, attack=wafl.PGD(0.1, steps=10), seed=5)
    result = scores(Model.of(run), task, unseen, 5)
    assert result["shift"]["accuracy"] == pytest.approx(100.0 * (attacked.accuracy or 0.0))
    assert result["shift"]["accuracy"] < result["clean"]["accuracy"]


def test_references_are_what_scikit_learn_says() -> None:
    who = torch.repeat_interleave(torch.arange(6), SMALL.test.num_examples)
    local_value = fitted("alone", SMALL, SMALL, {"C": 2.0})(SMALL.test.x, who)
    (x, y), (x_test, y_test) = SMALL.train.of(3), SMALL.test.of(3)
    model = LogisticRegression(C=2.0, max_iter=1000).fit(x.numpy(), y.numpy())
    message = (30 * model.predict_proba(x_test.numpy()) + 1) / 32
    assert local_value[who == 3].exp().numpy() == pytest.approx(message)
    assert float(-local_value[who == 3].gather(1, y_test[:, None]).mean()) == pytest.approx(log_loss(y_test, message))
    shares = fitted("majority", SMALL, SMALL, {})(x_test, who[:10]).exp()
    ones = int(SMALL.train.y.sum())
    assert shares[0].tolist() == pytest.approx([(180 - ones + 1) / 182, (ones + 1) / 182])
    tree = HistGradientBoostingClassifier(max_leaf_nodes=4).fit(SMALL.train.x.numpy(), SMALL.train.y.numpy())
    message = (180 * tree.predict_proba(x_test.numpy()) + 1) / 182
    result = fitted("boosted tree", SMALL, SMALL, {"max_leaf_nodes": 4})(x_test, who[:10])
    assert result.exp().numpy() == pytest.approx(message)


def test_a_file_stands_in_for_a_package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    task = here("pols")
    made = task.dataset()
    assert made.group_train is not None
    arrays = (made.x_train.numpy(), made.y_train.numpy(), made.group_train.numpy(), np.array(made.group_names))
    np.savez_compressed(tmp_path / "pols.table.npz", **dict(zip(promised.KEYS, arrays, strict=True)))
    monkeypatch.setenv("WAFL_DATA", str(tmp_path))
    fresh = NaturalTask(task.name, task.about, task.seed)
    assert promised.stand_in("pols").is_file()
    assert fresh.clients().fingerprint() == task.clients().fingerprint()
    assert fresh.clients().names == task.clients().names


def test_the_registration_has_the_unit_of_its_time() -> None:
    """A slow loop over the classes and clients: a move costs on average as much as in a round ball."""
    train = SMALL.train
    parts = [train.of(client) for client in range(train.num_clients)]
    between = np.zeros((3, 3))
    for label in range(2):
        center = np.concatenate([x[y == label].numpy() for x, y in parts]).astype(float).mean(0)
        for x, y in parts:
            gap = x[y == label].numpy().astype(float).mean(0) - center
            between += int((y == label).sum()) / len(train.y) * np.outer(gap, gap)
    wanted = 0.9 * between * 3 / np.trace(between) + 0.1 * np.eye(3)
    matrix = old_cost_matrix(SMALL).matrix.numpy()
    np.testing.assert_allclose(matrix @ matrix.T, wanted, rtol=1e-6, atol=1e-9)
