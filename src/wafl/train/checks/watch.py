"""Check training: whether numbers are finite, whether gamma is within its limits, and at the end the ball."""

import math
from collections.abc import Callable, Sequence
from functools import cache
from statistics import fmean

import torch
from torch import Tensor

from wafl.base.checks import finite_rows
from wafl.base.errors import (
    ConcavityWarning,
    DivergedError,
    DivergenceWarning,
    LabelCostWarning,
    RadiusWarning,
    UnboundedError,
    warn_user,
)
from wafl.base.norms import norm_name
from wafl.methods import Method
from wafl.objectives import Objective
from wafl.objectives.ball.cost_matrix import ball_unit
from wafl.objectives.ball.wasserstein import PaperGamma, Wasserstein
from wafl.objectives.base import learner_of
from wafl.parts.lengths import lengths_of
from wafl.parts.messages import Query, Replies, State
from wafl.results.history import History, Record
from wafl.tasks.problem import Problem
from wafl.tasks.task import Task
from wafl.train.trust.admission import Tolerance


def lowest_gamma(objective: Objective | None, task: Task, params: Tensor) -> float:
    """Return the lower limit of a learned gamma for a model; 0 for a plain loss."""
    learner = learner_of(objective)
    return 0.0 if learner is None else learner.lowest_gamma(Problem(task, params[None]))


TOO_FAR = (ConcavityWarning, DivergenceWarning, LabelCostWarning, RadiusWarning)
"""The warnings that are suppressed in trials, which exceed limits on purpose."""
MOST_AMPLIFIED = 10.0
"""The maximum factor by which moving only the targets may increase the loss."""
LEAST_MOVE = 1e-9
"""The achieved radius below which moves are only rounding."""
MOST_GROWN = 2.0**24
"""The ratio to the first loss above which a loss is absurd: in float32, the first loss then disappears in rounding."""
MOST_RISEN, SMOOTHED = 10.0, 3
"""The ratio to the first round's loss that means divergence, and the number of averaged rounds."""
FENCE = "keep examples within bounds=(low, high)"

LEARNED, LOST = 0.9, 0.98
"""Thresholds, as fractions of the loss of random guessing.

Below LEARNED the model has started to learn; above LOST it has stopped.
"""
SETTLING = 10
"""The number of rounds after which gamma should have reached the radius."""
MOST_STRAYED = 100.0
"""The ratio of a learned gamma to gamma in the first rounds above which it is suspicious."""


