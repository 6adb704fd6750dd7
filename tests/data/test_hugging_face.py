"""The real package, if it is installed: what the stand-ins of test_same_data_from_any_source.py imitate."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from PIL import Image

import wafl

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def hub():
    return pytest.importorskip("datasets")


def test_partitions_of_a_data_set_with_images_and_named_classes(hub) -> None:
    rng = np.random.default_rng(0)
    x, y = rng.integers(0, 256, (24, 3, 5, 4), dtype=np.uint8), np.arange(24) % 3
    features = hub.Features({"image": hub.Image(), "label": hub.ClassLabel(names=["cat", "dog", "eel"])})
    rows = {"image": [Image.fromarray(one.transpose(1, 2, 0)) for one in x], "label": y.tolist()}
    whole = hub.Dataset.from_dict(rows, features=features)
    parts = [whole.shard(2, index) for index in range(2)]
    clients = wafl.Federation.from_datasets(parts, preprocess="unit", test_fraction=0)
    assert clients.classes == ("cat", "dog", "eel")
    assert clients.columns == ("image",)
    wanted = np.concatenate(
        [np.stack([x[row] for row in range(24) if whole[row] in part]) for part in map(list, parts)]
    )
    assert torch.equal(clients.train.raw, torch.from_numpy(wanted))
    run = wafl.fit(wafl.models.mlr(clients), clients, wafl.FedAvg(), rounds=1, local_steps=1)
    assert torch.equal(run.outputs(parts[1]), run.outputs(clients.train.of(1)[0]))
    with_tests = [part.train_test_split(test_size=0.25, seed=0) for part in parts]
    assert wafl.Federation.from_datasets(with_tests, preprocess="unit").test.num_examples.tolist() == [3, 3]


def test_columns_of_numbers_are_those_of_the_arrays(hub) -> None:
    rng = np.random.default_rng(0)
    pairs = [(rng.normal(size=(8, 2)).astype(np.float32), np.arange(8) % 2) for _ in range(2)]
    tables = [hub.Dataset.from_dict({"a": x[:, 0], "b": x[:, 1], "y": y}) for x, y in pairs]
    clients, wanted = wafl.Federation.from_datasets(tables), wafl.Federation.from_arrays(pairs)
    assert torch.equal(clients.train.x, wanted.train.x)
    assert torch.equal(clients.test.y, wanted.test.y)
    assert clients.columns == ("a", "b")
