"""Implement ``certify``, ``next-client``, ``prediction-sets``, ``verify`` and ``audit``."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer import Argument, Option

from wafl.base.checks import check_radii
from wafl.cli.saved import check_signing, load_runs, only_run, prepare_output, seen_and_unseen
from wafl.cli.terminal import PublicKey, StudyOrRun, Trust, make_console, parse_norm, parse_numbers, reading, say, tell

if TYPE_CHECKING:
    from wafl.data.federation import Federation
    from wafl.promises.verdict import Checked
    from wafl.results.run import Run


def certify(
    run: StudyOrRun,
    output: Annotated[Path, Option("--output", "-o")] = Path("certificate.json"),
    radii: str = "0,0.1,0.25,0.5,1,2",
    norm: str = "2",
    power: Annotated[int, Option(min=1, max=2)] = 2,
    metric: str = "loss",
    split: str = "train",
    confidence: float | None = None,
    points: Annotated[int | None, Option(min=1)] = None,
    sign: Annotated[Path | None, Option(metavar="KEY")] = None,
    data_dir: Path | None = None,
    trust: Trust = False,
) -> None:
    """Certify the largest expected loss within each radius, and write a file that anyone can check."""
    with reading(trust):
        wanted = check_radii(parse_numbers("radii", radii))
        options: dict[str, Any] = {"norm": parse_norm(norm), "power": power, "metric": metric, "split": split}
        check_signing(sign, private=True)
        if points is not None:
            from wafl.weights.transport.costs import transport_package

            transport_package()
        prepare_output(output, page=True)
        name, model = only_run(run)
        from wafl.theory.certificates.certify import certify as search

        clients, _ = seen_and_unseen({name: model}, run, data_dir)
        say(f"Certifying {name} at {len(wanted)} radii: seconds for a linear model, minutes for a network.")
        certificate = search(model, clients, radii=wanted, confidence=confidence, **options)
        page = certificate.save(output, key=sign, points=points)
        from wafl.promises.sentences import sentence

        summary = sentence(certificate.published)
    tell(f"{certificate}\n\n{summary}\n\nWritten: {output} and {page}")


def next_client(
    run: StudyOrRun,
    radius: Annotated[float, Option(min=0.0)] = 0.0,
    population_radius: Annotated[float, Option(min=0.0)] = 0.0,
    norm: str = "2",
    metric: str = "loss",
    confidence: float | None = None,
    output: Annotated[Path | None, Option("--output", "-o")] = None,
    sign: Annotated[Path | None, Option(metavar="KEY")] = None,
    data_dir: Path | None = None,
    trust: Trust = False,
) -> None:
    """Bound the loss or error of a new client, from clients that were held out of training."""
    with reading(trust):
        if sign is not None and output is None:
            raise ValueError("--sign signs a file: give --output too")
        options: dict[str, Any] = {"norm": parse_norm(norm), "metric": metric, "confidence": confidence}
        check_signing(sign, private=True)
        if output is not None:
            prepare_output(output, page=True)
        name, model = only_run(run)
        from wafl.theory.population.next_client import next_client as expect

        seen, unseen = seen_and_unseen({name: model}, run, data_dir)
        if unseen is None:
            raise ValueError(f"{run} held no client out of training: train it with data.unseen, such as 0.5")
        result = expect(model, seen, unseen, radius=radius, population_radius=population_radius, **options)
        result.next_confidence(own_sampling=False)  # raises if nothing about the next client has this confidence
        lines = [result.sentence, str(result)]
        if output is not None:
            lines.append(f"Written: {output} and {result.save(output, key=sign)}")
    tell("\n\n".join(lines))


def prediction_sets(
    run: StudyOrRun,
    coverage: float = 0.9,
    about: str = "client",
    confidence: float | None = None,
    score: str | None = None,
    radius: Annotated[float, Option(min=0.0)] = 0.0,
    norm: str = "2",
    power: Annotated[int, Option(min=1, max=2)] = 2,
    own_sampling: Annotated[bool, Option("--own-sampling")] = False,
    output: Annotated[Path | None, Option("--output", "-o")] = None,
    data_dir: Path | None = None,
    trust: Trust = False,
) -> None:
    """Compute prediction sets for the next client, from clients that were held out of training."""
    with reading(trust):
        options: dict[str, Any] = {"norm": parse_norm(norm), "power": power, "own_sampling": own_sampling}
        if output is not None:
            prepare_output(output)
        name, model = only_run(run)
        from wafl.sets.prediction_sets import prediction_sets as calibrate

        seen, unseen = seen_and_unseen({name: model}, run, data_dir)
        if unseen is None or unseen.num_clients < 2:
            raise ValueError(f"{run} held fewer than 2 clients out of training: train it with data.unseen, such as 0.5")
        calibration, others = unseen.hold_out(0.5)
        about_promise: dict[str, Any] = {"coverage": coverage, "about": about, "confidence": confidence, "score": score}
        sets = calibrate(model, calibration, radius=radius, training=seen, **about_promise, **options)
        lines = [str(sets), f"On {others.num_clients} other clients: {sets.evaluate(others)}."]
        if output is not None:
            lines.append(f"Written: {sets.save(output)}")
    tell("\n\n".join(lines))


UNSIGNED = (
    "No key was given: an attacker who changes the file can change its digests, too, so they only detect accidents. "
    "Give --key, a public key that you have from the issuer."
)
UNSIGNED_REQUEST = (
    "No key was given: anyone can make a request, and answer it with keys of their own. Give --key, a public key that "
    "you have from the owner."
)


def verify(
    certificate: Annotated[Path, Argument(metavar="CERTIFICATE")],
    model: Annotated[Path | None, Option(metavar="RUN")] = None,
    data: Annotated[Path | None, Option(metavar="FOLDER|STUDY")] = None,
    key: PublicKey = None,
    data_dir: Path | None = None,
    client: Annotated[str | None, Option(metavar="NAME")] = None,
    accept: Annotated[str | None, Option(metavar="attested")] = None,
    receipts: Annotated[Path | None, Option(metavar="FOLDER")] = None,
    trust: Trust = False,
) -> None:
    """Check a certificate: recompute every value that the model and the data allow, and try to refute the others."""
    with reading(trust):
        check_certificate(certificate)
        check_signing(key, private=False)
        if accept not in (None, "attested"):
            raise ValueError(f"--accept {accept} must be attested: wrong lines are never accepted")
        from wafl.cli.tables import verification
        from wafl.promises.receipts import Merged, is_merged, read

        merged = is_merged(certificate)
        if receipts is not None and not merged:
            raise ValueError(f"--receipts are for a file that wafl merge wrote, and {certificate} is none")
        result: Checked
        if merged:
            from wafl.receipts import verify as check_merged

            read(Merged, certificate)
            run = None if model is None else only_run(model)[1]
            site = None if data is None else own_data(data, run, data_dir)
            result = check_merged(certificate, receipts=receipts, key=key, model=run, data=site, client=client)
            words, unsigned = result.page, UNSIGNED_REQUEST
        else:
            from wafl.promises.read import read_file
            from wafl.promises.verify import verify as check

            held = read_file(certificate)[0].parts.claim.part == "all"
            run = None if model is None else only_run(model)[1]
            clients = None if data is None else read_data(data, run, data_dir, held=held)
            result = check(certificate, model=run, data=clients, key=key)
            words, unsigned = str(result.promise), UNSIGNED
            if result.ok:
                from wafl.promises.sentences import sentence

                words = f"{sentence(result.promise)}\n\n{words}"
        verdict = result.verdict if client is None else result.verdict_of(client)
    tell(f"{result.VERDICTS[verdict] if client is None else f'{verdict}: the line of {client}'}\n\n{words}\n")
    make_console().print(verification(certificate, result))
    if key is None:
        say(unsigned, typer.colors.YELLOW)
    code = {"PROVEN": 0, "ATTESTED": 0 if accept == "attested" else 3, "WRONG": 1}[verdict]
    if code:
        raise typer.Exit(code)


def check_certificate(file: Path) -> None:
    """Raise FileNotFoundError unless the file exists."""
    if not file.is_file():
        raise FileNotFoundError(f"{file} is not a file: pass a certificate, which wafl certify writes")


def read_data(folder: Path, run: "Run | None", data_dir: Path | None, *, held: bool = False) -> "Federation":
    """Return the clients of a study or run (with ``held``, the clients that took no part in training), or of files.

    The run preprocesses bytes in files.
    """
    from dataclasses import replace

    import torch

    from wafl.data.client_files import read_folder

    if (folder / "run.json").is_file() or (folder / "config.toml").is_file():
        seen, unseen = seen_and_unseen(load_runs(folder), folder, data_dir)
        if not held:
            return seen
        if unseen is None:
            raise ValueError(f"{folder} held no client out of training: give a study with data.unseen")
        return unseen
    prepare = None if run is None or run.intake.prepare.name == "none" else run.intake.prepare
    if prepare is not None and prepare.takes_numbers:
        return read_folder(folder).prepared_by(prepare)
    clients = read_folder(folder, preprocess=None if prepare is None else prepare.name)
    if prepare is None or clients.train.raw.dtype != torch.uint8:
        return clients  # numbers other than bytes are used unchanged
    return replace(clients.prepared_by(prepare), unit=prepare.unit, bounds=prepare.bounds)


def own_data(folder: Path, run: "Run | None", data_dir: Path | None) -> "Federation":
    """Return a site's own data, in the unit of the run if the files are not bytes, whose unit is known."""
    from dataclasses import replace

    clients = read_data(folder, run, data_dir)
    unit = None if run is None else run.settings.get("unit")
    return clients if unit is None or clients.unit != "input units" else replace(clients, unit=unit)


def audit(
    certificate: Annotated[Path, Argument(metavar="CERTIFICATE")],
    data: Annotated[Path, Option(metavar="FOLDER")],
    model: Annotated[Path, Option(metavar="RUN")],
    key: PublicKey = None,
    trust: Trust = False,
) -> None:
    """Measure the distance of your data from a certificate's data, label by label, and certify the loss on yours."""
    with reading(trust):
        check_certificate(certificate)
        check_signing(key, private=False)
        from wafl.cli.tables import audited
        from wafl.promises.audit import audit as look
        from wafl.promises.read import read_file
        from wafl.promises.verify import verify as check
        from wafl.weights.transport.costs import transport_package

        transport_package()
        read_file(certificate)
        run = only_run(model)[1]
        checked = check(certificate, model=run, key=key)
        if not checked.ok:
            raise ValueError(f"{certificate} has wrong lines: wafl verify {certificate} --model {model} shows them")
        result = look(certificate, run, read_data(data, run, None))
    make_console().print(audited(certificate, result))
    if key is None:
        say(UNSIGNED, typer.colors.YELLOW)
