"""Actions at the end of a round: evaluate, stop early, write a checkpoint, or call a function."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from typing import Annotated, Any, Protocol

from wafl.attacks import Attack
from wafl.base.options import Count, NotNegative, check_options, documented, frozen
from wafl.data.federation import Federation
from wafl.evaluation.evaluate import check_attack, check_share, evaluate, present_clients
from wafl.evaluation.score import Score
from wafl.parts.messages import State
from wafl.results.history import History, Record
from wafl.results.progress import ChosenRadius, Progress
from wafl.results.run import Run


@documented
@dataclass
class Moment:
    """A run at the end of a round."""

    index: Annotated[int, "The run's index in its sweep, counted from 0."]
    name: Annotated[str, "What the run is called."]
    record: Annotated[Record, "What happened in the round."]
    state: Annotated[State, "What the server remembers after the round."]
    history: Annotated[History, "The rounds before this one."]
    make_run: Annotated[Callable[[], Run], "Makes :attr:`run` when it is first asked for."]
    metrics: Annotated[dict[str, float], "What callbacks add; it is kept with the round's record."] = field(
        default_factory=dict[str, float]
    )
    stopped: Annotated[str | None, "Why the run ends here, if it does."] = None

    @cached_property
    def run(self) -> Run:
        """The run as if training ended here."""
        return self.make_run()

    def stop(self, why: str = "") -> None:
        """Stop this run after this round, without stopping the other runs; a checkpoint stores the reason."""
        self.stopped = why or "stopped by a callback"

    def final_record(self) -> Record:
        """Return the round's record with the metrics that callbacks added, as plain numbers."""
        return with_metrics(self.record, self.metrics)

    def values(self, metric: str) -> list[float]:
        """Return the values of a metric, or of a number in the record such as ``loss``, over the rounds that have it.

        The last value belongs to the current round.
        """
        rows = [{**record.numbers(), **record.metrics} for record in self.history]
        rows.append({**self.record.numbers(), **self.metrics})
        return [row[metric] for row in rows if metric in row]


def with_metrics(record: Record, metrics: Mapping[str, float]) -> Record:
    """Return the record with these metrics as plain numbers."""
    return replace(record, metrics={name: float(value) for name, value in metrics.items()})


EVALUATED = ("accuracy", "test_loss", "attacked_accuracy", "attacked_loss")
"""The metrics that :class:`EvaluateEvery` adds; rounds without an evaluation lack them."""


class Callback:
    """A listener that is called after every round of every run; override the methods that you need.

    A function of a moment works as well.
    """

    def on_start(self, progress: Progress | None) -> None:
        """Prepare for the first round; ``progress`` is the state of a resumed checkpoint, or None."""

    def on_choice(self, index: int, name: str, chosen: ChosenRadius) -> None:
        """Receive the chosen radius of a run with ``radius="auto"``; this follows ``on_start``."""

    def on_round(self, moment: Moment) -> None:
        """Process the end of one round of one run."""

    def on_progress(self, progress: Progress) -> None:
        """Process the end of a round of all runs that train together; this follows ``on_round``."""

    def on_end(self, index: int, run: Run) -> None:
        """Process the end of a run, whether it finished, stopped early, or diverged."""


Callbacks = Sequence[Callback | Callable[[Moment], Any]]


@dataclass(frozen=True)
class _Function(Callback):
    """A callback that calls a plain function of a moment."""

    function: Callable[[Moment], Any]

    def on_round(self, moment: Moment) -> None:
        self.function(moment)


def as_callbacks(callbacks: Callbacks) -> list[Callback]:
    """Return the callbacks in the order given, with functions converted to callbacks."""
    listed: list[Callback] = []
    for callback in callbacks:
        if isinstance(callback, Callback):
            listed.append(callback)
        elif callable(callback) and not isinstance(callback, type):
            listed.append(_Function(callback))
        else:
            raise TypeError(f"{callback!r} is not a callback: use a wafl.callbacks.Callback or a function of a moment")
    return listed


class TestedElsewhere(Protocol):
    """Clients that evaluate a model where their examples are, such as clients on Flower's nodes."""

    def evaluate(self, run: Run, *, attack: Attack | None, attacked: float, seed: int) -> Score:
        """Return the score of a run on the clients' test examples."""
        ...


@frozen
class EvaluateEvery(Callback):
    """An evaluation of the model every few rounds, which adds ``accuracy`` (for classes) and ``test_loss``.

    Under an attack the metrics are named ``attacked_accuracy`` and ``attacked_loss``.
    """

    clients: Annotated[Federation | TestedElsewhere, "Whose test examples to use."]
    rounds: Annotated[int, Count(1, ": how often to evaluate"), "How many rounds pass between two tests."] = 10
    attack: Annotated[Attack | None, "What to do to the test examples; None leaves them as they are."] = None
    attacked: Annotated[float, "The share of the clients that are attacked."] = 1.0
    seed: Annotated[int, "The seed of the choice of clients and of the attack's random starts."] = 0

    def __post_init__(self) -> None:
        check_options(self)
        check_share(self.attacked)
        if isinstance(self.clients, Federation):
            check_attack(self.attack, self.clients)
            present_clients(self.clients)

    def on_round(self, moment: Moment) -> None:
        """Evaluate the model if this round is due, and add the metrics to the moment."""
        if (moment.record.round + 1) % self.rounds:
            return
        clients = self.clients
        test = partial(evaluate, clients=clients) if isinstance(clients, Federation) else clients.evaluate
        score = test(moment.run, attack=self.attack, attacked=self.attacked, seed=self.seed)
        clean = self.attack is None
        moment.metrics["test_loss" if clean else "attacked_loss"] = score.loss
        if score.accuracy is not None:
            moment.metrics["accuracy" if clean else "attacked_accuracy"] = score.accuracy


@frozen
class EarlyStopping(Callback):
    """A rule that stops a run when its metric no longer improves.

    The decision depends only on the history, so a resumed run stops in the same round as an uninterrupted run.
    """

    metric: Annotated[str, "A metric, or a number of the record such as ``loss``."] = "loss"
    patience: Annotated[int, Count(), "Stop after this many values of the metric without an improvement."] = 10
    min_delta: Annotated[float, NotNegative, "Only a change by more than this counts as an improvement."] = 0.0
    largest: Annotated[bool, "Whether larger values are better."] = False

    def on_round(self, moment: Moment) -> None:
        """Stop the run if the metric has not improved in the last ``patience`` values."""
        values = moment.values(self.metric)
        if not values and moment.record.round == 0 and self.metric not in EVALUATED:
            known = ", ".join(sorted({**moment.record.numbers(), **moment.metrics}))
            raise ValueError(f"metric={self.metric!r} is not a metric of this run: use one of {known}")
        signed = [value if self.largest else -value for value in values]
        before, recent = signed[: -self.patience], signed[-self.patience :]
        if before and max(recent) <= max(before) + self.min_delta:
            moment.stop(f"{self.metric} has not improved in {self.patience} values")
