"""Ways to spread a data set over clients: Dirichlet, equal parts, groups, drawn sizes, skew, the standard split."""

from collections import Counter

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.datasets import load_digits

import wafl
from wafl import shifts
from wafl.data.partition import dirichlet


def dataset_of(labels, *, classes: int = 5, cut: int | None = None, groups=None) -> wafl.Dataset:
    """Two one-byte pixels hold each example's number, so that it can be tracked."""
    y = torch.as_tensor(labels)
    number = torch.arange(len(y))
    x = torch.stack([number // 256, number % 256], dim=1).to(torch.uint8).view(-1, 1, 1, 2)
    cut = len(y) * 4 // 5 if cut is None else cut
    parts = (None, None) if groups is None else (torch.as_tensor(groups)[:cut], torch.as_tensor(groups)[cut:])
    return wafl.Dataset("numbers", x[:cut], y[:cut], x[cut:], y[cut:], classes, 255, *parts)


def numbers(pack, client: int) -> list[int]:
    rows = slice(*pack.offsets[client : client + 2].tolist())
    high, low = pack.raw[rows].flatten(1).long().unbind(1)
    return (256 * high + low).tolist()


def held_by(clients: wafl.Federation) -> list[tuple[list[int], list[int]]]:
    return [(numbers(clients.train, i), numbers(clients.test, i)) for i in range(clients.num_clients)]


def check_disjoint(clients: wafl.Federation, data: wafl.Dataset) -> list[int]:
    """Every example occurs at most once, next to its own label, and the rest is counted; returns the examples held."""
    truth = torch.cat([data.y_train, data.y_test]).tolist()
    seen: list[int] = []
    for client, parts in enumerate(held_by(clients)):
        for pack, rows in zip((clients.train, clients.test), parts, strict=True):
            assert [truth[row] for row in rows] == pack.of(client)[1].tolist(), "an example lost its label"
            seen += rows
    assert len(seen) == len(set(seen))
    assert clients.left_out == len(truth) - len(seen)
    assert clients.num_examples == [len(train) + len(test) for train, test in held_by(clients)]
    return seen


labels_of = st.lists(st.integers(0, 4), min_size=12, max_size=120)
seeds = st.integers(0, 2**32 - 1)


@settings(max_examples=40, deadline=None)
@given(labels_of, st.integers(1, 12), st.sampled_from([0.01, 0.1, 1.0, 100.0]), seeds)
def test_dirichlet_is_disjoint_complete_and_leaves_no_client_empty(labels, num_clients, alpha, seed):
    data = dataset_of(labels)
    clients = data.partition(num_clients, dirichlet=alpha, seed=seed)
    assert len(check_disjoint(clients, data)) == len(labels)
    assert clients.left_out == 0
    assert min(clients.train.num_examples.tolist()) >= 1


@settings(max_examples=40, deadline=None)
@given(labels_of, st.integers(1, 12), seeds)
def test_iid_is_disjoint_complete_and_equal(labels, num_clients, seed):
    data = dataset_of(labels)
    clients = data.partition(num_clients, iid=True, seed=seed)
    assert len(check_disjoint(clients, data)) == len(labels)
    assert max(clients.num_examples) - min(clients.num_examples) <= 1


@settings(max_examples=40, deadline=None)
@given(st.lists(st.tuples(st.integers(0, 4), st.integers(3, 9)), min_size=12, max_size=80), seeds)
def test_groups_stay_together(pairs, seed):
    labels, groups = zip(*pairs, strict=True)
    data = dataset_of(labels, groups=groups)
    clients = data.partition(by_group=True, seed=seed)
    assert len(check_disjoint(clients, data)) == len(labels)
    assert clients.names == tuple(f"writer {group}" for group in sorted(set(groups)))
    for group, (train, test) in zip(sorted(set(groups)), held_by(clients), strict=True):
        assert sorted(train + test) == [row for row, other in enumerate(groups) if other == group]


@settings(max_examples=40, deadline=None)
@given(st.integers(3, 8), st.integers(2, 4), st.floats(10, 40), st.floats(0, 12), seeds)
def test_drawn_sizes_are_disjoint_and_the_rest_is_counted(num_clients, count, mean, std, seed):
    data = dataset_of(torch.arange(2000) % 5)
    clients = data.partition(num_clients, labels_per_client=count, sizes=(mean, std), seed=seed)
    seen = check_disjoint(clients, data)
    assert clients.left_out == 2000 - len(seen) > 0
    for counts, size in zip(clients.label_counts().tolist(), clients.num_examples, strict=True):
        held = [n for n in counts if n]
        assert len(held) == count
        assert max(held) == min(held) == max(1, size // count)
        assert size >= mean / 10 - count / 2


def test_drawn_sizes_have_the_requested_mean_and_deviation():
    data = dataset_of(torch.arange(60_000) % 10, classes=10)
    sizes = np.concatenate(
        [data.partition(20, labels_per_client=3, sizes=(1800, 500), seed=s).num_examples for s in range(12)]
    )
    assert abs(sizes.mean() - 1800) < 4 * 500 / np.sqrt(len(sizes))
    assert abs(sizes.std() - 500) < 0.2 * 500
    even = data.partition(20, labels_per_client=3, sizes=(300, 0)).num_examples
    assert even == [300] * 20


def test_the_standard_split_keeps_test_examples_for_testing():
    data = dataset_of(torch.arange(200) % 5, cut=150)
    for way in ({"iid": True}, {"dirichlet": 1.0}, {"labels_per_client": 3}):
        clients = data.partition(4, split="standard", seed=2, **way)
        assert len(check_disjoint(clients, data)) == 200
        trained = [row for train, _ in held_by(clients) for row in train]
        assert sorted(trained) == list(range(150))
    pooled = data.partition(4, iid=True, seed=2)
    assert {row for train, _ in held_by(pooled) for row in train} & set(range(150, 200))


@pytest.mark.parametrize(
    "way",
    [
        {"iid": True},
        {"dirichlet": 0.5},
        {"labels_per_client": 2},
        {"labels_per_client": 2, "sizes": (20, 5)},
        {"iid": True, "split": "standard"},
    ],
    ids=str,
)
def test_the_seed_determines_the_partition(way):
    data = dataset_of(torch.arange(400) % 5)
    first, again, other = (held_by(data.partition(6, seed=seed, **way)) for seed in (1, 1, 2))
    assert first == again
    assert first != other


@pytest.mark.slow
def test_label_shares_follow_a_dirichlet_distribution():
    """A client's share of a label has mean 1/m and variance (m - 1) / (m^2 (m alpha + 1))."""
    num_clients, per_label = 5, 4000
    y = torch.arange(4 * per_label) % 4
    for alpha in (0.2, 1.0, 10.0):
        shares = []
        for seed in range(60):
            for rows in dirichlet(y, num_clients, alpha, 4, seed):
                shares.append(np.bincount(y[rows].numpy(), minlength=4) / per_label)
        shares = np.array(shares)
        assert np.allclose(shares.reshape(60, 5, 4).sum(1), 1.0)
        wanted = (num_clients - 1) / (num_clients**2 * (num_clients * alpha + 1))
        assert shares.var() == pytest.approx(wanted, rel=0.15)
        # No client, and no label, is favored.
        off = 5 * np.sqrt(wanted / (60 * 4))
        assert np.abs(shares.reshape(60, 5, 4).mean((0, 2)) - 1 / num_clients).max() < off
        apart = np.corrcoef(shares[:, 0], shares[:, 1])[0, 1]
        assert abs(apart) < 0.25, "labels are drawn independently"


def test_digits_are_those_of_scikit_learn():
    images, targets = load_digits(return_X_y=True)
    data = wafl.load_dataset("digits")
    assert data.x_train.shape[1:] == (1, 8, 8)
    assert torch.cat([data.x_train, data.x_test]).flatten(1).tolist() == images.tolist()
    assert torch.cat([data.y_train, data.y_test]).tolist() == targets.tolist()


# ---------------------------------------------------------------- skew


def test_skew_applies_the_shifts_to_clients_in_turn():
    data = wafl.load_dataset("digits")
    skew = [shifts.inversion(severity=1.0, bounds=(0.0, 1.0)), shifts.rotation(severity=0), shifts.blur(severity=1.0)]
    skewed, plain = (data.partition(7, iid=True, seed=1, skew=way) for way in (skew, None))
    assert torch.equal(skewed.train.y, plain.train.y)
    assert skewed.train.raw.dtype == torch.uint8
    for mine, other in ((skewed.train, plain.train), (skewed.test, plain.test)):
        for client in range(7):
            rows = slice(*other.offsets[client : client + 2].tolist())
            raw = other.raw[rows].to(torch.float32)
            if client % 3 == 0:
                wanted = 16 - raw
            elif client % 3 == 1:
                wanted = raw
            else:
                wanted = (skew[2].apply(raw / 16) * 16).round()
            assert (mine.raw[rows].float() - wanted).abs().max() <= (1 if client % 3 == 2 else 0)
    assert skewed.left_out == 0


def test_zscore_uses_the_statistics_of_skewed_examples():
    data = wafl.load_dataset("digits")
    clients = data.partition(4, iid=True, preprocess="zscore", skew=[shifts.inversion(severity=1.0, bounds=(0.0, 1.0))])
    x = clients.train.x.double()
    assert float(x.mean(0).abs().max()) < 1e-4
    spread = x.std(0, correction=0)
    assert bool(((spread - 1).abs() < 1e-4).logical_or(spread == 0).all())


def test_every_example_of_every_client_has_its_own_noise():
    """The same image everywhere: no noise may appear twice, not across clients, nor across training and test."""
    x = torch.full((40, 1, 4, 4), 128, dtype=torch.uint8)
    data = wafl.Dataset("gray", x[:32], torch.arange(32) % 2, x[32:], torch.arange(8) % 2, 2)
    clients = data.partition(4, iid=True, skew=[shifts.gaussian_noise(severity=0.2)])
    images = torch.cat([clients.train.raw, clients.test.raw]).flatten(1)
    assert len(images.unique(dim=0)) == 40


def test_a_federation_can_be_rebuilt_from_its_recipe():
    data = wafl.load_dataset("digits")
    clients = data.partition(5, dirichlet=0.5, preprocess="symmetric", seed=3)
    assert clients.recipe["dataset"] == "digits"
    again = data.partition(**clients.recipe["partition"])
    assert torch.equal(again.train.raw, clients.train.raw)
    assert torch.equal(again.test.y, clients.test.y)
    assert (again.unit, again.bounds) == (clients.unit, clients.bounds)
    assert data.partition(5, iid=True, skew=[shifts.blur(severity=1.0)]).recipe is None


# ---------------------------------------------------------------- summaries


def test_label_counts_match_the_labels_of_each_client():
    clients = wafl.load_dataset("digits").partition(6, dirichlet=0.3, seed=5)
    counts = clients.label_counts()
    assert counts.shape == (6, 10)
    for client in range(6):
        counter = Counter(clients.train.of(client)[1].tolist()) + Counter(clients.test.of(client)[1].tolist())
        assert counts[client].tolist() == [counter[label] for label in range(10)]
    regression = wafl.Federation.from_arrays([(np.zeros((4, 2)), np.zeros(4))])
    with pytest.raises(ValueError, match="a regression has no labels to count"):
        regression.label_counts()


def test_describe_has_the_statistics_of_the_papers_table():
    data = dataset_of(torch.arange(5000) % 5)
    clients = data.partition(4, labels_per_client=2, sizes=(301, 90), seed=2)
    sizes = np.array(clients.num_examples)
    lines = dict(
        line.split(maxsplit=1) if not line.startswith(" ") else ("range", line.strip())
        for line in clients.describe().replace("training / test", "training/test")
        .replace("examples per client", "size").replace("labels per client", "labels").splitlines()
    )  # fmt: skip
    assert lines["clients"] == "4"
    assert lines["examples"] == f"{sizes.sum():,} ({5000 - sizes.sum():,} left out)"
    assert lines["training/test"] == f"{len(clients.train.y):,} / {len(clients.test.y):,}"
    assert lines["size"] == f"mean {sizes.mean():.1f}, std {sizes.std():.1f}"
    assert lines["range"] == f"min {sizes.min()}, max {sizes.max()}"
    assert lines["labels"] == "2 of 5"
    assert lines["shape"] == "(1, 1, 2)"
    assert lines["unit"] == "pixels in [0, 1]"
    uneven = data.partition(6, dirichlet=0.05, seed=1)
    held = (uneven.label_counts() > 0).sum(1)
    assert f"labels per client    {held.min()} to {held.max()} of 5" in uneven.describe()
    assert "left out" not in uneven.describe()


def test_plot_draws_each_clients_label_counts(tmp_path):
    clients = wafl.load_dataset("digits").partition(10, labels_per_client=2)
    path = tmp_path / "labels.png"
    figure = clients.plot(path)
    assert path.read_bytes().startswith(b"\x89PNG")
    dots = figure.axes[0].collections[0]
    assert len(dots.get_offsets()) == 20
    counts = clients.label_counts()
    for (client, label), area in zip(dots.get_offsets().tolist(), dots.get_sizes().tolist(), strict=True):
        assert area == pytest.approx(90 * int(counts[int(client), int(label)]) / int(counts.max()), rel=1e-5)
    assert clients.plot().axes[0].get_xlabel() == "client"


# ---------------------------------------------------------------- errors


@pytest.mark.parametrize(
    ("num_clients", "options", "message"),
    [
        (4, {"iid": True, "dirichlet": 1.0}, "give one of .*, not dirichlet and iid"),
        (4, {}, "give one of labels_per_client, dirichlet, iid, by_group, not none"),
        (None, {"iid": True}, "iid needs num_clients"),
        (0, {"iid": True}, "num_clients=0 must be at least 1"),
        (4, {"dirichlet": 0.0}, "dirichlet=0.0 must be positive"),
        (3, {"labels_per_client": 0}, r"labels_per_client=0 must lie in 1 \.\. 10"),
        (3, {"labels_per_client": 11}, r"labels_per_client=11 must lie in 1 \.\. 10"),
        (3, {"labels_per_client": 1}, "3 clients with 1 labels each cannot hold all 10 labels: raise one of the two"),
        (4, {"iid": True, "sizes": (10, 1)}, r"sizes=\(mean, std\) can only be used with labels_per_client"),
        (4, {"labels_per_client": 3, "sizes": (900, 1)}, r"sizes=\(900, 1\) asks for \d+ examples of label \d"),
        (4, {"labels_per_client": 3, "sizes": (-5, 1)}, "mean size=-5 must be positive"),
        (4, {"labels_per_client": 3, "sizes": (30, -1)}, "standard deviation of the sizes, -1, must be at least 0"),
        (None, {"by_group": True}, "digits does not say who its examples are from: by_group is for FEMNIST"),
        (4, {"iid": True, "split": "per-client"}, "split='per-client' must be 'per_client' or 'standard'"),
        (20_000, {"labels_per_client": 3}, "label 0 has 178 examples for 6000 clients: use fewer clients or labels"),
        (1798, {"iid": True}, "1797 examples for 1798 clients: use fewer clients"),
    ],
)
def test_partitions_that_cannot_be_made_are_refused(num_clients, options, message):
    with pytest.raises(ValueError, match=message):
        wafl.load_dataset("digits").partition(num_clients, **options)


def test_more_clients_than_groups_are_refused():
    data = dataset_of(torch.arange(40) % 5, groups=torch.arange(40) % 4)
    assert data.partition(3, by_group=True).names == ("writer 0", "writer 1", "writer 2")
    assert data.partition(3, by_group=True).left_out == 10
    with pytest.raises(ValueError, match="num_clients=5 is more than the 4 groups of numbers"):
        data.partition(5, by_group=True)


def test_a_client_without_training_examples_is_refused():
    data = dataset_of(torch.arange(50) % 5, cut=3)
    with pytest.raises(ValueError, match="would have no training example"):
        data.partition(10, iid=True, split="standard")
