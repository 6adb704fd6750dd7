"""Half of the clients do not reply, and some send invalid numbers. Training continues without them."""

from __future__ import annotations

import matplotlib.pyplot as plt

import wafl

clients = wafl.load_dataset("digits").partition(num_clients=20, labels_per_client=3, seed=0)
model, schedule = wafl.models.mlr(clients), {"rounds": 60, "cohort": 10, "local_epochs": 1, "learning_rate": 0.3}
cases = {
    "all reply": None,
    "30% drop out": wafl.Faults(dropout=0.3),
    "30% drop out, 20% send NaN": wafl.Faults(dropout=0.3, nan=0.2),
}

figure, (left, right) = plt.subplots(1, 2, figsize=(9, 3.4), layout="constrained")
for name, faults in cases.items():
    run = wafl.fit(
        model, clients, wafl.WAFL(gamma=1.5), faults=faults, tolerance=wafl.Tolerance(min_replies=0.2), **schedule
    )
    left.plot([record.loss for record in run.history], label=f"{name}: {wafl.evaluate(run, clients).accuracy:.1%}")
    right.plot([len(record.cohort) - len(record.excluded) for record in run.history], linewidth=1)
left.set_ylabel("robust loss")
left.legend(frameon=False)
right.set_ylabel("clients that counted, of 10")
for axes in (left, right):
    axes.set_xlabel("round")
figure.savefig("clients_that_fail.png", dpi=90)
