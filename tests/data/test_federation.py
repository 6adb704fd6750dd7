"""Packing and splitting: every example ends up in exactly one place, next to its own label."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import wafl
from tests.data.federations import client_arrays, federation_of


def tags(x: torch.Tensor) -> list[int]:
    return sorted(int(value) for value in x[:, 0])


@settings(max_examples=40, deadline=None)
@given(
    sizes=st.lists(st.integers(1, 40), min_size=1, max_size=6),
    fraction=st.floats(0, 0.99),
    seed=st.integers(0, 2**32 - 1),
)
def test_the_split_is_disjoint_complete_and_of_the_requested_size(sizes, fraction, seed):
    clients = federation_of(sizes, test_fraction=fraction, seed=seed)
    assert clients.num_examples == sizes
    for client, size in enumerate(sizes):
        (x, y), (x_test, y_test) = clients.train.of(client), clients.test.of(client)
        assert sorted(tags(x) + tags(x_test)) == [10_000 * client + row for row in range(size)]
        assert len(x) >= 1
        assert abs(len(x_test) - fraction * size) <= 0.5 + 1e-9 or len(x) == 1
        for examples, labels in ((x, y), (x_test, y_test)):
            assert torch.equal(examples[:, 0], -examples[:, 1])
            assert torch.equal(examples[:, 0].long() % 3, labels)


@pytest.mark.parametrize("fraction", [0.0, 0.25])
def test_blocks_of_any_size_pack_the_same(monkeypatch, fraction):
    pairs = [client_arrays(i, 1 + i % 7, classes=1) for i in range(40)]
    whole = wafl.Federation.from_arrays(iter(pairs), test_fraction=fraction)
    monkeypatch.setattr("wafl.data.bring.arrays.FEW", 2)
    monkeypatch.setattr("wafl.data.bring.arrays.MANY", 5)
    monkeypatch.setattr("wafl.data.bring.arrays.PIECE", 200)
    again = wafl.Federation.from_arrays(iter(pairs), test_fraction=fraction)
    assert again.fingerprint() == whole.fingerprint()
    assert [tags(again.train.of(i)[0]) for i in range(40)] == [tags(whole.train.of(i)[0]) for i in range(40)]


@pytest.mark.parametrize("fraction", [0.0, 0.25])
def test_integers_become_floating_point_block_by_block(monkeypatch, fraction):
    monkeypatch.setattr("wafl.data.bring.arrays.FEW", 3)
    pairs = [(np.arange(8 * i, 8 * i + 8).reshape(4, 2), np.zeros(4, int)) for i in range(10)]
    clients = wafl.Federation.from_arrays(iter(pairs), test_fraction=fraction)
    wanted = wafl.Federation.from_arrays([(x.tolist(), y) for x, y in pairs], test_fraction=fraction)
    assert clients.fingerprint() == wanted.fingerprint()
    assert clients.train.raw.dtype == torch.float32


def test_columns_that_lie_apart_are_packed_in_rows():
    pairs = [(np.asfortranarray(x), y) for x, y in (client_arrays(i, 5) for i in range(3))]
    assert wafl.Federation.from_arrays(pairs).train.raw.is_contiguous()


@settings(max_examples=20, deadline=None)
@given(sizes=st.lists(st.integers(1, 30), min_size=1, max_size=7), fraction=st.sampled_from([0.0, 0.25, 0.9]))
def test_offsets_and_blocks_pack_what_clients_one_by_one_do(sizes, fraction):
    pairs = [client_arrays(i, n, classes=1) for i, n in enumerate(sizes)]
    x, y = (np.concatenate(part) for part in zip(*pairs, strict=True))
    options = {"test_fraction": fraction, "seed": 3}
    one_by_one = wafl.Federation.from_arrays([[x.tolist(), y.tolist()] for x, y in pairs], **options)
    together = wafl.Federation.from_arrays(pairs, **options)
    packed = wafl.Federation.from_offsets(x, y, np.cumsum([0, *sizes]), **options)
    for clients in (together, packed):
        for ours, theirs in ((clients.train, one_by_one.train), (clients.test, one_by_one.test)):
            assert torch.equal(ours.offsets, theirs.offsets)
            assert torch.equal(ours.y, theirs.y)
            assert torch.equal(ours.x.float(), theirs.x.float())


@pytest.mark.parametrize(
    ("offsets", "message"),
    [
        ([0, 2], "from 0 to 2, but must go from 0 to the number of examples, 4"),
        ([1, 4], "from 1 to 4"),
        ([0, 2, 2, 4], "client 1 has the rows 2:2: leave it out or give it at least one example"),
        ([0, 3, 2, 4], "client 1 has the rows 3:2"),
        ([0.0, 4.0], "whole numbers"),
        ([0], "at least two"),
    ],
)
def test_offsets_that_leave_rows_to_nobody_are_refused(offsets, message):
    with pytest.raises(ValueError, match=message):
        wafl.Federation.from_offsets(np.zeros((4, 2)), np.zeros(4, int), offsets)


def test_a_mistake_among_offsets_is_said_of_its_client():
    x = np.zeros((6, 2))
    x[4, 1] = np.nan
    with pytest.raises(ValueError, match="client 2 has NaN or infinity"):
        wafl.Federation.from_offsets(x, np.zeros(6, int), [0, 2, 4, 6])


def test_the_split_is_random_seeded_and_does_not_depend_on_other_clients():
    def held_out(sizes: list[int], seed: int) -> list[int]:
        return tags(federation_of(sizes, seed=seed).test.of(0)[0])

    assert held_out([40], 3) == held_out([40], 3)
    assert held_out([40], 3) != held_out([40], 4)
    assert held_out([40], 3) == held_out([40, 300, 7], 3), "another client's size must not change this one's split"
    assert held_out([40], 3) != list(range(10)), "the first rows are not a random sample"


@pytest.mark.parametrize("form", ["numpy", "torch", "lists", "read-only", "reversed view"])
def test_every_form_of_input_is_packed_the_same(form):
    pairs = [client_arrays(i, n) for i, n in enumerate([5, 8])]
    wanted = wafl.Federation.from_arrays(pairs)
    if form == "torch":
        pairs = [(torch.from_numpy(x), torch.from_numpy(y)) for x, y in pairs]
    elif form == "lists":
        pairs = [(x.tolist(), y.tolist()) for x, y in pairs]
    elif form == "read-only":
        for x, y in pairs:
            x.setflags(write=False)
            y.setflags(write=False)
    elif form == "reversed view":
        pairs = [(x[::-1].copy()[::-1], y[::-1].copy()[::-1]) for x, y in pairs]
    clients = wafl.Federation.from_arrays(pair for pair in pairs)
    for got, want in ((clients.train, wanted.train), (clients.test, wanted.test)):
        assert torch.equal(got.x, want.x)
        assert torch.equal(got.y, want.y)


def test_the_federation_does_not_change_with_the_arrays_it_was_made_from():
    x, y = client_arrays(1, 4)
    clients = wafl.Federation.from_arrays([(x, y)], test_fraction=0)
    x[:] = -1.0
    assert tags(clients.train.x) == [10_000, 10_001, 10_002, 10_003]


@pytest.mark.parametrize(
    ("given_type", "packed"),
    [("float32", torch.float32), ("float64", torch.float64), ("uint8", torch.float32), ("int64", torch.float32)],
)
def test_inputs_become_floats_and_labels_int64(given_type, packed):
    x = np.arange(8).reshape(4, 2).astype(given_type)
    clients = wafl.Federation.from_arrays([(x, np.array([0, 1, 0, 1], dtype="int8"))])
    assert clients.train.x.dtype == packed
    assert clients.train.y.dtype == torch.int64


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_inputs_are_packed_without_loss(dtype):
    x = torch.arange(8.0).view(4, 2)
    clients = wafl.Federation.from_arrays([(x.to(dtype), [0, 1, 0, 1])], test_fraction=0)
    assert clients.train.x.is_floating_point()
    assert torch.equal(clients.train.x.float(), x)


@pytest.mark.parametrize("labels", [np.array([True, False, True]), np.array([1, 0, 1], dtype="uint8")])
def test_labels_of_every_integer_type_are_classes(labels):
    clients = wafl.Federation.from_arrays([(np.zeros((3, 1)), labels)], test_fraction=0)
    assert clients.train.y.tolist() == [1, 0, 1]
    assert clients.num_classes == 2


@pytest.mark.parametrize("shape", [(6,), (6, 1), (6, 3)])
def test_regression_targets_stay_with_their_inputs(shape):
    x = np.arange(6, dtype=np.float32)[:, None]
    y = (np.arange(6, dtype=np.float64) * 10).reshape(6, *[1] * (len(shape) - 1)) * np.ones(shape)
    clients = wafl.Federation.from_arrays([(x, y)])
    assert clients.num_classes is None
    assert clients.train.y.dtype == torch.float32, "targets take the inputs' type"
    for examples in (clients.train, clients.test):
        assert examples.y.shape[1:] == shape[1:]
        wanted = (10 * examples.x).view(-1, *[1] * (len(shape) - 1)).expand(examples.y.shape)
        assert torch.equal(examples.y, wanted)


def test_names_unit_and_bounds_are_kept():
    clients = federation_of([2, 2], names=["north", "south"], unit="volts", bounds=(-2e4, 2e4))
    assert clients.names == ("north", "south")
    assert (clients.unit, clients.bounds) == ("volts", (-2e4, 2e4))
    assert federation_of([2, 2]).names == ("client 0", "client 1")


def test_the_repr_shows_sizes_shape_and_task():
    wanted = "Federation(3 clients, 18 training and 6 test examples of shape (2,), 3 classes)"
    assert repr(federation_of([8, 8, 8])) == wanted
    regression = wafl.Federation.from_arrays([(np.zeros((4, 2, 2)), np.zeros(4))])
    assert repr(regression) == "Federation(1 clients, 3 training and 1 test examples of shape (2, 2), regression)"
    assert str(regression) == "1 client with 3 training and 1 test examples of shape 2 x 2 for a regression"
