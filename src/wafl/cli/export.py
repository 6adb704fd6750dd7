"""``wafl export``: a trained model, or a study's metrics, as a file for other programs."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, cast

import typer

from wafl.cli.shared import clients_of, load_runs, one_line_errors

if TYPE_CHECKING:
    from wafl.runs.export import Format


def export(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="A saved run, such as runs/digits/wafl.")],
    format: Annotated[str | None, typer.Option(help="The model: safetensors, pt2 or onnx.")] = None,
    output: Annotated[
        Path | None, typer.Option(help="The model's file. Default: model.<format> in the run's folder.")
    ] = None,
    metrics: Annotated[
        Path | None, typer.Option(help="A study's metrics, round by round, to this .csv or .parquet file.")
    ] = None,
    data_dir: Annotated[Path | None, typer.Option(help="Where data sets are. Default: $WAFL_DATA.")] = None,
) -> None:
    """Write a model that takes raw examples, or a study's metrics, to a new file.

    The preprocessing is inside the model: it takes examples as the data set holds them, any number at once.
    """
    from wafl.runs.export_metrics import export_metrics

    with one_line_errors():
        if (format is None) == (metrics is None):
            raise ValueError("give --format, for a run's model, or --metrics, for a study's rounds")
        if metrics is not None:
            if output is not None:
                raise ValueError("--output is the model's file: --metrics has its own")
            written = export_metrics(run, metrics)
        else:
            written = _export_model(run, cast("Format", format), output, data_dir)
    typer.echo(f"Written: {written}")


def _export_model(folder: Path, format: Format, output: Path | None, data_dir: Path | None) -> Path:
    from wafl.runs.export import FORMATS, export_model, refuse_existing

    if format not in FORMATS:
        raise ValueError(f"--format {format} is unknown: use one of {', '.join(FORMATS)}")
    runs = load_runs(folder)
    if len(runs) > 1:
        raise ValueError(f"{folder} holds several runs: give one, such as {folder / next(iter(runs))}")
    ((name, run),) = runs.items()
    home = folder if (folder / "run.json").exists() else folder / name
    path = output or home / f"model.{format}"
    refuse_existing(path)
    clients = clients_of(runs, folder, data_dir)
    return export_model(run, path, format, clients.train.prepare, clients.input_shape)
