"""Tuning: it finds what is known to be best, every method gets the same, and test data are never read."""

from __future__ import annotations

import itertools
import math
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn

import wafl
from wafl.tuning.judging import Goal, Trial, choose, hold_out
from wafl.tuning.space import Candidate, make_space

INF = math.inf
TARGET = 3.0


@pytest.fixture(scope="module")
def few() -> wafl.Federation:
    """Eight clients with 12 to 33 examples of three classes."""
    generator = torch.Generator().manual_seed(0)
    parts = [torch.rand(12 + 3 * client, 6, generator=generator) for client in range(8)]
    return wafl.Federation.from_arrays([(x, (3 * x[:, 0]).long()) for x in parts], bounds=(0.0, 1.0))


def one_weight() -> nn.Module:
    """``f(x) = w x`` with ``w = 0``."""
    model = nn.Linear(1, 1, bias=False)
    nn.init.zeros_(model.weight)
    return model


def constant(num_clients: int = 4) -> wafl.Federation:
    """``y = 3`` at ``x = 1``, for all clients."""
    pair = torch.ones(10, 1), torch.full((10, 1), TARGET)
    return wafl.Federation.from_arrays([pair] * num_clients)


class Untouchable:
    """Any use of it is an error."""

    def __getattribute__(self, name: str) -> Any:
        raise AssertionError(f"the test examples were asked for their {name}")


# -- The choice -----------------------------------------------------------------------------------------------


def test_the_held_out_loss_of_each_trial_and_the_best_rate_are_those_of_the_closed_form() -> None:
    """A full step on ``(w - 3)^2`` gives ``w - 3 = -3 (1 - 2 rate)^rounds``; 0.5 is exact, 1.1 grows."""
    tuning = wafl.tune(
        one_weight(), constant(), wafl.FedAvg(), trials=24, space={"learning_rate": (0.05, 1.1)},
        rounds=3, local_steps=1, batch_size=None, learning_rate=0.05, loss="squared_error",
    )  # fmt: skip
    for trial in tuning.trials["FedAvg"]:
        expected = (TARGET * (1.0 - 2.0 * trial.setting["learning_rate"]) ** 3) ** 2
        assert trial.value == pytest.approx(expected, rel=1e-4, abs=1e-9)
    best = tuning.best["FedAvg"]
    tried = [trial.setting["learning_rate"] for trial in tuning.trials["FedAvg"]]
    assert best.setting["learning_rate"] == min(tried, key=lambda rate: abs(rate - 0.5))
    assert best.schedule == {"rounds": 3, "local_steps": 1, "batch_size": None, **best.setting}
    assert best.why == f"{best.value:.4g}, the lowest of 24 trials; its own setting gave 4.783"


def chosen(method: wafl.Method, values: list[tuple[dict[str, Any], float | None]], *, accuracy: bool = True) -> Any:
    candidate = Candidate("mine", method, {"rounds": 1, "local_steps": 1, "learning_rate": 0.1})
    clients = constant() if not accuracy else wafl.Federation.from_arrays([(torch.ones(9, 4), torch.arange(9) % 3)] * 3)
    goal = Goal(hold_out(clients, "examples", 0.3, 0))
    trials = [Trial(setting, value, None if value is not None else "too fast") for setting, value in values]
    return choose(candidate, make_space(candidate, {}, 64), trials, goal)


def test_a_run_is_judged_on_the_device_and_stays_where_it_is(
    few: wafl.Federation, monkeypatch: pytest.MonkeyPatch
) -> None:
    judged: list[wafl.Run] = []

    def look(runs: dict[str, wafl.Run], *_: Any, **__: Any) -> Any:
        judged.extend(runs.values())
        return SimpleNamespace(rows=[SimpleNamespace(score=SimpleNamespace(accuracy=0.5))])

    run = wafl.fit(wafl.models.mlr(few), few, wafl.FedAvg(), rounds=1, local_steps=1)
    monkeypatch.setattr("wafl.tuning.judging.compare", look)
    assert Goal(hold_out(few, "examples", 0.3, 0), device=torch.device("meta")).value(run) == 0.5
    assert [value.device.type for each in (*judged, run) for value in each.module.parameters()] == [
        "meta", "meta", "cpu", "cpu",
    ]  # fmt: skip


def ball(gamma: float, rate: float, norm: float = 2) -> dict[str, Any]:
    return {"gamma": gamma, "norm": norm, "learning_rate": rate}


