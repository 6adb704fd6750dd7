"""A certificate is a promise: no distribution within the radius has a larger loss than the certified one."""

from __future__ import annotations

import wafl

clients = wafl.load_dataset("digits").partition(num_clients=10, labels_per_client=4, seed=0)
schedule = {"rounds": 60, "local_epochs": 2, "learning_rate": 0.3}
model = wafl.models.mlr(clients)
plain = wafl.fit(model, clients, wafl.FedAvg(), **schedule)
robust = wafl.fit(model, clients, wafl.WAFL(gamma=1.5), **schedule)
radii = [0.0, 0.2, 0.4, 0.6, 0.8, 1.0]
result = wafl.certify(robust, clients, radii=radii)
print(result)
result.plot("certificates.png", FedAvg=wafl.certify(plain, clients, radii=radii))
