"""Clients that never train: the right ones, with their own examples, and without any influence on training."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import wafl
from tests.data.federations import federation_of

SIZES = [5, 9, 1, 14, 7, 8, 3, 20, 2, 6]


def contents(clients: wafl.Federation) -> dict[str, list[list[float]]]:
    """Every client's training and test rows, by name."""
    packs = (clients.train, clients.test)
    return {
        name: [values.flatten().tolist() for pack in packs for values in pack.of(client)]
        for client, name in enumerate(clients.names)
    }


@pytest.mark.parametrize(("share", "count"), [(0.01, 1), (0.2, 2), (0.25, 2), (0.5, 5), (0.99, 9)])
def test_every_client_is_on_one_side_with_its_name_and_examples(share, count):
    clients = federation_of(SIZES)
    seen, unseen = clients.hold_out(share, seed=3)
    assert unseen.num_clients == count
    assert not set(seen.names) & set(unseen.names)
    assert contents(seen) | contents(unseen) == contents(clients)
    assert seen.num_classes == unseen.num_classes == clients.num_classes
    order = [clients.names.index(name) for name in seen.names]
    assert order == sorted(order)


def test_the_clients_are_drawn_by_the_seed_and_a_larger_share_contains_a_smaller_one():
    clients = federation_of(SIZES)
    draws = [set(clients.hold_out(0.3, seed=seed)[1].names) for seed in range(5)]
    assert draws[0] == set(clients.hold_out(0.3, seed=0)[1].names)
    assert len({frozenset(draw) for draw in draws}) > 1
    assert draws[0] < set(clients.hold_out(0.6, seed=0)[1].names)


@pytest.mark.parametrize("share", [0, 1, -0.1, 1.5, float("nan"), "0.2", None])
def test_a_share_that_is_not_between_0_and_1_is_refused(share):
    with pytest.raises(ValueError, match=r"share=.* must lie between 0 and 1"):
        federation_of(SIZES).hold_out(share)


def test_a_single_client_cannot_be_held_out():
    with pytest.raises(ValueError, match="only one client"):
        federation_of([4]).hold_out(0.5)
    with pytest.raises(ValueError, match="seed=-1"):
        federation_of(SIZES).hold_out(0.5, seed=-1)
    with pytest.raises(ValueError, match="not all of them"):
        federation_of(SIZES).set_apart(range(len(SIZES)))


@pytest.mark.parametrize(("preprocess", "pooled"), [("zscore", False), ("zscore_pooled", True)])
def test_statistics_come_from_the_seen_clients_alone(preprocess, pooled):
    clients = wafl.load_dataset("digits").partition(8, labels_per_client=2, preprocess=preprocess)
    seen, unseen = clients.hold_out(0.3)
    raw = np.concatenate([seen.train.raw, seen.test.raw] if pooled else [seen.train.raw]).astype(np.float64)
    scale = np.where(raw.std(0) > 0, raw.std(0), 1.0)
    for part in (seen.train, seen.test, unseen.train, unseen.test):
        expected = (part.raw.numpy() - raw.mean(0)) / scale
        np.testing.assert_allclose(part.x.numpy(), expected, rtol=1e-5, atol=1e-5)
    assert seen.unit == clients.unit


def test_the_recipe_says_who_was_held_out_also_twice():
    clients = wafl.load_dataset("digits").partition(10, labels_per_client=3)
    seen, unseen = clients.hold_out(0.3)
    inner, _ = seen.hold_out(0.5, seed=4)
    assert clients.recipe is not None
    assert "held_out" not in clients.recipe
    assert unseen.recipe == {**clients.recipe, "held_out": [[0.3, 0, "unseen"]]}
    assert inner.recipe == {**clients.recipe, "held_out": [[0.3, 0, "seen"], [0.5, 4, "seen"]]}
    assert federation_of(SIZES).hold_out(0.5)[0].recipe is None


def test_joined_examples_stay_with_their_client():
    clients = federation_of(SIZES)
    both = clients.train.joined(clients.test)
    for client in range(clients.num_clients):
        for values, train, test in zip(both.of(client), clients.train.of(client), clients.test.of(client), strict=True):
            assert torch.equal(values, torch.cat([train, test]))
