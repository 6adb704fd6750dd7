"""Use clients on Flower's nodes: each query goes to the nodes of its clients, one message per node."""

import math
from collections.abc import Callable, Collection, Mapping, Sequence
from copy import copy
from dataclasses import replace
from functools import partial
from hashlib import sha256
from logging import INFO, WARNING
from operator import lt
from pathlib import Path
from typing import Self, cast

import torch
from flwr.app import ConfigRecord
from flwr.supercore.differential_privacy import KEY_CLIPPING_NORM
from torch import Tensor

from wafl.attacks import Attack
from wafl.base.errors import ConfigError, TooFewRepliesError
from wafl.base.fingerprint import tensors_digest
from wafl.config.experiment import Experiment
from wafl.config.plan import make_tolerance
from wafl.evaluation.evaluate import draw_attacked
from wafl.evaluation.score import ClientScore, Score
from wafl.flower.node.examples import CutsQuery, MeansQuery, SpreadQuery
from wafl.flower.node.queries import GraphQuery, SurveyQuery, TestQuery
from wafl.flower.node.work import Split, Tested
from wafl.flower.server.census import Census
from wafl.flower.server.claims import dominating, too_many
from wafl.flower.server.exchange import Post
from wafl.flower.server.inquiry import Inquiry
from wafl.flower.wire.logs import log
from wafl.flower.wire.values import NodeQuery, WireError, decode_replies, encode_query
from wafl.objectives import Objective
from wafl.objectives.ball.client_cost_matrix import check_size, cost_matrix_of_means, joined
from wafl.objectives.ball.cost_matrix import CostMatrix
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
from wafl.train.class_means import output_shape, starting
from wafl.train.clients import Engine, Judge, Roster, root_mean_square, trust_in
from wafl.train.spec import Spec
from wafl.train.survey import SurveyReplies
from wafl.train.trust.admission import Arrivals, answer_tolerantly
from wafl.train.trust.faults import without
from wafl.train.trust.trust import Shares, Trust


