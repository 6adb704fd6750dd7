"""Four methods are compared as more clients are attacked. This is the paper's main picture, on digits."""

from __future__ import annotations

import math

import matplotlib.pyplot as plt

import wafl
from wafl.report.plotting import styles

clients = wafl.load_dataset("digits").partition(num_clients=20, labels_per_client=3, seed=0)
model, schedule = wafl.models.mlr(clients), {"rounds": 60, "cohort": 10, "local_epochs": 2, "learning_rate": 0.3}
methods = {
    "FedAvg": wafl.FedAvg(),
    "FedPGM": wafl.FedPGM(epsilon=0.1),
    "WAFL, l2": wafl.WAFL(gamma=1.5),
    "WAFL, l_inf": wafl.WAFL(gamma=50.0, norm=math.inf),
}
shares = [0.0, 0.2, 0.4, 0.6, 0.8]
runs = {name: wafl.fit(model, clients, method, **schedule) for name, method in methods.items()}

figure, axes = plt.subplots(figsize=(5.5, 3.6), layout="constrained")
for (name, run), style in zip(runs.items(), styles(list(runs)), strict=True):
    scores = [wafl.evaluate(run, clients, attack=wafl.PGD(epsilon=0.1), attacked=share) for share in shares]
    axes.plot(shares, [100 * score.accuracy for score in scores], label=name, linewidth=2.5, **style)
axes.set_xlabel("share of attacked clients (l_inf PGD, epsilon 0.1)")
axes.set_ylabel("accuracy (%)")
axes.grid(alpha=0.3)
axes.legend(frameon=False)
figure.savefig("attacked_clients.png", dpi=130)