def test_a_tie_goes_to_the_smaller_ball_then_to_the_smaller_rate_and_is_said() -> None:
    tied = [(ball(1.0, 0.1), 0.8), (ball(9.0, 0.4), 0.9), (ball(9.0, 0.2), 0.9), (ball(2.0, 0.05), 0.9)]
    for order in itertools.permutations(tied[1:]):
        best = chosen(wafl.WAFL(gamma=1.0), [tied[0], *order])
        assert best.setting == ball(9.0, 0.2)
        assert best.why.endswith("; 3 tie: largest gamma, then smallest learning_rate")


def test_balls_of_different_norms_are_compared_by_what_they_are_worth() -> None:
    far_smaller = ball(30.0, 0.1, 2)
    best = chosen(wafl.WAFL(gamma=1.0), [(ball(1.0, 0.1), 0.5), (ball(60.0, 0.1, INF), 0.9), (far_smaller, 0.9)])
    assert best.setting == far_smaller


def test_a_regression_is_chosen_by_the_lowest_loss_and_a_diverged_trial_never() -> None:
    best = chosen(
        wafl.FedAvg(), [({"learning_rate": 0.1}, None), ({"learning_rate": 0.2}, 2.0), ({"learning_rate": 0.3}, 1.0)],
        accuracy=False,
    )  # fmt: skip
    assert best.setting == {"learning_rate": 0.3}
    assert best.why == "1, the lowest of 3 trials (1 diverged); its own setting diverged"


def test_a_best_value_at_the_edge_of_what_was_tried_is_said() -> None:
    inside = [(ball(1.0, 0.1), 0.5), (ball(0.1, 0.01), 0.5), (ball(9.0, 0.9), 0.5)]
    best = chosen(wafl.WAFL(gamma=1.0), [*inside, (ball(0.05, 0.2), 0.9)])
    assert best.edges == ("gamma=0.05 is the lowest that was tried",)
    best = chosen(wafl.WAFL(gamma=1.0), [*inside, (ball(0.5, 0.95), 0.9)])
    assert best.edges == ("learning_rate=0.95 is the highest that was tried",)
    assert chosen(wafl.WAFL(gamma=1.0), [*inside, (ball(0.5, 0.2), 0.9)]).edges == ()


def test_trials_that_diverge_lose_and_do_not_stop_the_others() -> None:
    tuning = wafl.tune(
        one_weight(), constant(), [wafl.FedAvg(), wafl.FedAvgM()], space={"learning_rate": [0.4, 1e30]}, trials=8,
        rounds=9, local_steps=1, batch_size=None, learning_rate=0.4, loss="squared_error",
    )  # fmt: skip
    for name in ("FedAvg", "FedAvgM"):
        lost = [trial for trial in tuning.trials[name] if trial.diverged]
        assert lost
        assert all(trial.value is None for trial in lost)
        assert all(trial in lost for trial in tuning.trials[name] if trial.setting["learning_rate"] == 1e30)
        assert tuning.best[name].setting["learning_rate"] == 0.4


def test_a_method_whose_trials_all_diverge_is_left_out_and_said() -> None:
    lost = wafl.FedAvg(), {"learning_rate": 1e36}
    options = {"trials": 3, "rounds": 9, "local_steps": 1, "batch_size": None, "loss": "squared_error"}
    tuning = wafl.tune(one_weight(), constant(), {"fine": wafl.FedAvg(), "lost": lost}, learning_rate=0.1, **options)
    assert list(tuning.best) == ["fine"]
    assert "lost: every trial diverged" in repr(tuning)
    with pytest.raises(wafl.DivergedError, match="every trial of every method diverged"):
        wafl.tune(one_weight(), constant(), {"lost": lost}, **options)


# -- The same for everyone ------------------------------------------------------------------------------------


def test_every_method_gets_the_same_number_of_trials_and_starts_with_its_own_setting(few: wafl.Federation) -> None:
    one_step = {"local_steps": 1, "local_epochs": None, "cohort": None}
    methods = {
        "wafl": wafl.WAFL(gamma=2.0), "fedavg": wafl.FedAvg(), "pgm": wafl.FedPGM(epsilon=0.2, steps=2),
        "afl": (wafl.AFL(), one_step), "adam": wafl.FedAdam(),
    }  # fmt: skip
    tuning = wafl.tune(
        wafl.models.mlr(few), few, methods, trials=5, rounds=1, cohort=4, local_epochs=1, learning_rate=0.3
    )
    assert {name: len(trials) for name, trials in tuning.trials.items()} == dict.fromkeys(methods, 5)
    assert tuning.trials["wafl"][0].setting == {"gamma": 2.0, "norm": 2, "learning_rate": 0.3}
    assert tuning.trials["pgm"][0].setting == {"epsilon": 0.2, "norm": INF, "learning_rate": 0.3}
    assert tuning.best["afl"].schedule["local_steps"] == 1


