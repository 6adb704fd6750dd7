"""What an objective must know: few things, and a separate object learns scalars."""

from __future__ import annotations

import pytest
import torch

import wafl
from wafl.objectives import Objective, wasserstein
from wafl.objectives.base import learner_of
from wafl.tasks.problem import Problem
from wafl.tasks.structured import make_task

MOST_MEMBERS = 12


def test_the_base_class_of_objectives_has_few_members() -> None:
    members = {name for name in {*vars(Objective), *Objective.__annotations__} if not name.startswith("_")}
    members |= {"__call__"}
    assert len(members) <= MOST_MEMBERS, sorted(members)


def test_only_a_radius_is_learned() -> None:
    assert learner_of(None) is None
    for method in (wafl.FedAvg(), wafl.WAFL(gamma=1.0), wafl.FedPGM(epsilon=0.1), wafl.SinkhornDRO()):
        assert learner_of(method.objective) is None
    learner = wasserstein(radius=0.5).learner
    assert learner is not None
    assert (learner.target, learner.undecided, learner.endless, learner.averages_cost) == (0.5, False, False, False)


def test_a_radius_that_is_yet_to_be_chosen_is_no_number() -> None:
    learner = wasserstein(radius="auto").learner
    assert learner is not None
    assert learner.undecided
    with pytest.raises(ValueError, match=r"radius='auto' is chosen by wafl\.fit.*give a number here"):
        _ = learner.target


def test_what_is_learned_where_mass_may_go_any_distance() -> None:
    for label_cost, averages in ((2.0, True), (float("inf"), False)):
        learner = wasserstein(radius=0.5, power=1, bounds=None, label_cost=label_cost).learner
        assert learner is not None
        assert learner.endless
        assert learner.averages_cost is averages
        assert ("excess" in learner.scalars()) is averages


def test_a_learned_gamma_stays_above_the_concavity_limit_if_strict() -> None:
    task = make_task(torch.nn.Linear(3, 2), "cross_entropy")
    problem = Problem(task, task.initial()[None])
    free, strict = (wasserstein(radius=0.5, strict=strict) for strict in (False, True))
    assert free.learner is not None
    assert strict.learner is not None
    assert free.learner.lowest_gamma(problem) == 0.0
    assert strict.learner.lowest_gamma(problem) == strict.concavity_limit(problem)
