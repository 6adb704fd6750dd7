"""Implement commands on saved runs: ``wafl evaluate``, ``theory`` and ``export``."""

from __future__ import annotations

import math
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, cast

from typer import Argument, Option

from wafl.base.bounds import check_box
from wafl.cli.method_options import attack_options, read_options, with_attack_options
from wafl.cli.saved import load_runs, load_seeds, only_run, seen_and_unseen
from wafl.cli.terminal import StudyOrRun, Trust, make_console, parse_norm, parse_numbers, reading, tell
from wafl.config.known import known_attacks, unknown_attack

if TYPE_CHECKING:
    from wafl.attacks import Attack
    from wafl.results.export import Format
    from wafl.theory import Certificates, Concentration


KINDS = ("none", *known_attacks())
OWN = "or your own module:function of (model, x, y) in this folder"
ATTACK = f"What happens to attacked clients: {', '.join(KINDS)}; {OWN}."


@with_attack_options
def evaluate(
    run: StudyOrRun,
    attack: Annotated[str, Option(help=ATTACK)] = "pgd",
    attacked: str = "0.2,0.4,0.6,0.8",
    seed: Annotated[int, Option(min=0)] = 0,
    data_dir: Path | None = None,
    output: Path | None = None,
    trust: Trust = False,
    *,
    options: dict[str, Any],
) -> None:
    """Test saved runs on held-out data while a share of the clients is attacked."""
    with reading(trust):
        settings = _settings(attack, options)
        shares = parse_numbers("attacked", attacked)
        methods = load_seeds(run)
        attacks = _attacks(attack, settings)
        from wafl.evaluation.compare import compare

        every = {name: each for seeds in methods.values() for name, each in seeds.items()}
        clients, unseen = seen_and_unseen(every, run, data_dir)
        comparison = compare(
            {name: list(seeds.values()) for name, seeds in methods.items()},
            clients,
            attacks=[None, *attacks],
            attacked=shares,
            unseen=unseen,
            seed=seed,
        )
        comparison.save(output or run)
    console = make_console()
    console.print(comparison)
    console.print(f"Numbers: {(output or run) / 'comparison.csv'} and comparison.json", markup=False)


def _settings(attack: str, options: dict[str, Any]) -> list[dict[str, Any]]:
    """Return the attack's options once per given size; raise ValueError if it lacks one of them."""
    if ":" not in attack and attack not in KINDS:
        raise ValueError(f"{unknown_attack(attack, KINDS)}, or module:function")
    owners = attack_options()
    for name in options:
        if attack not in owners[name]:
            flag = f"--{name.replace('_', '-')}"
            raise ValueError(f"{flag} is an option of --attack {', '.join(owners[name])}, not of {attack}")
    known = known_attacks().get(attack)
    if known is None:
        return []
    known.check_package()
    others = read_options({name: value for name, value in options.items() if name != known.size}, owners)
    size = known.options[known.size]
    sizes = parse_numbers(known.size, options[known.size]) if known.size in options else [size.default]
    return [{known.size: each, **others} for each in sizes]


def _attacks(name: str, settings: list[dict[str, Any]]) -> list[Attack]:
    """Build the attack once per setting."""
    if ":" in name:
        from wafl.attacks import OwnAttack
        from wafl.config.own_code import imported, own_code

        with own_code(Path.cwd(), [name], trust=True):
            return [OwnAttack(imported("--attack", name), name)]
    from wafl.attacks import ATTACKS
    from wafl.shifts import SHIFTS

    return [{**ATTACKS, **SHIFTS}[name](**each) for each in settings]


def theory(
    run: StudyOrRun,
    radii: str = "0,0.1,0.25,0.5,1,2",
    norm: str = "2",
    metric: str = "loss",
    gamma: float | None = None,
    radius: float | None = None,
    params_radius: float | None = None,
    data_bounds: str | None = None,
    label_cost: float | None = None,
    delta: float = 0.05,
    c1: float | None = None,
    c2: float | None = None,
    alpha: float = 3.0,
    target_distance: float | None = None,
    target_examples: int | None = None,
    data_dir: Path | None = None,
    output: Path | None = None,
    trust: Trust = False,
) -> None:
    """Print the promises, certificates and bounds of saved runs, and draw the certificates."""
    console = make_console()
    with reading(trust):
        runs = load_runs(run)
        from wafl.cli.tables import promises, theory_of
        from wafl.theory import certify, summarize
        from wafl.theory.certificates.certificate import plot_certificates
        from wafl.theory.summary import promised

        clients, unseen = seen_and_unseen(runs, run, data_dir)
        sizes, ground = parse_numbers("radii", radii), parse_norm(norm)
        concentration = _concentration(c1, c2, alpha, clients.train.shape)
        bounds: dict[str, Certificates] = {}
        for name, each in runs.items():
            summary = summarize(
                each,
                clients,
                gamma=gamma,
                radius=radius,
                params_radius=params_radius,
                data_bounds=None if data_bounds is None else check_box(parse_numbers("data_bounds", data_bounds)),
                label_cost=label_cost,
                delta=delta,
                concentration=concentration,
                target_distance=target_distance,
                target_examples=target_examples,
            )
            price = math.inf if label_cost is None else label_cost
            bounds[name] = certify(each, clients, radii=sizes, norm=ground, metric=cast(Any, metric), label_cost=price)
            middle = len(sizes) // 2
            tell(f"{name}:\n{bounds[name]}\n")
            rows = promised(each, clients, unseen, bounds[name], middle, delta)
            console.print(promises(name, bounds[name], sizes[middle], rows))
            console.print(theory_of(name, each, summary))
        folder = output or run
        folder.mkdir(parents=True, exist_ok=True)
        plot_certificates(bounds, folder / "certificates.png")
    console.print(f"Figure: {folder / 'certificates.png'}", markup=False)


def _concentration(c1: float | None, c2: float | None, alpha: float, shape: tuple[int, ...]) -> Concentration | None:
    from wafl.theory import Concentration

    if c1 is None and c2 is None:
        return None
    if c1 is None or c2 is None:
        raise ValueError("pass --c1 and --c2 together: the bound needs both")
    return Concentration(c1, c2, alpha, math.prod(shape))


FORMATS = ("safetensors", "pt2", "onnx")


def export(
    run: Annotated[Path, Argument(metavar="RUN|STUDY")],
    format: Annotated[str, Option()],
    output: Path | None = None,
    data_dir: Path | None = None,
    trust: Trust = False,
) -> None:
    """Write a model that takes raw examples, or a model card, to a new file or folder."""
    with reading(trust):
        if format == "card":
            written = _write_card(run, output, data_dir)
        else:
            written = _export_model(run, cast("Format", format), output, data_dir)
    tell(f"Written: {written}")


def _export_model(folder: Path, format: Format, output: Path | None, data_dir: Path | None) -> Path:
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
    """Test the run on seen and unseen clients, with and without an attack, certify it, and write the card."""
    from wafl import PGD, certify, evaluate
    from wafl.base.errors import PreconditionError

    name, run = only_run(folder)
    clients, unseen = seen_and_unseen({name: run}, folder, data_dir)
    attacks = [None] if clients.num_classes is None else [None, PGD(epsilon=0.1)]
    scores = [evaluate(run, clients, attack=attack, unseen=unseen) for attack in attacks]
    try:
        certificate = certify(run, clients, radii=[0.1, 0.25, 0.5], achieved=False, progress=False).published
    except PreconditionError:
        certificate = None  # the card explains why
    home = folder if (folder / "run.json").exists() else folder / name
    return run.card(output or home / "card", scores=scores, certificate=certificate)
