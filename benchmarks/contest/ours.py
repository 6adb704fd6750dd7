"""The contestant: wafl."""

from benchmarks.contest.shared.handed import Params, Train, Work, compete
from benchmarks.contest.work import BATCH, SEED, opened
from wafl.methods.averaging import FedAvg
from wafl.methods.ball import WAFL
from wafl.train.fit import fit


def prepare(work: Work) -> Train:
    """Train with wafl, which draws the cohorts and batches as the work declares them."""
    (clients, model), gamma = opened(work), work.about["gamma"]
    method = FedAvg() if gamma is None else WAFL(gamma=gamma, steps=work.about["steps"], tolerance=0.0)

    def train(rounds: int) -> Params:
        run = fit(
            model,
            clients,
            method,
            rounds=rounds,
            cohort=work.cohorts.shape[1],
            local_epochs=work.about["epochs"],
            batch_size=BATCH,
            learning_rate=work.about["learning_rate"],
            seed=SEED,
            device=work.about["device"],
        )
        return {name: value.numpy() for name, value in run.params.items()}

    return train


if __name__ == "__main__":
    compete(prepare)
