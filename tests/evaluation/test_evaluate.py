"""Evaluation against plain loops: clean, attacked and shifted, in chunks, on bytes and floats."""

import dataclasses
import importlib
import itertools
import math

import numpy as np
import pytest
import torch
from torch import nn

import wafl
from wafl import shifts

MODULE = importlib.import_module("wafl.evaluation.evaluate")  # the name in the package is the function
OPTIONS = {"rounds": 3, "local_steps": 4, "batch_size": 16, "learning_rate": 0.2}


@pytest.fixture(scope="module")
def digits() -> wafl.Federation:
    """A few clients of unequal size, with 8x8 images kept as bytes."""
    data = wafl.load_dataset("digits")
    small = dataclasses.replace(data, x_train=data.x_train[:260], y_train=data.y_train[:260],
                                x_test=data.x_test[:60], y_test=data.y_test[:60])  # fmt: skip
    return small.partition(10, labels_per_client=3, test_fraction=0.4, seed=3)


@pytest.fixture(scope="module")
def run(digits) -> wafl.Run:
    return wafl.fit(wafl.models.mlr(digits), digits, wafl.FedAvg(), **OPTIONS)


@pytest.fixture(scope="module")
def network(digits) -> nn.Module:
    return wafl.models.cnn(digits, channels=(2, 3), seed=1)


def plain(model: nn.Module, x: torch.Tensor, y: torch.Tensor) -> tuple[float, float]:
    """Accuracy and mean cross-entropy, one example at a time, in numpy."""
    right, total = 0, 0.0
    for example, label in zip(x, y.tolist(), strict=True):
        with torch.no_grad():
            logits = model(example[None])[0].double().numpy()
        right += int(np.argmax(logits) == label)
        total += float(np.log(np.exp(logits - logits.max()).sum()) + logits.max() - logits[label])
    return right / len(y), total / len(y)


def same(one: wafl.Score, other: wafl.Score, tolerance: float = 1e-6) -> None:
    assert [client.name for client in one.per_client] == [client.name for client in other.per_client]
    for a, b in zip(one.per_client, other.per_client, strict=True):
        assert (a.num_examples, a.attacked) == (b.num_examples, b.attacked)
        assert a.accuracy == pytest.approx(b.accuracy, abs=tolerance)
        assert a.loss == pytest.approx(b.loss, abs=tolerance, rel=tolerance)
        assert a.weight == pytest.approx(b.weight, abs=tolerance)


# ---------------------------------------------------------------- against a loop


@pytest.mark.parametrize("which", ["mlr", "cnn"])
def test_a_clean_score_equals_that_of_a_plain_loop(digits, run, network, which):
    model, module = (run, run.model) if which == "mlr" else (network, network)
    score = wafl.evaluate(model, digits)
    right, count = 0.0, 0
    for index, client in enumerate(score.per_client):
        x, y = digits.test.of(index)
        accuracy, loss = plain(module, x, y)
        assert client.name == digits.names[index]
        assert (client.num_examples, client.attacked) == (len(y), False)
        assert client.accuracy == pytest.approx(accuracy, abs=1e-9)
        assert client.loss == pytest.approx(loss, rel=1e-5)
        assert client.weight == pytest.approx(len(y) / len(digits.test.y))
        right, count = right + accuracy * len(y), count + len(y)
    assert len(score.per_client) == digits.num_clients
    assert score.accuracy == pytest.approx(right / count)
    assert (score.attack, score.unit) == ("none", digits.unit)


@pytest.mark.parametrize(
    "attack",
    [
        wafl.PGD(epsilon=0.1, steps=5, bounds=(0.0, 1.0)),
        wafl.PGD(epsilon=0.5, steps=4, norm=2, bounds=None),
        wafl.FGSM(epsilon=0.2, bounds=None),
        shifts.inversion(severity=0.3, bounds=(0.0, 1.0)),
        shifts.rotation(severity=0.4, bounds=None),
        shifts.affine(severity=0.5, bounds=None),
    ],
    ids=repr,
)
def test_attacked_clients_score_as_if_the_attack_were_called_on_each(digits, run, attack):
    """On every attacked client alone; the others stay as they were."""
    score = wafl.evaluate(run, digits, attack=attack, attacked=0.5, seed=2)
    clean = wafl.evaluate(run, digits)
    assert sum(client.attacked for client in score.per_client) == 5
    for index, client in enumerate(score.per_client):
        x, y = digits.test.of(index)
        if client.attacked:
            accuracy, loss = plain(run.model, attack(run, x, y, seed=2), y)
            assert client.accuracy == pytest.approx(accuracy, abs=1e-9)
            assert client.loss == pytest.approx(loss, rel=1e-4)
            assert client.loss != clean.per_client[index].loss
        else:
            assert client == clean.per_client[index]
    assert score.attack == attack.describe(digits.unit)


