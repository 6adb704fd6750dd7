"""``wafl next-client``: what a client that nobody has seen may expect of a saved run."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from typer import Argument, Option

from wafl.cli.shared import DataDir, GroundNorm, Metric, Trust, only_run, parse_norm, reading, seen_and_unseen


def next_client(
    run: Annotated[
        Path,
        Argument(
            metavar="STUDY|RUN", help="A run of an experiment with data.unseen, or a study that has a single one."
        ),
    ],
    radius: Annotated[
        float, Option(min=0.0, help="How far each client's data may move, in the unit of the data.")
    ] = 0.0,
    population_radius: Annotated[
        float, Option(min=0.0, help="How far the population of clients may move; then only the mean is about it.")
    ] = 0.0,
    norm: GroundNorm = "2",
    metric: Metric = "loss",
    confidence: Annotated[float, Option(help="The probability with which each statement holds.")] = 0.95,
    data_dir: DataDir = None,
    trust: Trust = False,
) -> None:
    """Say what a client that nobody has seen may expect, from those that were held out of training.

    The mean over all clients, what at least 90% of them have, and the next one: each with the probability that
    --confidence says, or why nothing can be said.
    """
    from typing import Any, cast

    from wafl.base.visible import visible
    from wafl.theory.population.next_client import next_client as expect

    with reading(trust):
        name, model = only_run(run)
        seen, unseen = seen_and_unseen({name: model}, run, data_dir)
        if unseen is None:
            raise ValueError(f"{run} held no client out of training: train it with data.unseen, such as 0.5")
        found = expect(
            model,
            seen,
            unseen,
            radius=radius,
            population_radius=population_radius,
            norm=parse_norm(norm),
            metric=cast(Any, metric),
            confidence=confidence,
        )
    typer.echo(visible(str(found)))
