"""The contestant: wafl."""

from __future__ import annotations

import torch

from wafl.engine.fit import fit
from wafl.lab.contest.shared.handed import Params, Train, Work, compete
from wafl.lab.contest.work import BATCH, EPOCHS, SEED, federation_of, make_model
from wafl.methods.averaging import FedAvg
from wafl.methods.ball import WAFL


def prepare(work: Work) -> Train:
    """wafl draws the cohorts and batches itself: they are those of the work."""
    clients = federation_of(*(torch.from_numpy(part) for part in (work.x, work.y, work.offsets)))
    model, gamma = make_model(work.about["model"], clients), work.about["gamma"]
    method = FedAvg() if gamma is None else WAFL(gamma=gamma, steps=work.about["steps"], tolerance=0.0)
    start = {name: torch.from_numpy(value) for name, value in work.params.items()}

    def train(rounds: int) -> Params:
        run = fit(
            model,
            clients,
            method,
            rounds=rounds,
            cohort=work.cohorts.shape[1],
            local_epochs=EPOCHS,
            batch_size=BATCH,
            learning_rate=work.about["learning_rate"],
            seed=SEED,
            init=start,
        )
        return {name: value.numpy() for name, value in run.params.items()}

    return train


if __name__ == "__main__":
    compete(prepare)
