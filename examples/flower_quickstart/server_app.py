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
    strategy = wafl.flower.WAFL(gamma=config["gamma"])  # WAFL: was FedAvg()
    if config["dp"]:
        strategy = DifferentialPrivacyServerSideFixedClipping(
            strategy,
            noise_multiplier=config["dp-noise-multiplier"],
            clipping_norm=config["dp-clipping-norm"],
            num_sampled_clients=len(list(grid.get_node_ids())),
        )
    strategy.start(
        grid=grid,
        initial_arrays=ArrayRecord(make_model().state_dict()),
        train_config=ConfigRecord({"lr": config["lr"]}),
        num_rounds=config["num-server-rounds"],
    )
