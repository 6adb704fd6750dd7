"""One run to be made: what it is told, what it is called, and whom it may share a batch with."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields, is_dataclass, replace
from typing import Any

from wafl.core.describe import describe
from wafl.methods import Method
from wafl.schedule import Schedule
from wafl.weights import ByExamples, Learned


@dataclass(frozen=True)
class Spec:
    """A method, its schedule, and, in a sweep, what was varied."""

    method: Method
    schedule: Schedule
    point: Mapping[str, Any] | None = None

    @property
    def name(self) -> str:
        varied = ", ".join(f"{name}={value}" for name, value in (self.point or {}).items())
        return f"{self.method.name} ({varied})" if varied else self.method.name

    def fingerprint(self) -> Any:
        """All that the run is told, as plain values; a function of the round by its values."""
        weights, rounds = self.method.client_weights, range(self.schedule.rounds)
        rates = [self.schedule.rate(number) for number in rounds]
        steps = [weights.step(number) for number in rounds] if isinstance(weights, Learned) else None
        rule = replace(weights, step_size=1.0) if isinstance(weights, Learned) else weights
        plain = replace(
            self, method=replace(self.method, client_weights=rule), schedule=replace(self.schedule, learning_rate=1.0)
        )
        return [describe(plain), rates, steps]

    @property
    def needs_sizes(self) -> bool:
        """Whether a server must know how many examples each client has: for weights, or DRFA's number of steps."""
        weights = self.method.client_weights
        if isinstance(weights, Learned):
            return weights.rule == "snapshot" and self.schedule.local_steps is None
        return isinstance(weights, ByExamples)

    def shape(self) -> tuple[Any, ...]:
        """What runs must have in common to be lanes of one batch."""
        adversary = self.method.adversary
        options: list[Any] = []
        if adversary is not None and is_dataclass(adversary):
            server_side = {*adversary.scalars(), "radius", "strict"}
            options = [getattr(adversary, field.name) for field in fields(adversary) if field.name not in server_side]
        weights = self.method.client_weights
        rule = weights.rule if isinstance(weights, Learned) else None
        return (type(adversary), *options, rule, self.schedule.local_work, self.schedule.rounds)
