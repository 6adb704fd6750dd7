"""Compute the minimum cost of a run from its settings, and reject runs with an absurd cost before any work."""

from collections.abc import Sequence

from wafl.base.checks import check_memory, check_steps
from wafl.train.spec import Spec


def round_steps(spec: Spec, num_examples: Sequence[int]) -> float:
    """Return the number of gradients of the largest client in a round, including the gradients of its ascent."""
    objective, local = spec.method.objective, max(spec.schedule.local_work.num_steps([max([1, *num_examples])]))
    ascent = 1 if objective is None else objective.steps * (1 + objective.restarts)
    return float(local) * spec.method.local.gradients * ascent


def check_cost(spec: Spec, num_examples: Sequence[int]) -> None:
    """Raise ValueError if a run's steps take days, or if its plan of batches exceeds the memory.

    Size 0 means unknown.
    """
    schedule, work = spec.schedule, spec.schedule.local_work
    largest = max(num_examples, default=0)
    local = max(work.num_steps([max(largest, 1)]))
    lengths = {name: getattr(schedule, name) for name in ("rounds", "local_steps", "local_epochs")}
    options = {name: value for name, value in lengths.items() if value is not None}
    objective = spec.method.objective
    if objective is not None:
        options |= {"steps": objective.steps, "restarts": objective.restarts}
    most = max(options, key=lambda name: options[name])
    words = ", ".join(f"{name}={value}" for name, value in options.items())
    steps = schedule.rounds * round_steps(spec, num_examples)
    check_steps(f"{spec.method.name} with {words}", steps, f"lower {most}")
    batch = min(schedule.batch_size or largest, largest)
    plan = 9.0 * local * max(batch, 1)  # bytes: in a client's plan of its batches, each example of a step takes nine
    check_memory(f"{most}={options[most]}", plan, f"lower {most}, and take more rounds")
