"""The model and the data: scikit-learn's digits, dealt out to the clients."""

from __future__ import annotations

import torch
from sklearn.datasets import load_digits
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset


def make_model() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 10))


def load_data(partition_id: int, num_partitions: int) -> tuple[TensorDataset, TensorDataset]:
    """A client's digits: four fifths to train on, one to test on."""
    images, labels = load_digits(return_X_y=True)
    order = torch.randperm(len(images), generator=torch.Generator().manual_seed(0))[partition_id::num_partitions]
    x, y = torch.tensor(images / 16.0, dtype=torch.float32)[order], torch.tensor(labels)[order]
    cut = len(order) * 4 // 5
    return TensorDataset(x[:cut], y[:cut]), TensorDataset(x[cut:], y[cut:])


def make_loader(data: TensorDataset, batch_size: int, seed: int) -> DataLoader[tuple[Tensor, ...]]:
    return DataLoader(data, batch_size=batch_size, shuffle=True, generator=torch.Generator().manual_seed(seed))


def accuracy(model: nn.Module, x: Tensor, y: Tensor) -> float:
    with torch.no_grad():
        return float((model(x).argmax(1) == y).float().mean())


def moved(model: nn.Module, x: Tensor, y: Tensor, distance: float = 0.5) -> Tensor:
    """The images, each moved this far where its loss grows fastest."""
    x = x.clone().requires_grad_()
    (slope,) = torch.autograd.grad(nn.functional.cross_entropy(model(x), y, reduction="sum"), x)
    return x.detach() + distance * nn.functional.normalize(slope)
