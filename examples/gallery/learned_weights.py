"""AFL finds the client with the worst loss. One of ten clients has sideways images, and its weight grows."""

from __future__ import annotations

import matplotlib.pyplot as plt
import numpy as np

import wafl
from wafl.report.plotting import color_of

digits = wafl.load_dataset("digits").partition(num_clients=10, iid=True, seed=0)
pairs = [tuple(part.numpy() for part in digits.train.of(client)) for client in range(10)]
pairs[3] = (np.rot90(pairs[3][0], axes=(2, 3)).copy(), pairs[3][1])
clients = wafl.Federation.from_arrays(pairs, unit="pixels in [0, 1]", bounds=(0, 1), num_classes=10)
model = wafl.models.mlr(clients)
fair = wafl.fit(model, clients, wafl.AFL(weights_step=0.05), rounds=80, local_steps=1, learning_rate=0.5)
plain = wafl.fit(model, clients, wafl.FedAvg(), rounds=80, local_steps=1, learning_rate=0.5)

figure, (left, right) = plt.subplots(1, 2, figsize=(8, 3.8), layout="constrained")
left.plot([record.client_weights for record in fair.history], color="gray", linewidth=0.8)
left.plot(
    [record.client_weights[3] for record in fair.history],
    color=color_of("AFL"),
    linewidth=2.5,
    label="the one with sideways images",
)
left.set_xlabel("round")
left.set_ylabel("client weight (AFL)")
left.legend(frameon=False)
for index, (name, run) in enumerate({"FedAvg": plain, "AFL": fair}.items()):
    accuracies = [100 * client.accuracy for client in wafl.evaluate(run, clients).per_client]
    right.bar(np.arange(10) + 0.4 * (index - 0.5), accuracies, 0.36, label=name, color=color_of(name))
right.set_xlabel("client")
right.set_ylabel("accuracy (%)")
right.set_ylim(0, 125)
right.legend(frameon=False, loc="upper right", ncols=2)
figure.savefig("learned_weights.png", dpi=110)
