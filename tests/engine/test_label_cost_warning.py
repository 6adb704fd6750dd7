"""A label cost so low that no model can do better than guess is said at the end of a training."""

from __future__ import annotations

import warnings

import pytest

import wafl


@pytest.fixture(scope="module")
def clients() -> wafl.Federation:
    return wafl.load_dataset("digits").partition(3, iid=True)


def fit(clients: wafl.Federation, label_cost: float, rounds: int = 10) -> wafl.Run:
    model = wafl.models.mlr(clients)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", wafl.ConcavityWarning)
        warnings.simplefilter("ignore", wafl.DivergenceWarning)
        return wafl.fit(
            model, clients, wafl.WAFL(gamma=1.0, label_cost=label_cost, steps=3),
            rounds=rounds, local_steps=2, batch_size=16, learning_rate=0.5,
        )  # fmt: skip


def test_labels_that_change_for_almost_nothing_are_said_at_the_line_of_the_user(clients: wafl.Federation) -> None:
    with pytest.warns(wafl.LabelCostWarning, match=r"label_cost=0\.01 is low: .* is below 2\.29,") as caught:
        fit(clients, 0.01)
    (said,) = [each for each in caught if each.category is wafl.LabelCostWarning]
    assert said.filename == __file__
    assert "Raise label_cost" in str(said.message)


@pytest.mark.parametrize(("label_cost", "rounds"), [(20.0, 10), (0.01, 3)])
def test_a_dear_label_and_a_training_that_has_hardly_begun_are_not_warned_of(
    clients: wafl.Federation, label_cost: float, rounds: int
) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error", wafl.LabelCostWarning)
        fit(clients, label_cost, rounds)
