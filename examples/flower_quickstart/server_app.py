"""The ServerApp of a Flower quickstart; the line that WAFL changes is marked."""

from __future__ import annotations

from flwr.app import ArrayRecord, ConfigRecord, Context
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import DifferentialPrivacyServerSideFixedClipping
from task import make_model

import wafl.flower

app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> None:
    config = context.run_config
    strategy = wafl.flower.WAFL(gamma=float(config["gamma"]))  # WAFL: was FedAvg()
    if config["dp"]:
        strategy = DifferentialPrivacyServerSideFixedClipping(
            strategy,
            noise_multiplier=float(config["dp-noise-multiplier"]),
            clipping_norm=float(config["dp-clipping-norm"]),
            num_sampled_clients=len(list(grid.get_node_ids())),
        )
    strategy.start(
        grid=grid,
        initial_arrays=ArrayRecord(make_model().state_dict()),
        train_config=ConfigRecord({"lr": float(config["lr"])}),
        num_rounds=int(config["num-server-rounds"]),
    )
