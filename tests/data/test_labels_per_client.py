"""Clients that hold a few labels each."""

from collections import Counter

import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import wafl
from wafl.data.partition import labels_per_client


def dataset_of(counts: list[int]) -> wafl.Dataset:
    """``counts[label]`` examples of each label; the only pixel of an example is its number."""
    y = torch.cat([torch.full((count,), label) for label, count in enumerate(counts)])
    y = y[torch.randperm(len(y), generator=torch.Generator().manual_seed(0))]
    x = torch.arange(len(y)).view(-1, 1, 1, 1)
    cut = len(y) // 2
    return wafl.Dataset("numbers", x[:cut], y[:cut], x[cut:], y[cut:], len(counts), max_value=1)


@st.composite
def cases(draw):
    classes = draw(st.integers(1, 7))
    count = draw(st.integers(1, classes))
    num_clients = draw(st.integers(-(-classes // count), 12))
    holders = -(-num_clients * count // classes)
    sizes = draw(st.lists(st.integers(holders, holders + 30), min_size=classes, max_size=classes))
    return sizes, num_clients, count, draw(st.integers(0, 2**32 - 1))


@settings(max_examples=40, deadline=None)
@given(cases())
def test_labels_per_client_is_disjoint_complete_exact_and_balanced(case):
    sizes, num_clients, count, seed = case
    data = dataset_of(sizes)
    clients = data.partition(num_clients, labels_per_client=count, seed=seed)
    truth = torch.cat([data.y_train, data.y_test])
    seen: list[int] = []
    holders: Counter[int] = Counter()
    for client in range(num_clients):
        x, y = (torch.cat(parts) for parts in zip(clients.train.of(client), clients.test.of(client), strict=True))
        numbers = x.flatten().long()
        assert torch.equal(truth[numbers], y), "an example lost its label"
        labels = set(y.tolist())
        assert len(labels) == count
        holders.update(labels)
        seen += numbers.tolist()
    assert sorted(seen) == list(range(len(truth)))
    assert set(holders) == set(range(len(sizes)))
    assert max(holders.values()) - min(holders.values()) <= 1


def test_the_seed_determines_which_examples_and_not_only_how_many():
    """Two clients share one label. If one order were cut at different points, their shares would be nested."""
    first, other = (set(labels_per_client(torch.zeros(400), 2, 1, 1, seed)[0].tolist()) for seed in (1, 2))
    assert not first <= other
    assert not other <= first


def test_sizes_are_unequal_as_in_the_paper():
    """MNIST's 70,000 images on 100 clients of 2 labels: the paper has mean 700 and standard deviation 313.4."""
    spreads = []
    for seed in range(3):
        rows = labels_per_client(torch.arange(70_000) % 10, 100, 2, 10, seed)
        sizes = torch.tensor([float(len(part)) for part in rows])
        assert float(sizes.mean()) == 700.0
        spreads.append(float(sizes.std()))
    assert 313.4 * 0.75 < sum(spreads) / 3 < 313.4 * 1.25
