"""``wafl evaluate``: saved runs under attack."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from typer import Option

from wafl.base.near import did_you_mean
from wafl.cli.shared import DataDir, StudyOrRun, Trust, load_seeds, parse_norm, parse_numbers, reading, seen_and_unseen

if TYPE_CHECKING:
    from wafl.attacks import Attack

ATTACKS = ("none", "pgd", "fgsm", "wasserstein", "autoattack")
SHIFTS = (
    "affine", "rotation", "translation", "gaussian_noise", "shot_noise", "blur", "occlusion", "inversion", "label_shift"
)  # fmt: skip


def evaluate(
    run: StudyOrRun,
    attack: Annotated[
        str,
        Option(
            help=f"What happens to attacked clients: {', '.join((*ATTACKS, *SHIFTS))}; or your own module:function of "
            "(model, x, y) in this folder."
        ),
    ] = "pgd",
    epsilon: Annotated[
        str, Option(help="pgd, fgsm, autoattack: the size, in the unit of the data; several with commas.")
    ] = "0.1",
    step_size: Annotated[float | None, Option(help="pgd: the length of a step. Default: 2.5 epsilon / steps.")] = None,
    steps: Annotated[int, Option(min=1, help="pgd: ascent steps.")] = 40,
    norm: Annotated[
        str | None,
        Option(help="The norm of the size: 2 or inf (wasserstein: 1, 2 or inf). Default: inf; wasserstein: 2."),
    ] = None,
    bounds: Annotated[
        str,
        Option(
            metavar="data|none|LOW,HIGH",
            help="Where moved examples must stay: data (what the data declare), none (anywhere), or a box.",
        ),
    ] = "data",
    radius: Annotated[str, Option(help="wasserstein: the size of the shift; several with commas.")] = "1.0",
    space: Annotated[
        str | None, Option(help="pgd, fgsm, wasserstein: the layer whose output is attacked, not the inputs.")
    ] = None,
    severity: Annotated[str, Option(help="Shifts: how strong, where 0 changes nothing; several with commas.")] = "0.5",
    attacked: Annotated[str, Option(help="Shares of the clients that are attacked, with commas.")] = "0.2,0.4,0.6,0.8",
    seed: Annotated[int, Option(min=0, help="Decides which clients are attacked.")] = 0,
    data_dir: DataDir = None,
    output: Annotated[
        Path | None, Option(help="Folder for comparison.csv and comparison.json. Default: that of the study or run.")
    ] = None,
    trust: Trust = False,
) -> None:
    """Test saved runs on their clients' held-out data while a share of the clients is attacked.

    Prints one row per method, attack and share, with the mean and deviation over the seeds that did not diverge, and
    writes one row per run to comparison.csv and comparison.json. Clients that were held out of training are tested too.
    """
    from wafl.base.bounds import read_bounds
    from wafl.cli.terminal import make_console

    with reading(trust):
        _check_attack(attack, space)
        shares = parse_numbers("attacked", attacked)
        said: dict[str, Any] = {"bounds": read_bounds(bounds)}
        if norm is not None:
            said["norm"] = parse_norm(norm)
        methods = load_seeds(run)
        from wafl.evaluation.compare import compare

        every = {name: each for seeds in methods.values() for name, each in seeds.items()}
        clients, unseen = seen_and_unseen(every, run, data_dir)
        sizes = {"epsilon": epsilon, "radius": radius, "severity": severity}
        pace = {"step_size": step_size, "steps": steps}
        attacks: list[Attack | None] = [None, *_attacks(attack, sizes, pace, said, space)]
        comparison = compare(
            {name: list(seeds.values()) for name, seeds in methods.items()},
            clients,
            attacks=attacks,
            attacked=shares,
            unseen=unseen,
            seed=seed,
        )
        comparison.save(output or run)
    console = make_console()
    console.print(comparison)
    console.print(f"Numbers: {(output or run) / 'comparison.csv'} and comparison.json", markup=False)


def _check_attack(name: str, space: str | None) -> None:
    known = (*ATTACKS, *SHIFTS)
    if ":" not in name and name not in known:
        hint = did_you_mean(name, known) or f": use one of {', '.join(known)}, or module:function"
        raise ValueError(f"unknown attack {name!r}{hint}")
    if space is not None and name not in ("pgd", "fgsm", "wasserstein"):
        raise ValueError(f"--space {space} needs --attack pgd, fgsm or wasserstein, not {name}")


def _attacks(
    name: str, sizes: dict[str, str], pace: dict[str, Any], said: dict[str, Any], space: str | None
) -> list[Attack]:
    """One attack per size; ``said`` are its norm, if it was given, and its bounds."""
    from wafl import FGSM, PGD, WassersteinShift, shifts

    def each(size: str, make: Callable[[float], Attack]) -> list[Attack]:
        return [make(number) for number in parse_numbers(size, sizes[size])]

    if name == "none":
        return []
    if name == "pgd":
        return each("epsilon", lambda size: PGD(size, **pace, **said, space=space))
    if name == "fgsm":
        return each("epsilon", lambda size: FGSM(size, **said, space=space))
    if name == "wasserstein":
        return each("radius", lambda size: WassersteinShift(size, **said, space=space))
    if name == "autoattack":
        from wafl.attacks.autoattack import AutoAttack

        return each("epsilon", lambda size: AutoAttack(epsilon=size, **said))
    if name == "label_shift":
        return each("severity", lambda size: shifts.label_shift(severity=size))
    if ":" in name:
        from wafl.attacks import OwnAttack
        from wafl.config.own_code import imported, own_code

        with own_code(Path.cwd(), [name], trust=True):
            return [OwnAttack(imported("--attack", name), name)]
    return each("severity", lambda size: getattr(shifts, name)(severity=size, bounds=said["bounds"]))
