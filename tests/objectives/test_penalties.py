"""Methods that descend more than the loss at moved examples: TRADES, CalFAT, IRM, and FedPGM with a share.

Each gradient is compared with autograd through the objective as its paper writes it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, kl_div

import wafl
from tests.objectives.networks import MODELS, by_autograd, drawn
from wafl.objectives import calibrated, invariant, pgm, trades

BALL = {"epsilon": 0.3, "norm": 2, "steps": 4, "random_start": True, "bounds": None}


@pytest.mark.parametrize("name", MODELS)
def test_trades_descends_the_loss_and_both_ends_of_the_divergence(name: str) -> None:
    problem, x, y, state = drawn(MODELS[name]())
    move = trades(**BALL, beta=2.5)(problem, x, y, state)

    def objective(outputs: Callable[[Tensor], Tensor], lane: int) -> Tensor:
        rest, moved = outputs(x[lane]), outputs(move.x_adv[lane])
        change = kl_div(moved.log_softmax(-1), rest.softmax(-1), reduction="none").sum(-1)
        return (state.weight[lane] * (cross_entropy(rest, y[lane], reduction="none") + 2.5 * change)).sum()

    torch.testing.assert_close(move.descent(problem, state.weight), by_autograd(problem, objective), rtol=0, atol=1e-10)
    lanes = [(lambda x, lane=lane: problem.task.call(problem.params[lane], x), lane) for lane in (0, 1)]
    values = torch.stack([objective(outputs, lane) for outputs, lane in lanes])
    torch.testing.assert_close((state.weight * move.value).sum(1), values)
    assert bool(((move.x_adv - x).norm(dim=-1) <= 0.3 + 1e-9).all())


@pytest.mark.parametrize("name", MODELS)
def test_calfat_descends_the_calibrated_loss_of_each_clients_own_classes(name: str) -> None:
    problem, x, y, state = drawn(MODELS[name]())
    move = calibrated(**BALL)(problem, x, y, state)
    shares = torch.tensor([[3 / 8, 0, 5 / 8, 0], [1 / 9, 1 / 9, 7 / 9, 0]], dtype=torch.float64).clamp_min(1e-8)

    def objective(outputs: Callable[[Tensor], Tensor], lane: int) -> Tensor:
        weighed = shares[lane] * outputs(move.x_adv[lane]).exp()
        right = weighed.gather(1, y[lane][:, None])[:, 0] / weighed.sum(1)
        return -(state.weight[lane] * right.log()).sum()

    torch.testing.assert_close(move.descent(problem, state.weight), by_autograd(problem, objective), rtol=0, atol=1e-8)


def test_calfat_without_counts_is_adversarial_training_with_the_plain_loss() -> None:
    problem, x, y, state = drawn(MODELS["linear"]())
    move = calibrated(**BALL)(problem, x, y, replace(state, label_counts=None))
    torch.testing.assert_close(move.value, problem.loss(move.x_adv, y))


@pytest.mark.parametrize("name", MODELS)
def test_irm_descends_the_squared_derivative_in_the_scale_of_the_outputs(name: str) -> None:
    problem, x, y, state = drawn(MODELS[name]())
    move = invariant(penalty=3.0)(problem, x, y, state)

    def objective(outputs: Callable[[Tensor], Tensor], lane: int) -> Tensor:
        scale = torch.ones((), dtype=torch.float64, requires_grad=True)
        loss = (state.weight[lane] * cross_entropy(scale * outputs(x[lane]), y[lane], reduction="none")).sum()
        (slope,) = torch.autograd.grad(loss, scale, create_graph=True)
        return loss + 3.0 * slope**2

    torch.testing.assert_close(move.descent(problem, state.weight), by_autograd(problem, objective), rtol=0, atol=1e-10)
    assert torch.equal(move.x_adv, x)


@pytest.mark.parametrize("name", MODELS)
def test_fedpgm_with_a_share_descends_both_the_examples_and_the_moved_ones(name: str) -> None:
    problem, x, y, state = drawn(MODELS[name]())
    move = pgm(**BALL, share=0.3)(problem, x, y, state)
    whole = pgm(**BALL)(problem, x, y, state)
    assert torch.equal(move.x_adv, whole.x_adv)
    wanted = 0.7 * problem.descent(x, y, state.weight) + 0.3 * problem.descent(move.inputs, y, state.weight)
    torch.testing.assert_close(move.descent(problem, state.weight), wanted, rtol=0, atol=1e-12)
    torch.testing.assert_close(move.value, 0.7 * problem.loss(x, y) + 0.3 * whole.value)


# -- In training ----------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def digits() -> wafl.Federation:
    return wafl.load_dataset("digits").partition(num_clients=5, labels_per_client=3, seed=0)


def test_calfat_is_told_the_classes_of_each_client(digits: wafl.Federation) -> None:
    """In one full-batch step from 0 with a ball of size 0, the class that a client lacks gets no slope."""
    method = wafl.CalFAT(epsilon=0.0, client_weights=wafl.weights.fixed([1, 0, 0, 0, 0]))
    run = wafl.fit(wafl.models.mlr(digits), digits, method, rounds=1, local_steps=1, batch_size=None, learning_rate=1.0)
    labels = sorted(set(digits.train.y[: int(digits.train.num_examples[0])].tolist()))
    others = [label for label in range(10) if label not in labels]
    assert len(labels) == 3
    assert float(run.params["1.bias"][others].abs().max()) < 1e-6
    assert float(run.params["1.weight"][labels].abs().max()) > 1e-3


@pytest.mark.filterwarnings("ignore::wafl.base.errors.RadiusWarning")
def test_losses_of_clients_with_many_examples_are_reported_batch_by_batch() -> None:
    """Two clients with some 900 examples each: the reported loss is the mean over all of them."""
    two = wafl.load_dataset("digits").partition(num_clients=2, iid=True, test_fraction=0)
    rule = wafl.weights.term(1.0)
    model, method = wafl.models.mlr(two), wafl.CalFAT(epsilon=0.0, client_weights=rule)
    weights = []
    wafl.fit(
        model, two, method, rounds=2, local_steps=1, batch_size=None, learning_rate=1.0,
        callbacks=[lambda moment: weights.append(moment.state.client_weights)],
    )  # fmt: skip
    run = wafl.fit(model, two, method, rounds=1, local_steps=1, batch_size=None, learning_rate=1.0)
    outputs = two.train.x.flatten(1) @ run.params["1.weight"].T + run.params["1.bias"]
    losses = []
    for rows in torch.arange(len(outputs)).split(two.train.num_examples.tolist()):
        labels = two.train.y[rows]
        shares = torch.bincount(labels, minlength=10) / len(labels)
        losses.append(cross_entropy(outputs[rows] + shares.log(), labels))
    size = two.train.num_examples.double()
    wanted = torch.softmax((size / size.sum()).log() + torch.stack(losses).double(), 0)
    torch.testing.assert_close(weights[1], wanted, rtol=0, atol=1e-5)


def test_these_methods_refuse_a_loss_without_class_probabilities() -> None:
    clients = wafl.Federation.from_arrays([([[0.0], [1.0]], [0.0, 1.0])], test_fraction=0)
    for method, name in ((wafl.TRADES(), "TRADES"), (wafl.CalFAT(), "CalFAT"), (wafl.IRM(), "IRM")):
        with pytest.raises(ValueError, match=f"{name} compares class probabilities: it needs loss='cross_entropy'"):
            wafl.fit(nn.Linear(1, 1), clients, method, rounds=1, local_steps=1, loss="squared_error")
