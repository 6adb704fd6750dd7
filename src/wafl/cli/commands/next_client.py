"""``wafl next-client``: what a client that nobody has seen may expect of a saved run."""

from pathlib import Path
from typing import Annotated, Any

from typer import Option

from wafl.cli.shared import StudyOrRun, Trust, check_signing, only_run, parse_norm, reading, seen_and_unseen


def next_client(
    run: StudyOrRun,
    radius: Annotated[float, Option(min=0.0)] = 0.0,
    population_radius: Annotated[float, Option(min=0.0)] = 0.0,
    norm: str = "2",
    metric: str = "loss",
    confidence: float | None = None,
    output: Annotated[Path | None, Option("--output", "-o")] = None,
    sign: Annotated[Path | None, Option(metavar="KEY")] = None,
    data_dir: Path | None = None,
    trust: Trust = False,
) -> None:
    """Say what a client that nobody has seen may expect, from those that were held out of training."""
    from wafl.cli.terminal import tell

    with reading(trust):
        if sign is not None and output is None:
            raise ValueError("--sign signs a file: give --output too")
        options: dict[str, Any] = {"norm": parse_norm(norm), "metric": metric, "confidence": confidence}
        check_signing(sign, private=True)
        name, model = only_run(run)
        from wafl.promises.issue import issue_next_client
        from wafl.theory.population.next_client import next_client as expect

        seen, unseen = seen_and_unseen({name: model}, run, data_dir)
        if unseen is None:
            raise ValueError(f"{run} held no client out of training: train it with data.unseen, such as 0.5")
        if output is None:
            result = expect(model, seen, unseen, radius=radius, population_radius=population_radius, **options)
            result.next_confidence(own_sampling=False)  # raises if nothing about the next client has this confidence
        else:
            result = issue_next_client(model, seen, unseen, radius=radius + population_radius, **options)
            output.parent.mkdir(parents=True, exist_ok=True)
            result.save(output, key=sign)
    tell(str(result))
