"""Define WAFL as a Flower strategy: FedAvg that sends clients the options of :func:`wafl.flower.train`."""

import math
from collections import Counter
from collections.abc import Iterable
from inspect import signature
from logging import INFO, WARNING
from typing import Any, cast

import numpy as np
import numpy.typing as npt
import torch
from flwr.app import Array, ArrayRecord, ConfigRecord, Message, MetricRecord, RecordDict
from flwr.serverapp import Grid
from flwr.serverapp.strategy import FedAvg, Result

from wafl.base.errors import TooFewRepliesError
from wafl.base.options import options_of
from wafl.flower.app.training import COST, PREFIX, array_fault
from wafl.flower.wire.logs import log
from wafl.objectives import Wasserstein
from wafl.objectives.ball.cost_matrix import CLIENTS, CostMatrix
from wafl.parts.lengths import longest_of
from wafl.train.trust.admission import Tolerance
from wafl.train.trust.caps import DOUBLE, Caps
from wafl.train.trust.trust import FEW, Shares


class WAFL(FedAvg):
    """FedAvg on ``phi_gamma``; clients must return :func:`wafl.flower.train`.

    All arguments are keyword arguments. With a radius, WAFL finds gamma during training, and the ball grows in the
    first rounds of ``start``. ``strategy.gamma`` and ``strategy.radius`` are the current values, and each round's
    metrics contain the gamma that was sent. The costs that determine gamma are not private: with Flower's differential
    privacy, pass gamma. Replies that are not finite, do not fit the model, or claim more than the caps allow are left
    out. Updates that are much longer than the others are shortened. If no client could train in any round, ``start``
    ends with an error.

    You can mix in Flower's other strategies: ``class Robust(WAFL, FedMedian): pass`` takes the median of the clients'
    models. FedAdam, FedYogi, FedTrimmedAvg, Krum and FedProx (with the proximal term at the clients) work the same way.

    Args:
        gamma: the price of transport; a smaller gamma is a larger ball. Without gamma and radius it is 0.5.
        radius: the size of the ball, instead of gamma.
        norm: the ground norm, 1, 2 or inf.
        power: the order of the transport cost, 1 or 2.
        label_cost: the price of changing a label; inf keeps labels fixed.
        steps: the maximum number of steps of the inner ascent.
        tolerance: an example stops this close to its fixed point, relative to its move; 0 takes all steps.
        restarts: the number of random starts in addition to the example itself.
        bounds: a box ``(low, high)`` that limits moved examples. By default there is no limit, because a strategy does
            not know the data.
        strict: whether clients keep gamma at or above the concavity limit of their model; needs a radius and a linear
            model. ``strategy.gamma`` may then be below the gamma that clients used; with a radius, power=1 and no
            bounds it is the excess of that gamma over the model's steepest slope.
        space: the name of a layer whose output is moved instead of the inputs, which may then be integers.
        cost_matrix: the matrix A of a ground cost ``||A^-1 (x_adv - x)||``, or one number per feature for a diagonal A.
        clip: the maximum length of an update, as a multiple of the round's median; longer updates are shortened. If
            there are only two updates, the longer is compared with the shorter. With a radius, costs are limited to the
            same multiple of their median. The default is 2.5; ``math.inf`` means no limit.
        caps: the most that a client may claim, a :class:`wafl.Caps`. Only its ``examples``, ``cost`` and
            ``client_share`` are used. The default ``client_share`` is twice an equal share, as on nodes.
        fraction_train: FedAvg's share of nodes that train in a round.
        fraction_evaluate: FedAvg's share of nodes that evaluate in a round.
        min_train_nodes: FedAvg's minimum number of nodes that train.
        min_evaluate_nodes: FedAvg's minimum number of nodes that evaluate.
        min_available_nodes: FedAvg's minimum number of connected nodes.
        weighted_by_key: the metric by which FedAvg weights replies, by default ``num-examples``.
        arrayrecord_key: FedAvg's name for the record of arrays.
        configrecord_key: FedAvg's name for the record of the train config.
        train_metrics_aggr_fn: FedAvg's function that averages the metrics of training.
        evaluate_metrics_aggr_fn: FedAvg's function that averages the metrics of evaluation.

    >>> WAFL(gamma=0.5, fraction_train=0.5).gamma
    0.5
    """

    def __init__(self, **options: Any) -> None:
        ball = {name: options.pop(name) for name in options_of(Wasserstein) if name in options}
        self.clip = Tolerance(clip=options.pop("clip", None)).settled(remote=True).multiple
        self.caps = options.pop("caps", Caps())
        super().__init__(**options)
        self.objective = Wasserstein(**ball)
        if self.objective.cost_matrix == CLIENTS:
            raise ValueError(
                f"cost_matrix={CLIENTS!r}: a strategy does not know its clients; pass one number per feature"
            )
        self.gamma, self.radius = float(self.objective.first_gamma), self.objective.target_radius
        self._pace = self.objective.scalars().get("pace")
        self._planned: int | None = None
        self._sent = ArrayRecord()
        self._rounds_trained = self._rounds_asked = 0

    def summary(self) -> None:
        """Log the options of the strategy."""
        radius = self.objective.target_radius
        goal = "" if radius is None else f", to be found for radius {radius:g}"
        log(INFO, "\t├──> WAFL: gamma %g%s", self.gamma, goal)
        super().summary()

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """Return the messages of a round, with the objective's options in the train config."""
        self._sent = arrays
        for name, value in self._plain_options().items():
            config[PREFIX + name] = value
        return super().configure_train(server_round, arrays, config, grid)

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        """Return the averaged arrays and metrics of valid replies, and update gamma."""
        replies = list(replies)
        counted = self._believed(self._usable(replies))
        arrays, metrics = super().aggregate_train(server_round, [*counted, *filter(Message.has_error, replies)])
        self._rounds_asked += arrays is not None or self.fraction_train > 0
        if arrays is None or metrics is None:
            if self.fraction_train > 0:
                log(WARNING, "round %d: none of %d replies can be used; the model is kept", server_round, len(replies))
            return None, None
        metrics["gamma"] = self.gamma
        learner = self.objective.learner
        if learner is not None and self.radius is not None:
            now, cost = {"gamma": self.gamma, "radius": self.radius}, self._mean_cost(counted)
            if self._pace is not None:
                now |= {"excess": self.gamma, "pace": self._pace}
            after = learner.next_scalars(now, cost, 0.0, self._planned or 0)
            self.gamma, self.radius, self._pace = after["gamma"], after["radius"], after.get("pace")
        self._rounds_trained += 1
        return ArrayRecord({name: _typed(value, self._sent[name]) for name, value in arrays.items()}), metrics

    def start(self, *arguments: Any, **options: Any) -> Result:
        """Run FedAvg's ``start``, in which a ball first grows; raise if no client could train in any round."""
        self._rounds_trained, self._rounds_asked = 0, 0
        learner = self.objective.learner
        if learner is not None and self._planned is None:
            given = signature(super().start).bind(*arguments, **options)
            given.apply_defaults()
            self._planned = planned = int(given.arguments["num_rounds"])
            first = learner.first_scalars(self.objective.scalars(), 0.0, planned)
            self.gamma, self.radius = first["gamma"], first["radius"]
        result = super().start(*arguments, **options)
        if self._rounds_asked and not self._rounds_trained:
            raise TooFewRepliesError(
                f"no client could train in any of {self._rounds_asked} rounds, and the model is the one it began with: "
                "the reasons are in the log above and in the logs of the nodes"
            )
        return result

    def _plain_options(self) -> dict[str, float | int | list[float]]:
        """Return the objective's options as plain values for clients, without None; a box is two numbers."""
        options: dict[str, Any] = {**vars(self.objective), "gamma": self.gamma, "radius": self.radius}
        del options["bounds"], options["cost_matrix"]
        if self.objective.box is not None:
            options["low"], options["high"] = self.objective.box
        kinds = {name: option.kind for name, option in options_of(Wasserstein).items()}
        plain = {name: kinds.get(name, float)(value) for name, value in options.items() if value is not None}
        if isinstance(self.objective.cost_matrix, CostMatrix):
            plain["cost_matrix"] = self.objective.cost_matrix.matrix.flatten().tolist()
        return plain

    def _usable(self, replies: list[Message]) -> list[Message]:
        """Return the replies whose arrays and metrics can be averaged; log and leave out the others."""
        sound: list[Message] = []
        for reply in (reply for reply in replies if not reply.has_error()):
            if (fault := self._fault(reply.content)) is None:
                sound.append(reply)
            else:
                _leave_out(reply, fault)
        # FedAvg averages metrics by name and fails if the names differ; one faulty client must not end the Flower run.
        usual = Counter(_form(reply.content) for reply in sound).most_common(1)
        for reply in sound:
            if _form(reply.content) != usual[0][0]:
                _leave_out(reply, "its records or metrics have other names or lengths than most")
        return [reply for reply in sound if _form(reply.content) == usual[0][0]]

    def _fault(self, content: RecordDict) -> str | None:
        if len(content.array_records) != 1 or len(content.metric_records) != 1:
            counts = f"{len(content.array_records)} ArrayRecords and {len(content.metric_records)} MetricRecords"
            return f"{counts}, expected one of each"
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
        return self.caps.fault_of_count("examples", weight) or self.caps.fault_of_numbers(0.0, cost)

    def _believed(self, replies: list[Message]) -> list[Message]:
        """Limit the weights, costs and updates of replies that far exceed the others."""
        if not replies:
            return replies
        metrics = [next(iter(reply.content.metric_records.values())) for reply in replies]
        claimed, costs = (
            torch.tensor([float(cast(float, each[key])) for each in metrics], dtype=torch.float64)
            for key in (self.weighted_by_key, COST)
        )
        share, aimed = self.caps.client_share or DOUBLE, (self.radius or 0.0) ** self.objective.power
        weights = Shares.of(claimed, share).capped(claimed)
        reach = Shares.of(weights, share).reach
        most = self.clip * (float(costs.median()) or aimed) if len(replies) >= FEW and aimed else math.inf
        for key, old, new in ((self.weighted_by_key, claimed, weights), (COST, costs, costs.clamp_max(most))):
            for reply, each, before, after in zip(replies, metrics, old.tolist(), new.tolist(), strict=True):
                each[key] = each[key] if before == after else after
                if after < before:
                    what = "\t> The %s of node %d, %.3g, counts as %.3g"
                    log(WARNING, what, key, reply.metadata.src_node_id, before, after)
        updates = [_updates(next(iter(reply.content.array_records.values())), self._sent) for reply in replies]
        squares = [sum(float((array**2).sum()) for array in each.values()) for each in updates]
        lengths = torch.tensor(squares, dtype=torch.float64).sqrt()
        most_of = (reach * longest_of(lengths, self.clip)).tolist()
        for reply, update, length, longest in zip(replies, updates, lengths.tolist(), most_of, strict=True):
            if length > longest:
                share = longest / length
                log(WARNING, "\t> Shortened the update of node %d to %.3g%%", reply.metadata.src_node_id, 100 * share)
                ((key, arrays),) = reply.content.array_records.items()
                shortened = {name: self._sent[name].numpy() + share * array for name, array in update.items()}
                new = {name: Array(value.astype(arrays[name].dtype)) for name, value in shortened.items()}
                reply.content[key] = ArrayRecord({**arrays, **new})
        return replies

    def _mean_cost(self, replies: list[Message]) -> float:
        metrics = [next(iter(reply.content.metric_records.values())) for reply in replies]
        weights, costs = ([cast(float, each[name]) for each in metrics] for name in (self.weighted_by_key, COST))
        return sum(weight * cost for weight, cost in zip(weights, costs, strict=True)) / sum(weights)


