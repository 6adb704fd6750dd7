"""``wafl reproduce``: a figure or table of the paper, from its experiment file."""

from pathlib import Path
from typing import Annotated, Any, cast

import typer
from typer import Argument, Option

from wafl.cli.shared import one_line_errors


def reproduce(
    name: Annotated[list[str] | None, Argument()] = None,
    protocol: str = "fair",
    scale: str = "full",
    part: list[str] | None = None,
    method: Annotated[list[str] | None, Option("--method", "-m")] = None,
    device: str = "cpu",
    jobs: Annotated[int, Option(min=1)] = 1,
    opened: Annotated[bool, Option("--open")] = False,
    output: Path | None = None,
    work: Path | None = None,
) -> None:
    """Make a figure or a table of the paper again: its numbers as JSON, and a picture of them."""
    from wafl.lab.reproduction import experiments as files
    from wafl.lab.reproduction.reproduce import reproduce as make

    if not name:
        for each in files.names():
            typer.echo(f"{each:22} {files.read(each, 'fair', 'full')[0].title}")
        typer.echo(f"{'promises':22} Promises about the next client, held against sealed clients")
        return
    folder = Path("promises" if name == ["promises"] else "reproduction")
    output, work = output or "docs" / folder, work or "runs" / folder
    with one_line_errors():
        if name == ["promises"]:
            from wafl.lab.promises.phases import issue_all, open_all

            (open_all if opened else issue_all)(scale, output, work, typer.echo)
            return
        if opened:
            raise ValueError("--open is for promises alone: wafl reproduce promises --open")
        parts = [each for one in name for each in files.read(one, cast(Any, protocol), cast(Any, scale))]
        chosen = [each for each in parts if not part or each.part in part]
        if not chosen:
            known = ", ".join(dict.fromkeys(each.part for each in parts))
            raise ValueError(f"--part {', '.join(part or [])} is not a part of {', '.join(name)}: use {known}")
        known = {entry.label for each in chosen for entry in each.experiment.methods}
        for unknown in set(method or []) - known:
            raise ValueError(f"--method {unknown} is not in {', '.join(name)}: there are {', '.join(sorted(known))}")
        made = [make(each.on(device), output, work, typer.echo, method, jobs) for each in chosen]
    if None in made:
        raise typer.Exit(3)
