"""A method is an adversary, client weights, a server and a local step; the named methods are presets of these four.

A preset is a dataclass that inherits the options of its parts, so each option is written once, where it is used. The
experiment file, the command line and the schema are made from the same fields (:func:`wafl.core.options.options_of`).
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass, fields, is_dataclass, replace
from typing import Annotated, Any, Generic, ParamSpec, Protocol, get_type_hints

from wafl.adversaries import Adversary, Affine, BoundedAscent, ProjectedAscent, Wasserstein
from wafl.algorithms.choices import Served, Stepped, Weighted, part
from wafl.algorithms.local import LocalStep, sgd
from wafl.algorithms.local.control_variates import SCAFFOLD as SCAFFOLD_OPTIONS
from wafl.algorithms.local.prox import FedProx as FedProxOptions
from wafl.algorithms.servers import Optimizer, Server, averaging
from wafl.algorithms.servers.adam import FedAdam as FedAdamOptions
from wafl.algorithms.servers.momentum import FedAvgM as FedAvgMOptions
from wafl.algorithms.servers.yogi import FedYogi as FedYogiOptions
from wafl.core.bounds import Box, within
from wafl.core.options import EachRound, Option, Positive, check_options, options_of
from wafl.weights import ClientWeights, Learned, StepSize, agnostic, by_examples, snapshot

P = ParamSpec("P")
AVERAGING, DESCENT = averaging(), sgd()
PARTS = ("client_weights", "server", "local")
"""The parts of a method that can be replaced as a whole."""


@dataclass(frozen=True)
class Method:
    """Any adversary with any client weights, any server and any local step.

    Args:
        name: what results call the method.
        adversary: moves each example before the gradient is taken (:mod:`wafl.adversaries`); None moves none.
        client_weights: where the ball is centered (:mod:`wafl.weights`).
        server: what becomes of the clients' models (:mod:`wafl.servers`); an optimizer is given their mean.
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
        """What :func:`wafl.sweep` may vary: the options of the method's parts, and the parts themselves."""
        return list(dict.fromkeys([*self._owners(), *PARTS]))

    def with_options(self, **changes: Any) -> Method:
        """The same method with other parts, or other options of its parts.

        Args:
            changes: the new values, by the names that :meth:`options` lists; options apply to the new parts.
        """
        method = replace(self, **{name: value for name, value in changes.items() if name in PARTS})
        owners = method._owners()
        grouped: dict[str, dict[str, Any]] = {}
        for name, value in changes.items():
            if name in PARTS:
                continue
            if name not in owners:
                raise ValueError(f"{self.name} has no option {name!r}; it has: {', '.join(method.options())}")
            slot, own_name = owners[name]
            grouped.setdefault(slot, {})[own_name] = value
        changed = {slot: _changed(method._part(slot), options) for slot, options in grouped.items()}
        if "optimizer" in changed:
            changed["server"] = replace(method.server, optimizer=changed.pop("optimizer"))  # pyright: ignore
        return replace(method, **changed)

    def declared(self) -> dict[str, tuple[Option, Any]]:
        """What each option of the method's parts declares about itself, and its value."""
        found: dict[str, tuple[Option, Any]] = {}
        for name, (slot, own_name) in self._owners().items():
            owner = self._part(slot)
            try:
                found[name] = replace(options_of(type(owner))[own_name], name=name), getattr(owner, own_name)
            except NameError:  # your own part, whose annotations name what only its function knows
                continue
        return found

    def within(self, declared: Box | None) -> Method:
        """The same method on data that declare this box, which is where its adversary stays by default.

        Args:
            declared: the bounds of the data, if they have any.
        """
        return replace(self, adversary=within(self.adversary, declared))

    def _part(self, slot: str) -> Any:
        return getattr(self.server, "optimizer", None) if slot == "optimizer" else getattr(self, slot)

    def _owners(self) -> dict[str, tuple[str, str]]:
        """For each option, by name: the part that has it, and what the part calls it."""
        found: dict[str, tuple[str, str]] = {}
        for slot in ("adversary", "local", "optimizer"):
            owner = self._part(slot)
            for field in fields(owner) if is_dataclass(owner) else ():
                found.setdefault(field.name, (slot, field.name))
        if isinstance(self.client_weights, Learned):
            found["weights_step"] = ("client_weights", "step_size")
        return found


