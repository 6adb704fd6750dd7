"""``wafl evaluate``: saved runs under attack."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from typer import Option

from wafl.base.near import did_you_mean
from wafl.cli.shared import StudyOrRun, Trust, load_seeds, parse_norm, parse_numbers, reading, seen_and_unseen

if TYPE_CHECKING:
    from wafl.attacks import Attack

SPACES = ("pgd", "fgsm", "wasserstein")
"""The attacks that can move a layer's output."""
ATTACKS = ("none", *SPACES, "autoattack")
SHIFTS = (
    "affine", "rotation", "translation", "gaussian_noise", "shot_noise", "blur", "occlusion", "inversion", "label_shift"
)  # fmt: skip


def evaluate(
    run: StudyOrRun,
    attack: str = "pgd",
    epsilon: str = "0.1",
    step_size: float | None = None,
    steps: Annotated[int, Option(min=1)] = 40,
    norm: str | None = None,
    bounds: Annotated[str, Option(metavar="data|none|LOW,HIGH")] = "data",
    radius: str = "1.0",
    space: str | None = None,
    severity: str = "0.5",
    attacked: str = "0.2,0.4,0.6,0.8",
    seed: Annotated[int, Option(min=0)] = 0,
    data_dir: Path | None = None,
    output: Path | None = None,
    trust: Trust = False,
) -> None:
    """Test saved runs on their clients' held-out data while a share of the clients is attacked."""
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
    if space is not None and name not in SPACES:
        raise ValueError(f"--space {space} needs --attack pgd, fgsm or wasserstein, not {name}")
    if name == "autoattack":
        from wafl.attacks.autoattack import autoattack_package

        autoattack_package()


def _attacks(
    name: str, sizes: dict[str, str], pace: dict[str, Any], said: dict[str, Any], space: str | None
) -> list[Attack]:
    """One attack per size; ``said`` are its norm, if it was given, and its bounds."""
    from wafl import FGSM, PGD, WassersteinShift, shifts

    if name == "none":
        return []
    if ":" in name:
        from wafl.attacks import OwnAttack
        from wafl.config.own_code import imported, own_code

        with own_code(Path.cwd(), [name], trust=True):
            return [OwnAttack(imported("--attack", name), name)]
    if name == "autoattack":
        from wafl.attacks.autoattack import AutoAttack

        size, make = "epsilon", partial(AutoAttack, **said)
    elif name in SPACES:
        size = "radius" if name == "wasserstein" else "epsilon"
        kinds = {"pgd": partial(PGD, **pace), "fgsm": FGSM, "wasserstein": WassersteinShift}
        make = partial(kinds[name], **said, space=space)
    else:
        bounds = {} if name == "label_shift" else {"bounds": said["bounds"]}
        size, make = "severity", partial(getattr(shifts, name), **bounds)
    return [make(**{size: number}) for number in parse_numbers(size, sizes[size])]
