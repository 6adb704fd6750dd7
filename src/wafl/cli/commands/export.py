"""``wafl export``: a trained model, or a study's metrics, as a file for other programs."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, cast

import typer
from typer import Argument, Option

from wafl.cli.shared import DataDir, Trust, clients_of, only_run, reading

if TYPE_CHECKING:
    from wafl.results.export import Format


FORMATS = ("safetensors", "pt2", "onnx")


def export(
    run: Annotated[
        Path,
        Argument(metavar="RUN|STUDY", help="A run, such as runs/digits/wafl; with --metrics a study, runs/digits."),
    ],
    format: Annotated[str | None, Option(help="The format of the model: safetensors, pt2 or onnx.")] = None,
    output: Annotated[
        Path | None, Option(help="The file of the model. Default: model.FORMAT in the folder of the run.")
    ] = None,
    metrics: Annotated[
        Path | None, Option(help="Write the metrics of a study, round by round, to this .csv or .parquet file.")
    ] = None,
    data_dir: DataDir = None,
    trust: Trust = False,
) -> None:
    """Write a model that takes raw examples, or the metrics of a study, to a new file.

    The preprocessing is part of the model: it takes any number of examples as the data set holds them.
    """
    from wafl.base.visible import visible

    with reading(trust):
        if (format is None) == (metrics is None):
            raise ValueError("give --format for the model of a run, or --metrics for the rounds of a study")
        if metrics is not None:
            if output is not None:
                raise ValueError("--output is the file of a model: --metrics names its own file")
            from wafl.studies.metrics import export_metrics

            written = export_metrics(run, metrics)
        else:
            written = _export_model(run, cast("Format", format), output, data_dir)
    typer.echo(visible(f"Written: {written}"))


def _export_model(folder: Path, format: Format, output: Path | None, data_dir: Path | None) -> Path:
    if format not in FORMATS:
        raise ValueError(f"--format {format} is unknown: use one of {', '.join(FORMATS)}")
    name, run = only_run(folder)
    from wafl.results.export import export_model, refuse_existing

    home = folder if (folder / "run.json").exists() else folder / name
    path = output or home / f"model.{format}"
    refuse_existing(path)
    prepare, shape = run.intake.prepare, run.intake.shape
    if shape is None:  # saved by an earlier version, or trained on Flower
        clients = clients_of({name: run}, folder, data_dir)
        prepare, shape = clients.train.prepare, clients.input_shape
    return export_model(run, path, format, prepare, shape)
