"""These shifts are no attack: noise, blur, rotation and translation, at growing severity."""

from __future__ import annotations

import matplotlib.pyplot as plt

import wafl

clients = wafl.load_dataset("digits").partition(num_clients=10, labels_per_client=4, seed=0)
model, schedule = wafl.models.mlr(clients), {"rounds": 60, "local_epochs": 2, "learning_rate": 0.3}
runs = {
    "FedAvg": wafl.fit(model, clients, wafl.FedAvg(), **schedule),
    "WAFL": wafl.fit(model, clients, wafl.WAFL(gamma=1.5), **schedule),
}
severities = [0.0, 0.2, 0.4, 0.6]
kinds = {
    "Gaussian noise": wafl.shifts.gaussian_noise,
    "blur": wafl.shifts.blur,
    "rotation": wafl.shifts.rotation,
    "translation": wafl.shifts.translation,
}

figure, panels = plt.subplots(1, 4, figsize=(11, 2.8), sharey=True, layout="constrained")
for axes, (kind, shift) in zip(panels, kinds.items(), strict=True):
    for name, run in runs.items():
        scores = [wafl.evaluate(run, clients, attack=shift(severity=severity)) for severity in severities]
        axes.plot(severities, [100 * score.accuracy for score in scores], marker="o", markersize=3, label=name)
    axes.set_title(kind)
    axes.set_xlabel("severity")
    axes.grid(alpha=0.3)
panels[0].set_ylabel("accuracy (%)")
panels[0].legend(frameon=False)
figure.savefig("corruptions.png", dpi=90)
