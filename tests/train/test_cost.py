"""Absurd sizes are refused by what they would cost, before any work; large ones are not."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import wafl
from wafl.base.checks import check_memory, check_steps
from wafl.config.demo import demo_experiment
from wafl.config.plan import make_plan
from wafl.data.named.domains import federation_of
from wafl.parts.schedule import Schedule
from wafl.train.checks.cost import check_cost
from wafl.train.spec import Spec

BILLION = 10**9


@pytest.fixture
def clients() -> wafl.Federation:
    x = np.zeros((6, 1, 8, 8), "float32")
    return wafl.Federation.from_arrays([(x, np.arange(6) % 3)] * 2, test_fraction=0.0)


@pytest.mark.parametrize(
    ("method", "schedule", "words"),
    [
        (
            wafl.WAFL(gamma=1.0, restarts=BILLION),
            {},
            r"restarts=1000000000: up to \S+ steps, .* days.*: lower restarts",
        ),
        (wafl.WAFL(gamma=1.0, steps=BILLION), {"rounds": 20}, r"steps=1000000000, .* days or more: lower steps"),
        (wafl.FedPGM(epsilon=1.0, steps=BILLION), {"rounds": 20}, "days or more: lower steps"),
        (wafl.FedAvg(), {"rounds": 10**11}, "days or more: lower rounds"),
        (wafl.FedAvg(), {"local_steps": 10**12}, "days or more: lower local_steps"),
        (wafl.FedAvg(), {"local_steps": 8 * BILLION}, r"local_steps=8000000000 would take \S+ GiB of memory"),
    ],
    ids=["restarts", "steps", "pgm", "rounds", "local steps", "plan of batches"],
)
def test_a_run_that_would_take_days_or_all_memory_is_refused_before_any_work(
    clients: wafl.Federation, method: wafl.Method, schedule: dict[str, Any], words: str
) -> None:
    with pytest.raises(ValueError, match=words):
        wafl.fit(wafl.models.mlr(clients), clients, method, **{"rounds": 1, "local_steps": 1, **schedule})


def test_the_longest_runs_that_people_train_are_not_refused() -> None:
    method = wafl.WAFL(gamma=1.0, steps=100)
    check_cost(Spec(method, Schedule(rounds=100_000, local_steps=500)), [600] * 100)
    check_steps("a run", 8e9, "")
    check_memory("a model", 2**30, "")


def test_a_model_that_does_not_fit_into_memory_is_refused_before_it_is_made(clients: wafl.Federation) -> None:
    with pytest.raises(ValueError, match=r"cnn with channels=\[1000000, 1000000\] .* would take .*TiB of memory"):
        wafl.models.cnn(clients, channels=(10**6, 10**6))
    with pytest.raises(ValueError, match=r"mlr of 64 inputs and 100000000000 outputs would take .*TiB of memory"):
        wafl.models.build({"name": "mlr", "input_shape": [1, 8, 8], "num_outputs": 10**11})


def test_an_attack_of_a_billion_steps_is_refused_before_training() -> None:
    experiment = demo_experiment(methods=["fedavg"], rounds=1, seeds=range(6))
    slow = experiment.model_copy(update={"attack": experiment.attack.model_copy(update={"steps": BILLION})})
    with pytest.raises(ValueError, match=r"attack\.steps = 1000000000: up to .* days or more: lower attack\.steps"):
        make_plan(slow)


@pytest.mark.parametrize(
    ("attack", "words"),
    [
        (
            wafl.PGD(epsilon=0.1, steps=BILLION),
            r"PGD with steps=1000000000: .* 2.78 hours or more: lower",
        ),
        (wafl.PGD(epsilon=0.1, random_start=True, restarts=BILLION), r"restarts=1000000000: .* days or more: lower"),
        (wafl.WassersteinShift(1.0, steps=BILLION), r"WassersteinShift with steps=1000000000: .* lower"),
    ],
    ids=["pgd", "restarts", "wasserstein"],
)
def test_an_attack_that_would_take_days_is_refused_wherever_it_is_given(
    clients: wafl.Federation, attack: wafl.PGD, words: str
) -> None:
    model = wafl.models.mlr(clients)
    test = replace(clients, test=clients.train)
    with pytest.raises(ValueError, match=words):
        wafl.evaluate(model, test, attack=attack)
    run = wafl.fit(model, clients, wafl.FedAvg(), rounds=1, local_steps=1)
    with pytest.raises(ValueError, match=words):
        wafl.compare({"run": run}, test, attacks=[None, attack])
    with pytest.raises(ValueError, match=words):
        attack(model, np.zeros((2, 1, 8, 8), "float32"), np.array([0, 1]))
    with pytest.raises(ValueError, match=words):
        wafl.tune(model, clients, wafl.FedAvg(), attack=attack, rounds=1, local_steps=1)


def test_the_longest_attacks_that_people_run_are_not_refused() -> None:
    wafl.PGD(epsilon=0.1, steps=10_000, random_start=True, restarts=1_000).check_length()
    wafl.WassersteinShift(1.0, steps=100_000).check_length()


def test_an_endless_ascent_is_refused_outside_of_training(clients: wafl.Federation) -> None:
    model = wafl.models.mlr(clients)
    with pytest.raises(ValueError, match=r"Wasserstein with steps=1000000000: .* or more: lower steps"):
        wafl.robust_loss(model, np.zeros((2, 1, 8, 8)), np.array([0, 1]), gamma=1.0, steps=BILLION)
    with pytest.raises(ValueError, match=r"Wasserstein with .*restarts=1000000000: .* days or more: lower restarts"):
        wafl.calibrate(model, clients, gammas=[1.0], restarts=BILLION)


def test_a_billion_trials_are_refused_before_the_first_is_drawn(clients: wafl.Federation) -> None:
    with pytest.raises(ValueError, match=r"the models of trials=1000000000 would take .* of memory.*: lower trials"):
        wafl.tune(wafl.models.mlr(clients), clients, wafl.FedAvg(), trials=BILLION, rounds=1, local_steps=1)


def test_images_that_do_not_fit_into_memory_are_refused_before_they_are_resized() -> None:
    with pytest.raises(ValueError, match=r"images of digits with size=1000000 would take .*TiB .*: lower size"):
        federation_of(["digits"], size=10**6)
