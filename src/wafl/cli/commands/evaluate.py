"""``wafl evaluate``: saved runs under attack."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from typer import Option

from wafl.cli.method_options import attack_options, read_options, with_attack_options
from wafl.cli.shared import StudyOrRun, Trust, load_seeds, parse_numbers, reading, seen_and_unseen
from wafl.cli.terminal import make_console
from wafl.config.known import known_attacks, unknown_attack

if TYPE_CHECKING:
    from wafl.attacks import Attack

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
    """Test saved runs on their clients' held-out data while a share of the clients is attacked."""
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
    """Return the options of the attack once per size that is given; raise ValueError if it lacks one of them."""
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
    """Make the attack once per setting."""
    if ":" in name:
        from wafl.attacks import OwnAttack
        from wafl.config.own_code import imported, own_code

        with own_code(Path.cwd(), [name], trust=True):
            return [OwnAttack(imported("--attack", name), name)]
    from wafl.attacks import ATTACKS
    from wafl.shifts import SHIFTS

    return [{**ATTACKS, **SHIFTS}[name](**each) for each in settings]
