"""A ball that does nothing, or is not the one that was asked for, is said, with the cause and the remedy."""

from __future__ import annotations

import math
import re
import warnings
from typing import Any

import pytest
import torch
from torch import nn

import wafl
from wafl.parts.messages import Query, Replies
from wafl.results.history import History, Record
from wafl.tasks.structured import make_task
from wafl.train.checks.watch import Watch


def federation(seed: int = 0) -> wafl.Federation:
    generator = torch.Generator().manual_seed(seed)
    pairs = [(torch.rand(12, 4, generator=generator), torch.arange(12) % 3) for _ in range(3)]
    return wafl.Federation.from_arrays(pairs, test_fraction=0)


def fit(method: wafl.Method, model: nn.Module | None = None, **options: Any) -> wafl.Run:
    clients = options.pop("clients", None) or federation()
    schedule = {"rounds": 12, "local_steps": 2, "batch_size": 6, "learning_rate": 0.1, **options}
    return wafl.fit(model or wafl.models.mlr(clients), clients, method, **schedule)


def dead() -> nn.Module:
    """A network whose units are all dead: only its last biases still learn."""
    model = nn.Sequential(nn.Linear(4, 5), nn.ReLU(), nn.Linear(5, 3))
    nn.init.constant_(model[0].bias, -100.0)
    return model


@pytest.mark.parametrize("method", [wafl.WAFL(gamma=1.0), wafl.WAFL(radius=0.5), wafl.FedPGM(epsilon=0.1)])
def test_an_objective_that_moves_nothing_is_said_at_the_users_line(method: wafl.Method) -> None:
    with pytest.warns(wafl.RadiusWarning, match="no example moved in 12 rounds: the loss does not change") as caught:
        fit(method, dead())
    assert [each.filename for each in caught] == [__file__]
    assert "lower the learning rate" in str(caught[0].message)
    assert "gamma" not in str(caught[0].message)


@pytest.mark.parametrize(("bounds", "remedy"), [(None, r"give bounds=\(low, high\)"), ((0.0, 1.0), "lower gamma")])
def test_with_power_1_a_gamma_above_every_slope_is_said(bounds: tuple[float, float] | None, remedy: str) -> None:
    with pytest.warns(wafl.RadiusWarning, match=f"gamma is above every slope of the loss: {remedy}"):
        fit(wafl.WAFL(gamma=50.0, power=1, bounds=bounds))


@pytest.mark.filterwarnings("ignore::wafl.ConcavityWarning")
def test_a_radius_that_the_bounds_do_not_leave_room_for_is_said_without_advice_on_gamma() -> None:
    with pytest.warns(wafl.RadiusWarning, match=r"radius=30 was missed: from round 9 on it was ") as caught:
        fit(wafl.WAFL(radius=30.0, bounds=(0, 1)))
    (message,) = [str(each.message) for each in caught if each.category is wafl.RadiusWarning]
    assert "Examples cannot move that far within bounds=(0.0, 1.0)" in message
    assert "smaller radius" in message
    assert "gamma" not in message
    assert caught[0].filename == __file__


@pytest.mark.parametrize("label_cost", [1.02, 1.1])
def test_a_label_cost_that_lets_the_targets_blow_up_the_loss_is_said_once(label_cost: float) -> None:
    generator = torch.Generator().manual_seed(1)
    pairs = [(torch.randn(12, 4, generator=generator), torch.randn(12, generator=generator)) for _ in range(3)]
    clients = wafl.Federation.from_arrays(pairs, test_fraction=0)
    factor = label_cost / (label_cost - 1)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        fit(wafl.WAFL(gamma=1.0, label_cost=label_cost), clients=clients, loss="squared_error", learning_rate=1e-4)
    (one,) = [each for each in caught if each.category is wafl.LabelCostWarning]
    assert f"the loss {factor:.3g} times larger: raise label_cost" in str(one.message)
    assert one.filename == __file__


