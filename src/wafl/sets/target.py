"""Define the promise of prediction sets: the coverage, for whom, the confidence, and the shift."""

from dataclasses import replace
from typing import Annotated, Literal, Self

from wafl.base.describe import percent
from wafl.base.errors import PreconditionError
from wafl.base.norms import norm_name
from wafl.base.options import Choice, Count, Range, frozen
from wafl.sets.shifted import Shift
from wafl.sets.thresholds import Holds, for_client, for_example
from wafl.theory.population.levels import USUAL, supported, with_confidence

About = Literal["client", "example"]
INSIDE = Range(0.0, 1.0, low_open=True, high_open=True)


@frozen
class Target:
    """The promise of prediction sets."""

    coverage: Annotated[float, INSIDE, "The fraction of labels to cover."] = 0.9
    about: Annotated[About, Choice(("client", "example")), "The next client, or its next example."] = "client"
    confidence: Annotated[float | None, INSIDE, "The probability of a promise about the next client."] = None
    own_sampling: Annotated[bool, "Whether it is about the next client's distribution, or its examples."] = False
    shift: Annotated[Shift | None, "How far the next client's examples may move."] = None
    liars: Annotated[int, Count(0), "How many clients may answer anything."] = 0
    fallen: Annotated[bool, "Whether the confidence is the most that the clients support."] = False

    def supported(self, invited: int) -> Self:
        """Return the target with the confidence that this number of clients supports.

        Raises PreconditionError if the clients are too few, or if the parts of the target exclude each other.
        """
        if self.own_sampling and self.shift is not None:
            raise PreconditionError("a radius is about the next client's examples: use own_sampling=False")
        if self.about == "example":
            if self.confidence is not None or self.own_sampling:
                raise ValueError("confidence and own_sampling are for about='client': leave them out")
            for_example(invited, self.coverage, liars=self.liars)
            return self
        level = supported(self.confidence, invited, own_sampling=self.own_sampling, liars=self.liars)
        if level <= 0.0:
            clients = f"{invited} client{'s support' if invited != 1 else ' supports'}"
            whose = "a distribution: use own_sampling=False" if self.own_sampling else "the next client: invite more"
            raise PreconditionError(f"{clients} no promise about {whose}")
        return replace(self, confidence=level, fallen=self.fallen or (self.confidence is None and level < USUAL))

    def holds(self, invited: int) -> Holds:
        """Return the condition on the counts of scores above a threshold, among this number of invited clients."""
        if self.confidence is None:
            return for_example(invited, self.coverage, 0.0 if self.shift is None else self.shift.spent, self.liars)
        return for_client(invited, self.coverage, self.confidence, own_sampling=self.own_sampling, liars=self.liars)

    def sentence(self, invited: int, unit: str, who: str = "the next client") -> str:
        """Return the promise in words, for data in this unit, about `who`."""
        level, moved = percent(self.coverage), ""
        if (shift := self.shift) is not None:
            moved = f" if they move by at most {shift.radius:g} ({norm_name(shift.norm)}, W_{shift.power}, {unit})"
        if self.confidence is None:
            moved = moved.replace(" they ", " its examples ")
            return f"the sets cover the next example of {who} with probability at least {level}{moved}"
        whose = "distribution" if self.own_sampling else "examples"
        owner = f"{who}'s {whose}" if who == "the next client" else f"the {whose} of {who}"
        how = with_confidence(self.confidence, invited, fallen=self.fallen)
        return f"the sets cover at least {level} of {owner}{moved}, {how}"
