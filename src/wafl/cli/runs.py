"""``wafl runs``: what is in a folder of studies."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from wafl.cli.shared import one_line_errors


def runs(output: Annotated[Path, typer.Argument(metavar="FOLDER", help="Where runs are.")] = Path("runs")) -> None:
    """List runs: how far each has come, and what it found."""
    from rich.console import Console

    from wafl.cli.tables import run_folders
    from wafl.runs.folder import StudyFolder

    with one_line_errors():
        if not output.is_dir():
            raise FileNotFoundError(f"{output} is not a folder: wafl run makes one")
        found = [StudyFolder(path.parent) for path in sorted(output.glob("*/config.toml"))]
        Console().print(run_folders(found) if found else f"{output} holds no runs yet: wafl run makes one.")
