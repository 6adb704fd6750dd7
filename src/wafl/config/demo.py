"""What ``wafl run`` trains without a file: WAFL and its six rivals on handwritten digits."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from wafl.base.checks import check_positive
from wafl.config.known_methods import known_method, known_methods

if TYPE_CHECKING:
    from wafl.config.experiment import Experiment

SHARES = (0.2, 0.4, 0.6, 0.8)
"""The paper's shares of attacked clients."""

# Chosen with FedAvg's model alone, before any other was looked at: both cost it much, and not everything.
UNSEEN, SHIFT, RADIUS = 0.25, {"unseen_shift": "gaussian_noise", "unseen_severity": 0.3}, 0.1

# Chosen by research/tune_demo.py: the best of 32 trials each, on other partitions, in the norm of the certificate.
CHOSEN: dict[str, dict[str, Any]] = {
    "WAFL": {"gamma": 11.9, "norm": 2.0, "learning_rate": 1.17},
    "FedAvg": {"learning_rate": 1.78},
    "FedPGM": {"epsilon": 0.107, "norm": 2.0, "learning_rate": 1.56},
    "FedFGSM": {"epsilon": 0.0696, "norm": 2.0, "learning_rate": 1.81},
    "FedRobust": {"penalty": 780.0, "step_size": 0.000952, "learning_rate": 1.74},
    "AFL": {"weights_step": 9.62e-05, "learning_rate": 1.24},
    "DRFA": {"weights_step": 0.0803, "learning_rate": 0.935},
}


def schedule_of(method: str, rounds: int, cohort: int | None, local_epochs: int = 2) -> dict[str, Any]:
    """The schedule of a method; AFL takes one step per round, and so gets as many rounds as the others take steps."""
    from wafl.methods import METHODS

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
    epsilon: float | None = None,
    seeds: Sequence[int] = range(5),
    device: str = "cpu",
    engine: str = "embedded",
) -> "Experiment":
    """The demo as an experiment; ``options`` go to WAFL, or to the methods that are named."""
    options = options or {}
    names = [known_method(method).name for method in methods] or list(CHOSEN)
    for name in names if methods else ["WAFL"]:
        _check(name, options)
    if model not in ("mlr", "cnn"):
        raise ValueError(f"unknown model {model!r}: use one of mlr, cnn")
    if learning_rate is not None:
        check_positive("learning_rate", learning_rate)

    from wafl.config.read import parse_experiment  # only now, so that refusals need no torch

    entries: list[dict[str, Any]] = []
    for name in names:
        own = dict(CHOSEN.get(name, {"learning_rate": 0.1}))
        tuned = own.pop("learning_rate")
        rate = tuned if learning_rate is None else learning_rate
        chosen = _changed(name, own, options) if methods or name == "WAFL" else own
        schedule = schedule_of(name, rounds, min(cohort, clients), local_epochs)
        if schedule["rounds"] == rounds:
            del schedule["rounds"]  # it is that of all, which wafl resume can raise
        entries.append({"method": name, **chosen, **schedule, "learning_rate": rate, "batch_size": batch_size})
    content = {
        "name": "digits",
        "seeds": list(seeds),
        "device": device,
        "engine": engine,
        # A round takes a few milliseconds, about as long as a checkpoint; on Flower it takes seconds.
        "checkpoint_every": 10 if engine == "embedded" else 1,
        "data": {
            "num_clients": clients,
            "labels_per_client": labels_per_client,
            "seed": seeds[0],
            "unseen": UNSEEN,
            **SHIFT,
        },
        "model": {"kind": model},
        "schedule": {"rounds": rounds},
        "methods": entries,
        "attack": {"kind": "none"} if epsilon is None else {"epsilon": epsilon, "step_size": 0.01},
        "evaluation": {"attacked": list(SHARES), **({"certified": RADIUS} if model == "mlr" else {})},
    }
    return parse_experiment(content, "command line")


def _check(name: str, options: dict[str, Any]) -> None:
    """Refuse options that a method does not have, and values outside their range."""
    known = known_method(name).options
    for option, value in options.items():
        if option not in known:
            owners = [method.name.lower() for method in known_methods().values() if option in method.options]
            remedy = f"choose a method that has it, --method {' or '.join(owners)}"
            raise ValueError(f"{name} has no option {option!r}: {remedy}")
        known[option].check(value)


def _changed(name: str, own: dict[str, Any], options: dict[str, Any]) -> dict[str, Any]:
    """A method's options with those of the command line."""
    from wafl.methods import METHODS

    kept = {key: value for key, value in own.items() if key != "gamma" or "radius" not in options}
    METHODS[name](**{**kept, **options})
    return {**kept, **{option: _plain(option, value) for option, value in options.items()}}


def _plain(option: str, value: Any) -> Any:
    """The value as an experiment file has it."""
    if option != "bounds":
        return value
    return "none" if value is None else value if isinstance(value, str) else list(value)
