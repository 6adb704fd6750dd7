"""These shifts are not attacks: noise, blur, rotation and translation, at growing severity."""

from __future__ import annotations

import matplotlib.pyplot as plt

import wafl
from wafl.report.plotting import styles

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

figure, panels = plt.subplots(2, 2, figsize=(5.5, 4.8), sharex=True, sharey=True, layout="constrained")
for axes, (kind, shift) in zip(panels.flat, kinds.items(), strict=True):
    for (name, run), style in zip(runs.items(), styles(list(runs)), strict=True):
        scores = [wafl.evaluate(run, clients, attack=shift(severity=severity)) for severity in severities]
        axes.plot(severities, [100 * score.accuracy for score in scores], label=name, linewidth=2.5, **style)
    axes.set_title(kind)
    axes.grid(alpha=0.3)
figure.supxlabel("severity")
figure.supylabel("accuracy (%)")
panels[0, 0].legend(frameon=False)
figure.savefig("corruptions.png", dpi=130)
