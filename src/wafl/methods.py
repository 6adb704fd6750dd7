"""A method is an adversary, client weights, a server and a local step; the named ones are presets of these.

A preset is a dataclass that inherits the options of its parts, so each option is written once, where it is used. The
experiment file, the command line and the schema are made from the same fields (:func:`wafl.core.options.options_of`).
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass, fields, is_dataclass, replace
from typing import Annotated, Any, Generic, ParamSpec, Protocol

from wafl.adversaries import Adversary, Affine, BoundedAscent, ProjectedAscent, Wasserstein
from wafl.algorithms.choices import Served, Stepped, Weighted, part
from wafl.algorithms.local import LocalStep, sgd
from wafl.algorithms.local.control_variates import SCAFFOLD as SCAFFOLD_OPTIONS
from wafl.algorithms.local.prox import FedProx as FedProxOptions
from wafl.algorithms.servers import Optimizer, Server, averaging
from wafl.algorithms.servers.adam import FedAdam as FedAdamOptions
from wafl.algorithms.servers.momentum import FedAvgM as FedAvgMOptions
from wafl.algorithms.servers.yogi import FedYogi as FedYogiOptions
from wafl.core.options import EachRound, Positive
from wafl.weights import ClientWeights, Learned, StepSize, agnostic, by_examples, snapshot

P = ParamSpec("P")
AVERAGING, DESCENT = averaging(), sgd()


@dataclass(frozen=True)
class Method:
    """Any adversary with any client weights, any server and any local step.

    Args:
        name: what results call it.
        adversary: moves each example before the gradient is taken (:mod:`wafl.adversaries`); None moves none.
        client_weights: where the ball is centered (:mod:`wafl.weights`).
        server: what becomes of the clients' models (:mod:`wafl.servers`); an optimizer is given the clients' mean.
        local: what clients do with a gradient (:mod:`wafl.local`).

    >>> import wafl
    >>> wafl.Method("mine", wafl.adversaries.wasserstein(gamma=0.5), wafl.weights.snapshot(0.01)).name
    'mine'
    """

    name: str
    adversary: Adversary | None
    client_weights: ClientWeights
    server: Server = AVERAGING
    local: LocalStep = DESCENT

    def __post_init__(self) -> None:
        if isinstance(self.server, Optimizer):
            object.__setattr__(self, "server", averaging(self.server))
        kinds: tuple[tuple[str, Any, str], ...] = (
            ("client_weights", ClientWeights, "use wafl.weights.fixed([...]), uniform() or by_examples()"),
            ("server", Server, "use one of wafl.servers, such as adam(0.01)"),
            ("local", LocalStep, "use one of wafl.local, such as prox(0.1)"),
        )
        for slot, kind, remedy in kinds:
            value = getattr(self, slot)
            if isinstance(value, type) or not isinstance(value, kind):
                raise TypeError(f"{slot}={value!r} does not implement {kind.__name__}: {remedy}, or write your own")
        if self.adversary is not None and not callable(self.adversary):
            raise TypeError(f"adversary={self.adversary!r} cannot be called: use one of wafl.adversaries, or None")

    def options(self) -> list[str]:
        """What :func:`wafl.sweep` may vary of this method."""
        return list(dict.fromkeys([*self._owners(), "client_weights", "server", "local"]))

    def with_options(self, **changes: Any) -> Method:
        """The same method with other options of its parts, or other parts."""
        owners, parts = self._owners(), dict[str, dict[str, Any]]()
        whole = {name: value for name, value in changes.items() if name in ("client_weights", "server", "local")}
        for name, value in changes.items():
            if name not in self.options():
                raise ValueError(f"{self.name} has no option {name!r}; it has: {', '.join(self.options())}")
            if name not in whole:
                slot, own = owners[name]
                parts.setdefault(slot, {})[own] = value
        changed = {slot: _changed(self._part(slot), options) for slot, options in parts.items()}
        if "optimizer" in changed:
            changed["server"] = replace(self.server, optimizer=changed.pop("optimizer"))  # pyright: ignore
        return replace(self, **{**changed, **whole})

    def _part(self, slot: str) -> Any:
        return getattr(self.server, "optimizer", None) if slot == "optimizer" else getattr(self, slot)

    def _owners(self) -> dict[str, tuple[str, str]]:
        """By the name of each option: the part that has it, and what the part calls it."""
        found: dict[str, tuple[str, str]] = {}
        for slot in ("adversary", "local", "optimizer"):
            part = self._part(slot)
            for field in fields(part) if is_dataclass(part) else ():
                found.setdefault(field.name, (slot, field.name))
        if isinstance(self.client_weights, Learned):
            found["weights_step"] = ("client_weights", "step_size")
        return found


def _changed(part: Any, options: dict[str, Any]) -> Any:
    """A part may have rules for its own options, as :meth:`Wasserstein.changed` has for gamma and radius."""
    own = getattr(part, "changed", None)
    return replace(part, **options) if own is None else own(**options)


class Options(Protocol):
    """A dataclass of a method's options."""

    def parts(self) -> dict[str, Any]:
        """The parts of the method that these options decide."""
        ...


