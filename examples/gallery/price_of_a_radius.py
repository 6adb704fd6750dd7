"""A larger radius lowers accuracy on clean data and raises it on moved data. One sweep trains all models."""

from __future__ import annotations

import matplotlib.pyplot as plt
import numpy as np

import wafl

clients = wafl.load_dataset("digits").partition(num_clients=10, labels_per_client=4, seed=0)
grid = {"gamma": [10.0, 3.0, 2.0, 1.5, 1.0], "seed": range(3)}
schedule = {"rounds": 40, "cohort": 5, "local_epochs": 2, "learning_rate": 0.3, "weight_decay": 0.01}
runs = wafl.sweep(wafl.models.mlr(clients), clients, wafl.WAFL(gamma=1.0), grid, **schedule)
radii = np.array([run.history[-1].achieved_radius for run in runs]).reshape(5, 3).mean(1)
attacks = {
    "clean": None,
    "l2 attack, epsilon 0.6": wafl.PGD(epsilon=0.6, norm=2),
    "noise": wafl.shifts.gaussian_noise(severity=0.4),
}

figure, axes = plt.subplots(figsize=(5.5, 3.6), layout="constrained")
for name, attack in attacks.items():
    scores = [100 * wafl.evaluate(run, clients, attack=attack).accuracy for run in runs]
    table = np.array(scores).reshape(5, 3)
    axes.errorbar(radii, table.mean(1), table.std(1), marker="o", markersize=3, capsize=2, label=name)
axes.set_xlabel(f"radius that was trained for ({clients.unit})")
axes.set_ylabel("accuracy (%), 3 seeds")
axes.set_ylim(40, 100)
axes.grid(alpha=0.3)
axes.legend(frameon=False, loc="lower left", fontsize=8)
figure.savefig("price_of_a_radius.png", dpi=90)
