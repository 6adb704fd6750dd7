"""The ascent is fast: if 2 gamma > L_zz, each step leaves at most a share L_zz / (2 gamma) of the distance."""

from __future__ import annotations

import matplotlib.pyplot as plt
import torch

import wafl

clients = wafl.load_dataset("digits").partition(num_clients=10, labels_per_client=4, seed=0)
run = wafl.fit(wafl.models.mlr(clients), clients, wafl.FedAvg(), rounds=20, local_epochs=2, learning_rate=0.2)
model = run.model.double()
x, y = clients.train.x[:200].double(), clients.train.y[:200]
limit, steps = wafl.theory.constants(model, (x, y)).concavity_limit, range(1, 16)

figure, axes = plt.subplots(figsize=(5.5, 3.6), layout="constrained")
for ratio, color in ((1.2, "tab:red"), (2.0, "tab:blue"), (5.0, "tab:green")):
    gamma = ratio * limit
    best = wafl.robust_loss(model, x, y, gamma=gamma, steps=1000, tolerance=0.0).x_adv
    far = [wafl.robust_loss(model, x, y, gamma=gamma, steps=k, tolerance=0.0).x_adv - best for k in steps]
    left = [float(torch.linalg.vector_norm(each) / torch.linalg.vector_norm(x - best)) for each in far]
    axes.semilogy(steps, left, "o-", markersize=3, color=color, label=f"gamma {gamma:.2g}, {ratio:g} times the limit")
    axes.semilogy(steps, [ratio**-k for k in steps], "--", color=color, linewidth=0.8)
axes.set_ylim(1e-13, 1.5)
axes.set_xlabel("steps of the ascent (dashed: what is proven)")
axes.set_ylabel("part of the way that is left")
axes.grid(alpha=0.3)
axes.legend(frameon=False)
figure.savefig("inner_ascent.png", dpi=90)
