"""Measure the accuracy for clients that took no part in training, over several random choices of them."""

from __future__ import annotations

import matplotlib.pyplot as plt
import numpy as np

import wafl
from wafl.report.plotting import styles

clients = wafl.load_dataset("digits").partition(num_clients=20, labels_per_client=3, seed=0)
methods = {"FedAvg": wafl.FedAvg(), "WAFL": wafl.WAFL(gamma=2.0), "CVaR": wafl.CVaR(alpha=0.5), "DRFA": wafl.DRFA()}
groups = {"training data": "train", "seen clients": "self", "unseen clients": "unseen"}
table = {name: [] for name in methods}
for seed in range(4):
    seen, unseen = clients.hold_out(0.25, seed=seed)
    for name, method in methods.items():
        run = wafl.fit(wafl.models.mlr(seen), seen, method, rounds=60, local_epochs=2, learning_rate=0.3, seed=seed)
        score = wafl.evaluate(run, seen, unseen=unseen)
        table[name].append([100 * part.accuracy for part in (score.train, score, score.unseen)])

figure, axes = plt.subplots(figsize=(5.5, 3.6), layout="constrained")
for number, ((name, rows), style) in enumerate(zip(table.items(), styles(list(table)), strict=True)):
    values = np.array(rows)
    index = np.arange(len(groups)) + 0.2 * (number - 1.5)
    axes.bar(index, values.mean(0), 0.18, yerr=values.std(0), capsize=2, label=name, color=style["color"])
axes.set_xticks(range(len(groups)), list(groups))
axes.set_ylabel("accuracy (%), 4 draws")
axes.set_ylim(0, 125)
axes.legend(frameon=False, ncols=2, loc="upper center")
figure.savefig("unseen_clients.png", dpi=130)
