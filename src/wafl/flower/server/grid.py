"""Clients on Flower's nodes: each query goes to the nodes that hold the clients it is for, one message per node."""

import math
from collections.abc import Callable, Collection, Mapping, Sequence
from copy import copy
from dataclasses import replace
from functools import cached_property, partial
from hashlib import sha256
from logging import INFO, WARNING
from typing import Self, cast

import torch
from flwr.app import ConfigRecord
from flwr.supercore.differential_privacy import KEY_CLIPPING_NORM
from torch import Tensor

from wafl.attacks import Attack
from wafl.base.errors import ConfigError, TooFewRepliesError
from wafl.config.experiment import Flower
from wafl.evaluation.evaluate import draw_attacked
from wafl.evaluation.score import ClientScore, Score
from wafl.flower.node.means import MeansQuery
from wafl.flower.node.queries import CutsQuery, SurveyQuery, TestQuery
from wafl.flower.node.spread import SpreadQuery
from wafl.flower.node.work import Part, Tested
from wafl.flower.server.census import Census
from wafl.flower.server.exchange import Post
from wafl.flower.server.inquiry import Inquiry
from wafl.flower.server.name_owners import dominating, too_many
from wafl.flower.server.source import Asked, Nodes
from wafl.flower.wire.logs import log
from wafl.flower.wire.values import NodeQuery, WireError, decode_replies, encode_query
from wafl.objectives import Objective
from wafl.objectives.ball.client_shape import check_size, joined, shape_of_means
from wafl.objectives.ball.shape import Shape
from wafl.objectives.base import learner_of
from wafl.parts.messages import Query, Reply
from wafl.results.progress import Progress
from wafl.results.run import Run
from wafl.tasks.problem import Problem
from wafl.tasks.structured import make_task
from wafl.tasks.task import Task
from wafl.theory.certificates.sampling import Moments
from wafl.theory.certificates.upper import Report
from wafl.train.chosen_radius import CANDIDATES
from wafl.train.clients import Engine, Judge, Roster, root_mean_square, trust_in
from wafl.train.spec import Spec
from wafl.train.survey import SurveyReplies
from wafl.train.trust.admission import Tolerance, Tolerant
from wafl.train.trust.caps import Caps
from wafl.train.trust.faults import without
from wafl.train.trust.trust import Trust