class GridClients:
    """The clients of an experiment on Flower; ``entries`` are the runs of each method, by the method's name.

    ``folder`` is the study's folder, whose description identifies the training to nodes.
    """

    device = torch.device("cpu")

    def __init__(
        self, post: Post, census: Census, experiment: Experiment, entries: Mapping[str, Sequence[Spec]], folder: Path
    ) -> None:
        self._post, self._census, self._experiment = post, census, experiment
        self._entries, self._folder = entries, folder
        self.tolerance, self.caps = make_tolerance(experiment, remote=True), experiment.caps.settled(remote=True)
        self.sees_updates = not experiment.flower.partial_sums
        self._inquiry = Inquiry(post, census, experiment.flower, self.tolerance.attempts)
        self._tested: tuple[tuple[str, int], dict[int, tuple[Tested, Tested]]] | None = None
        self._only: tuple[int, ...] | None = None
        self._candidates: tuple[str, int] | None = None
        self._cost_matrices: dict[str | None, CostMatrix] = {}

    @property
    def roster(self) -> Roster:
        """The clients so far."""
        roster = self._census.roster
        if self._only is None:
            return roster
        known = [name for name in ("names", "num_examples", "nodes") if getattr(roster, name)]
        return replace(roster, **{name: tuple(getattr(roster, name)[at] for at in self._only) for name in known})

    def nodes(self) -> dict[int, tuple[str, list[str]]]:
        """Return the name and the clients of each node that currently takes part."""
        return self._census.nodes()

    def cost_matrix_of_clients(self, task: Task, start: Tensor, layer: str | None) -> CostMatrix:
        """Return the cost matrix of the clients' differences; every client must send class means once per layer."""
        if layer not in self._cost_matrices:
            self._cost_matrices[layer] = self._ask_cost_matrix(task, start, layer)
        return self._cost_matrices[layer]

    def _ask_cost_matrix(self, task: Task, start: Tensor, layer: str | None) -> CostMatrix:
        roster, names = self.roster, self.roster.names
        shape = roster.input_shape if layer is None else output_shape(layer, task, start, roster.input_shape)
        check_size(shape)
        log(INFO, "asking %d clients for the means of their classes", roster.num_clients)
        about = roster.num_outputs, math.prod(shape), layer, None if layer is None else tensors_digest([start])
        replies = self._inquiry.ask_all("query.means", names, lambda who, at: MeansQuery(who, at, *about))
        claimed = joined([means for _, means in replies])
        for name, why in too_many(self.caps, "examples", names, claimed.sizes(len(names))).items():
            raise ConfigError(f"the class means of {name} cannot be right: it {why}")
        believed = self._trust.of_classes(claimed)
        changed = (believed.means != claimed.means).flatten(1).any(1) | (believed.counts < claimed.counts)
        self._limited("distance between class means", claimed.clients[changed].unique().tolist())
        return cost_matrix_of_means(believed, "" if layer is None else starting(layer))

    def spread(self) -> float:
        """Return the root mean square distance of examples from their client's mean; all clients must report."""
        names, claimed = self.roster.names, dict[int, tuple[float, int]]()
        log(INFO, "asking %d clients how far their examples spread, to choose a radius", len(names))
        for numbers, replies in self._inquiry.ask_all("query.spread", names, lambda chosen, _: SpreadQuery(chosen)):
            claimed.update(zip(numbers, replies, strict=True))
        sums, sizes = zip(*(claimed[number] for number in range(len(names))), strict=True)
        for name, why in too_many(self.caps, "examples", names, sizes).items():
            raise ConfigError(f"the spread of {name} cannot be right: it {why}")
        believed = self._trust.of_examples(sums, sizes)
        counted = enumerate(zip(*believed, strict=True))
        self._limited("spread", [at for at, each in counted if any(map(lt, each, claimed[at]))])
        return root_mean_square(*believed)

    @property
    def _trust(self) -> Trust:
        return trust_in(self.roster, self.tolerance, self.caps)

    def _limited(self, what: str, clients: Sequence[int]) -> None:
        for client in clients:
            message = "%s claims a %s far above the others', or too many examples for it: it counts for less"
            log(WARNING, message, self.roster.names[client], what)

    def apart(self, left_out: Sequence[int], index: int, spec: Spec) -> tuple[Self, Judge]:
        """Return the other clients, to train candidates, and a judge: the held-out clients test candidates."""
        entry = self._entry({index: spec.within(self.roster.bounds)})
        others = copy(self)
        others._only = tuple(client for client in range(self.roster.num_clients) if client not in set(left_out))
        # On nodes, candidates come after all runs of the entry.
        others._candidates = entry, len(self._entries[entry]) + index * len(CANDIDATES)
        judges = [self.roster.names[client] for client in left_out]

        def judge(run: Run) -> dict[int, float]:
            tests = self._test(_flat(run), 0, judges, "train", alike=True)
            clean = {client: test for client, (test, _) in tests.items()}
            return {client: test.loss if test.accuracy is None else test.accuracy for client, test in clean.items()}

        return others, judge

    def check(self, task: Task, start: Tensor, objectives: Collection[Objective]) -> None:
        """Check the objectives without examples; each node checks the model on its examples at the first query."""
        for objective in objectives:
            objective.check_model(Problem(task, start[None]))

    def fingerprint(self) -> Mapping[str, str]:
        """Return no digests, because a server does not know its clients' examples, and clients may change."""
        return {}

    def engine(self, task: Task, specs: Mapping[int, Spec], group: int, progress: Progress) -> Engine:
        """Return the engine that sends queries to the nodes."""
        index, first = next(iter(specs.items()))
        entry, offset = self._candidates or (self._entry(specs), 0)
        asked = self._candidates is None and self._entries[entry][index].asks_cost_matrix
        matrix = self._cost_matrices[first.layer].matrix if asked else None
        source = partial(self._collect, entry, offset, first.needs_sizes, matrix)
        return partial(answer_tolerantly, source, self.tolerance, self.caps)

    def _entry(self, specs: Mapping[int, Spec]) -> str:
        """Return the nodes' name for these runs."""

        def entries(same: Callable[[Spec, Spec], bool]) -> list[str]:
            return [
                name
                for name, runs in self._entries.items()
                if all(index < len(runs) and same(runs[index], spec) for index, spec in specs.items())
            ]

        def same(spec: Spec, other: Spec) -> bool:
            spec, learner = spec.within(self.roster.bounds), learner_of(other.method.objective)
            chosen = None if learner is None or learner.undecided else learner.target
            if spec.undecided and chosen is not None:
                spec = spec.with_radius(chosen)
            matrix = self._cost_matrices.get(spec.layer) if spec.asks_cost_matrix else None
            return (spec if matrix is None else spec.with_cost_matrix(matrix)) == other

        names = entries(same)[:1] or entries(_alike)
        if len(names) != 1:
            raise ConfigError(
                f"{', '.join(names)} cannot be told apart: make the parts of your own methods dataclasses"
            )
        return names[0]

    def uneven_columns(self) -> str:
        """Return an empty string, because a server does not know the examples of nodes."""
        return ""  # nodes do not describe their examples

    @property
    def absent(self) -> str:
        """The expected clients and nodes that were missing when training began, in one line."""
        return self._census.absent

    @property
    def testable(self) -> bool:
        """Whether any reachable client has test examples."""
        return not self._census.tested().isdisjoint(self.roster.names)

    def evaluate(self, run: Run, attack: Attack | None = None, attacked: float = 1.0, seed: int = 0) -> Score:
        """Return the score of a model that every client tests, under the experiment's attack, which nodes know.

        Each client reports a clean and an attacked score, so one message per node serves every attacked share.
        """
        params = _flat(run)
        key = (sha256(params.numpy().tobytes()).hexdigest(), seed)
        if self._tested is None or self._tested[0] != key:
            self._census.look()
            self._tested = key, self._test(params, seed, self.roster.names)
        tests, attack = self._tested[1], None if attack is None else attack.within(self.roster.bounds)
        victims = set(draw_attacked(sorted(tests), attacked, seed)) if attack is not None else set[int]()
        return self._score(self.roster.names, tests, victims, attack, seed)

    def evaluate_parts(self, run: Run) -> Score:
        """Return the score on test and training examples, and on all examples of the unseen clients."""
        score = self.evaluate(run)
        if not self.roster.unseen:
            return score
        params, names, unseen = _flat(run), self.roster.names, self.roster.unseen
        train = self._score(names, self._test(params, 0, names, "train"))
        return replace(score, train=train, unseen=self._score(unseen, self._test(params, 0, unseen, "all")))

    def _score(
        self,
        names: Sequence[str],
        tests: Mapping[int, tuple[Tested, Tested]],
        victims: Collection[int] = (),
        attack: Attack | None = None,
        seed: int = 0,
    ) -> Score:
        unit, scores, weights = self.roster.unit, list[ClientScore](), self._weights_of_tests(names, tests)
        for weight, (client, (clean, under_attack)) in zip(weights, sorted(tests.items()), strict=True):
            victim, size = client in victims, clean.num_examples
            test = under_attack if victim else clean
            scores.append(ClientScore(names[client], test.accuracy, test.loss, size, victim, weight))
        return Score(scores, "none" if attack is None else attack.describe(unit), unit, seed)

    def _weights_of_tests(self, names: Sequence[str], tests: Mapping[int, tuple[Tested, Tested]]) -> list[float]:
        """Return each client's share of all test examples, limited by its node's share of the training."""
        clients = sorted(tests)
        claimed = torch.tensor([tests[client][0].num_examples for client in clients], dtype=torch.float64)
        nodes = self._trust.nodes_of(clients) if names == self.roster.names else ()
        held = Shares.of(claimed, self.caps.client_share or 1.0, nodes).capped(claimed)
        for client in (client for client, one, other in zip(clients, held, claimed, strict=True) if one < other):
            log(
                WARNING, "%s claims a larger share of all tests than a node may have: it counts for less", names[client]
            )
        return (held / held.sum()).tolist()

    def _test(
        self, params: Tensor, seed: int, names: Sequence[str], split: Split = "test", *, alike: bool = False
    ) -> dict[int, tuple[Tested, Tested]]:
        """Return the tests of reachable clients with such examples, by their index among the names.

        With ``alike``, all clients have equal weights, whatever their claims.
        """
        tested = self._census.tested() if split == "test" else self._census.homes()
        present = [number for number, name in enumerate(names) if name in tested]
        if not present and split != "test":
            present = list(range(len(names)))  # the server waited for it, and reports it as missing
        attacked, outputs = split == "test" and self._experiment.attack.kind != "none", self.roster.num_outputs

        def query(chosen: tuple[str, ...], _: object) -> TestQuery:
            return TestQuery(chosen, attacked, params, outputs, seed, split)

        tests: dict[int, tuple[Tested, Tested]] = {}
        for numbers, replies in self._inquiry.ask_all("evaluate.test", names, query, some=present):
            tests.update(zip(numbers, replies, strict=True))
        sizes = {names[number]: clean.num_examples for number, (clean, _) in tests.items()}
        caps, kind = self.caps, "tests" if split == "test" else "examples"
        if split == "all":
            caps = replace(caps, examples=caps.examples + caps.tests)
        faults = too_many(caps, kind, list(sizes), list(sizes.values()))
        for name, why in faults.items():
            log(WARNING, "the test of %s does not count: it %s", name, why)
        tests = {number: each for number, each in tests.items() if names[number] not in faults}
        if not tests:
            raise TooFewRepliesError(f"evaluate.test: no client's test is within the caps: raise caps.{kind}")
        counted = {name: size for name, size in sizes.items() if name not in faults}
        claimed = "training examples" if split == "train" else "test examples"
        if not alike and (message := dominating(claimed, list(counted), list(counted.values()))) is not None:
            log(WARNING, "%s", message)
        return tests

    def survey(
        self,
        params: Tensor,
        settings: Sequence[Mapping[str, float]],
        report: Report | Moments | None,
        seed: int,
        split: Split = "train",
    ) -> SurveyReplies:
        """Return every client's report at ``params``; none may be missing."""
        names, outputs = self.roster.names, self.roster.num_outputs
        value = torch.empty(len(settings), len(names), dtype=torch.float64)
        cost = torch.empty_like(value)
        sizes: dict[int, int] = {}
        for numbers, reply in self._inquiry.ask_all(
            "query.survey", names, lambda who, _: SurveyQuery(who, params, outputs, settings, report, seed, split)
        ):
            value[:, numbers], cost[:, numbers] = reply.value, reply.cost
            sizes.update(zip(numbers, reply.sizes, strict=False))  # not every reply contains them
        return SurveyReplies(value, cost, tuple(sizes[number] for number in sorted(sizes)))

    def not_computing_its_graph(self, params: Tensor) -> list[str]:
        """Return the clients on whose examples model and graph differ; none may be missing."""
        names, outputs = self.roster.names, self.roster.num_outputs
        replies = self._inquiry.ask_all("query.graph", names, lambda who, _: GraphQuery(who, params, outputs))
        return [names[number] for numbers, same in replies if not same for number in numbers]

    def cuts(self, target: Tensor, g: Tensor, points: int, seed: int) -> tuple[Tensor, Tensor]:
        """Return the mean and the shares of every client's cut at g."""
        names = self.roster.names
        means = torch.empty(len(names), dtype=torch.float64)
        shares = torch.empty(len(names), len(g), dtype=torch.float64)
        query = partial(CutsQuery, target=target, g=g, points=points, seed=seed)
        for numbers, reply in self._inquiry.ask_all("query.cuts", names, query):
            means[numbers], shares[numbers] = reply
        return means, shares

    def _collect(
        self,
        entry: str,
        offset: int,
        needs_sizes: bool,
        cost_matrix: Tensor | None,
        queries: Sequence[Query],
        runs: Sequence[int],
        attempt: int,
    ) -> list[Arrivals]:
        """Ask the nodes of these clients, counting runs from ``offset``; a later attempt waits for all nodes.

        A silent node may be about to reconnect.
        """
        if attempt > 0:
            log(WARNING, "round %d: asking again, attempt %d", queries[0].round, attempt + 1)
        runs = [run + offset for run in runs]
        names, settings, first = self.roster.names, self._experiment.flower, queries[0]
        training = sha256((self._folder / "about.json").read_bytes()).hexdigest()
        asked = sorted({client for query in queries for client in query.clients})
        homes = self._inquiry.reachable([names[client] for client in asked], everyone=attempt > 0)
        missing = {client: "no node holds it" for client in asked if names[client] not in homes}
        lanes = sum(len(query.clients) for query in queries)
        sent: dict[int, NodeQuery] = {}
        for node in sorted(set(homes.values())):
            absent = [client for client in asked if homes.get(names[client]) != node]
            held = {run: without(query, absent) for run, query in zip(runs, queries, strict=True)}
            held = {run: query for run, query in held.items() if query.clients}
            sent[node] = NodeQuery(
                entry,
                tuple(held),
                tuple(held.values()),
                {client: names[client] for client in asked if client not in absent},
                self.roster.num_outputs,
                training,
                max(first.round - 2 * self._experiment.checkpoint_every, -1),  # a resume may return to this round
                settings.partial_sums,
                settings.exact and lanes > 1,
                max(self.roster.num_examples) if needs_sizes else None,
                cost_matrix,
            )
        contents = {node: encode_query(query) for node, query in sent.items()}
        if (privacy := self._experiment.privacy) is not None:  # for Flower's clipping mods on nodes
            for content in contents.values():
                cast(ConfigRecord, content["query"])[KEY_CLIPPING_NORM] = privacy.clip_norm
        replies: dict[int, list[Reply]] = {run: [] for run in runs}
        kind, group = "train" if first.kind == "train" else "evaluate", f"round {first.round}"
        answers = self._post.ask(kind, contents, settings.round_timeout, group, meanwhile=self._census.look)
        for node, content in answers.items():
            try:
                decoded = decode_replies(self._inquiry.heard(node, content), sent[node])
            except WireError as error:
                missing.update(dict.fromkeys(sent[node].names, str(error)))
            else:
                for run, of_run in zip(sent[node].runs, decoded, strict=True):
                    replies[run] += of_run
        for client, why in missing.items():
            log(WARNING, "%s: %s: %s", group, names[client], why)
        return [
            (replies[run], {client: missing[client] for client in query.clients if client in missing})
            for run, query in zip(runs, queries, strict=True)
        ]


def _alike(one: Spec, other: Spec) -> bool:
    """Return whether two specs are equal except for a user's own parts, which may not be comparable."""
    return (one.method.name, one.schedule, one.point) == (other.method.name, other.schedule, other.point)


def _flat(run: Run) -> Tensor:
    """Return the run's parameters and statistics as one vector for nodes."""
    return make_task(run.module, run.loss, layout=run.layout).initial()
