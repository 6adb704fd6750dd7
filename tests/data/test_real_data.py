"""The real data sets in ``WAFL_DATA``, the paper's partitions of them, and a full run: ``make test-data``."""

import functools
import math
import os
from pathlib import Path

import numpy as np
import pytest
import torch

import wafl

pytestmark = pytest.mark.data


def need(*names: str) -> Path:
    """The folder, if it has these data sets: nothing is downloaded here."""
    if not os.environ.get("WAFL_DATA"):
        pytest.skip("WAFL_DATA is not set: it names the folder with mnist.npz and the others")
    folder = Path(os.environ["WAFL_DATA"]).expanduser()
    if not folder.is_dir():
        pytest.skip(f"WAFL_DATA={folder} is not a folder")
    if missing := [name for name in names if not (folder / f"{name}.npz").is_file()]:
        pytest.skip(f"{folder} has no {', '.join(f'{name}.npz' for name in missing)}")
    return folder


@functools.lru_cache(maxsize=1)
def _load(name: str, folder: Path) -> wafl.Dataset:
    return wafl.load_dataset(name, folder)


def load(name: str) -> wafl.Dataset:
    return _load(name, need(name))


def channel_statistics(images: torch.Tensor) -> tuple[list[float], list[float]]:
    """Mean and deviation of each channel in [0, 1], from how often each byte occurs."""
    means, deviations = [], []
    for channel in images.unbind(1):
        counts = np.bincount(channel.flatten().numpy(), minlength=256)
        values = np.arange(256) / 255.0
        mean = (counts @ values) / counts.sum()
        means.append(float(mean))
        deviations.append(math.sqrt((counts @ (values - mean) ** 2) / counts.sum()))
    return means, deviations


# Published for MNIST, and for CIFAR-10 by everybody who normalizes it; for the subsets, what their files contain.
STATISTICS = {
    "mnist": (60_000, 10_000, (1, 28, 28), 10, [0.1307], [0.3081]),
    "usps": (7_291, 2_007, (1, 16, 16), 10, [0.2539], [0.3842]),
    "svhn": (15_000, 5_000, (3, 32, 32), 10, [0.4368, 0.4428, 0.4713], [0.1979, 0.2013, 0.1974]),
    "mnist-m": (10_000, 2_000, (3, 32, 32), 10, [0.4572, 0.4615, 0.4079], [0.2528, 0.2372, 0.2584]),
    "femnist": (14_708, 1_685, (1, 28, 28), 62, [0.9612], [0.1656]),
    "cifar10": (50_000, 10_000, (3, 32, 32), 10, [0.4914, 0.4822, 0.4465], [0.2470, 0.2435, 0.2616]),
}


@pytest.mark.parametrize("name", STATISTICS)
def test_each_data_set_loads_and_has_the_right_statistics(name):
    data = load(name)
    num_train, num_test, shape, classes, means, deviations = STATISTICS[name]
    assert data.num_classes == classes
    for x, y, count in ((data.x_train, data.y_train, num_train), (data.x_test, data.y_test, num_test)):
        assert x.shape == (count, *shape)
        assert x.dtype == torch.uint8
        assert y.shape == (count,)
        assert y.dtype == torch.int64
        assert sorted(y.unique().tolist()) == list(range(classes))
    statistics = channel_statistics(data.x_train)
    assert statistics[0] == pytest.approx(means, abs=1e-4)
    assert statistics[1] == pytest.approx(deviations, abs=1e-4)
    assert (data.group_train is not None) == (name == "femnist")


def test_mnist_has_the_published_label_counts():
    data = load("mnist")
    train = [5923, 6742, 5958, 6131, 5842, 5421, 5918, 6265, 5851, 5949]
    test = [980, 1135, 1032, 1010, 982, 892, 958, 1028, 974, 1009]
    assert torch.bincount(data.y_train).tolist() == train
    assert torch.bincount(data.y_test).tolist() == test
    assert data.y_train[:10].tolist() == [5, 0, 4, 1, 9, 2, 1, 3, 1, 4]


def test_femnists_writers_become_clients():
    data = load("femnist")
    clients = data.partition(by_group=True)
    assert clients.num_clients == 105
    assert sum(clients.num_examples) == 14_708 + 1_685
    assert clients.left_out == 0
    groups = torch.cat([data.group_train, data.group_test])
    writers = groups.unique().tolist()
    assert clients.names == tuple(f"writer {writer}" for writer in writers)
    assert clients.num_examples == [int((groups == writer).sum()) for writer in writers]


# ---------------------------------------------------------------- the paper's partitions


def test_a_partition_of_cifar10_has_the_papers_sizes():
    """20 clients of 3 labels, mean near 2154 and standard deviation near 594: 43,098 of 60,000 examples."""
    clients = load("cifar10").partition(20, labels_per_client=3, sizes=(2154, 594))
    sizes = np.array(clients.num_examples)
    assert abs(sizes.mean() - 2154) < 3 * 594 / math.sqrt(20)
    assert 0.6 * 594 < sizes.std() < 1.4 * 594
    assert clients.left_out == 60_000 - sizes.sum() > 0
    assert ((clients.label_counts() > 0).sum(1) == 3).all()
    assert clients.train.raw.nbytes + clients.test.raw.nbytes == 3072 * sizes.sum()
    assert f"({clients.left_out:,} left out)" in clients.describe()


# ---------------------------------------------------------------- training


def test_a_full_mnist_run_learns_and_attacks_lower_its_accuracy():
    clients = load("mnist").partition(100, labels_per_client=2, preprocess="zscore")
    run = wafl.fit(
        wafl.models.mlr(clients), clients, wafl.WAFL(gamma=0.05),
        rounds=20, cohort=10, local_epochs=2, batch_size=64, learning_rate=0.01,
    )  # fmt: skip
    assert len(run.history) == 20
    score = wafl.evaluate(run, clients)
    assert len(score.per_client) == 100
    assert score.accuracy > 0.7
    losses = run.history.column("loss")
    assert np.mean(losses[-5:]) < np.mean(losses[:5])
    attack = wafl.FGSM(epsilon=0.1)
    table = wafl.compare({"WAFL": run}, clients, attacks=attack, attacked=(0.2, 0.8))
    accuracies = [row.score.accuracy for row in table.rows]
    assert score.accuracy > accuracies[0] > accuracies[1] > 0.1
    assert "standard deviations a pixel, over the training examples" in table.rows[0].score.attack
