"""Test whether a trained model is near its optimum, by a few temporary steps of all clients together.

Clients that take many local steps pull the model in different directions, and small cohorts add noise. Training may
then stall far from the optimum, where a comparison of methods means little.
"""

from collections.abc import Iterator, Sequence
from dataclasses import replace

from wafl.base.errors import OptimumWarning, TooFewRepliesError, warn_user
from wafl.local import sgd
from wafl.parts.messages import GRADIENT, Query, mean_reply, weighted_mean
from wafl.results.progress import Progress
from wafl.results.run import Run
from wafl.tasks.modes.statistics import FROZEN
from wafl.tasks.problem import Problem
from wafl.train.embedded import Embedded
from wafl.train.loop import Trainer
from wafl.train.spec import Spec

STEPS, MOST_FALL = 10, 0.02
"""The number of steps, and the fraction by which they may lower the objective.

On digits, where clients pull in different directions, the steps lower it by 0.04 to 0.1, and after 300 rounds of one
step by 0.001 to 0.016.
"""
SHARE = 4
"""The inverse of the maximum share of training's gradients that the check takes by default."""


def check_near(trainer: Trainer, specs: Sequence[Spec], runs: Sequence[Run], wanted: bool | None) -> None:
    """Warn if a few steps of all clients lower the objective; with ``wanted=None``, cost and model decide.

    Learned client weights have no such objective, servers without a mean do not minimize it, and randomly shifted
    images make it noisy. The check requests no values that differential privacy hides.
    """
    if wanted is False or not trainer.clients.sees_updates:
        return
    linear = trainer.task.linear(trainer.start[None]) is not None
    for index, (spec, run) in enumerate(zip(specs, runs, strict=True)):
        schedule, rule = spec.schedule, spec.method.client_weights
        plain = not (schedule.shift or schedule.flip or schedule.label_smoothing)
        still = plain and schedule.statistics == FROZEN
        meant = spec.method.server.averages and not (rule.learns or rule.asks_losses)
        if run.diverged or not run.history or not still or not meant:
            continue
        if wanted is None and not (linear and _is_cheap(trainer, spec, run)):
            continue
        if spec.undecided:
            spec = spec.with_radius(run.settings["chosen"]["radius"])
        (spec,) = trainer.within([spec])
        losses = list(_losses_ahead(trainer, index, spec, run))
        fall = 1.0 - min(losses) / losses[0] if losses and losses[0] > 0 else 0.0
        if losses and fall > MOST_FALL:
            warn_user(
                f"{spec.name} is not at its optimum: {STEPS} steps of all clients together from its model, which are "
                f"not kept, lower the objective by {fall:.1%}, to {min(losses):.4g}. {_remedy(trainer, spec)}",
                OptimumWarning,
            )


def _losses_ahead(trainer: Trainer, index: int, spec: Spec, run: Run) -> Iterator[float]:
    """Yield the objective of all clients at the model and after each step; nothing if clients have memory.

    With a radius it is ``gamma radius^p + E phi_gamma``, the dual of the worst loss; nothing if the last gamma does not
    belong to this radius.
    """
    clients, task, schedule, objective = trainer.clients, trainer.task, spec.schedule, spec.method.objective
    params = task.flatten(run.params).to(trainer.start)
    learned, price = run.settings["scalars"], 0.0
    if objective is not None:
        radius = None if objective.learner is None else objective.learner.target
        price = learned["gamma"] * radius**objective.power if radius else 0.0
        blank = params.new_zeros(1, 1, *trainer.roster.input_shape)
        if objective.initial_memory(Problem(task, params[None]), blank) is not None:
            return
    if isinstance(clients, Embedded):
        clients = replace(clients, faults=None, tolerance=None)
    engine, everyone = clients.engine(task, {index: spec}, 0, Progress()), tuple(range(trainer.roster.num_clients))
    rate = max(schedule.rate(record.round) for record in run.history)
    scalars = {**learned, **spec.method.local.scalars(), **schedule.scalars(run.history[-1].round)}
    for step in range(STEPS + 1):
        here = len(run.history), schedule.seed, everyone, run.client_weights, params
        try:
            (answer,) = engine([Query("loss", *here, scalars, sends=(GRADIENT,))], [index])
        except TooFewRepliesError:
            return
        query, replies = answer.query, answer.replies
        if replies.clients != everyone:
            return
        if price and step == 0 and not 0.6 <= mean_reply(query, replies.cost) * learned["gamma"] / price <= 1.5:
            return
        decay = 0.5 * schedule.weight_decay * float(params.double().square().sum())
        yield mean_reply(query, replies.loss) + price + decay
        params = params - rate * weighted_mean(query.weights, replies.vectors[GRADIENT])


def _is_cheap(trainer: Trainer, spec: Spec, run: Run) -> bool:
    """Return whether the check reads few examples, compared with training."""
    work, sizes = spec.schedule.local_work, trainer.roster.num_examples
    seen = [
        size * work.local_epochs if work.local_epochs else (work.local_steps or 0) * min(size, work.batch_size or size)
        for size in sizes
    ]
    trained = sum(seen[client] for record in run.history for client in record.participants)
    return SHARE * (STEPS + 1) * sum(sizes) <= trained


def _remedy(trainer: Trainer, spec: Spec) -> str:
    """Return the remedies that are not yet in use."""
    schedule, most = spec.schedule, max(spec.schedule.local_work.num_steps(trainer.roster.num_examples))
    helps = {
        "control variates (local=wafl.local.control_variates())": most > 1 and spec.method.local == sgd(),
        "fewer local steps": most > 1,
        "a larger cohort, or average_last=0.5": (schedule.cohort or trainer.roster.num_clients)
        < trainer.roster.num_clients,
    }
    return f"What may help: {', '.join([*(name for name, applies in helps.items() if applies), 'more rounds'])}"
