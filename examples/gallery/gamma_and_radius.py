"""Gamma is the price of a move. The same gamma gives balls of different radius for different models."""

from __future__ import annotations

import matplotlib.pyplot as plt
import numpy as np

import wafl
from wafl.report.plotting import styles

clients = wafl.load_dataset("digits").partition(num_clients=10, labels_per_client=4, seed=0)
model, gammas = wafl.models.mlr(clients), np.geomspace(0.1, 30, 9).tolist()
methods = {"FedAvg": wafl.FedAvg(), "WAFL, gamma 1.5": wafl.WAFL(gamma=1.5), "WAFL, gamma 0.5": wafl.WAFL(gamma=0.5)}

figure, axes = plt.subplots(figsize=(5.5, 3.6), layout="constrained")
for (name, method), style in zip(methods.items(), styles(list(methods)), strict=True):
    run = wafl.fit(model, clients, method, rounds=20, local_epochs=2, learning_rate=0.2)
    ball = wafl.calibrate(run, clients, gammas=gammas)
    axes.loglog(ball.gammas, ball.radii, label=name, linewidth=2.5, **style)
    print(f"{name}: the gamma of radius 0.3 is {ball.gamma_for(0.3):.2f}")
axes.set_xlabel("gamma")
axes.set_ylabel(f"achieved radius ({clients.unit})")
axes.grid(alpha=0.3)
axes.legend(frameon=False)
figure.savefig("gamma_and_radius.png", dpi=130)
