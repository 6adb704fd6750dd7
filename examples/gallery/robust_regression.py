"""Robust regression is regularization with a unit. The picture shows coefficients by radius on the diabetes data."""

from __future__ import annotations

import matplotlib.pyplot as plt
import numpy as np
from sklearn.datasets import load_diabetes

import wafl

data = load_diabetes()
x = (data.data / data.data.std(0)).astype(np.float32)
y = ((data.target - data.target.mean()) / data.target.std()).astype(np.float32)
old = np.digitize(x[:, 0], [-0.8, 0.0, 0.8])  # four clinics, by the age of their patients
clients = wafl.Federation.from_arrays([(x[old == k], y[old == k]) for k in range(4)], unit="standard deviations")

radii = [0.02, 0.1, 0.2, 0.3, 0.4, 0.5]
schedule = {"rounds": 90, "local_epochs": 3, "learning_rate": 0.02, "loss": "squared_error"}
runs = wafl.sweep(wafl.models.mlr(clients), clients, wafl.WAFL(radius=1.0), {"radius": radii}, **schedule)
weights = np.array([next(iter(run.model.parameters())).detach().numpy().ravel() for run in runs])

figure, (left, right) = plt.subplots(1, 2, figsize=(9, 3.6), layout="constrained")
for feature, name in enumerate(data.feature_names):
    left.plot(radii, weights[:, feature], label=name)
left.axhline(0, color="gray", linewidth=0.6)
left.set_ylabel("coefficient")
left.legend(frameon=False, ncols=2, fontsize=7)
clean = [wafl.evaluate(run, clients).loss for run in runs]
worst = [wafl.certify(run, clients, radii=[0.3], achieved=False)[0].best for run in runs]
right.plot(radii, clean, marker="o", markersize=3, label="clean test data")
right.plot(radii, worst, marker="o", markersize=3, label="certified within 0.3")
right.set_ylabel("squared error")
right.legend(frameon=False)
for axes in (left, right):
    axes.set_xlabel("radius (standard deviations)")
figure.savefig("robust_regression.png", dpi=90)