class Watch:
    """The checks of one run while it trains; each warning appears once."""

    def __init__(
        self,
        method: Method,
        task: Task,
        num_classes: int | None = None,
        tolerance: Tolerance | None = None,
        unit: str = "input units",
        uneven_columns: Callable[[], str] = str,
    ) -> None:
        self._stop_at = math.inf if tolerance is None else tolerance.diverged
        self._objective, self._task = method.objective, task
        self._guessing = math.log(num_classes) if num_classes and task.loss.logistic else 0.0
        self._unit, self._uneven_columns = unit, cache(uneven_columns)
        self._warned: set[type[Warning]] = set()
        self._held: list[int] = []
        self._first_gammas: list[float] = []

    def check_replies(self, query: Query, replies: Replies, names: Sequence[str]) -> None:
        """Raise DivergedError at the first NaN or infinity, with the round, the client and the likely cause."""
        finite = torch.isfinite(replies.loss)
        for vector in replies.vectors.values():
            finite &= finite_rows(vector)
        if bool(finite.all()):
            return
        client = replies.clients[int((~finite).nonzero()[0])]
        where = f"round {query.round}, {names[client]}"
        objective, gamma = self._objective, query.scalars.get("gamma")
        if objective is not None and objective.power == 1 and gamma is not None and bool(replies.loss.isinf().any()):
            raise UnboundedError(
                f"{where}: with power=1 and gamma={gamma:g} the supremum is infinite: "
                "raise gamma, add weight_decay, or give bounds=(low, high)"
            )
        raise DivergedError(f"{where}: the update is not finite; {self.likely_cause(query)}")

    def check_growth(self, query: Query, replies: Replies, names: Sequence[str], history: History) -> None:
        """Raise DivergedError if an objective overflowed, or if the loss is absurd compared with the first round."""
        overflowed = torch.isinf(replies.cost)
        first = max(abs(history[0].loss), 1.0) if history else math.inf
        absurd = replies.loss > MOST_GROWN * first
        if not bool((overflowed | absurd).any()):
            return
        row, gamma = int((overflowed | absurd).nonzero()[0]), query.scalars.get("gamma")
        where = f"round {query.round}, {names[replies.clients[row]]}"
        if bool(overflowed[row]):
            at = f"gamma={gamma or 0.0:g}"
            raise DivergedError(f"{where}: the objective overflows at {at}: {self._remedy}, or {FENCE}")
        grown = f"{where}: the loss is {float(replies.loss[row]):.3g}, and was {first:.3g} in the first round"
        objective = self._objective
        # Without bounds, only the price keeps examples from moving any distance.
        if objective is not None and gamma is not None and objective.box is None and "bounds" in vars(objective):
            distance = float(replies.cost[row]) ** (1.0 / objective.power)
            raise DivergedError(f"{grown}; examples moved by {distance:.3g}: {self._remedy}, or {FENCE}")
        raise DivergedError(f"{grown}; {self.likely_cause(query)}")

    def check_loss(
        self, query: Query, replies: Replies, record: Record, names: Sequence[str], history: History
    ) -> None:
        """Warn, or stop if the tolerance requires it, when the loss of three rounds is far above the first loss."""
        if len(history) < SMOOTHED or history[0].loss <= 0:
            return
        loss = fmean([record.loss, *(each.loss for each in history[1 - SMOOTHED :])])
        risen = loss / history[0].loss
        if risen <= min(MOST_RISEN, self._stop_at):
            return
        lowest = min(history, key=lambda each: each.loss)
        message = (
            f"round {record.round}: the loss is {loss:.3g}, and has risen since round {lowest.round}, when it was "
            f"{lowest.loss:.3g}. {self._who(query, replies, record, names)}: {self.likely_cause(query)}"
        )
        if not self._uneven_columns():
            message += "; if clients may lie, use a robust server such as wafl.servers.geometric_median()"
        if risen > self._stop_at:
            raise DivergedError(
                f"{message}. It is above tolerance.diverged = {self._stop_at:g} times the first round's"
            )
        self._warn_once(message, DivergenceWarning)

    @staticmethod
    def _who(query: Query, replies: Replies, record: Record, names: Sequence[str]) -> str:
        """Return the suspicious clients of this round: the longest update, as sent, and the highest loss."""
        lengths, kept = lengths_of(query.params, replies.params), dict(record.shortened)
        lengths /= torch.tensor([kept.get(client, 1.0) for client in replies.clients]).to(lengths)
        longest, median = int(lengths.argmax()), float(lengths.median())
        times = f", {float(lengths[longest]) / median:.3g} times the median" if median > 0 else ""
        highest = int(replies.loss.argmax())
        return (
            f"The longest update came from {names[replies.clients[longest]]}{times}, and the highest loss from "
            f"{names[replies.clients[highest]]}, {float(replies.loss[highest]):.3g}"
        )

    def check_params(self, query: Query, state: State) -> None:
        """Raise DivergedError if the server's step produced NaN or infinity."""
        if not bool(finite_rows(state.params[None])):
            raise DivergedError(
                f"round {query.round}, server: its step is not finite; lower the server's learning rate"
            )

    def check_gamma(self, state: State) -> None:
        """Warn if gamma is below the concavity limit of the current parameters, or so low that targets move freely."""
        gamma, limit = state.scalars.get("gamma"), self._limit(state.params)
        if self._objective is None or gamma is None:
            return
        self._check_targets(self._objective, gamma, state.round)
        if self._objective.learner is not None:
            self._check_range(gamma, state.round)
        if limit is None:
            return
        if gamma == limit:  # strict keeps it there
            self._held.append(state.round)
        if gamma < limit:
            self._warn_once(
                f"round {state.round}: gamma={gamma:.4g} is below the concavity limit {limit:.4g} of this model: "
                f"{self._remedy}, or shrink the weights (weight_decay)",
                ConcavityWarning,
            )

    def _check_range(self, gamma: float, round: int) -> None:
        """Warn if a learned gamma is far above its first rounds, so that the ball has almost vanished."""
        first = self._first_gammas
        if len(first) < SETTLING:
            first.append(gamma)
        elif gamma > max(first) * MOST_STRAYED:
            self._warn_once(
                f"round {round}: gamma={gamma:.3g} is far above gamma in the first rounds, {min(first):.3g} to "
                f"{max(first):.3g}: if clients may lie about their transport costs, set tolerance.clip or caps.cost",
                RadiusWarning,
            )

    def _check_targets(self, objective: Objective, gamma: float, round: int) -> None:
        factor, price = self._task.loss.quadratic, gamma * objective.label_cost
        if factor is not None and factor < price < factor * MOST_AMPLIFIED / (MOST_AMPLIFIED - 1.0):
            self._warn_once(
                f"round {round}: label_cost={objective.label_cost:g} is so low that moving the targets alone makes the "
                f"loss {price / (price - factor):.3g} times larger: raise label_cost"
                + (", or ask for a smaller radius" if objective.learner is not None else ""),
                LabelCostWarning,
            )

    def check_ball(self, history: History) -> None:
        """Warn at the end if no example moved, or if the achieved radius is not the requested one."""
        if self._objective is None or not self._objective.moves or history.diverged or len(history) < 2:
            return
        self._check_labels(self._objective.label_cost, history)
        learner = self._objective.learner
        if isinstance(self._objective, Wasserstein) and isinstance(self._objective.gamma, PaperGamma):
            self._warn_of_gamma(self._objective, history)
        if learner is not None and learner.endless:  # the budget that examples leave goes far away
            return
        learning = learner is not None and len(history) < SETTLING  # the first gamma may be far too large
        if _largest(history[1:]) < LEAST_MOVE and not learning:  # a model of zeros moves nothing in the first round
            self._warn_once(f"no example moved in {len(history)} rounds: {self._why_still}", RadiusWarning)
        elif learner is not None:
            self._check_radius(learner.target, history)

    def _warn_of_gamma(self, ball: Wasserstein, history: History) -> None:
        """Warn that the size of the ball is a default, with the radius that its gamma implies on these data."""
        radius = _achieved(history[-max(len(history) // 4, 1) :])
        unit = ball_unit(self._unit, ball.space, ball.cost_matrix)
        round_ball = ball.space is None and ball.cost_matrix is None
        auto = ", or radius='auto', which chooses one by leaving clients out" if round_ball else ""
        self._warn_once(
            f"you gave neither radius nor gamma, so gamma is {ball.gamma:g}, the paper's choice for MNIST's pixels. On "
            f"your data, this is a ball of radius {radius:.3g} ({norm_name(ball.norm)}, {unit}): pass the radius that "
            f"you need, such as wafl.WAFL(radius=0.1){auto}",
            RadiusWarning,
        )

    def _check_labels(self, cost: float, history: History) -> None:
        """Warn if changing a label costs less than the loss of guessing, and the model is no better than guessing.

        At a price s per label the best model gives the true class exp(s) times the probability of each other class, and
        its robust loss is ``log(1 + (C - 1) exp(-s))``.
        """
        last = history[-max(len(history) // 4, 1) :]
        price, loss = cost * fmean(record.gamma or 0.0 for record in last), fmean(record.loss for record in last)
        if len(history) < SETTLING or not price < self._guessing or loss < self._guessing:
            return
        floor = math.log1p(math.expm1(self._guessing) * math.exp(-price))
        self._warn_once(
            f"label_cost={cost:g} is low: the objective changes a label for {price:.3g} (gamma * label_cost), so no "
            f"model's robust loss is below {floor:.3g}, and this one's is {loss:.3g}; guessing has "
            f"{self._guessing:.3g}. Raise label_cost",
            LabelCostWarning,
        )

    @property
    def _why_still(self) -> str:
        objective = self._objective
        if objective is not None and objective.power == 1 and objective.learner is None:
            remedy = "give bounds=(low, high) or power=2" if objective.bounds is None else "lower gamma"
            return f"with power=1, none does while gamma is above every slope of the loss: {remedy}"
        return (
            "the loss does not change with the inputs, as when all units of a layer are dead: lower the learning rate, "
            "or start from other weights (init)"
        )

    def _check_radius(self, radius: float, history: History) -> None:
        recent, last = history[len(history) // 2 :], history[-max(len(history) // 4, 1) :]
        if any(at >= recent[0].round for at in self._held) and _achieved(recent) < 0.95 * radius:
            self._warn_once(
                f"radius={radius:g} cannot be reached while gamma stays above the concavity limit: from "
                f"round {recent[0].round} on it was {_achieved(recent):.4g}. Ask for a smaller radius, add "
                "weight_decay, or leave strict out",
                RadiusWarning,
            )
        elif len(history) >= SETTLING and not 0.8 <= _achieved(last) / radius <= 1.2:
            missed = f"radius={radius:g} was missed: from round {last[0].round} on it was {_achieved(last):.4g}"
            self._warn_once(f"{missed}. {self._why_missed(radius, recent)}", RadiusWarning)
        elif len(history) >= SETTLING:
            self._check_learned(radius, history, fmean(record.loss for record in last))

    def _check_learned(self, radius: float, history: History, loss: float) -> None:
        """Warn if the model had learned in a smaller ball, but is no better than guessing in the whole ball."""
        best = min(history, key=lambda record: record.loss)
        if best.loss < LEARNED * self._guessing and loss > LOST * self._guessing:
            self._warn_once(
                f"radius={radius:g} is too large for this model: its loss was {best.loss:.3g} in round {best.round}, "
                f"when the ball was smaller; now it is {loss:.3g}, no better than guessing. Ask for a smaller radius",
                RadiusWarning,
            )

    def _why_missed(self, radius: float, recent: Sequence[Record]) -> str:
        first, last = recent[0].gamma or 0.0, recent[-1].gamma or 0.0
        runs_away = _achieved(recent) < radius and last < first / 10.0
        if runs_away or _largest(recent[-1:]) < LEAST_MOVE:
            bounds = None if self._objective is None else self._objective.bounds
            within = "" if bounds is None else f" within bounds={bounds}"
            return f"Examples cannot move that far{within}, or the model has become flat: ask for a smaller radius"
        return "Train for more rounds, with a larger cohort or a lower learning rate, or ask for a smaller radius"

    @property
    def _remedy(self) -> str:
        """The user's way to increase gamma."""
        return "raise gamma" if learner_of(self._objective) is None else "ask for a smaller radius"

    def _limit(self, params: Tensor) -> float | None:
        return None if self._objective is None else self._objective.concavity_limit(Problem(self._task, params[None]))

    def _warn_once(self, message: str, category: type[Warning]) -> None:
        if category not in self._warned:
            self._warned.add(category)
            warn_user(message, category)

    def likely_cause(self, query: Query) -> str:
        """Explain why a run may have diverged in this query, with the remedy."""
        if uneven := self._uneven_columns():
            return uneven
        rate = query.scalars["learning_rate"]
        gamma, limit = query.scalars.get("gamma", 0.0), self._limit(query.params)
        if limit is not None and gamma < limit:
            return f"gamma={gamma:g} is below the concavity limit {limit:.4g}: {self._remedy} or add weight_decay"
        return f"learning_rate={rate:g} is likely too large: lower it"


def _achieved(records: Sequence[Record]) -> float:
    return fmean(record.achieved_radius or 0.0 for record in records)


def _largest(records: Sequence[Record]) -> float:
    return max(record.achieved_radius or 0.0 for record in records)