def watch_over(radii: list[float], gammas: list[float], losses: list[float] | None = None, **options: Any) -> list[str]:
    """The warnings at the end of a run with these achieved radii, gammas and losses."""
    rounds = zip(range(len(radii)), radii, gammas, losses or [0.5] * len(radii), strict=True)
    history = History([Record(n, loss, 0.1, (0,), achieved_radius=r, gamma=g) for n, r, g, loss in rounds])
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        Watch(wafl.WAFL(**options), make_task(nn.Linear(2, 2)), num_classes=2).check_ball(history)
    return [str(each.message) for each in caught]


@pytest.mark.parametrize("radius", [0.75, 1.3])
def test_a_radius_missed_by_more_than_a_fifth_is_said(radius: float) -> None:
    (message,) = watch_over([radius] * 20, [1.0] * 20, radius=1.0)
    assert message.startswith(f"radius=1 was missed: from round 15 on it was {radius}. Train for more rounds")


def test_a_ball_so_large_that_the_model_forgets_what_it_learned_is_said() -> None:
    guessing = math.log(2)
    (message,) = watch_over([1.0] * 20, [1.0] * 20, [0.6] * 4 + [0.2] + [guessing] * 15, radius=1.0)
    assert message.startswith(
        "radius=1 is too large for this model: its loss was 0.2 in round 4, when the ball was smaller"
    )
    assert message.endswith("now it is 0.693, no better than guessing. Ask for a smaller radius")
    assert not watch_over([1.0] * 20, [1.0] * 20, [guessing] * 20, radius=1.0), "it never learned, in any ball"
    assert not watch_over([1.0] * 20, [1.0] * 20, [0.2] * 10 + [0.6] * 10, radius=1.0)
    assert not watch_over([1.0] * 20, [1.0] * 20, [0.2] * 10 + [guessing] * 10, gamma=1.0)


def test_a_gamma_that_runs_away_in_vain_is_said_as_a_radius_that_cannot_be_reached() -> None:
    (message,) = watch_over([0.5] * 20, [0.5**n for n in range(20)], radius=1.0)
    assert "Examples cannot move that far" in message
    assert "or the model has become flat: ask for a smaller radius" in message
    (message,) = watch_over([1.0] * 18 + [0.0] * 2, [0.5] * 20, radius=1.0)
    assert "the model has become flat" in message


@pytest.mark.parametrize(
    ("radii", "options"),
    [
        ([0.0] + [1.15] * 19, {"radius": 1.0}),
        ([0.0] * 10 + [0.85] * 10, {"radius": 1.0}),
        ([0.0, 0.5, 2.0], {"radius": 1.0}),
        ([0.0, 5.0], {"gamma": 1.0}),
        ([0.0], {"gamma": 1.0}),
        ([], {"radius": 1.0}),
    ],
    ids=["close", "late", "too few rounds", "a gamma was given", "one round", "none"],
)
def test_a_ball_as_asked_for_is_not_warned_about(radii: list[float], options: dict[str, float]) -> None:
    assert watch_over(radii, [1.0] * len(radii), **options) == []


def test_whoever_gave_a_radius_is_not_told_to_raise_gamma() -> None:
    start = {"1.weight": 9 * torch.randn(3, 4, generator=torch.Generator().manual_seed(0)), "1.bias": torch.zeros(3)}
    with pytest.warns(wafl.ConcavityWarning, match="ask for a smaller radius, or shrink the weights") as caught:
        fit(wafl.WAFL(radius=2.0), init=start, rounds=9, learning_rate=0.01)
    assert "raise gamma" not in str(caught[0].message)
    assert caught[0].filename == __file__


def growing(clients: int = 3) -> wafl.Federation:
    """A regression whose loss grows tenfold per round at a learning rate of 1; the last client's inputs are larger."""
    generator = torch.Generator().manual_seed(0)
    sizes = [1.0] * (clients - 1) + [1.3]
    pairs = [(size * torch.ones(4, 2), torch.rand(4, 1, generator=generator)) for size in sizes]
    return wafl.Federation.from_arrays(pairs, test_fraction=0, names=[f"n{i}" for i in range(clients)])


