"""``wafl certify``: a certificate of a saved run, as a file that anyone can check."""

from pathlib import Path
from typing import Annotated, Any

from typer import Option

from wafl.cli.shared import (
    StudyOrRun,
    Trust,
    check_signing,
    only_run,
    parse_norm,
    parse_numbers,
    reading,
    seen_and_unseen,
)


def certify(
    run: StudyOrRun,
    output: Annotated[Path, Option("--output", "-o")] = Path("certificate.json"),
    radii: str = "0,0.1,0.25,0.5,1,2",
    norm: str = "2",
    power: Annotated[int, Option(min=1, max=2)] = 2,
    metric: str = "loss",
    part: str = "train",
    confidence: float | None = None,
    points: Annotated[int | None, Option(min=1)] = None,
    sign: Annotated[Path | None, Option(metavar="KEY")] = None,
    data_dir: Path | None = None,
    trust: Trust = False,
) -> None:
    """Write a certificate: how large the expected loss can be within each radius, as a file that anyone can check."""
    from wafl.base.shown import shown
    from wafl.cli.terminal import say, tell

    with reading(trust):
        wanted = parse_numbers("radii", radii)
        options: dict[str, Any] = {"norm": parse_norm(norm), "power": power, "metric": metric, "part": part}
        check_signing(sign, private=True)
        if points is not None:
            from wafl.weights.transport.costs import transport_package

            transport_package()
        name, model = only_run(run)
        from wafl.promises.issue import issue

        clients, _ = seen_and_unseen({name: model}, run, data_dir)
        say(f"Certifying {name} at {len(wanted)} radii: seconds for a linear model, minutes for a network.")
        with shown(f"certify {name}"):
            promise = issue(model, clients, radii=wanted, confidence=confidence, points=points, **options)
        output.parent.mkdir(parents=True, exist_ok=True)
        page = promise.save(output, key=sign)
    tell(f"{promise}\n\nWritten: {output} and {page}")
