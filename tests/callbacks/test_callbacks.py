"""Callbacks are told about every round, add to the history, and end runs."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import wafl
from wafl.callbacks import Callback, EarlyStopping, EvaluateEvery, Moment
from wafl.results.history import History
from wafl.train.checkpoint.checkpoint import Checkpoint

SCHEDULE: dict[str, Any] = {"rounds": 6, "cohort": 3, "local_steps": 2, "batch_size": 4, "learning_rate": 0.2}


def make_clients() -> wafl.Federation:
    """Five clients whose three classes can mostly be told apart."""
    rng = np.random.default_rng(0)
    labels = [np.arange(n) % 3 for n in (32, 48, 28, 36, 24)]
    pairs = [(0.6 * rng.random((len(y), 3)) + 0.4 * np.eye(3)[y], y) for y in labels]
    return wafl.Federation.from_arrays(pairs, bounds=(0.0, 1.0))


CLIENTS = make_clients()


def fit(
    *callbacks: Any, clients: wafl.Federation = CLIENTS, method: wafl.Method | None = None, **changes: Any
) -> wafl.Run:
    model = wafl.models.mlr(clients)
    return wafl.fit(model, clients, method or wafl.WAFL(gamma=1.0), callbacks=callbacks, **{**SCHEDULE, **changes})


def sweep(*callbacks: Any, grid: dict[str, list[Any]] | None = None, **changes: Any) -> list[wafl.Run]:
    grid, model = grid or {"gamma": [1.0, 4.0], "seed": [0, 1]}, wafl.models.mlr(CLIENTS)
    return wafl.sweep(model, CLIENTS, wafl.WAFL(), grid, callbacks=callbacks, **{**SCHEDULE, **changes})


def assert_same(one: wafl.Run, other: wafl.Run) -> None:
    """The same draws exactly, the same numbers up to the rounding of sums taken in another order."""
    assert one.history.column("cohort") == other.history.column("cohort")
    for name, value in one.params.items():
        torch.testing.assert_close(value, other.params[name], rtol=0, atol=1e-5)
    assert one.history.column("loss") == pytest.approx(other.history.column("loss"), abs=1e-5)


class Diary(Callback):
    """Writes down what it is told."""

    def __init__(self) -> None:
        self.rounds: list[tuple[int, int]] = []
        self.ends: list[tuple[int, wafl.Run]] = []

    def on_round(self, moment: Moment) -> None:
        self.rounds.append((moment.index, moment.record.round))

    def on_end(self, index: int, run: wafl.Run) -> None:
        self.ends.append((index, run))


class Given(Callback):
    """Adds a metric with given values, one per round."""

    def __init__(self, *values: float, name: str = "given") -> None:
        self.values, self.name = values, name

    def on_round(self, moment: Moment) -> None:
        if moment.record.round < len(self.values):
            moment.metrics[self.name] = self.values[moment.record.round]


# -- What callbacks are told ----------------------------------------------------------------------------------


def test_a_function_and_a_callback_are_told_of_every_round_of_every_run() -> None:
    calls: list[tuple[int, int]] = []
    diary = Diary()
    names: list[str] = []
    sweep(lambda moment: calls.append((moment.index, moment.record.round)), diary, lambda m: names.append(m.name))
    expected = [(index, number) for number in range(6) for index in range(4)]
    assert calls == diary.rounds == expected
    assert names[-1] == "WAFL (gamma=4.0, seed=1)"


def test_callbacks_are_told_of_each_end_once_with_the_run_that_is_returned() -> None:
    diary = Diary()
    runs = sweep(diary, grid={"gamma": [1.0, 2.0], "batch_size": [2, 4]})
    assert Counter(index for index, _ in diary.ends) == {0: 1, 1: 1, 2: 1, 3: 1}
    for index, run in diary.ends:
        assert all(torch.equal(value, runs[index].params[name]) for name, value in run.params.items())
        assert list(run.history) == list(runs[index].history)
        assert run.settings == runs[index].settings


def test_a_run_kept_from_a_moment_is_as_if_training_had_ended_there() -> None:
    """So is its history: it has all rounds up to this one and no later ones, even if the run is asked for later."""
    kept: list[wafl.Run] = []
    moments: list[Moment] = []
    before: list[int] = []
    count = lambda moment: before.append(len(moment.history))  # noqa: E731
    fit(Given(5.0, 6.0), lambda moment: kept.append(moment.run), count, rounds=3)
    fit(Given(5.0, 6.0), moments.append, rounds=3)
    assert before == [0, 1, 2]
    for number, runs in enumerate(zip(kept, [moment.run for moment in moments], strict=True)):
        shorter = fit(Given(5.0, 6.0), rounds=number + 1)
        for run in runs:
            assert all(torch.equal(value, run.params[name]) for name, value in shorter.params.items())
            for column in ("round", "loss", "cohort", "metrics"):
                assert run.history.column(column) == shorter.history.column(column)


def test_callbacks_are_called_in_order_and_see_what_earlier_ones_added() -> None:
    seen: list[dict[str, float]] = []
    run = fit(Given(1.0, 2.0, 3.0), lambda moment: seen.append(dict(moment.metrics)), rounds=3)
    assert seen == [{"given": 1.0}, {"given": 2.0}, {"given": 3.0}]
    assert run.history.column("metrics") == seen


def test_callbacks_that_only_watch_change_no_bit() -> None:
    plain = fit()
    watched = fit(Diary(), EvaluateEvery(CLIENTS, 1), EarlyStopping(patience=100), lambda moment: moment.run)
    assert all(torch.equal(value, watched.params[name]) for name, value in plain.params.items())
    assert plain.history.column("loss") == watched.history.column("loss")


@pytest.mark.parametrize("bad", ["log", 3, None, {"loss": 1.0}, [print], EarlyStopping, Diary], ids=repr)
def test_what_is_not_a_callback_is_refused_before_any_work(bad: Any) -> None:
    diary = Diary()
    with pytest.raises(TypeError, match=r"is not a callback: use a wafl.callbacks.Callback or a function of a moment"):
        fit(diary, bad)
    assert diary.rounds == []


# -- Metrics --------------------------------------------------------------------------------------------------


def test_metrics_are_kept_in_the_history_and_in_json(tmp_path: Path) -> None:
    run = fit(Given(0.1, 1 / 3, 5), rounds=4)
    expected = [{"given": 0.1}, {"given": 1 / 3}, {"given": 5}, {}]
    assert run.history.column("metrics") == expected
    rows = json.loads(json.dumps(run.history.to_json()))
    assert [row["metrics"] for row in rows] == expected
    assert list(History.from_json(rows)) == list(run.history)
    saved = json.loads((run.save(tmp_path / "run") / "run.json").read_text())
    assert [row["metrics"] for row in saved["history"]] == expected
    assert list(wafl.load_run(tmp_path / "run").history) == list(run.history)


@pytest.mark.parametrize("value", [np.float32(0.5), np.int64(2), torch.tensor(0.5)], ids=["float32", "int64", "tensor"])
def test_a_metric_of_another_librarys_number_type_is_kept_as_a_number(tmp_path: Path, value: Any) -> None:
    """Otherwise the first checkpoint fails, and everything trained so far is lost."""
    run = fit(lambda moment: moment.metrics.update(mine=value), checkpoint=Checkpoint(tmp_path / "checkpoint"))
    run.save(tmp_path / "run")
    assert [row["mine"] for row in run.history.column("metrics")] == [float(value)] * 6
    assert list(wafl.load_run(tmp_path / "run").history) == list(run.history)


def test_the_values_of_a_metric_come_from_the_rounds_that_have_it() -> None:
    seen: list[list[float]] = []
    losses: list[list[float]] = []

    def look(moment: Moment) -> None:
        if moment.record.round % 2:
            moment.metrics["odd"] = float(moment.record.round)
        seen.append(moment.values("odd"))
        losses.append(moment.values("loss"))
        assert moment.values("nothing") == []

    run = fit(look)
    assert seen == [[], [1.0], [1.0], [1.0, 3.0], [1.0, 3.0], [1.0, 3.0, 5.0]]
    assert losses == [run.history.column("loss")[: number + 1] for number in range(6)]


# -- Stopping -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "method", [wafl.WAFL(radius=0.3), wafl.FedRobust(), wafl.DRFA()], ids=lambda method: method.name
)
@pytest.mark.parametrize("stopped", [(0,), (1, 2), (0, 1, 2)])
def test_stopping_one_run_of_a_sweep_leaves_the_others_as_if_they_were_alone(
    method: wafl.Method, stopped: tuple[int, ...]
) -> None:
    rounds = [2 + index if index in stopped else 6 for index in range(3)]

    def stop(moment: Moment) -> None:
        _stop_at(moment, rounds[moment.index])

    model, seeds = wafl.models.mlr(CLIENTS), [3, 4, 5]
    runs = wafl.sweep(model, CLIENTS, method, {"seed": seeds}, callbacks=[stop], **SCHEDULE)
    for index, (seed, run) in enumerate(zip(seeds, runs, strict=True)):
        assert len(run.history) == rounds[index]
        # A gamma that is learned depends on how many rounds were asked for: the run alone requests this number.
        alone = fit(lambda moment, last=rounds[index]: _stop_at(moment, last), method=method, seed=seed)
        assert_same(run, alone)


def _stop_at(moment: Moment, rounds: int) -> None:
    if moment.record.round + 1 == rounds:
        moment.stop("enough")


# -- Early stopping -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("values", "options", "rounds"),
    [
        ((5, 4, 3, 2, 1, 0), {"patience": 1}, 6),  # always better
        ((5, 5, 5, 5, 5, 5), {"patience": 1}, 2),  # equally good is not better
        ((5, 4, 4, 4, 4, 4), {"patience": 3}, 5),
        ((5, 4, 6, 6, 3, 3), {"patience": 3}, 6),  # better just in time
        ((5, 4, 6, 6, 3, 3), {"patience": 2}, 4),
        ((1, 5, 4, 3, 2, 2), {"patience": 4}, 5),  # better than the last value, but not than the best
        ((1, 2, 3, 4, 5, 6), {"patience": 1, "largest": True}, 6),
        ((6, 5, 4, 3, 2, 1), {"patience": 2, "largest": True}, 3),
        ((1, 3, 2, 3, 4, 4), {"patience": 2, "largest": True}, 4),
        ((5, 4.6, 4.2, 3.8, 3.4, 3), {"patience": 1, "min_delta": 0.5}, 2),  # never enough in one round
        ((5, 4.6, 4.2, 3.8, 3.4, 3), {"patience": 2, "min_delta": 0.5}, 6),  # enough in two
        ((5, 4, 3, 2.5, 2, 1.5), {"patience": 1, "min_delta": 0.5}, 4),  # exactly the difference is not more than it
        ((1, 2, 2.2, 9, 9, 9), {"patience": 1, "min_delta": 0.5, "largest": True}, 3),
        ((5, 5, 5, 5, 5, 5), {"patience": 6}, 6),
    ],
)
def test_early_stopping_ends_a_run_after_patience_values_without_improvement(
    values: tuple[float, ...], options: dict[str, Any], rounds: int
) -> None:
    run = fit(Given(*values), EarlyStopping(metric="given", **options))
    assert run.history.column("metrics") == [{"given": value} for value in values[:rounds]]


@pytest.mark.parametrize("metric", ["los", "accuracies", "gamma"])
def test_early_stopping_on_an_unknown_metric_is_an_error_that_lists_the_known_ones(metric: str) -> None:
    with pytest.raises(
        ValueError, match=rf"metric='{metric}' is not a metric of this run: use one of agreement, loss, replies"
    ):
        fit(EarlyStopping(metric), method=wafl.FedAvg())


@pytest.mark.parametrize("metric", ["accuracy", "test_loss", "attacked_accuracy", "attacked_loss"])
def test_early_stopping_waits_for_a_metric_that_not_every_round_has(metric: str) -> None:
    """The first round does not have it yet."""
    attack = wafl.PGD(epsilon=0.1, steps=2) if metric.startswith("attacked") else None
    stopping = EarlyStopping(metric, patience=1, min_delta=100.0)
    run = fit(EvaluateEvery(CLIENTS, 2, attack=attack), stopping)
    assert len(run.history) == 4, "at its second value"


# -- Evaluating -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("every", [1, 2, 4])
def test_evaluation_every_few_rounds_is_that_of_the_run_so_far(every: int) -> None:
    attack = wafl.PGD(epsilon=0.2, steps=3)
    run = fit(EvaluateEvery(CLIENTS, every), EvaluateEvery(CLIENTS, every, attack=attack, attacked=0.6, seed=9))
    for record in run.history:
        if (record.round + 1) % every:
            assert record.metrics == {}
            continue
        shorter = fit(rounds=record.round + 1)
        clean, moved = (
            wafl.evaluate(shorter, CLIENTS),
            wafl.evaluate(shorter, CLIENTS, attack=attack, attacked=0.6, seed=9),
        )
        assert record.metrics == {
            "accuracy": clean.accuracy,
            "test_loss": clean.loss,
            "attacked_accuracy": moved.accuracy,
            "attacked_loss": moved.loss,
        }
        assert moved.loss > clean.loss


def test_the_evaluation_of_a_regression_adds_a_loss_and_no_accuracy() -> None:
    rng = np.random.default_rng(1)
    targets = wafl.Federation.from_arrays([(rng.random((8, 3)), rng.random(8)) for _ in range(3)])
    run = fit(EvaluateEvery(targets, 3), clients=targets, method=wafl.FedAvg(), loss="squared_error")
    assert [set(record.metrics) for record in run.history] == [set(), set(), {"test_loss"}] * 2


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"rounds": 0}, "rounds=0 must be at least 1: how often to evaluate"),
        ({"attacked": 1.5}, "attacked=1.5 is a share of the clients"),
        ({"attack": "pgd"}, "'pgd' is not an attack"),
    ],
)
def test_evaluation_refuses_options_out_of_range(wrong: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        EvaluateEvery(CLIENTS, **wrong)


def test_evaluation_of_clients_without_test_examples_is_refused_before_any_work() -> None:
    rng = np.random.default_rng(1)
    untested = wafl.Federation.from_arrays([(rng.random((8, 3)), np.arange(8) % 2)], test_fraction=0)
    with pytest.raises(ValueError, match="no client has test examples"):
        EvaluateEvery(untested)


# -- Resuming -------------------------------------------------------------------------------------------------


def test_a_resumed_run_is_evaluated_and_stops_where_an_uninterrupted_one_does(tmp_path: Path) -> None:
    """The earlier metrics are in the checkpoint, and early stopping looks at nothing else."""

    def watch() -> list[Any]:
        return [EvaluateEvery(CLIENTS, 2), EarlyStopping("test_loss", patience=2, min_delta=0.02)]

    whole = sweep(*watch(), rounds=40)
    lengths = [len(run.history) for run in whole]
    assert min(lengths) < max(lengths)
    for at in (1, min(lengths) - 1, min(lengths)):

        def fails(moment: Moment, at: int = at) -> None:
            if moment.record.round == at:
                raise KeyboardInterrupt

        with pytest.raises(KeyboardInterrupt):
            sweep(*watch(), fails, rounds=40, checkpoint=Checkpoint(tmp_path / str(at)))
        again = sweep(*watch(), rounds=40, checkpoint=Checkpoint(tmp_path / str(at)))
        for one, other in zip(whole, again, strict=True):
            assert all(torch.equal(value, other.params[name]) for name, value in one.params.items())
            assert one.history.column("metrics") == other.history.column("metrics")
