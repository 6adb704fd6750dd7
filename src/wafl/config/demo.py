"""Define the demo of ``wafl run``: WAFL and six rivals on handwritten digits, attacked at test time."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from wafl.base.checks import check_positive
from wafl.config.known import known_method, known_methods
from wafl.config.toml_file import read_toml

if TYPE_CHECKING:
    from wafl.config.experiment import Experiment

DEMO = read_toml(Path(__file__).with_name("demo.toml"))
EPSILON, STEPS = DEMO["attack"]["epsilon"], DEMO["attack"]["steps"]
CHOSEN: dict[str, dict[str, Any]] = {
    entry["method"]: {name: value for name, value in entry.items() if name != "method"} for entry in DEMO["methods"]
}
"""The options of each method, by its name."""


def demo_experiment(
    *,
    methods: Sequence[str] = (),
    options: dict[str, Any] | None = None,
    learning_rate: float = 1.0,
    rounds: int = 150,
    cohort: int | None = None,
    local_epochs: int | None = None,
    batch_size: int = 32,
    model: str = "mlr",
    clients: int = 40,
    labels_per_client: int = 3,
    epsilon: float = EPSILON,
    seeds: Sequence[int] = range(3),
    device: str = "cpu",
    engine: str = "embedded",
) -> "Experiment":
    """Return the demo as an experiment; ``options`` go to WAFL, or to the named methods.

    Every client takes one step per round, or ``local_epochs`` passes over its examples. AFL always takes one step.
    """
    options = options or {}
    names = [known_method(method).name for method in methods] or list(CHOSEN)
    for name in names if methods else ["WAFL"]:
        _check(name, options)
    if model not in ("mlr", "cnn"):
        raise ValueError(f"unknown model {model!r}: use one of mlr, cnn")
    check_positive("learning_rate", learning_rate)

    from wafl.config.read import parse_experiment  # only now, so that refusals need no torch

    entries: list[dict[str, Any]] = []
    for name in names:
        chosen = CHOSEN.get(name, {})
        entries.append({"method": name, **(_changed(name, chosen, options) if methods or name == "WAFL" else chosen)})
        if local_epochs is not None and name == "AFL":  # it takes one step per round, and so gets more rounds
            entries[-1] |= {"rounds": 2 * local_epochs * rounds}
    content = {
        **DEMO,
        "seeds": list(seeds),
        "device": device,
        "engine": engine,
        # A round takes a few milliseconds, about as long as a checkpoint; on Flower it takes seconds.
        "checkpoint_every": 10 if engine == "embedded" else 1,
        "data": {
            **DEMO["data"],
            "num_clients": clients,
            "labels_per_client": labels_per_client,
            "seed": seeds[0],
        },
        "model": {"kind": model},
        "schedule": {
            "rounds": rounds,
            "batch_size": batch_size,
            "learning_rate": learning_rate,
            **({"local_steps": 1} if local_epochs is None else {"local_epochs": local_epochs}),
            **({} if cohort is None else {"cohort": min(cohort, clients)}),
        },
        "methods": entries,
        "attack": {**DEMO["attack"], "epsilon": epsilon},
    }
    if model != "mlr":
        content["evaluation"] = {"attacked": DEMO["evaluation"]["attacked"]}
    return parse_experiment(content, "command line")


def _check(name: str, options: dict[str, Any]) -> None:
    """Raise ValueError for options that the method does not have, and for values outside their range."""
    known = known_method(name).options
    for option, value in options.items():
        if option not in known:
            owners = [method.name.lower() for method in known_methods().values() if option in method.options]
            remedy = f"choose a method that has it, --method {' or '.join(owners)}"
            raise ValueError(f"{name} has no option {option!r}: {remedy}")
        known[option].check(value)


def _changed(name: str, chosen: dict[str, Any], options: dict[str, Any]) -> dict[str, Any]:
    """Return a method's chosen options, overridden by ``options`` from the command line; a gamma replaces a radius."""
    from wafl.methods import METHODS

    kept = {key: value for key, value in chosen.items() if key != "radius" or "gamma" not in options}
    METHODS[name](**{key: value for key, value in {**kept, **options}.items() if key != "weight_decay"})
    return {**kept, **{option: _plain(option, value) for option, value in options.items()}}


def _plain(option: str, value: Any) -> Any:
    """Convert a value to its form in an experiment file."""
    if option != "bounds":
        return value
    return "none" if value is None else value if isinstance(value, str) else list(value)