class Preset(Generic[P]):
    """A named method: called with its options, it gives a :class:`Method`."""

    def __init__(self, options: Any) -> None:
        self.options: type[Options] = options
        self.__name__ = self.__qualname__ = options.__name__
        self.__doc__ = options.__doc__
        self.__signature__ = inspect.signature(options).replace(return_annotation=Method)

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> Method:
        options = self.options(*args, **kwargs)
        chosen = {slot: getattr(options, slot, None) for slot in ("client_weights", "server", "local")}
        parts: dict[str, Any] = {"adversary": None, "client_weights": by_examples()}
        parts |= {slot: value for slot, value in chosen.items() if value is not None}
        return Method(self.__name__, **{**parts, **options.parts()})

    def __repr__(self) -> str:
        return f"wafl.{self.__name__}{self.__signature__}"


def preset(options: Callable[P, Options]) -> Preset[P]:
    return Preset(options)


@preset
@dataclass(frozen=True)
class FedAvg(Weighted, Served, Stepped):
    """Federated averaging: no adversary, and clients weighted by their examples."""

    def parts(self) -> dict[str, Any]:
        return {}


@preset
@dataclass(frozen=True)
class WAFL(Wasserstein, Weighted, Served, Stepped):
    """Wasserstein-robust federated learning: FedAvg on ``phi_gamma``.

    The options are those of :class:`wafl.adversaries.Wasserstein`. Without gamma and radius, gamma is 0.5, the paper's
    choice for MNIST.
    """

    def parts(self) -> dict[str, Any]:
        return {"adversary": part(self, Wasserstein)}


@preset
@dataclass(frozen=True)
class FedPGM(ProjectedAscent, Weighted, Served, Stepped):
    """FedAvg with adversarial training by projected gradient ascent; see :class:`wafl.adversaries.ProjectedAscent`."""

    def parts(self) -> dict[str, Any]:
        return {"adversary": part(self, ProjectedAscent)}


@preset
@dataclass(frozen=True)
class FedFGSM(BoundedAscent, Weighted, Served, Stepped):
    """FedAvg with adversarial training by one gradient step; see :class:`wafl.adversaries.BoundedAscent`."""

    def parts(self) -> dict[str, Any]:
        return {"adversary": part(self, BoundedAscent)}


@preset
@dataclass(frozen=True)
class FedRobust(Affine, Weighted, Served, Stepped):
    """FedAvg against an affine shift of each client's inputs, ascended along with the model."""

    def parts(self) -> dict[str, Any]:
        return {"adversary": part(self, Affine)}


@preset
@dataclass(frozen=True)
class AFL(Served, Stepped):
    """Agnostic federated learning: the worst mixture of the clients, all of them, one step per round."""

    weights_step: Annotated[StepSize, EachRound(Positive()), "How fast the client weights climb the losses."] = 0.1

    def parts(self) -> dict[str, Any]:
        return {"client_weights": agnostic(self.weights_step)}


@preset
@dataclass(frozen=True)
class DRFA(Served, Stepped):
    """Distributionally robust federated averaging: AFL with local steps and sampling."""

    weights_step: Annotated[StepSize, EachRound(Positive()), "How fast the client weights climb the losses."] = 0.01

    def parts(self) -> dict[str, Any]:
        return {"client_weights": snapshot(self.weights_step)}


FedProx = preset(FedProxOptions)
SCAFFOLD = preset(SCAFFOLD_OPTIONS)
FedAvgM = preset(FedAvgMOptions)
FedAdam = preset(FedAdamOptions)
FedYogi = preset(FedYogiOptions)

METHODS: dict[str, Preset[...]] = {
    method.__name__: method
    for method in (
        WAFL, FedAvg, FedPGM, FedFGSM, FedRobust, AFL, DRFA, FedProx, SCAFFOLD, FedAvgM, FedAdam, FedYogi,
    )
}  # fmt: skip
