"""What ``wafl run`` trains without a file: WAFL and its six rivals on handwritten digits."""

import math
from collections.abc import Sequence
from typing import Any

from wafl.base.checks import check_positive
from wafl.base.near import did_you_mean
from wafl.base.options import options_of
from wafl.config.experiment import Experiment
from wafl.config.read import parse_experiment
from wafl.methods import METHODS

SHARES = (0.2, 0.4, 0.6, 0.8)
"""The paper's shares of attacked clients."""

# Chosen by benchmarks/tune_demo.py, the norm too: the attack bounds every pixel alike.
CHOSEN: dict[str, dict[str, Any]] = {
    "WAFL": {"gamma": 37.2, "norm": math.inf, "learning_rate": 0.125},
    "FedAvg": {"learning_rate": 0.0825},
    "FedPGM": {"epsilon": 0.174, "learning_rate": 0.257},
    "FedFGSM": {"epsilon": 0.174, "learning_rate": 0.257},
    "FedRobust": {"penalty": 30.0, "learning_rate": 0.1},
    "AFL": {"weights_step": 0.00017, "learning_rate": 0.0309},
    "DRFA": {"weights_step": 0.142, "learning_rate": 0.0232},
}


def schedule_of(method: str, rounds: int, cohort: int | None, local_epochs: int = 2) -> dict[str, Any]:
    """The schedule of a method; AFL takes one step per round, and so gets as many rounds as the others take steps."""
    if method == "AFL":
        return {"rounds": 2 * local_epochs * rounds, "local_steps": 1}
    common = {"rounds": rounds, "local_epochs": local_epochs}
    return common if cohort is None or METHODS[method]().client_weights.asks_everyone else {**common, "cohort": cohort}


def demo_experiment(
    *,
    methods: Sequence[str] = (),
    options: dict[str, Any] | None = None,
    learning_rate: float | None = None,
    rounds: int = 100,
    cohort: int = 10,
    local_epochs: int = 2,
    batch_size: int = 64,
    model: str = "mlr",
    clients: int = 20,
    labels_per_client: int = 3,
    epsilon: float = 0.15,
    seeds: Sequence[int] = range(5),
    device: str = "cpu",
    engine: str = "embedded",
) -> Experiment:
    """The demo as an experiment; ``options`` go to WAFL, or to the methods that are named."""
    options = options or {}
    entries: list[dict[str, Any]] = []
    for name in [_known(method) for method in methods] or list(CHOSEN):
        own = dict(CHOSEN.get(name, {"learning_rate": 0.1}))
        tuned = own.pop("learning_rate")
        rate = tuned if learning_rate is None else learning_rate
        check_positive("learning_rate", rate)
        chosen = _changed(name, own, options) if methods or name == "WAFL" else own
        schedule = schedule_of(name, rounds, min(cohort, clients), local_epochs)
        if schedule["rounds"] == rounds:
            del schedule["rounds"]  # it is that of all, which wafl resume can raise
        entries.append({"method": name, **chosen, **schedule, "learning_rate": rate, "batch_size": batch_size})
    if model not in ("mlr", "cnn"):
        raise ValueError(f"unknown model {model!r}: use one of mlr, cnn")
    content = {
        "name": "digits",
        "seeds": list(seeds),
        "device": device,
        "engine": engine,
        # A round takes a few milliseconds, about as long as a checkpoint; on Flower it takes seconds.
        "checkpoint_every": 10 if engine == "embedded" else 1,
        "data": {"num_clients": clients, "labels_per_client": labels_per_client, "seed": seeds[0]},
        "model": {"kind": model},
        "schedule": {"rounds": rounds},
        "methods": entries,
        "attack": {"epsilon": epsilon, "step_size": 0.01},
        "evaluation": {"attacked": list(SHARES)},
    }
    return parse_experiment(content, "command line")


def _known(name: str) -> str:
    for method in METHODS:
        if method.lower() == name.lower():
            return method
    names = [method.lower() for method in METHODS]
    hint = did_you_mean(name, names) or f": use one of {', '.join(names)}"
    raise ValueError(f"unknown method {name!r}{hint}")


def _changed(name: str, own: dict[str, Any], options: dict[str, Any]) -> dict[str, Any]:
    """A method's options with those of the command line, which it must have."""
    known = options_of(METHODS[name].options)
    for option, value in options.items():
        if option not in known:
            owners = [method.lower() for method in METHODS if option in options_of(METHODS[method].options)]
            remedy = f"choose a method that has it, --method {' or '.join(owners)}"
            raise ValueError(f"{name} has no option {option!r}: {remedy}")
        known[option].check(value)
    kept = {key: value for key, value in own.items() if key != "gamma" or "radius" not in options}
    METHODS[name](**{**kept, **options})
    return {**kept, **{option: _plain(option, value) for option, value in options.items()}}


def _plain(option: str, value: Any) -> Any:
    """The value as an experiment file has it."""
    if option != "bounds":
        return value
    return "none" if value is None else value if isinstance(value, str) else list(value)
