"""``wafl verify``: what of a certificate can be recomputed."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from typer import Argument, Option

from wafl.cli.shared import PublicKey, Trust, check_signing, only_run, reading, seen_and_unseen

if TYPE_CHECKING:
    from wafl.data.federation import Federation
    from wafl.results.run import Run

UNSIGNED = (
    "No key was given: whoever changes the file can change its numbers with it, and a digest only detects accidents. "
    "Give --key, a public key that you have from the issuer."
)


def verify(
    certificate: Annotated[Path, Argument(metavar="CERTIFICATE")],
    model: Annotated[Path | None, Option(metavar="RUN")] = None,
    data: Annotated[Path | None, Option(metavar="FOLDER|STUDY")] = None,
    key: PublicKey = None,
    data_dir: Path | None = None,
    trust: Trust = False,
) -> None:
    """Check a certificate: prove again what the model and the data allow, and say what is only attested."""
    from wafl.cli.terminal import make_console, say, tell

    with reading(trust):
        check_certificate(certificate)
        check_signing(key, private=False)
        from wafl.cli.tables import verification
        from wafl.promises.read import read_file
        from wafl.promises.verify import verify as check

        run = None if model is None else only_run(model)[1]
        held = read_file(certificate)[0].parts.claim.part == "all"
        clients = None if data is None else read_data(data, run, data_dir, held=held)
        result = check(certificate, model=run, data=clients, key=key)
    tell(f"{result.promise}\n")
    make_console().print(verification(certificate, result))
    if key is None:
        say(UNSIGNED, typer.colors.YELLOW)
    if not result.ok:
        raise typer.Exit(1)


def check_certificate(file: Path) -> None:
    if not file.is_file():
        raise FileNotFoundError(f"{file} is not a file: give a certificate, which wafl certify writes")


def read_data(folder: Path, run: "Run | None", data_dir: Path | None, *, held: bool = False) -> "Federation":
    """The clients of a study or run (``held``: those that never trained), or of files, whose bytes the run prepares."""
    from dataclasses import replace

    import torch

    from wafl.cli.shared import load_runs
    from wafl.data.client_files import read_folder

    if (folder / "run.json").is_file() or (folder / "config.toml").is_file():
        seen, unseen = seen_and_unseen(load_runs(folder), folder, data_dir)
        if not held:
            return seen
        if unseen is None:
            raise ValueError(f"{folder} held no client out of training: give a study with data.unseen")
        return unseen
    prepare = None if run is None or run.intake.prepare.name == "none" else run.intake.prepare
    clients = read_folder(folder, preprocess=None if prepare is None else prepare.name)
    if prepare is None or clients.train.raw.dtype != torch.uint8:
        return clients  # numbers other than bytes are taken as they are
    return replace(clients.prepared_by(prepare), unit=prepare.unit, bounds=prepare.bounds)
