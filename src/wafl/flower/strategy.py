"""WAFL as a Flower strategy: FedAvg that tells its clients what :func:`wafl.flower.train` needs."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable
from logging import INFO, WARNING, getLogger
from typing import Any, cast

from flwr.app import ArrayRecord, ConfigRecord, Message, MetricRecord, RecordDict
from flwr.serverapp import Grid
from flwr.serverapp.strategy import FedAvg

from wafl.adversaries import Wasserstein
from wafl.core.options import options_of
from wafl.flower.training import COST, PREFIX, array_fault

log = getLogger("flwr").log  # what Flower shows of a Flower run


class WAFL(FedAvg):
    """FedAvg on ``phi_gamma``; clients must return :func:`wafl.flower.train`.

    All arguments are keyword arguments. With a radius, gamma is found during training: ``strategy.gamma`` is the
    current one, and each round's metrics have the one that was sent. The costs it is found from are not private: with
    Flower's differential privacy, give gamma. Replies that are not finite or do not fit the model are left out.

    Args:
        gamma: the price of transport; a smaller gamma is a larger ball. Without gamma and radius it is 0.5.
        radius: the size of the ball, instead of gamma.
        norm: the ground norm, 1, 2 or inf.
        power: the order of the transport cost, 1 or 2.
        label_cost: the price of changing a label; inf keeps labels fixed.
        steps: the most steps of the inner ascent.
        tolerance: an example stops this close to its fixed point, relative to its move; 0 takes all steps.
        restarts: random starts in addition to the example itself.
        bounds: a box ``(low, high)`` that moved examples stay in; without one they may go anywhere, as a strategy does
            not know the data.
        strict: clients use no gamma below the concavity limit of the model they are sent; needs a radius and a
            linear model. ``strategy.gamma`` may then be below the gamma that clients used.
        space: the name of a layer: its output is moved instead of the inputs, which may then be integers.
        fraction_train: FedAvg's share of nodes that train in a round.
        fraction_evaluate: FedAvg's share of nodes that evaluate in a round.
        min_train_nodes: FedAvg's least number of nodes that train.
        min_evaluate_nodes: FedAvg's least number of nodes that evaluate.
        min_available_nodes: FedAvg's least number of connected nodes.
        weighted_by_key: the metric by which FedAvg weights replies, by default ``num-examples``.
        arrayrecord_key: what FedAvg calls the record of arrays.
        configrecord_key: what FedAvg calls the record of the train config.
        train_metrics_aggr_fn: FedAvg's function that averages the metrics of training.
        evaluate_metrics_aggr_fn: FedAvg's function that averages the metrics of evaluation.

    >>> WAFL(gamma=0.5, fraction_train=0.5).gamma
    0.5
    """

    def __init__(self, **options: Any) -> None:
        own = {name: options.pop(name) for name in options_of(Wasserstein) if name in options}
        super().__init__(**options)
        self.adversary = Wasserstein(**own)
        self.gamma = float(self.adversary.first_gamma)
        self._sent = ArrayRecord()

    def summary(self) -> None:
        radius = "" if self.adversary.radius is None else f", to be found for radius {self.adversary.radius:g}"
        log(INFO, "\t├──> WAFL: gamma %g%s", self.gamma, radius)
        super().summary()

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        self._sent = arrays
        for name, value in self._told().items():
            config[PREFIX + name] = value
        return super().configure_train(server_round, arrays, config, grid)

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        replies = list(replies)
        counted = self._usable(replies)
        arrays, metrics = super().aggregate_train(server_round, [*counted, *filter(Message.has_error, replies)])
        if arrays is None or metrics is None:
            if self.fraction_train > 0:
                log(WARNING, "round %d: none of %d replies can be used; the model is kept", server_round, len(replies))
            return None, None
        metrics["gamma"] = self.gamma
        if self.adversary.radius is not None:
            self.gamma = self.adversary.next_gamma(self.gamma, self._mean_cost(counted))
        # A mean of whole numbers is not whole: what clients do not train, such as counters and masks, stays as it was.
        same = {
            name: value if value.dtype == self._sent[name].dtype else self._sent[name] for name, value in arrays.items()
        }
        return ArrayRecord(same), metrics

    def _told(self) -> dict[str, float | int]:
        """The adversary in plain values, with the current gamma; None is left out, and a box is two numbers."""
        told: dict[str, Any] = {name: getattr(self.adversary, name) for name in options_of(Wasserstein)}
        told["gamma"] = self.gamma
        del told["bounds"]
        if self.adversary.box is not None:
            told["low"], told["high"] = self.adversary.box
        kinds = {name: option.kind for name, option in options_of(Wasserstein).items()}
        return {name: kinds.get(name, float)(value) for name, value in told.items() if value is not None}

    def _usable(self, replies: list[Message]) -> list[Message]:
        """The replies whose arrays and metrics can be averaged; the others are logged and left out."""
        sound: list[Message] = []
        for reply in replies:
            if reply.has_error():
                continue
            fault = self._fault(reply.content)
            if fault is None:
                sound.append(reply)
            else:
                _leave_out(reply, fault)
        # FedAvg averages metrics by name and fails if the names differ: one odd client must not end the Flower run.
        usual = Counter(_form(reply.content) for reply in sound).most_common(1)
        for reply in sound:
            if _form(reply.content) != usual[0][0]:
                _leave_out(reply, "its records or metrics have other names or lengths than most")
        return [reply for reply in sound if _form(reply.content) == usual[0][0]]

    def _fault(self, content: RecordDict) -> str | None:
        if len(content.array_records) != 1 or len(content.metric_records) != 1:
            return (
                f"{len(content.array_records)} ArrayRecords and {len(content.metric_records)} MetricRecords, "
                "expected one of each"
            )
        (arrays,), (metrics,) = content.array_records.values(), content.metric_records.values()
        fault = array_fault(arrays, self._sent)
        if fault is not None:
            return fault
        for name, value in metrics.items():
            if not all(map(math.isfinite, value if isinstance(value, list) else [value])):
                return f"metric {name}={value} is not finite"
        weight, cost = metrics.get(self.weighted_by_key), metrics.get(COST)
        if not isinstance(weight, int | float) or weight <= 0:
            return f"metric {self.weighted_by_key}={weight} must be a positive number"
        if not isinstance(cost, int | float) or cost < 0:
            return f"metric {COST}={cost} must be a number, at least 0: the client must return wafl.flower.train(...)"
        return None

    def _mean_cost(self, replies: list[Message]) -> float:
        metrics = [next(iter(reply.content.metric_records.values())) for reply in replies]
        weights = [cast(float, record[self.weighted_by_key]) for record in metrics]
        costs = [cast(float, record[COST]) for record in metrics]
        return sum(weight * cost for weight, cost in zip(weights, costs, strict=True)) / sum(weights)


def _leave_out(reply: Message, reason: str) -> None:
    log(WARNING, "\t> Left out the reply of node %d: %s", reply.metadata.src_node_id, reason)


def _form(content: RecordDict) -> tuple[str, str, frozenset[tuple[str, int]]]:
    """The names of a reply's records and metrics, and the length of each metric."""
    ((arrays, _),), ((name, metrics),) = content.array_records.items(), content.metric_records.items()
    lengths = ((key, len(value) if isinstance(value, list) else -1) for key, value in metrics.items())
    return arrays, name, frozenset(lengths)
