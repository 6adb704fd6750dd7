"""Which clients matter for a target? Optimal transport finds the mixture of the clients nearest to it."""

from __future__ import annotations

import matplotlib.pyplot as plt
import numpy as np

import wafl

random = np.random.default_rng(0)
centers = np.array([[-2.0, 0.0], [2.0, 0.0], [0.0, 3.0], [3.0, 3.0]])
clouds = [(center + random.normal(0, 0.5, (80, 2))).astype(np.float32) for center in centers]
clients = wafl.Federation.from_arrays([(x, (x[:, 1] > 1).astype(np.int64)) for x in clouds], num_classes=2)
sides = random.choice(2, 120, p=[0.7, 0.3])  # most of the target looks like client 0, the rest like client 1
target = (centers[sides] + [0.0, 0.6] + random.normal(0, 0.5, (120, 2))).astype(np.float32)
goal = wafl.Federation.from_arrays([(target, (target[:, 1] > 1).astype(np.int64))], num_classes=2)
near, vertex = wafl.weights.mixture(clients, goal), wafl.weights.nearest(clients, goal)

figure, (left, right) = plt.subplots(1, 2, figsize=(9, 3.4), layout="constrained")
for number, x in enumerate(clouds):
    left.scatter(*x.T, s=8, label=f"client {number}")
left.scatter(*target.T, s=10, marker="x", color="black", label="target")
left.legend(frameon=False, fontsize=8)
places = np.arange(4)
right.bar(places - 0.2, near.weights, 0.38, label=f"mixture, W_2 = {near.value**0.5:.2f}")
right.bar(places + 0.2, vertex.weights, 0.38, label=f"nearest, W_2 = {vertex.value**0.5:.2f}")
right.set_xticks(places, [f"client {number}" for number in range(4)])
right.set_ylabel("client weight")
right.legend(frameon=False)
figure.savefig("mixture_for_a_target.png", dpi=90)
