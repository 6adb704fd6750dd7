"""Define a method of federated learning: an objective, client weights, a server and a local step."""

from dataclasses import fields, is_dataclass, replace
from typing import Annotated, Any, Self

from wafl.base.bounds import Box
from wafl.base.options import Option, frozen, options_of
from wafl.local import LocalStep, sgd
from wafl.objectives import Objective
from wafl.servers import Optimizer, Server, averaging
from wafl.weights import ClientWeights

AVERAGING, DESCENT = averaging(), sgd()
PARTS = ("client_weights", "server", "local")
"""The parts of a method that can be replaced as a whole."""


@frozen
class Method:
    """A combination of any objective, client weights, server and local step.

    >>> import wafl
    >>> wafl.Method("mine", wafl.objectives.wasserstein(gamma=0.5), wafl.weights.snapshot(0.01)).name
    'mine'
    """

    name: Annotated[str, "The name of the method in results."]
    objective: Annotated[Objective | None, "What clients descend (:mod:`wafl.objectives`); None is the plain loss."]
    client_weights: Annotated[ClientWeights, "The weights, which center the ball (:mod:`wafl.weights`)."]
    server: Annotated[
        Server, "How the server combines the clients' models (:mod:`wafl.servers`); an optimizer gets their mean."
    ] = AVERAGING
    local: Annotated[LocalStep, "How clients use a gradient (:mod:`wafl.local`)."] = DESCENT

    def __post_init__(self) -> None:
        if isinstance(self.server, Optimizer):
            object.__setattr__(self, "server", averaging(self.server))
        kinds: tuple[tuple[str, Any, str], ...] = (
            ("client_weights", ClientWeights, "use wafl.weights.fixed([...]), uniform() or by_examples()"),
            ("server", Server, "use a server from wafl.servers, such as adam(0.01)"),
            ("local", LocalStep, "use a local step from wafl.local, such as prox(0.1)"),
        )
        for slot, kind, remedy in kinds:
            value = getattr(self, slot)
            if isinstance(value, type) or not isinstance(value, kind):
                raise TypeError(f"{slot}={value!r} does not implement {kind.__name__}: {remedy}, or write your own")
        if self.objective is not None and not isinstance(self.objective, Objective):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise TypeError(
                f"objective={self.objective!r} is not a wafl.objectives.Objective: use one of wafl.objectives, or "
                "derive your own from it; None moves no example"
            )

    def options(self) -> list[str]:
        """Return the options that :func:`wafl.sweep` may vary: the options of the parts, and the parts themselves."""
        return list(dict.fromkeys([*self._owners(), *PARTS]))

    def with_options(self, **changes: Any) -> Self:
        """Return a copy with other parts, or other options of its (new) parts, by the names of :meth:`options`."""
        method = replace(self, **{name: value for name, value in changes.items() if name in PARTS})
        owners = method._owners()
        grouped: dict[str, dict[str, Any]] = {}
        for name, value in changes.items():
            if name in PARTS:
                continue
            if name not in owners:
                raise ValueError(f"{self.name} has no option {name!r}; it has: {', '.join(method.options())}")
            slot, field_name = owners[name]
            grouped.setdefault(slot, {})[field_name] = value
        changed = {slot: method._part(slot).changed(**options) for slot, options in grouped.items()}
        if "optimizer" in changed:
            server = changed.get("server", method.server)
            changed["server"] = replace(server, optimizer=changed.pop("optimizer"))
        return replace(method, **changed)

    def declared(self) -> dict[str, tuple[Option, Any]]:
        """Return the declaration and the value of each option of the method's parts."""
        options: dict[str, tuple[Option, Any]] = {}
        for name, (slot, field_name) in self._owners().items():
            owner = self._part(slot)
            try:
                options[name] = replace(options_of(type(owner))[field_name], name=name), getattr(owner, field_name)
            except NameError:  # your own part, whose annotations name what only its function knows
                continue
        return options

    def within(self, declared: Box | None) -> Self:
        """Return the method for data with this declared box, which limits its objective by default."""
        return replace(self, objective=None if self.objective is None else self.objective.within(declared))

    def _part(self, slot: str) -> Any:
        return self.server.optimizer if slot == "optimizer" else getattr(self, slot)

    def _owners(self) -> dict[str, tuple[str, str]]:
        """Return, for each option, the part that owns it and the part's name for it."""
        owners: dict[str, tuple[str, str]] = {}
        for slot in ("objective", "local", "optimizer", "server"):
            owner = self._part(slot)
            for field in fields(owner) if is_dataclass(owner) else ():
                if field.name != "optimizer":
                    owners.setdefault(field.name, (slot, field.name))
        for name in _limited(self.client_weights):
            public = "weights_step" if name == "step_size" else name
            owners[f"weights_{name}" if public in owners else public] = ("client_weights", name)
        return owners


def _limited(rule: ClientWeights) -> list[str]:
    """Return the options of a rule for the client weights that have a range, so that they can be swept."""
    for kind in type(rule).__mro__:
        try:
            return [name for name, option in options_of(kind).items() if option.limits is not None]
        except (TypeError, NameError):  # not a dataclass, or your own, with annotations that only its function knows
            continue
    return []