def test_trials_in_one_batch_are_what_fit_and_evaluate_give_one_by_one(few: wafl.Federation) -> None:
    model, attack = wafl.models.mlr(few), wafl.PGD(epsilon=0.1, steps=3)
    methods = {"wafl": wafl.WAFL(gamma=1.0), "momentum": wafl.FedAvgM(), "prox": wafl.FedProx()}
    schedule: dict[str, Any] = {"rounds": 2, "cohort": 4, "local_epochs": 1, "learning_rate": 0.3}
    tuning = wafl.tune(
        model, few, methods, trials=3, metric="loss", attack=attack, attacked=(0.0, 0.5), seed=3, **schedule
    )
    split = hold_out(few, "examples", 0.2, 3)
    for name, method in methods.items():
        for trial in tuning.trials[name]:
            options = {key: value for key, value in trial.setting.items() if key != "learning_rate"}
            rate = trial.setting["learning_rate"]
            run = wafl.fit(
                model, split.train, method.with_options(**options), **{**schedule, "learning_rate": rate}, seed=3
            )
            scores = [
                wafl.evaluate(run, split.judges, attack=attack, attacked=share, seed=3).loss for share in (0.0, 0.5)
            ]
            assert trial.value == pytest.approx(sum(scores) / 2, rel=1e-5), (name, trial)


def test_with_several_seeds_a_value_is_the_mean_of_what_each_seed_gives_alone(few: wafl.Federation) -> None:
    attack = wafl.PGD(epsilon=0.2, steps=2)

    def tuned(**seeds: Any) -> wafl.Tuning:
        return wafl.tune(
            wafl.models.mlr(few), few, [wafl.WAFL(gamma=1.0), wafl.FedAvg()], trials=3, metric="loss", attack=attack,
            attacked=(0.0, 0.5), space={"norm": []}, rounds=2, cohort=3, local_epochs=1, learning_rate=0.3, **seeds,
        )  # fmt: skip

    alone, both = [tuned(seed=0, seeds=[seed]) for seed in (4, 9)], tuned(seed=0, seeds=[4, 9])
    assert both.measure == alone[0].measure + ", mean of 2 seeds"
    for name, trials in both.trials.items():
        for trial, *others in zip(trials, *(each.trials[name] for each in alone), strict=True):
            assert [other.setting for other in others] == [trial.setting] * 2
            first, second = (other.value or math.nan for other in others)
            assert abs(first - second) > 1e-4, "two seeds that give the same show nothing"
            assert trial.value == pytest.approx((first + second) / 2, rel=1e-6)
        assert both.best[name].value == min(trial.value or INF for trial in trials)
    assert tuned(seed=0, seeds=[0]) == tuned(seed=0)


def test_a_setting_that_diverges_with_one_seed_loses_and_says_with_which() -> None:
    """One of two clients takes part, and only a step on the examples of the second is too far: the seed decides."""
    pairs = [(torch.full((10, 1), x), torch.ones(10, 1)) for x in (1.0, 1e25)]
    clients = wafl.Federation.from_arrays(pairs)

    def diverged(*seeds: int) -> list[str | None]:
        tuning = wafl.tune(
            one_weight(), clients, {"fine": (wafl.FedAvg(), {"learning_rate": 1e-60}), "one": wafl.FedAvg()},
            trials=2, seeds=seeds, space={"learning_rate": [0.1, 0.2]}, rounds=1, cohort=1, local_steps=1,
            batch_size=None, learning_rate=0.1, loss="squared_error",
        )  # fmt: skip
        return [trial.diverged for trial in tuning.trials["one"]]

    by_seed = {seed: diverged(seed)[0] for seed in range(4)}
    fine, lost = (next(s for s in by_seed if bool(by_seed[s]) is failed) for failed in (False, True))
    for reason in diverged(fine, lost):
        assert reason is not None
        assert reason == f"seed {lost}: {by_seed[lost]}"


def test_the_table_of_trials_marks_one_choice_per_method(few: wafl.Federation) -> None:
    tuning = wafl.tune(wafl.models.mlr(few), few, [wafl.FedProx(), wafl.FedAvg()], trials=3, rounds=1, local_epochs=1)
    table = pytest.importorskip("pandas") and tuning.to_pandas()
    assert len(table) == 6
    assert table[table.chosen].method.tolist() == ["FedProx", "FedAvg"]
    assert table[table.chosen].value.tolist() == [best.value for best in tuning.best.values()]
    assert "FedProx: mu=" in repr(tuning)


# -- Held-out data --------------------------------------------------------------------------------------------


def rows_of(examples: Any) -> list[list[tuple[float, ...]]]:
    """Each client's examples, in an order that does not depend on where they came from."""
    parts = [examples.of(client)[0].flatten(1).tolist() for client in range(examples.num_clients)]
    return [sorted(map(tuple, part)) for part in parts]


