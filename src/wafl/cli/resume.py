"""``wafl resume``: go on where a study was interrupted."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from wafl.cli.progress import train_and_show
from wafl.cli.shared import one_line_errors


def resume(
    folder: Annotated[Path, typer.Argument(metavar="RUN", help="The folder of a run that was interrupted.")],
) -> None:
    """Go on with a run where it was interrupted, to the same numbers as if it had not been."""
    from rich.console import Console

    from wafl.runs.study import Study

    with one_line_errors():
        study = Study.resume(folder)
        if study.folder.status() == "finished":
            study.run()  # trains nothing, and makes whole again what was damaged of the metrics
            Console().print(f"{folder} is finished already: there is nothing to train.")
            return
        train_and_show(study)
