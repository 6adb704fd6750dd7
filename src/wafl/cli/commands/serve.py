"""``wafl serve``: studies as live pages."""

from pathlib import Path
from typing import Annotated

import typer
from typer import Argument, Option

from wafl.cli.shared import one_line_errors


def serve(
    folder: Annotated[Path, Argument(metavar="FOLDER")] = Path("runs"),
    host: str = "127.0.0.1",
    port: Annotated[int, Option(min=0, max=65535)] = 8340,
) -> None:
    """Show studies in a browser while they run, on this machine only unless --host says otherwise."""
    from wafl.cli.terminal import say
    from wafl.studies.pages.live import make_server

    with one_line_errors():
        if not folder.is_dir():
            raise ValueError(f"{folder} is not a folder: give one that holds studies, such as runs")
        server = make_server(folder, host, port)
    say(f"{folder} is shown at {server.url} until you press Ctrl-C.")
    with server:
        try:
            server.serve_forever()
        except KeyboardInterrupt:
            raise typer.Exit(0) from None
