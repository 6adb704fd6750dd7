"""What is searched, and which points of it are tried."""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass
from typing import Annotated, Any

import pytest

import wafl
from wafl.base.norms import typical_length, typical_price
from wafl.base.options import Positive, Tunable, options_of
from wafl.local import LocalStep
from wafl.tuning.space import Candidate, Interval, Setting, Values, check_names, draw_settings, make_space

INF = math.inf
SCHEDULE = {"rounds": 2, "local_steps": 1, "learning_rate": 0.1}


def candidate(method: wafl.Method, **schedule: Any) -> Candidate:
    return Candidate(method.name, method, {**SCHEDULE, **schedule})


def settings(method: wafl.Method, trials: int = 16, seed: int = 0, features: int = 64, **given: Any) -> list[Setting]:
    chosen = candidate(method)
    space = make_space(chosen, given, features)
    first = {name: value for name, (_, value) in chosen.options().items() if name in space}
    return draw_settings(space, first, trials, seed, lambda setting: chosen.spec(setting, 0))


@pytest.mark.parametrize(
    ("method", "searched"),
    [
        (wafl.WAFL(gamma=1.0), ["gamma", "norm"]),
        (wafl.WAFL(radius=1.0), ["radius", "norm"]),
        (wafl.FGDRO(), ["temperature"]),
        (wafl.FGDRO(radius=0.1), ["radius"]),
        (wafl.WAFL(server=wafl.servers.adam(), local=wafl.local.prox()), ["gamma", "norm", "mu", "rate", "tau"]),
    ],
)
def test_a_method_is_searched_in_its_own_parameters_and_the_learning_rate(
    method: wafl.Method, searched: list[str]
) -> None:
    assert list(make_space(candidate(method), {}, 64)) == [*searched, "learning_rate"]


def test_every_preset_can_be_searched_in_what_it_says_is_tunable() -> None:
    for name, preset in wafl.METHODS.items():
        tunable = {
            option.name
            for option in options_of(preset.options).values()
            if option.tunable and option.default is not None
        }
        drawn = settings(preset(), trials=8)
        assert len(drawn) == 8, name
        assert tunable <= set(drawn[0]), name


def test_numbers_are_searched_by_their_factor_around_the_first_value() -> None:
    space = make_space(candidate(wafl.FedProx(mu=0.5), learning_rate=0.2), {}, 64)
    mu, rate = space["mu"], space["learning_rate"]
    assert isinstance(mu, Interval)
    assert isinstance(rate, Interval)
    assert (rate.low, rate.high) == pytest.approx((0.02, 2.0))
    assert (mu.low, mu.high) == pytest.approx((0.5 / 30, 15.0))
    assert [rate.at(share, {}) for share in (0.0, 0.5)] == [0.02, 0.2]


def test_a_momentum_is_searched_by_its_distance_to_one_and_never_reaches_it() -> None:
    beta = make_space(candidate(wafl.FedAvgM(beta=0.9)), {}, 64)["beta"]
    assert [beta.at(share, {}) for share in (0.0, 0.5, 0.999999)] == pytest.approx([0.0, 0.9, 0.99], abs=1e-5)


@pytest.mark.parametrize(
    ("method", "name", "worth"),
    [(wafl.WAFL(gamma=2.0), "gamma", typical_price), (wafl.WAFL(radius=2.0), "radius", typical_length)],
)
def test_in_another_norm_the_range_is_around_what_the_first_value_is_worth_there(
    method: wafl.Method, name: str, worth: Any
) -> None:
    space = make_space(candidate(method), {}, 784)
    for norm in (1, 2, INF):
        assert space[name].at(0.5, {"norm": norm}) == pytest.approx(2.0 * worth(norm, 784), rel=5e-3)


@pytest.mark.parametrize("gamma", [[], [1.0, 2.0], (0.5, 2.0)])
def test_the_norm_is_not_searched_with_a_gamma_that_cannot_follow_it(gamma: Any) -> None:
    assert "norm" not in make_space(candidate(wafl.WAFL(gamma=1.0)), {"gamma": gamma}, 64)
    assert "norm" in make_space(candidate(wafl.WAFL(gamma=1.0)), {"gamma": gamma, "norm": [2, INF]}, 64)
    listed = Candidate("mine", wafl.WAFL(gamma=1.0), SCHEDULE, {"gamma": [1.0, 4.0]})
    assert list(make_space(listed, {}, 64)) == ["gamma", "learning_rate"]


def test_what_is_given_replaces_what_is_declared_and_an_empty_list_keeps_the_own_value() -> None:
    space = make_space(candidate(wafl.WAFL(gamma=1.0)), {"norm": [], "gamma": [1.0, 3.0], "momentum": [0.0, 0.9]}, 64)
    assert list(space) == ["gamma", "learning_rate", "momentum"]
    assert space["gamma"] == Values((1.0, 3.0))


