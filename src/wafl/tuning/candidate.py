"""A method to tune, and the run of one trial."""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from wafl.base.options import Option, options_of
from wafl.methods import Method
from wafl.parts.schedule import Schedule, make_schedule
from wafl.train.spec import Spec

Setting = dict[str, Any]
"""The values of what is searched, by the names of options of the method and the schedule."""


@dataclass(frozen=True)
class Candidate:
    """A method to tune, with the options and the schedule of its first trial.

    ``listed`` are values of options to choose from; those of the first trial are among them. ``make`` makes your own
    method from ``arguments``; then these are searched instead of the method's options. ``only`` are the names that may
    be searched; None means all.
    """

    name: str
    method: Method
    schedule: Mapping[str, Any]
    listed: Mapping[str, Sequence[Any]] = field(default_factory=dict[str, Sequence[Any]])
    make: Callable[..., Method] | None = None
    arguments: Mapping[str, Any] = field(default_factory=dict[str, Any])
    only: Collection[str] | None = None

    def options(self) -> dict[str, tuple[Option, Any]]:
        """The options that may be searched, each with its declaration and its value in the first trial."""
        schedule = {
            name: (option, self.schedule.get(name, option.default))
            for name, option in options_of(Schedule).items()
            if name not in ("rounds", "seed")  # trials of a method train equally long, from the same draws
        }
        arguments = {name: (Option(name, Any, None, "", None, True), value) for name, value in self.arguments.items()}
        known = {**(self.method.declared() if self.make is None else arguments), **schedule}
        return {name: about for name, about in known.items() if self.only is None or name in self.only}

    def method_with(self, setting: Mapping[str, Any]) -> Method:
        """The method of a trial."""
        options = {name: value for name, value in setting.items() if name not in options_of(Schedule)}
        return self.method.with_options(**options) if self.make is None else self.make(**{**self.arguments, **options})

    def schedule_with(self, setting: Mapping[str, Any]) -> dict[str, Any]:
        """The schedule of a trial, without its seed."""
        timing = {name: value for name, value in setting.items() if name in options_of(Schedule)}
        return {**self.schedule, **timing}

    def spec(self, setting: Setting, seed: int) -> Spec:
        """The run of a trial."""
        return Spec(self.method_with(setting), make_schedule({**self.schedule_with(setting), "seed": seed}), setting)
