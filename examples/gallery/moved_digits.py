"""The objective moves a digit in three norms. The norm determines which moves are cheap."""

from __future__ import annotations

import math

import matplotlib.pyplot as plt

import wafl

clients = wafl.load_dataset("digits").partition(num_clients=10, labels_per_client=4, seed=0)
run = wafl.fit(wafl.models.mlr(clients), clients, wafl.FedAvg(), rounds=60, local_epochs=2, learning_rate=0.3)
x, y = clients.test.of(0)
balls = {"l1": (1, 0.3), "l2": (2, 1.0), "l_inf": (math.inf, 20.0)}  # norm, gamma

figure, panels = plt.subplots(2, 4, figsize=(10, 4.6), layout="constrained")
panels[0, 0].imshow(x[0, 0].numpy(), cmap="gray_r", vmin=0, vmax=1)
panels[0, 0].set_title(f"a {int(y[0])}")
for column, (name, (norm, gamma)) in enumerate(balls.items(), start=1):
    robust = wafl.robust_loss(run, x[:1], y[:1], gamma=gamma, norm=norm, bounds=(0.0, 1.0))
    panels[0, column].imshow(robust.x_adv[0, 0].numpy(), cmap="gray_r", vmin=0, vmax=1)
    panels[0, column].set_title(
        f"moved by {robust.achieved_radius:.2f} ({name}): a {int(run.predict(robust.x_adv)[0])}"
    )
    panels[1, column].imshow((robust.x_adv - x[:1])[0, 0].numpy(), cmap="RdBu_r", vmin=-0.6, vmax=0.6)
panels[1, 1].set_ylabel("difference")
for axes in panels.flat:
    axes.set_xticks([])
    axes.set_yticks([])
panels[1, 0].axis("off")
figure.savefig("moved_digits.png", dpi=90)
