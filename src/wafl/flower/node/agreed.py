"""Check that a query's numbers equal the app's; a server must not send different ones."""

from wafl.flower.wire.values import WireError
from wafl.objectives.base import learner_of
from wafl.parts.messages import GRADIENT, Query
from wafl.parts.schedule import Schedule
from wafl.train.spec import Spec


def check_values(query: Query, spec: Spec) -> None:
    """Raise WireError unless a query's round, seed and scalars belong to the app's run.

    A learned gamma and its radius change from round to round; they must stay within their ranges.
    """
    learner, schedule = learner_of(spec.method.objective), spec.schedule
    ranges = {} if learner is None else learner.ranges()
    method = (spec.with_radius(1.0) if spec.undecided else spec).method
    last = schedule.rounds - 1
    if query.round > last + (GRADIENT in query.sends):  # the check of the optimum comes after the last round
        raise WireError(f"round={query.round} must be at most {last}: the app has {schedule.rounds} rounds")
    if query.seed != schedule.seed:
        raise WireError(f"seed={query.seed} must be {schedule.seed}, as in the app")
    moved = {} if method.objective is None else method.objective.scalars()
    agreed = {**moved, **method.local.scalars(), **schedule.scalars(min(query.round, last))}
    for name, value in query.scalars.items():
        low, high = ranges.get(name, (float(agreed[name]),) * 2)
        if not low <= value <= high:
            wanted = f"{low}" if low == high else f"in [{low}, {high}]"
            raise WireError(f"{name}={value} must be {wanted}, as in the app")


def check_update(query: Query, schedule: Schedule, least: int) -> None:
    """Raise WireError if an update, or an iterate after the first step, uses fewer examples than ``least``."""
    steps, batch = 1 if query.iterates else schedule.local_steps, schedule.batch_size
    if steps is not None and batch is not None and steps * batch < least:
        raise WireError(
            f"{steps} steps of {batch} examples are fewer than {least} examples for one update: give the app a larger "
            "batch_size; or the node's operator starts it with a smaller min-examples"
        )


def check_steps(steps: float, most: int) -> None:
    """Raise WireError if a client would take more steps in a round than the node's operator allows."""
    if steps > most:
        raise WireError(
            f"a round of {steps:.15g} steps is more than {most}: give the app fewer local_steps or local_epochs, or "
            "fewer steps of its objective; or the node's operator starts it with a larger max-steps"
        )
