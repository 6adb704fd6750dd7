"""Implement ``wafl flower``: experiments as Flower apps, and deployments with certificates, files and nodes."""

from pathlib import Path
from typing import Annotated

import typer
from typer import Argument, Option

from wafl.cli.terminal import Changes, make_console, one_line_errors, say, tell

flower_app = typer.Typer(
    help="Flower: write experiments as apps, and set up, run and watch nodes.",
    no_args_is_help=True,
    rich_markup_mode="markdown",
)

AllowApp = Annotated[list[str] | None, Option(metavar="DIGEST")]
AnyApp = Annotated[bool, Option("--any-app")]


@flower_app.command()
def app(
    folder: Annotated[Path, Argument(metavar="DIR")],
    experiment: Annotated[Path | None, Argument()] = None,
    changes: Changes = None,
) -> None:
    """Write a Flower app from an experiment file; `flwr run DIR` starts it."""
    from wafl.config.read import read_experiment

    with one_line_errors():
        from wafl.flower.ops.app import trial_experiment, write_app  # an error names the remedy if Flower is missing

        if experiment is not None:
            described, source = read_experiment(experiment, changes or []), experiment.parent
        else:
            if changes:
                raise ValueError("--set changes an experiment file: give one (`wafl config init` writes a starter)")
            described, source = trial_experiment(), None
        files = write_app(folder, described, source)
    tell("\n".join(f"Wrote {file}" for file in files))
    tell(f"Start it with: flwr run {folder} SUPERLINK --stream (docs/flower.md)")


@flower_app.command()
def run(
    app: Annotated[Path, Argument(metavar="DIR")],
    superlink: Annotated[str | None, Argument()] = None,
    config: Annotated[list[str] | None, Option("--run-config", "-c", metavar="KEY=VALUE")] = None,
) -> None:
    """Start a Flower run, show its log, and exit with status 1 if it failed or was stopped."""
    with one_line_errors():
        from wafl.flower.ops.loopback import submit

        status = submit(app, superlink, config or [], tell)
    if status != "completed":
        say(f"The Flower run ended as {status}.", typer.colors.RED)
        raise typer.Exit(1)


@flower_app.command()
def certificates(
    folder: Annotated[Path, Argument(metavar="DIR")],
    host: list[str] | None = None,
    node: list[str] | None = None,
    days: Annotated[int, Option(min=1)] = 365,
    renew: Annotated[bool, Option("--renew")] = False,
) -> None:
    """Make a certificate for the server, and a key pair per SuperNode."""
    with one_line_errors():
        from wafl.flower.ops.tls import make_certificates

        if renew:
            messages = _renewed(folder, host, node or [], days)
        else:
            hosts = {"hosts": host} if host else {}
            made = make_certificates(folder, nodes=node or [], days=days, **hosts)
            messages = [
                *(f"{name}: flwr supernode register {made.node_pub(name)} SUPERLINK" for name in node or []),
                f"Keep {made.ca_key} where no other machine can read it. The server needs {made.ca.name}, "
                f"{made.server_cert.name} and {made.server_key.name}; a node needs {made.ca.name} and its own key.",
                f"`wafl flower deploy DIR {folder}` writes the files of the server and of each node.",
            ]
    tell("\n".join(messages))


def _renewed(folder: Path, hosts: list[str] | None, nodes: list[str], days: int) -> list[str]:
    """Renew certificates or keys, and return the next steps."""
    from wafl.flower.ops.tls import Certificates, renew_certificates, renew_keys

    if nodes:
        if hosts:
            raise ValueError("--host is for the server's certificate, --node for keys: renew one after the other")
        files = renew_keys(folder, nodes)
        messages = [f"{name}: flwr supernode register {files.node_pub(name)} SUPERLINK" for name in nodes]
        return [
            *messages,
            "The old keys are valid until `flwr supernode unregister` ends them: docs/deployment.md.",
        ]
    (until, old_ca), files = renew_certificates(folder, hosts=hosts, days=days), Certificates.open(folder)
    messages = [
        f"The server's certificate is valid until {until:%Y-%m-%d}: copy {files.server_cert.name} and "
        f"{files.server_key.name} to the server, and restart the SuperLink and the proxy."
    ]
    if old_ca is not None:
        messages += [f"Copy the new {files.ca.name} to every node: the old one expires {old_ca:%Y-%m-%d}."]
    return messages


@flower_app.command()
def deploy(
    folder: Annotated[Path, Argument(metavar="DIR")],
    certificates: Annotated[Path, Argument(metavar="CERTIFICATES")],
    node: list[str] | None = None,
    host: str | None = None,
    port: int = 8000,
    listen: Annotated[str, Option(metavar="ADDRESS")] = "127.0.0.1",
    target: str = "/srv/wafl",
    allow_app: AllowApp = None,
    any_app: AnyApp = False,
) -> None:
    """Write one folder per machine, with its systemd units and compose files; the server's has a proxy for nodes."""
    with one_line_errors():
        from wafl.flower.ops.deployment import Deployment, write_deployment
        from wafl.flower.ops.tls import Certificates

        files = Certificates.open(certificates)
        known = files.hosts()
        if host is not None and host not in known:
            raise ValueError(f"host {host!r} is not in the server's certificate, which is for {', '.join(known)}")
        deployment = Deployment(files, host or known[0], port, target, tuple(allow_app or ()), any_app, listen)
        folders = write_deployment(folder, deployment, node or files.nodes())
    for machine in folders:
        tell(f"Wrote {machine}: copy it to {target} on its machine")
    if listen == "127.0.0.1":
        tell("The proxy listens only on 127.0.0.1: for nodes on other machines, pass --listen ADDRESS.")


@flower_app.command()
def digest(folder: Annotated[Path, Argument(metavar="APP")]) -> None:
    """Print the digest of an app, for `wafl flower node --allow-app`."""
    with one_line_errors():
        from wafl.flower.ops.guard import app_digest

        print(app_digest(folder))


@flower_app.command()
def fingerprint(keys: Annotated[list[Path], Argument(metavar="KEY.pub...")]) -> None:
    """Print the fingerprints of nodes' public keys, for the caps of an experiment."""
    with one_line_errors():
        from wafl.flower.ops.tls import key_fingerprint

        for key in keys:
            print(f"{key_fingerprint(key)} {key}")


@flower_app.command(context_settings={"allow_extra_args": True, "ignore_unknown_options": True})
def node(
    context: typer.Context,
    allow_app: AllowApp = None,
    any_app: AnyApp = False,
    allow_model: Annotated[list[str] | None, Option(metavar="DIGEST")] = None,
    min_examples: Annotated[int | None, Option(min=1)] = None,
    max_questions: Annotated[int | None, Option(min=1)] = None,
    max_steps: Annotated[int | None, Option(min=1)] = None,
    privacy: Annotated[str | None, Option(metavar="WORDS")] = None,
) -> None:
    """Run flower-supernode, with all its options, for allowed apps only."""
    with one_line_errors():
        from wafl.flower.ops.supernode import run_node

        limits = {
            "min-examples": min_examples,
            "max-questions": max_questions,
            "max-steps": max_steps,
            "privacy": privacy,
        }
        run_node(context.args, allow_app or [], any_app=any_app, models=allow_model or [], limits=limits)


@flower_app.command()
def status(study: Annotated[Path, Argument(metavar="STUDY")]) -> None:
    """Show the nodes of a study: last contact, round, bytes sent and received, and clients left out."""
    with one_line_errors():
        from wafl.cli.tables import nodes
        from wafl.flower.server.bulletin import read_status

        make_console(highlight=False).print(nodes(read_status(study)))
