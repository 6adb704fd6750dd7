"""A method is an adversary and a rule for the client weights; the named ones are presets."""

from __future__ import annotations

import math
from dataclasses import dataclass, fields, is_dataclass, replace
from typing import Any

from wafl.adversaries import Adversary, affine, fgsm, pgm, wasserstein
from wafl.adversaries.wasserstein import FIRST_GAMMA
from wafl.weights import ClientWeights, Learned, StepSize, agnostic, by_examples, snapshot


@dataclass(frozen=True)
class Method:
    """Any adversary with any client weights.

    >>> import wafl
    >>> wafl.Method("mine", wafl.adversaries.wasserstein(gamma=0.5), wafl.weights.snapshot(0.01)).name
    'mine'
    """

    name: str
    adversary: Adversary | None
    client_weights: ClientWeights

    def __post_init__(self) -> None:
        if not isinstance(self.client_weights, ClientWeights):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise TypeError(
                f"client_weights={self.client_weights!r} is no rule: use wafl.weights.fixed([...]), "
                "wafl.weights.uniform() or wafl.weights.by_examples()"
            )

    def options(self) -> list[str]:
        """What :func:`wafl.sweep` may vary of this method."""
        own = [field.name for field in fields(self.adversary)] if is_dataclass(self.adversary) else []
        return own + (["weights_step"] if isinstance(self.client_weights, Learned) else [])

    def with_options(self, **changes: Any) -> Method:
        """The same method with other options of its adversary, or another ``weights_step``."""
        for name in changes:
            if name not in self.options():
                known = ", ".join(self.options()) or "none"
                raise ValueError(f"{self.name} has no option {name!r}; it has: {known}")
        weights = self.client_weights
        if "weights_step" in changes and isinstance(weights, Learned):
            weights = replace(weights, step_size=changes.pop("weights_step"))
        adversary: Any = self.adversary
        if "gamma" in changes:
            if changes.get("radius") is not None:
                raise ValueError(
                    f"give gamma or radius, not both (gamma={changes['gamma']}, radius={changes['radius']})"
                )
            changes["radius"] = None
        elif changes.get("radius") is not None:
            changes["gamma"] = FIRST_GAMMA
        return replace(self, adversary=replace(adversary, **changes) if changes else adversary, client_weights=weights)


def FedAvg(*, client_weights: ClientWeights | None = None) -> Method:
    """Federated averaging: no adversary, clients weighted by their examples."""
    return Method("FedAvg", None, client_weights or by_examples())


def WAFL(
    *,
    gamma: float | None = None,
    radius: float | None = None,
    norm: float = 2,
    power: int = 2,
    label_cost: float = math.inf,
    steps: int = 15,
    tolerance: float = 1e-3,
    restarts: int = 0,
    bounds: tuple[float, float] | None = None,
    strict: bool = False,
    client_weights: ClientWeights | None = None,
) -> Method:
    """Wasserstein-robust federated learning: FedAvg on ``phi_gamma``.

    The options are those of :func:`wafl.adversaries.wasserstein`. Without gamma and radius, gamma is 0.5, the
    paper's choice for MNIST.
    """
    adversary = wasserstein(
        gamma=0.5 if gamma is None and radius is None else gamma,
        radius=radius,
        norm=norm,
        power=power,
        label_cost=label_cost,
        steps=steps,
        tolerance=tolerance,
        restarts=restarts,
        bounds=bounds,
        strict=strict,
    )
    return Method("WAFL", adversary, client_weights or by_examples())


def FedPGM(
    *,
    epsilon: float = 0.1,
    step_size: float | None = None,
    steps: int = 10,
    norm: float = math.inf,
    random_start: bool = False,
    bounds: tuple[float, float] | None = None,
    client_weights: ClientWeights | None = None,
) -> Method:
    """FedAvg with adversarial training by projected gradient ascent."""
    adversary = pgm(
        epsilon=epsilon, step_size=step_size, steps=steps, norm=norm, random_start=random_start, bounds=bounds
    )
    return Method("FedPGM", adversary, client_weights or by_examples())


def FedFGSM(
    *,
    epsilon: float = 0.1,
    norm: float = math.inf,
    bounds: tuple[float, float] | None = None,
    client_weights: ClientWeights | None = None,
) -> Method:
    """FedAvg with adversarial training by one gradient step."""
    return Method("FedFGSM", fgsm(epsilon=epsilon, norm=norm, bounds=bounds), client_weights or by_examples())


def FedRobust(*, penalty: float = 1.0, step_size: float = 0.01, client_weights: ClientWeights | None = None) -> Method:
    """FedAvg against an affine shift of each client's inputs, ascended beside the model."""
    return Method("FedRobust", affine(penalty=penalty, step_size=step_size), client_weights or by_examples())


def AFL(*, weights_step: StepSize = 0.1) -> Method:
    """Agnostic federated learning: the worst mixture of the clients, all of them, one step a round."""
    return Method("AFL", None, agnostic(weights_step))


def DRFA(*, weights_step: StepSize = 0.01) -> Method:
    """Distributionally robust federated averaging: AFL with local steps and sampling."""
    return Method("DRFA", None, snapshot(weights_step))


METHODS = {method.__name__: method for method in (WAFL, FedAvg, FedPGM, FedFGSM, FedRobust, AFL, DRFA)}
