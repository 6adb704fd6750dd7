"""Whether a trained model is near its optimum: a few steps of all clients together from there, which are not kept."""

from collections.abc import Iterator
from dataclasses import replace

from wafl.base.errors import OptimumWarning, warn_user
from wafl.engine.embedded import Embedded, first_example
from wafl.engine.spec import Spec
from wafl.engine.trainer import Trainer
from wafl.local import sgd
from wafl.parts.messages import Query, mean_reply, weighted_mean
from wafl.parts.schedule import Schedule
from wafl.results.progress import Progress
from wafl.results.run import Run
from wafl.tasks.modes.statistics import FROZEN
from wafl.tasks.problem import Problem

STEPS, MOST_FALL = 10, 0.02
"""How many steps are taken, and the share by which they may lower the objective.

On digits, where clients pull apart they lower it by 0.04 to 0.1, and after 300 rounds of one step by 0.001 to 0.016.
"""
SHARE = 4
"""Without being asked, the check takes at most one of so many of training's gradients."""


def check_near(trainer: Trainer, spec: Spec, run: Run, wanted: bool | None) -> None:
    """Warn if a few steps of all clients lower what they minimize; ``wanted=None`` leaves it to the cost and the model.

    With learned client weights there is no such objective, servers that take no mean do not mean to minimize it, and
    with images that are moved at random it is noise.
    """
    schedule, linear = spec.schedule, trainer.task.linear(trainer.start[None]) is not None
    still = not (schedule.shift or schedule.flip) and schedule.statistics == FROZEN
    meant = spec.method.server.averages and not spec.method.client_weights.learns
    if wanted is False or run.diverged or not run.history or not still or not meant:
        return
    if wanted is None and not (linear and _is_cheap(trainer, spec, run)):
        return
    if spec.undecided:
        spec = spec.with_radius(run.settings["chosen"]["radius"])
    (spec,) = trainer.within([spec])
    losses = list(_losses_ahead(trainer, spec, run))
    fall = 1.0 - min(losses) / losses[0] if losses and losses[0] > 0 else 0.0
    if losses and fall > MOST_FALL:
        warn_user(
            f"{spec.name} is not at its optimum: {STEPS} steps of all clients together from its model, which are not "
            f"kept, lower the objective by {fall:.1%}, to {min(losses):.4g}. {_remedy(trainer, spec)}",
            OptimumWarning,
        )


def _losses_ahead(trainer: Trainer, spec: Spec, run: Run) -> Iterator[float]:
    """What all clients minimize at the model and after each step; nothing if clients remember something for it.

    With a radius it is ``gamma radius^p + E phi_gamma``, the dual of the worst loss; nothing if the last gamma is not
    the one of this radius.
    """
    clients, task, objective = trainer.clients, trainer.task, spec.method.objective
    assert isinstance(clients, Embedded)
    params = task.flatten(run.params).to(trainer.start)
    learned, price = run.settings["scalars"], 0.0
    if objective is not None:
        price = learned["gamma"] * objective.target_radius**objective.power if objective.target_radius else 0.0
        x, _ = first_example(clients.federation, params)
        if objective.initial_memory(Problem(task, params[None]), x) is not None:
            return
    work = Schedule(
        rounds=STEPS + 1,
        local_steps=1,
        batch_size=None,
        learning_rate=max(spec.schedule.rate(record.round) for record in run.history),
        weight_decay=spec.schedule.weight_decay,
        precision=spec.schedule.precision,
        seed=spec.schedule.seed,
    )
    whole = replace(spec, method=replace(spec.method, local=sgd()), schedule=work)
    engine = replace(clients, faults=None, tolerance=None).engine(task, {0: whole}, 0, Progress())
    everyone = tuple(range(trainer.roster.num_clients))
    for step in range(STEPS + 1):
        query = Query("train", step, work.seed, everyone, run.client_weights, params, {**learned, **work.scalars(step)})
        (answer,) = engine.run([query], [0])
        if price and step == 0 and not 0.6 <= mean_reply(query, answer.replies.cost) * learned["gamma"] / price <= 1.5:
            return
        decay = 0.5 * work.weight_decay * float(params.double().square().sum())
        yield mean_reply(query, answer.replies.loss) + price + decay
        params = weighted_mean(query.weights, answer.replies.params)


def _is_cheap(trainer: Trainer, spec: Spec, run: Run) -> bool:
    """Whether the check looks at few examples next to those of the training."""
    work, sizes = spec.schedule.local_work, trainer.roster.num_examples
    seen = [
        size * work.local_epochs if work.local_epochs else (work.local_steps or 0) * min(size, work.batch_size or size)
        for size in sizes
    ]
    trained = sum(seen[client] for record in run.history for client in record.participants)
    return SHARE * (STEPS + 1) * sum(sizes) <= trained


def _remedy(trainer: Trainer, spec: Spec) -> str:
    """What may help, of what is not there yet."""
    schedule, most = spec.schedule, max(spec.schedule.local_work.num_steps(trainer.roster.num_examples))
    helps = {
        "control variates (local=wafl.local.control_variates())": most > 1 and spec.method.local == sgd(),
        "fewer local steps": most > 1,
        "a larger cohort, or average_last=0.5": (schedule.cohort or trainer.roster.num_clients)
        < trainer.roster.num_clients,
    }
    return f"What may help: {', '.join([*(name for name, applies in helps.items() if applies), 'more rounds'])}"