WORK: dict[str, Any] = {"loss": "squared_error", "local_steps": 1, "learning_rate": 1.0, "batch_size": None}


def test_a_loss_that_rises_is_a_warning_that_says_since_when_and_who() -> None:
    with pytest.warns(wafl.DivergenceWarning) as caught:
        run = fit(wafl.FedAvg(), clients=growing(), rounds=6, **WORK)
    (message,) = [str(each.message) for each in caught]
    assert re.match(r"round 3: the loss is \S+, and has risen since round 0, when it was \S+\. ", message)
    assert "The longest update came from n2, " in message
    assert "the highest loss from n2, " in message
    assert "learning_rate=1 is likely too large: lower it; if clients may lie, use a robust server" in message
    assert len(run.history) == 6
    losses = run.history.column("loss")
    assert sum(losses[1:4]) / 3 > 10 * losses[0], "the mean of three rounds"


def test_a_run_whose_loss_has_risen_above_the_tolerance_stops_with_its_last_good_round() -> None:
    tolerance = wafl.Tolerance(diverged=20.0)
    fine, bad = wafl.sweep(
        wafl.models.mlr(growing()), growing(), wafl.FedAvg(), {"learning_rate": [0.01, 1.0]}, rounds=6,
        tolerance=tolerance, **{name: value for name, value in WORK.items() if name != "learning_rate"},
    )  # fmt: skip
    assert len(fine.history) == 6
    assert fine.diverged is None
    assert bad.diverged is not None
    assert "has risen since round 0" in bad.diverged
    assert "above tolerance.diverged = 20 times the first round's" in bad.diverged
    assert len(bad.history) == 3
    short = fit(wafl.FedAvg(), clients=growing(), rounds=3, **WORK)
    assert all(torch.equal(value, short.params[name]) for name, value in bad.params.items())


def test_a_loss_that_falls_or_rises_for_one_round_only_is_no_divergence() -> None:
    watch = Watch(wafl.FedAvg(), make_task(wafl.models.mlr(federation()), "cross_entropy"))
    query = Query("train", 3, 0, (0, 1), torch.ones(2), torch.zeros(15), {"learning_rate": 0.1})
    replies = Replies((0, 1), torch.ones(2), torch.zeros(2), {"params": torch.ones(2, 15)})
    for losses in ([2.0, 1.0, 1.0, 25.0], [2.0, 25.0, 1.0, 1.0], [0.0, 9.0, 9.0, 9.0], [-1.0, 9.0, 9.0, 9.0]):
        *before, last = [Record(number, loss, 0.0, (0, 1)) for number, loss in enumerate(losses)]
        watch.check_loss(query, replies, last, ("a", "b"), History(before))


def dear(label_cost: float, rounds: int = 10) -> None:
    """Digits whose labels change at this cost."""
    clients = wafl.load_dataset("digits").partition(3, iid=True)
    method = wafl.WAFL(gamma=1.0, label_cost=label_cost, steps=3)
    with warnings.catch_warnings():
        for category in (wafl.ConcavityWarning, wafl.DivergenceWarning):
            warnings.simplefilter("ignore", category)
        fit(method, clients=clients, rounds=rounds, batch_size=16, learning_rate=0.5)


def test_labels_that_change_for_almost_nothing_are_said_at_the_line_of_the_user() -> None:
    with pytest.warns(wafl.LabelCostWarning, match=r"label_cost=0\.01 is low: .* is below 2\.29,") as caught:
        dear(0.01)
    (warning,) = [each for each in caught if each.category is wafl.LabelCostWarning]
    assert warning.filename == __file__
    assert "Raise label_cost" in str(warning.message)


@pytest.mark.parametrize(("label_cost", "rounds"), [(20.0, 10), (0.01, 3)])
def test_a_dear_label_and_a_training_that_has_hardly_begun_are_not_warned_of(label_cost: float, rounds: int) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error", wafl.LabelCostWarning)
        dear(label_cost, rounds)