def test_a_learning_rate_that_is_a_function_of_the_round_is_not_searched() -> None:
    assert not make_space(candidate(wafl.FedAvg(), learning_rate=lambda number: 0.1), {}, 64)


def test_a_parameter_of_zero_is_searched_around_its_default() -> None:
    mu = make_space(candidate(wafl.FedProx(mu=0.0)), {}, 64)["mu"]
    assert isinstance(mu, Interval)
    assert mu.at(0.5, {}) == 0.1


@dataclass(frozen=True)
class Noise(LocalStep):
    """A part of one's own that says how it is searched."""

    scale: Annotated[float, Positive(), Tunable(100.0)] = 1.0
    kept: float = 1.0


def test_a_part_of_ones_own_is_searched_as_it_declares() -> None:
    method = wafl.Method("mine", None, wafl.weights.uniform(), local=Noise())
    assert make_space(candidate(method), {}, 64)["scale"] == Interval(0.01, 100.0)


def test_a_part_whose_annotations_cannot_be_read_is_not_searched_and_is_no_error() -> None:
    class Secret: ...

    @dataclass(frozen=True)
    class Local(LocalStep):
        secret: Secret | None = None

    method = wafl.Method("mine", None, wafl.weights.uniform(), local=Local())
    assert list(make_space(candidate(method), {}, 64)) == ["learning_rate"]


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"gama": [1.0]}, "'gama' to start from: did you mean 'gamma'"),
        ({"epsilon": [1.0]}, "no method here has a value of 'epsilon'"),
        ({"rounds": [5]}, "'rounds'"),
        ({"gamma": [1.0, -1.0]}, "gamma=-1.0 must be positive"),
        ({"gamma": (2.0, 1.0)}, r"\(2.0, 1.0\) must be \(low, high\) with low < high"),
        ({"gamma": (1.0, 2.0, 3.0)}, "must be .low, high."),
        ({"weight_decay": (0.0, 1.0)}, "must begin above 0"),
        ({"norm": (1, 2)}, "is one of a few values: give a list"),
        ({"learning_rate": "fast"}, "must be a list of values"),
    ],
)
def test_a_space_that_makes_no_sense_is_refused_with_the_name(given: dict[str, Any], message: str) -> None:
    mine = candidate(wafl.WAFL(gamma=1.0))

    def checked() -> None:
        check_names(given, [mine])
        make_space(mine, given, 64)

    with pytest.raises(ValueError, match=message):
        checked()


def test_the_first_trial_is_the_own_setting_and_all_trials_differ() -> None:
    drawn = settings(wafl.WAFL(gamma=1.0))
    assert drawn[0] == {"gamma": 1.0, "norm": 2, "learning_rate": 0.1}
    assert len(drawn) == 16
    assert all(first != second for first, second in itertools.combinations(drawn, 2))


@pytest.mark.parametrize("seed", range(5))
def test_each_option_by_itself_is_covered_evenly(seed: int) -> None:
    drawn = settings(wafl.WAFL(gamma=1.0), trials=17, seed=seed)[1:]
    positions = sorted(math.log10(setting["learning_rate"] / 0.01) / 2 for setting in drawn)
    assert all(abs(position - (number + 0.5) / 16) <= 1 / 16 + 1e-3 for number, position in enumerate(positions))
    assert {norm: sum(each["norm"] == norm for each in drawn) for norm in (1, 2, INF)} == pytest.approx(
        {1: 16 / 3, 2: 16 / 3, INF: 16 / 3}, abs=1.7
    )


def test_a_grid_with_fewer_points_than_trials_is_tried_completely() -> None:
    drawn = settings(wafl.WAFL(gamma=1.0), gamma=[1.0, 2.0], norm=[2, INF], learning_rate=[0.1, 0.2])
    assert {tuple(setting.values()) for setting in drawn} == set(itertools.product([1.0, 2.0], [2, INF], [0.1, 0.2]))
    assert len(drawn) == 8


def test_values_that_do_not_fit_together_are_passed_over() -> None:
    drawn = settings(wafl.WAFL(radius=1.0, strict=True))
    assert len(drawn) == 16
    assert {setting["norm"] for setting in drawn} == {2}


def test_a_whole_number_stays_whole() -> None:
    drawn = settings(wafl.FedPGM(), steps=(2, 20), epsilon=[], norm=[], learning_rate=[])
    assert all(isinstance(setting["steps"], int) and 2 <= setting["steps"] <= 20 for setting in drawn)