def _typed(value: Array, sent: Array) -> Array:
    """Convert an array to the type that was sent; integers are not trained, so return them as sent."""
    if value.dtype == sent.dtype:
        return value
    return Array(value.numpy().astype(sent.dtype)) if np.dtype(sent.dtype).kind == "f" else sent


def _updates(arrays: ArrayRecord, sent: ArrayRecord) -> dict[str, npt.NDArray[np.float64]]:
    """Return the changes of the floating-point arrays, in double precision."""
    values = {name: array.numpy() for name, array in arrays.items()}
    trained = {name: value for name, value in values.items() if np.issubdtype(value.dtype, np.floating)}
    return {name: value.astype(np.float64) - sent[name].numpy() for name, value in trained.items()}


def _leave_out(reply: Message, reason: str) -> None:
    log(WARNING, "\t> Left out the reply of node %d: %s", reply.metadata.src_node_id, reason)


def _form(content: RecordDict) -> tuple[str, str, frozenset[tuple[str, int]]]:
    """Return the names of a reply's records and metrics, and the length of each metric."""
    ((arrays, _),), ((name, metrics),) = content.array_records.items(), content.metric_records.items()
    lengths = ((key, len(value) if isinstance(value, list) else -1) for key, value in metrics.items())
    return arrays, name, frozenset(lengths)
