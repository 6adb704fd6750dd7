"""``wafl flower``: an experiment as a Flower app, and certificates for a deployment."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from wafl.cli.shared import one_line_errors

flower_app = typer.Typer(
    help="Flower: an experiment as a Flower app, and certificates for a deployment.",
    no_args_is_help=True,
    rich_markup_mode="markdown",
)


@flower_app.command()
def app(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="The folder of the app, new or empty.")],
    experiment: Annotated[
        Path | None, typer.Argument(help="An experiment file. Default: FedAvg and WAFL on digits.")
    ] = None,
    changes: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="KEY=VALUE", help="Change a value of the file, such as schedule.rounds=50."),
    ] = None,
) -> None:
    """Write a Flower app that trains what an experiment file describes; `flwr run DIR` starts it.

    The data stay on the nodes: each SuperNode says in its --node-config where its data are.
    """
    from wafl.cli.terminal import make_console
    from wafl.runs.read import read_experiment

    with one_line_errors():
        from wafl.flower.ops.app import trial_experiment, write_app  # says so if Flower is missing

        if experiment is not None:
            described, source = read_experiment(experiment, changes or []), experiment.parent
        else:
            if changes:
                raise ValueError("--set changes an experiment file: give one (`wafl config init` writes a starter)")
            described, source = trial_experiment(), None
        files = write_app(folder, described, source)
    console = make_console()
    for file in files:
        console.print(f"Wrote {file}", markup=False, highlight=False)
    console.print(
        f"Start it with: flwr run {folder} SUPERLINK --stream (docs/flower.md)", markup=False, highlight=False
    )


@flower_app.command()
def certificates(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="Where certificates and keys go.")],
    host: Annotated[
        list[str] | None,
        typer.Option(help="A name or address of the SuperLink; repeat for several. Default: localhost and 127.0.0.1."),
    ] = None,
    node: Annotated[
        list[str] | None, typer.Option(help="A SuperNode to make a key pair for; repeat for several.")
    ] = None,
    days: Annotated[int, typer.Option(min=1, help="How many days the certificates are valid.")] = 365,
) -> None:
    """Make what a closed deployment needs: a certificate for the SuperLink, and a key pair per SuperNode.

    Run it again with other --node names to add nodes; nothing is ever overwritten.
    """
    from wafl.cli.terminal import make_console

    with one_line_errors():
        from wafl.flower.ops.certificates import make_certificates

        hosts = {"hosts": host} if host else {}
        made = make_certificates(folder, nodes=node or [], days=days, **hosts)
    console = make_console(highlight=False)
    console.print(
        f"SuperLink: --ssl-ca-certfile {made.ca} --ssl-certfile {made.server_cert} "
        f"--ssl-keyfile {made.server_key} --enable-supernode-auth",
        markup=False,
        soft_wrap=True,
    )
    for name in node or []:
        console.print(
            f"{name}: flwr supernode register {made.node_pub(name)} SUPERLINK, then flower-supernode "
            f"--root-certificates {made.ca} --auth-supernode-private-key {made.node_key(name)}",
            markup=False,
            soft_wrap=True,
        )
    console.print(
        f"Keep {made.ca_key} where no other machine can read it; a node needs {made.ca.name} and its own key.",
        markup=False,
        soft_wrap=True,
    )