class GridClients:
    """Clients of a federation on Flower; ``entries`` are the runs of each method of the study, by the method's name.

    ``training`` names the training, for what clients keep of it; a resume may go ``horizon`` rounds back. ``attacks``
    says whether models are also tested under attack. ``clip_norm`` is what Flower's clipping mods on nodes are told.
    """

    device = torch.device("cpu")

    def __init__(
        self,
        post: Post,
        census: Census,
        settings: Flower,
        tolerance: Tolerance,
        caps: Caps,
        entries: Mapping[str, Sequence[Spec]],
        training: Callable[[], str],
        horizon: int = 2,
        attacks: bool = False,
        clip_norm: float | None = None,
    ) -> None:
        self._post, self._census, self._settings = post, census, settings
        self._inquiry = Inquiry(post, census, settings, tolerance.attempts)
        self.caps = caps
        self.tolerance, self._entries, self._training, self._horizon = tolerance, entries, training, horizon
        self._attacks, self._clip_norm = attacks, clip_norm
        self.sees_updates = not settings.partial_sums
        self._tested: tuple[tuple[str, int], dict[int, tuple[Tested, Tested]]] | None = None
        self._only: tuple[int, ...] | None = None
        self._candidates: tuple[str, int] | None = None

    @property
    def roster(self) -> Roster:
        roster = self._census.roster
        if self._only is None:
            return roster
        parts = [name for name in ("names", "num_examples", "nodes") if getattr(roster, name)]
        return replace(roster, **{name: tuple(getattr(roster, name)[at] for at in self._only) for name in parts})

    def nodes(self) -> dict[int, tuple[str, list[str]]]:
        """The nodes that take part now: what each is called, and its clients."""
        return self._census.nodes()

    def shape_of_clients(self) -> Shape:
        return self._shape

    @cached_property
    def _shape(self) -> Shape:
        """The shape of the ball from the class means that every client sends, once; none may be missing."""
        roster, names = self.roster, self.roster.names
        check_size(roster.input_shape)
        log(INFO, "asking %d clients for the means of their classes", roster.num_clients)
        features, outputs = math.prod(roster.input_shape), roster.num_outputs
        parts = self._inquiry.ask_all("query.means", names, lambda who, at: MeansQuery(who, at, outputs, features))
        found = joined([part for _, part in parts])
        for name, why in too_many(self.caps, "examples", names, found.sizes(len(names))).items():
            raise ConfigError(f"the class means of {name} cannot be right: it {why}")
        believed = self._trust.of_classes(found)
        changed = (believed.means != found.means).any(1) | (believed.counts < found.counts)
        self._limited("distance between class means", found.clients[changed].unique().tolist())
        return shape_of_means(believed)

    def spread(self) -> float:
        """How far examples lie from their client's mean, which every client must say before a radius is chosen."""
        names, found = self.roster.names, dict[int, tuple[float, int]]()
        log(INFO, "asking %d clients how far their examples spread, to choose a radius", len(names))
        for numbers, part in self._inquiry.ask_all("query.spread", names, lambda chosen, _: SpreadQuery(chosen)):
            found.update(zip(numbers, part, strict=True))
        sums, sizes = zip(*(found[number] for number in range(len(names))), strict=True)
        for name, why in too_many(self.caps, "examples", names, sizes).items():
            raise ConfigError(f"the spread of {name} cannot be right: it {why}")
        believed = self._trust.of_examples(sums, sizes)
        less = [
            any(counted < said for counted, said in zip(each, found[at], strict=True))
            for at, each in enumerate(zip(*believed, strict=True))
        ]
        self._limited("spread", [at for at, limited in enumerate(less) if limited])
        return root_mean_square(*believed)

    @property
    def _trust(self) -> Trust:
        return trust_in(self.roster, self.tolerance, self.caps)

    def _limited(self, what: str, clients: Sequence[int]) -> None:
        for client in clients:
            said = "%s claims a %s far above the others', or too many examples for it: it counts for less"
            log(WARNING, said, self.roster.names[client], what)

    def apart(self, left_out: Sequence[int], place: int, spec: Spec) -> tuple[Self, Judge]:
        """The other clients, to train candidates, and a judge: the clients left out test candidates where they are."""
        entry = self._entry({place: spec.within(self.roster.bounds)})
        others = copy(self)
        others._only = tuple(client for client in range(self.roster.num_clients) if client not in set(left_out))
        # On nodes, candidates come after all runs of the entry.
        others._candidates = entry, len(self._entries[entry]) + place * len(CANDIDATES)
        judges = [self.roster.names[client] for client in left_out]

        def judge(run: Run) -> dict[int, float]:
            params = _flat(run)
            found = {client: clean for client, (clean, _) in self._test(params, 0, judges, "train", alike=True).items()}
            return {client: each.loss if each.accuracy is None else each.accuracy for client, each in found.items()}

        return others, judge

    def check(self, task: Task, start: Tensor, objectives: Collection[Objective]) -> None:
        """Refuse what can be refused without examples; each node checks the model on its own with the first query."""
        for objective in objectives:
            objective.check_model(Problem(task, start[None]))

    def fingerprint(self) -> Mapping[str, str]:
        """No digest: a server does not know its clients' examples, and may have other clients later."""
        return {}

    def engine(self, task: Task, specs: Mapping[int, Spec], group: int, progress: Progress) -> Engine:
        place, first = next(iter(specs.items()))
        entry, after = self._candidates or (self._entry(specs), 0)
        shaped = self._candidates is None and self._entries[entry][place].asks_shape
        ask = partial(self._ask_nodes, entry, first.needs_sizes, self._shape.matrix if shaped else None)
        return Tolerant(Nodes(ask, after), self.tolerance, self.caps)

    def _entry(self, specs: Mapping[int, Spec]) -> str:
        """The name by which nodes know these runs."""

        def entries(same: Callable[[Spec, Spec], bool]) -> list[str]:
            return [
                name
                for name, runs in self._entries.items()
                if all(place < len(runs) and same(runs[place], spec) for place, spec in specs.items())
            ]

        def same(spec: Spec, other: Spec) -> bool:
            found, objective = spec.within(self.roster.bounds), other.method.objective
            learner = learner_of(objective)
            chosen = None if learner is None or learner.undecided else learner.target
            if found.undecided and chosen is not None:
                found = found.with_radius(chosen)
            return (found.shaped(self._shape) if found.asks_shape else found) == other

        found = entries(same)[:1] or entries(_alike)
        if len(found) != 1:
            raise ConfigError(
                f"{', '.join(found)} cannot be told apart: make the parts of your own methods dataclasses"
            )
        return found[0]

    @property
    def absent(self) -> str:
        return self._census.absent

    @property
    def testable(self) -> bool:
        return not self._census.tested().isdisjoint(self.roster.names)

    def evaluate(self, run: Run, attack: Attack | None = None, attacked: float = 1.0, seed: int = 0) -> Score:
        """The score of a model that every client tests; the attack is the experiment's, which nodes know.

        Each reports its clean and its attacked score, so one message per node serves every share of attacked clients.
        """
        params = _flat(run)
        key = (sha256(params.numpy().tobytes()).hexdigest(), seed)
        if self._tested is None or self._tested[0] != key:
            self._census.look()
            self._tested = key, self._test(params, seed, self.roster.names)
        found, attack = self._tested[1], None if attack is None else attack.within(self.roster.bounds)
        victims = set(draw_attacked(sorted(found), attacked, seed)) if attack is not None else set[int]()
        return self._score(self.roster.names, found, victims, attack, seed)

    def evaluate_parts(self, run: Run) -> Score:
        """The score of a model on test and training examples, and on all examples of clients that never train."""
        score = self.evaluate(run)
        if not self.roster.unseen:
            return score
        params, names, unseen = _flat(run), self.roster.names, self.roster.unseen
        train = self._score(names, self._test(params, 0, names, "train"))
        return replace(score, train=train, unseen=self._score(unseen, self._test(params, 0, unseen, "all")))

    def _score(
        self,
        names: Sequence[str],
        found: Mapping[int, tuple[Tested, Tested]],
        victims: Collection[int] = (),
        attack: Attack | None = None,
        seed: int = 0,
    ) -> Score:
        total, unit = sum(clean.num_examples for clean, _ in found.values()), self.roster.unit
        tests = {client: moved if client in victims else clean for client, (clean, moved) in sorted(found.items())}
        scores = [
            ClientScore(
                names[at], each.accuracy, each.loss, each.num_examples, at in victims, each.num_examples / total
            )
            for at, each in tests.items()
        ]
        return Score(scores, "none" if attack is None else attack.describe(unit), unit, seed)

    def _test(
        self, params: Tensor, seed: int, names: Sequence[str], part: Part = "test", *, alike: bool = False
    ) -> dict[int, tuple[Tested, Tested]]:
        """What each client finds that is here and has such examples, by its place among the names.

        ``alike`` says that clients count alike, however many examples they claim.
        """
        tested = self._census.tested() if part == "test" else self._census.homes()
        present = [number for number, name in enumerate(names) if name in tested]
        if not present and part != "test":
            present = list(range(len(names)))  # waited for, and missed by name

        def query(chosen: tuple[str, ...], _: object) -> TestQuery:
            return TestQuery(chosen, self._attacks and part == "test", params, self.roster.num_outputs, seed, part)

        found: dict[int, tuple[Tested, Tested]] = {}
        for numbers, replies in self._inquiry.ask_all("evaluate.test", names, query, some=present):
            found.update(zip(numbers, replies, strict=True))
        sizes = {names[number]: clean.num_examples for number, (clean, _) in found.items()}
        caps, kind = self.caps, "tests" if part == "test" else "examples"
        if part == "all":
            caps = replace(caps, examples=caps.examples + caps.tests)
        faults = too_many(caps, kind, list(sizes), list(sizes.values()))
        for name, why in faults.items():
            log(WARNING, "the test of %s does not count: it %s", name, why)
        found = {number: each for number, each in found.items() if names[number] not in faults}
        if not found:
            raise TooFewRepliesError(f"evaluate.test: no client's test is within the caps: raise caps.{kind}")
        counted = {name: size for name, size in sizes.items() if name not in faults}
        claimed = "training examples" if part == "train" else "test examples"
        if not alike and (said := dominating(claimed, list(counted), list(counted.values()))) is not None:
            log(WARNING, "%s", said)
        return found

    def survey(
        self,
        params: Tensor,
        settings: Sequence[Mapping[str, float]],
        report: Report | Moments | None,
        seed: int,
        part: Part = "train",
    ) -> SurveyReplies:
        """What every client reports at ``params``; none may be missing."""
        names, outputs = self.roster.names, self.roster.num_outputs
        value = torch.empty(len(settings), len(names), dtype=torch.float64)
        cost = torch.empty_like(value)
        sizes: dict[int, int] = {}
        for numbers, found in self._inquiry.ask_all(
            "query.survey", names, lambda who, _: SurveyQuery(who, params, outputs, settings, report, seed, part)
        ):
            value[:, numbers], cost[:, numbers] = found.value, found.cost
            sizes.update(zip(numbers, found.sizes, strict=False))  # not every reply has them
        return SurveyReplies(value, cost, tuple(sizes[number] for number in sorted(sizes)))

    def cuts(self, target: Tensor, g: Tensor, points: int, seed: int) -> tuple[Tensor, Tensor]:
        """The cut of every client at g: its mean, and its shares."""
        names = self.roster.names
        means = torch.empty(len(names), dtype=torch.float64)
        shares = torch.empty(len(names), len(g), dtype=torch.float64)
        query = partial(CutsQuery, target=target, g=g, points=points, seed=seed)
        for numbers, part in self._inquiry.ask_all("query.cuts", names, query):
            means[numbers], shares[numbers] = part
        return means, shares

    def _ask_nodes(
        self,
        entry: str,
        needs_sizes: bool,
        shape: Tensor | None,
        queries: Sequence[Query],
        runs: Sequence[int],
        everyone: bool,
    ) -> Asked:
        """What the nodes of these clients reply and were asked; with ``everyone``, all of them are waited for."""
        names = self.roster.names
        asked = sorted({client for query in queries for client in query.clients})
        homes = self._inquiry.reachable([names[client] for client in asked], everyone=everyone)
        missing = {client: "no node holds it" for client in asked if names[client] not in homes}
        lanes = sum(len(query.clients) for query in queries)
        sent: dict[int, NodeQuery] = {}
        for node in sorted(set(homes.values())):
            absent = [client for client in asked if homes.get(names[client]) != node]
            parts = [
                (run, part)
                for run, query in zip(runs, queries, strict=True)
                if (part := without(query, absent)).clients
            ]
            held = {client: names[client] for client in asked if client not in absent}
            sent[node] = NodeQuery(
                entry,
                tuple(run for run, _ in parts),
                tuple(query for _, query in parts),
                held,
                self.roster.num_outputs,
                self._training(),
                max(queries[0].round - self._horizon, -1),
                self._settings.partial_sums,
                self._settings.exact and lanes > 1,
                max(self.roster.num_examples) if needs_sizes else None,
                shape,
            )
        kind = "train" if queries[0].kind == "train" else "evaluate"
        contents = {node: encode_query(query) for node, query in sent.items()}
        if (clip_norm := self._clip_norm) is not None:
            for content in contents.values():
                cast(ConfigRecord, content["query"])[KEY_CLIPPING_NORM] = clip_norm
        replies: dict[int, list[list[Reply]]] = {}
        group = f"round {queries[0].round}"
        timeout, look = self._settings.round_timeout, self._census.look
        for node, reply in self._post.ask(kind, contents, timeout, group, meanwhile=look).items():
            try:
                replies[node] = decode_replies(self._inquiry.heard(node, reply), sent[node])
            except WireError as error:
                missing.update(dict.fromkeys(sent[node].names, str(error)))
        for client, why in missing.items():
            log(WARNING, "%s: %s: %s", group, names[client], why)
        return replies, sent, missing


def _alike(one: Spec, other: Spec) -> bool:
    """Whether two are equal except for a user's own parts, which were made twice and may not be comparable."""
    return (one.method.name, one.schedule, one.point) == (other.method.name, other.schedule, other.point)


def _flat(run: Run) -> Tensor:
    """The run's parameters and statistics as nodes take them."""
    return make_task(run.module, run.loss, layout=run.layout).initial()
