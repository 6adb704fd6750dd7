"""A ball changes the decision boundary between two moons, which are divided among four clients."""

from __future__ import annotations

import matplotlib.pyplot as plt
import numpy as np
import torch
from sklearn.datasets import make_moons

import wafl

x, y = make_moons(400, noise=0.12, random_state=0)
x, which = x.astype(np.float32), np.digitize(x[:, 0], [-0.4, 0.5, 1.3])  # clients see a quarter of the plane each
clients = wafl.Federation.from_arrays([(x[which == k], y[which == k]) for k in range(4)], unit="meters", num_classes=2)
torch.manual_seed(0)
model = torch.nn.Sequential(torch.nn.Linear(2, 32), torch.nn.Tanh(), torch.nn.Linear(32, 2))
methods = {
    "FedAvg": wafl.FedAvg(),
    "WAFL, radius 0.2": wafl.WAFL(radius=0.2),
    "WAFL, radius 0.4": wafl.WAFL(radius=0.4),
}

grid = torch.stack(torch.meshgrid(torch.linspace(-1.6, 2.6, 120), torch.linspace(-1.1, 1.6, 120), indexing="xy"), -1)
figure, panels = plt.subplots(1, 3, figsize=(11, 3.4), sharey=True, layout="constrained")
for axes, (name, method) in zip(panels, methods.items(), strict=True):
    run = wafl.fit(model, clients, method, rounds=80, local_epochs=4, learning_rate=0.5)
    share = run.outputs(grid.reshape(-1, 2)).softmax(-1)[:, 1].reshape(120, 120)
    axes.contourf(grid[..., 0], grid[..., 1], share, levels=np.linspace(0, 1, 11), cmap="RdBu", alpha=0.7)
    axes.scatter(*x.T, c=y, cmap="RdBu", edgecolors="white", linewidths=0.3, s=14)
    axes.set_title(f"{name}: {wafl.evaluate(run, clients).accuracy:.1%}")
figure.savefig("boundaries.png", dpi=90)