def _changed(owner: Any, options: dict[str, Any]) -> Any:
    """A part with other options; it may have its own rules for them, as :meth:`Wasserstein.changed` does."""
    own = getattr(owner, "changed", None)
    return replace(owner, **options) if own is None else own(**options)


class Options(Protocol):
    """A dataclass of a preset's options."""

    def parts(self) -> dict[str, Any]:
        """The parts of the method that the preset decides, by their names in :class:`Method`."""
        ...


class Preset(Generic[P]):
    """A named method: called with its options, it gives a :class:`Method`.

    Its signature and the ``Args`` of its docstring are made from the fields of the options.
    """

    def __init__(self, options: Any) -> None:
        self.options: type[Options] = options
        self.__name__ = self.__qualname__ = options.__name__
        hints, signature = get_type_hints(options), inspect.signature(options)
        arguments = [f"    {name}: {options_of(options)[name].doc}" for name in signature.parameters]
        self.__doc__ = "\n".join([inspect.cleandoc(options.__doc__), "", "Args:", *arguments])
        plain = [each.replace(annotation=hints[name]) for name, each in signature.parameters.items()]
        self.__signature__ = signature.replace(parameters=plain, return_annotation=Method)

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> Method:
        options = self.options(*args, **kwargs)
        chosen = {slot: value for slot in PARTS if (value := getattr(options, slot, None)) is not None}
        usual: dict[str, Any] = {"adversary": None, "client_weights": by_examples()}
        return Method(self.__name__, **{**usual, **chosen, **options.parts()})

    def __repr__(self) -> str:
        return f"wafl.{self.__name__}{self.__signature__}"


def preset(options: Callable[P, Options]) -> Preset[P]:
    """The preset of a dataclass of options, as a decorator that keeps their types."""
    return Preset(options)


@preset
@dataclass(frozen=True)
class FedAvg(Weighted, Served, Stepped):
    """Federated averaging: no adversary, and clients weighted by their examples.

    McMahan et al., "Communication-efficient learning of deep networks from decentralized data" (AISTATS 2017).
    """

    def parts(self) -> dict[str, Any]:
        return {}


@preset
@dataclass(frozen=True)
class WAFL(Wasserstein, Weighted, Served, Stepped):
    """Wasserstein-robust federated learning: FedAvg on ``phi_gamma`` (see :class:`wafl.adversaries.Wasserstein`).

    If you give neither gamma nor radius, gamma is 0.5, the paper's choice for MNIST.
    """

    def parts(self) -> dict[str, Any]:
        return {"adversary": part(self, Wasserstein)}


@preset
@dataclass(frozen=True)
class FedPGM(ProjectedAscent, Weighted, Served, Stepped):
    """FedAvg with adversarial training by projected gradient ascent (see :class:`wafl.adversaries.ProjectedAscent`)."""

    def parts(self) -> dict[str, Any]:
        return {"adversary": part(self, ProjectedAscent)}


@preset
@dataclass(frozen=True)
class FedFGSM(BoundedAscent, Weighted, Served, Stepped):
    """FedAvg with adversarial training by one gradient step (see :class:`wafl.adversaries.BoundedAscent`)."""

    def parts(self) -> dict[str, Any]:
        return {"adversary": part(self, BoundedAscent)}


@preset
@dataclass(frozen=True)
class FedRobust(Affine, Weighted, Served, Stepped):
    """FedAvg against an affine shift of each client's inputs (see :class:`wafl.adversaries.Affine`)."""

    def parts(self) -> dict[str, Any]:
        return {"adversary": part(self, Affine)}


@preset
@dataclass(frozen=True)
class AFL(Served, Stepped):
    """Agnostic federated learning: the worst mixture of the clients; all of them take one step per round."""

    weights_step: Annotated[StepSize, EachRound(Positive()), "How fast the client weights climb the losses."] = 0.1

    def __post_init__(self) -> None:
        check_options(self)

    def parts(self) -> dict[str, Any]:
        return {"client_weights": agnostic(self.weights_step)}


@preset
@dataclass(frozen=True)
class DRFA(Served, Stepped):
    """Distributionally robust federated averaging: AFL with local steps and sampling."""

    weights_step: Annotated[StepSize, EachRound(Positive()), "How fast the client weights climb the losses."] = 0.01

    def __post_init__(self) -> None:
        check_options(self)

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