def test_a_strong_label_shift_gives_no_nan(digits, run):
    """A client may have none of the labels that are left."""
    score = wafl.evaluate(run, digits, attack=shifts.label_shift(severity=3000.0))
    for client in score.per_client:
        assert math.isfinite(client.loss)
        assert 0.0 <= client.accuracy <= 1.0
    assert math.isfinite(score.accuracy)


def test_the_wasserstein_shift_moves_attacked_clients_as_one_population(digits, run):
    attack = wafl.WassersteinShift(radius=0.6, bounds=None)
    score = wafl.evaluate(run, digits, attack=attack, attacked=0.4, seed=1)
    clean = wafl.evaluate(run, digits)
    victims = [index for index, client in enumerate(score.per_client) if client.attacked]
    assert len(victims) == 4
    x, y = (torch.cat(parts) for parts in zip(*(digits.test.of(index) for index in victims), strict=True))
    moved = attack(run, x, y)
    squared = ((moved - x) ** 2).flatten(1).sum(1).double()
    assert math.sqrt(squared.mean()) <= 0.6 * (1 + 1e-4)
    assert squared.max() > 1.5 * squared.min(), "one radius per example would be another attack"
    begin = 0
    for index, client in enumerate(score.per_client):
        if index in victims:
            count = client.num_examples
            accuracy, loss = plain(run.model, moved[begin : begin + count], y[begin : begin + count])
            begin += count
            assert client.accuracy == pytest.approx(accuracy, abs=1e-9)
            assert client.loss == pytest.approx(loss, rel=1e-4)
        else:
            assert client == clean.per_client[index]
    assert score.attacked.loss > sum(
        clean.per_client[index].loss * clean.per_client[index].num_examples for index in victims
    ) / len(y)


# ---------------------------------------------------------------- which clients are attacked


def attacked_names(run, digits, **options) -> set[str]:
    score = wafl.evaluate(run, digits, attack=wafl.FGSM(epsilon=0.1), **options)
    return {client.name for client in score.per_client if client.attacked}


def test_attacked_shares_are_whole_clients_and_nested(digits, run):
    chosen = [attacked_names(run, digits, attacked=share, seed=5) for share in (0.0, 0.2, 0.4, 0.6, 0.8, 1.0)]
    assert [len(names) for names in chosen] == [0, 2, 4, 6, 8, 10]
    for smaller, larger in itertools.pairwise(chosen):
        assert smaller < larger


def test_the_seed_determines_which_clients_are_attacked(digits, run):
    first = attacked_names(run, digits, attacked=0.4, seed=5)
    assert first == attacked_names(run, digits, attacked=0.4, seed=5)
    others = [attacked_names(run, digits, attacked=0.4, seed=seed) for seed in range(6)]
    assert len({frozenset(names) for names in others}) > 2


# ---------------------------------------------------------------- what must not matter


@pytest.mark.parametrize(
    "attack",
    [
        None,
        wafl.FGSM(epsilon=0.1),
        wafl.PGD(epsilon=0.2, steps=3),
        wafl.PGD(epsilon=0.2, steps=2, random_start=True, restarts=2),
        wafl.PGD(epsilon=1.0, steps=2, norm=2, random_start=True),
        wafl.WassersteinShift(radius=0.4),
        shifts.affine(severity=0.5),
        shifts.label_shift(severity=1.0),
        shifts.gaussian_noise(severity=0.4),
        shifts.shot_noise(severity=0.3, bounds=(0.0, 1.0)),
    ],
    ids=repr,
)
def test_scores_do_not_depend_on_the_chunk(digits, run, monkeypatch, attack):
    whole = wafl.evaluate(run, digits, attack=attack, attacked=0.7, seed=6)
    assert len(digits.test.y) > 100, "one chunk would prove nothing"
    monkeypatch.setattr(MODULE, "CHUNK", 7)
    same(wafl.evaluate(run, digits, attack=attack, attacked=0.7, seed=6), whole)


@pytest.mark.parametrize(
    "attack",
    [wafl.PGD(epsilon=0.3, steps=1, step_size=1e-6, random_start=True), shifts.gaussian_noise(severity=0.4)],
    ids=["random start", "noise"],
)
def test_no_two_examples_share_their_draws(monkeypatch, attack):
    """All images are the same: the losses tell the draws apart, also across chunks."""
    model = nn.Sequential(nn.Flatten(), nn.Linear(6, 2))
    clients = wafl.Federation.from_arrays(
        [(np.full((2, 6), 0.5, np.float32), np.zeros(2, int))] * 12, test_fraction=0.5, num_classes=2
    )
    for chunk in (2048, 4):
        monkeypatch.setattr(MODULE, "CHUNK", chunk)
        losses = [client.loss for client in wafl.evaluate(model, clients, attack=attack).per_client]
        assert len({round(loss, 9) for loss in losses}) == 12


