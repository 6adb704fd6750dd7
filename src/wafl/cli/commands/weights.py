"""``wafl weights``: where the ball should be centered, from optimal transport between data sets."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from typer import Option

from wafl.cli.shared import one_line_errors
from wafl.cli.terminal import make_console, tell

if TYPE_CHECKING:
    from wafl.data.federation import Federation


def weights(
    source: Annotated[list[str], Option("--source", "-s")],
    target: Annotated[str | None, Option("--target", "-t")] = None,
    sample: Annotated[int | None, Option(min=1)] = None,
    seed: Annotated[int, Option(min=0)] = 0,
    label_aware: Annotated[bool, Option("--label-aware")] = False,
    label_cost: float | None = None,
    size: Annotated[int, Option(min=1)] = 28,
    preprocess: str = "unit",
    data_dir: Path | None = None,
    output: Path = Path("weights.png"),
) -> None:
    """Compute client weights from optimal transport, and show the distances they come from and the W_2 they reach."""
    from wafl.cli.tables import transport_weights
    from wafl.data.named.domains import domains, federation_of
    from wafl.report.plotting import weights_and_distances
    from wafl.weights import barycenter, cover, mixture, nearest
    from wafl.weights.transport.costs import transport_package

    sample = sample or (100 if target is None else 600)
    options: dict[str, Any] = {"sample": sample, "seed": seed, "label_aware": label_aware, "label_cost": label_cost}
    with one_line_errors():
        transport_package()
        if target is not None:
            sources = domains(source, target, data_dir=data_dir, size=size, preprocess=preprocess)
            results = [rule(sources.clients, sources.target, **options) for rule in (nearest, mixture)]
            clients: Federation = sources.clients
        else:
            clients = federation_of(source, data_dir=data_dir, size=size, preprocess=preprocess)
            results = [cover(clients, **options)]
            if not label_aware and label_cost is None:
                results.append(barycenter(clients, sample=sample, seed=seed))
        output.parent.mkdir(parents=True, exist_ok=True)
        weights_and_distances(
            clients.names,
            results[0].distances,
            results[0].standard_errors,
            {f"{result.rule}: W_2 {result.radius:.2f}": result.weights for result in results},
            target,
            clients.unit,
            output,
        )
    make_console().print(transport_weights(clients, results, target, sample))
    tell(f"Figure: {output}")
