"""``wafl runs``: the studies in a folder."""

from pathlib import Path
from typing import Annotated

from rich.markup import escape
from typer import Argument

from wafl.base.files import is_temporary
from wafl.cli.shared import one_line_errors
from wafl.cli.terminal import make_console


def runs(output: Annotated[Path, Argument(metavar="FOLDER")] = Path("runs")) -> None:
    """List studies: how far each has come, and what it found."""
    from wafl.cli.tables import studies
    from wafl.studies.folder import StudyFolder

    with one_line_errors():
        if not output.is_dir():
            raise FileNotFoundError(f"{output} is not a folder: wafl run makes one")
        folders = sorted(path.parent for path in output.glob("*/config.toml") if not is_temporary(path.parent))
        listed = [StudyFolder(folder) for folder in folders]
        none = f"{output} holds no studies yet: wafl run makes one."
        make_console().print(studies(listed) if listed else escape(none))