def test_held_out_examples_and_the_rest_are_each_clients_training_examples(few: wafl.Federation) -> None:
    split = hold_out(few, "examples", 0.25, 1)
    kept, held, all_rows = rows_of(split.train.train), rows_of(split.judges.test), rows_of(few.train)
    for client in range(few.num_clients):
        assert sorted([*kept[client], *held[client]]) == all_rows[client]
        assert len(held[client]) == round(0.25 * len(all_rows[client]))
    assert len(split.train.test.y) == 0
    assert rows_of(hold_out(few, "examples", 0.25, 2).judges.test) != held


def test_held_out_clients_train_nothing_and_are_judged_on_their_training_examples(few: wafl.Federation) -> None:
    split = hold_out(few, "clients", 0.25, 0)
    assert set(split.train.names) | set(split.judges.names) == set(few.names)
    assert not set(split.train.names) & set(split.judges.names)
    by_name = dict(zip(few.names, rows_of(few.train), strict=True))
    assert rows_of(split.judges.test) == [by_name[name] for name in split.judges.names]
    assert rows_of(split.train.train) == [by_name[name] for name in split.train.names]
    assert len(split.train.test.y) == 0


@pytest.mark.parametrize("way", ["examples", "clients"])
def test_test_examples_are_never_read(few: wafl.Federation, way: Any) -> None:
    def tuned(clients: wafl.Federation) -> wafl.Tuning:
        return wafl.tune(
            wafl.models.mlr(few), clients, [wafl.WAFL(), wafl.FedAvg()], trials=3, held_out=way,
            attack=wafl.FGSM(epsilon=0.1), rounds=2, cohort=4, local_epochs=1, learning_rate=0.1, space={"norm": []},
        )  # fmt: skip

    expected = tuned(few)
    ruined = replace(few.test, raw=torch.full_like(few.test.raw, math.nan), y=few.test.y.flip(0))
    assert tuned(replace(few, test=ruined)) == expected
    assert tuned(replace(few, test=Untouchable())) == expected  # pyright: ignore[reportArgumentType]


# -- Mistakes -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"trials": 1}, "trials=1 must be at least 2: the first is the method's own setting"),
        ({"share": 0.0}, "share=0.0 must lie between 0 and 1"),
        ({"share": 1e-6}, "share=1e-06 of the training examples is not one example of any client"),
        ({"held_out": "rows"}, "held_out='rows' must be 'examples' or 'clients'"),
        ({"metric": "f1"}, "metric='f1' must be 'accuracy' or 'loss'"),
        ({"attack": "pgd"}, "'pgd' is not an attack"),
        ({"attacked": (0.5, 2.0)}, "attacked=2.0 is a share of the clients"),
        ({"seed": -1}, "seed=-1 must lie in"),
        ({"seeds": []}, r"seeds=\[\] must be a list of one seed or more, all different"),
        ({"space": {"gama": [1.0]}}, "did you mean 'gamma'"),
        ({"methods": []}, "there are no methods to tune"),
        ({"methods": [wafl.WAFL(), wafl.WAFL()]}, "have the same name"),
        ({"methods": wafl.AFL()}, "AFL's clients take exactly one step per round"),
        ({"cohort": 9}, "cohort=9 is larger than the number of clients, 8"),
        (
            {"methods": wafl.FedAvg(client_weights=wafl.weights.fixed([1.0] * 8)), "held_out": "clients"},
            "8 client weights for 6 clients.*held_out='examples' keeps all clients",
        ),
    ],
)
def test_bad_input_is_refused_before_any_work(few: wafl.Federation, changes: dict[str, Any], message: str) -> None:
    def worked(moment: Any) -> None:
        pytest.fail("a round was trained before the input was refused")

    options: dict[str, Any] = {"methods": wafl.WAFL(), "rounds": 1, "local_epochs": 1, "callbacks": [worked], **changes}
    with pytest.raises(ValueError, match=message):
        wafl.tune(wafl.models.mlr(few), few, **options)


@pytest.mark.parametrize("methods", [wafl.WAFL, "WAFL", ["WAFL"], {"a": "WAFL"}, {"a": (3, {})}])
def test_what_is_not_a_method_is_refused(few: wafl.Federation, methods: Any) -> None:
    with pytest.raises(TypeError, match=r"unknown method|is not called"):
        wafl.tune(wafl.models.mlr(few), few, methods, rounds=1, local_epochs=1)


def test_a_regression_has_no_accuracy() -> None:
    with pytest.raises(ValueError, match="metric='accuracy' needs classes"):
        wafl.tune(one_weight(), constant(), wafl.FedAvg(), metric="accuracy", rounds=1, local_steps=1)
