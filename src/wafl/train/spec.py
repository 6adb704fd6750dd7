"""Define one run to train: its settings, its name, and the runs that can share its batch."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, fields, is_dataclass, replace
from typing import Any, Self

from wafl.base.bounds import Box
from wafl.base.describe import describe
from wafl.base.fingerprint import code_of
from wafl.methods import Method
from wafl.objectives.ball.cost_matrix import CLIENTS, CostMatrix
from wafl.objectives.base import learner_of
from wafl.parts.schedule import Schedule


@dataclass(frozen=True)
class Spec:
    """One run to train: a method, its schedule, and, in a sweep, the varied values by name."""

    method: Method
    schedule: Schedule
    point: Mapping[str, Any] | None = None

    def __post_init__(self) -> None:
        rate, server = self.schedule.server_learning_rate, self.method.server
        if rate is not None and server.at_rate(rate) is None:
            raise ValueError(
                f"server_learning_rate={rate} and server={server} are both given: "
                "server_learning_rate is shorthand for the optimizer wafl.servers.sgd(rate); leave one of them out"
            )

    @property
    def undecided(self) -> bool:
        """Whether the radius still has to be chosen."""
        learner = learner_of(self.method.objective)
        return learner is not None and learner.undecided

    def with_radius(self, radius: float) -> Self:
        """Return the run with this radius."""
        return replace(self, method=self.method.with_options(radius=radius))

    @property
    def parts(self) -> Method:
        """The method, with the server that the schedule's ``server_learning_rate`` selects."""
        rate = self.schedule.server_learning_rate
        server = None if rate is None else self.method.server.at_rate(rate)
        return self.method if server is None else replace(self.method, server=server)

    def within(self, declared: Box | None) -> Self:
        """Return the run for data with this declared box."""
        return replace(self, method=self.method.within(declared))

    @property
    def asks_cost_matrix(self) -> bool:
        """Whether the ball needs the cost matrix of the clients' differences, which is not known yet."""
        return self.method.objective is not None and self.method.objective.cost_matrix == CLIENTS

    @property
    def layer(self) -> str | None:
        """The name of the layer whose output the objective moves; None for inputs."""
        return None if self.method.objective is None else self.method.objective.space

    def with_cost_matrix(self, cost_matrix: CostMatrix) -> Self:
        """Return the run with this cost matrix of the ball."""
        return replace(self, method=self.method.with_options(cost_matrix=cost_matrix))

    @property
    def name(self) -> str:
        """The name of the run: the method, and the varied values of the sweep."""
        varied = ", ".join(f"{name}={value}" for name, value in (self.point or {}).items())
        return f"{self.method.name} ({varied})" if varied else self.method.name

    def fingerprint(self) -> Any:
        """Return all settings of the run as plain values; functions of the round are represented by their values."""

        def by_round(function: Callable[..., Any]) -> Any:
            try:
                return [function(number) for number in range(self.schedule.rounds)]
            except TypeError:  # not a function of the round
                return describe(function)

        settings = describe(self, by_round)
        for name in ("average_last", "label_smoothing"):
            if not settings["schedule"][name]:  # checkpoints from before this option existed still resume
                del settings["schedule"][name]
        return settings

    @property
    def needs_sizes(self) -> bool:
        """Whether the server must know the clients' sizes, for the weights or the number of steps."""
        rule, server, steps = self.method.client_weights, self.method.server, self.schedule.local_steps
        return rule.needs_sizes(steps) or server.needs_sizes(steps)

    def shape(self) -> tuple[Any, ...]:
        """Return the settings that runs must share to be lanes of one batch."""
        method, rule = self.method, self.method.client_weights
        learner = learner_of(method.objective)
        return (
            _shape(method.objective, frozenset() if learner is None else learner.server_side),
            _shape(method.local),
            type(rule) if rule.learns else None,
            self.schedule.local_work,
            self.schedule.rounds,
            self.schedule.clip_norm is None,
            self.schedule.label_smoothing > 0,
        )


def code_of_methods(specs: Iterable[Spec]) -> dict[str, str]:
    """Return the source of all your own parts in the methods, by name."""
    return code_of(dict.fromkeys(kind for spec in specs for kind in _types(spec.method)))


def _types(part: Any) -> Iterator[type]:
    """Yield the type of a part, and the types of its components."""
    yield type(part)
    several: tuple[Any, ...] = part if isinstance(part, tuple) else ()
    for inner in (getattr(part, slot.name) for slot in fields(part)) if is_dataclass(part) else several:
        yield from _types(inner)


def _shape(part: Any, server_side: frozenset[str] = frozenset()) -> tuple[Any, ...]:
    """Return a part's type, the names of its numbers per lane, and its other options, except the server's."""
    if part is None or not is_dataclass(part):
        return (part,)
    scalars: tuple[str, ...] = tuple(part.scalars())  # pyright: ignore
    options = [field.name for field in fields(part) if field.name not in (*scalars, *server_side)]
    return (type(part), scalars, *(getattr(part, name) for name in options))
