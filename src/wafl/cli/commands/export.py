"""``wafl export``: a trained model, or a study's metrics, as a file for other programs."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, cast

from typer import Argument

from wafl.cli.shared import Trust, only_run, reading, seen_and_unseen
from wafl.cli.terminal import tell

if TYPE_CHECKING:
    from wafl.results.export import Format


FORMATS = ("safetensors", "pt2", "onnx")


def export(
    run: Annotated[Path, Argument(metavar="RUN|STUDY")],
    format: str | None = None,
    output: Path | None = None,
    metrics: Path | None = None,
    data_dir: Path | None = None,
    trust: Trust = False,
) -> None:
    """Write a model that takes raw examples, or the metrics of a study, to a new file."""
    with reading(trust):
        if (format is None) == (metrics is None):
            raise ValueError("give --format for the model of a run, or --metrics for the rounds of a study")
        if metrics is not None:
            if output is not None:
                raise ValueError("--output is the file of a model: --metrics names its own file")
            from wafl.studies.metrics import export_metrics

            written = export_metrics(run, metrics)
        elif format == "card":
            written = _write_card(run, output, data_dir)
        else:
            written = _export_model(run, cast("Format", format), output, data_dir)
    tell(f"Written: {written}")


def _export_model(folder: Path, format: "Format", output: Path | None, data_dir: Path | None) -> Path:
    if format not in FORMATS:
        raise ValueError(f"--format {format} is unknown: use one of {', '.join((*FORMATS, 'card'))}")
    from wafl.results.export import check_export_packages, export_model, refuse_existing

    check_export_packages(format)
    name, run = only_run(folder)
    home = folder if (folder / "run.json").exists() else folder / name
    path = output or home / f"model.{format}"
    refuse_existing(path)
    prepare, shape = run.intake.prepare, run.intake.shape
    if shape is None:  # saved by an earlier version, or trained on Flower
        clients, _ = seen_and_unseen({name: run}, folder, data_dir)
        prepare, shape = clients.train.prepare, clients.input_shape
    return export_model(run, path, format, prepare, shape)


def _write_card(folder: Path, output: Path | None, data_dir: Path | None) -> Path:
    """Test the run on clients that trained and on those held out, with and without an attack, and certify it."""
    from wafl import PGD, evaluate, issue
    from wafl.base.errors import PreconditionError

    name, run = only_run(folder)
    clients, unseen = seen_and_unseen({name: run}, folder, data_dir)
    attacks = [None] if clients.num_classes is None else [None, PGD(epsilon=0.1)]
    scores = [evaluate(run, clients, attack=attack, unseen=unseen) for attack in attacks]
    try:
        certificate = issue(run, clients, radii=[0.1, 0.25, 0.5])
    except PreconditionError:
        certificate = None  # the card says so
    home = folder if (folder / "run.json").exists() else folder / name
    return run.card(output or home / "card", scores=scores, certificate=certificate)