@pytest.mark.parametrize(
    "attack",
    [wafl.PGD(epsilon=0.3, steps=2, random_start=True), shifts.gaussian_noise(severity=0.4)],
    ids=["random start", "noise"],
)
def test_a_clients_score_does_not_depend_on_which_others_are_attacked(digits, run, attack):
    """Attacks that move each example by itself: a larger share leaves the smaller share's scores as they were."""
    few, all_ = (wafl.evaluate(run, digits, attack=attack, attacked=share, seed=3) for share in (0.3, 1.0))
    compared = 0
    for one, other in zip(few.per_client, all_.per_client, strict=True):
        if one.attacked:
            compared += 1
            assert one.loss == pytest.approx(other.loss, rel=1e-5)
    assert compared == 3


def test_evaluation_does_not_change_the_model(digits, network):
    before = {name: value.clone() for name, value in network.state_dict().items()}
    wafl.evaluate(network, digits, attack=wafl.FGSM(epsilon=0.1))
    for name, value in network.state_dict().items():
        assert torch.equal(value, before[name])
    assert all(value.grad is None and value.requires_grad for value in network.parameters())


# ---------------------------------------------------------------- errors


def test_autoattack_without_bounds_is_refused(digits, run):
    zscored = wafl.load_dataset("digits").partition(10, iid=True, preprocess="zscore")
    with pytest.raises(ValueError, match=r"use data that declare theirs \(preprocess 'unit' or 'symmetric'\)"):
        wafl.evaluate(run, zscored, attack=wafl.attacks.AutoAttack(epsilon=0.1))


def test_the_name_of_an_attack_is_no_attack(digits, run):
    with pytest.raises(ValueError, match=r"'pgd' is not an attack: use wafl.PGD\(epsilon=...\)"):
        wafl.evaluate(run, digits, attack="pgd")


def test_a_non_finite_loss_is_refused_with_the_name_of_its_client():
    x = np.ones((3, 4, 2), np.float32)
    x[2] = 1e30
    clients = wafl.Federation.from_arrays([(part, [0, 1, 0, 1]) for part in x])
    model = nn.Linear(2, 2)
    model.weight.data[:] = torch.tensor([[1e30, 0.0], [0.0, 1.0]])
    with pytest.raises(ValueError, match="NaN or infinite on client 2"):
        wafl.evaluate(model, clients)


# ---------------------------------------------------------------- clients that took no part


def test_the_three_numbers_match_plain_loops_over_training_test_and_unseen_examples(digits):
    seen, unseen = digits.hold_out(0.3, seed=2)
    run = wafl.fit(wafl.models.mlr(seen), seen, wafl.FedAvg(), **OPTIONS)
    score = wafl.evaluate(run, seen, unseen=unseen)
    x, y = torch.cat([unseen.train.x, unseen.test.x]), torch.cat([unseen.train.y, unseen.test.y])
    expected = [plain(run.model, *pair) for pair in ((seen.train.x, seen.train.y), (seen.test.x, seen.test.y), (x, y))]
    for result, (accuracy, loss) in zip((score.train, score, score.unseen), expected, strict=True):
        assert result.accuracy == pytest.approx(accuracy, abs=1e-9)
        assert result.loss == pytest.approx(loss, abs=1e-5)
    assert score.out_of_sample_gap == pytest.approx(expected[0][0] - expected[1][0], abs=1e-9)
    assert score.participation_gap == pytest.approx(expected[1][0] - expected[2][0], abs=1e-9)
    assert [client.name for client in score.unseen.per_client] == list(unseen.names)
    for index, client in enumerate(score.unseen.per_client):
        (x, y), (x_test, y_test) = unseen.train.of(index), unseen.test.of(index)
        assert client.accuracy == pytest.approx(plain(run.model, torch.cat([x, x_test]), torch.cat([y, y_test]))[0])


def test_the_same_share_of_unseen_clients_is_attacked(run, digits):
    seen, unseen = digits.hold_out(0.4)
    score = wafl.evaluate(run, seen, unseen=unseen, attack=wafl.FGSM(epsilon=0.1), attacked=0.5)
    assert sum(client.attacked for client in score.unseen.per_client) == 2
    victims = [[client.name for client in part.per_client if client.attacked] for part in (score, score.train)]
    assert victims[0] == victims[1]
    assert len(victims[0]) == 3


def test_unseen_clients_of_another_kind_are_refused(run, digits):
    other = wafl.Federation.from_arrays([(np.ones((4, 3)), np.arange(4) % 2)] * 2)
    with pytest.raises(ValueError, match=r"unseen clients have shape \(3,\), the others \(1, 8, 8\): .*hold_out"):
        wafl.evaluate(run, digits, unseen=other)
    scaled = wafl.load_dataset("digits").partition(4, iid=True, preprocess="zscore")
    with pytest.raises(ValueError, match="unseen clients have unit"):
        wafl.evaluate(run, digits, unseen=scaled)
