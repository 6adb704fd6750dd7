"""Run ``task="certify"``: certify a saved run with numbers from its nodes."""

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from logging import INFO
from pathlib import Path
from typing import Any, cast

from torch import Tensor, nn

from wafl.base.checks import check_radii
from wafl.base.describe import some
from wafl.base.errors import ConfigError
from wafl.base.files import write_whole
from wafl.base.norms import check_norm
from wafl.config.experiment import Experiment
from wafl.config.plan import make_model
from wafl.flower.node.work import Split
from wafl.flower.server.claims import capped
from wafl.flower.server.exchange import Post
from wafl.flower.server.find_clients import Finder
from wafl.flower.server.grid import GridClients
from wafl.flower.wire.logs import log
from wafl.flower.wire.overrides import read_value
from wafl.flower.wire.run_config import from_run_config
from wafl.objectives import Objective
from wafl.results.saved import has_own_model, load_run
from wafl.studies.roster import read_roster
from wafl.tasks.task import Task
from wafl.theory.certificates.certificate import UNKNOWN, Question
from wafl.theory.certificates.certify import (
    beyond,
    certificates_of,
    check_confidence,
    finite_above,
    quantity_of,
)
from wafl.theory.certificates.mixture import Means
from wafl.theory.certificates.sampling import Domain
from wafl.theory.certificates.soundness import hold_rows, room_of
from wafl.theory.certificates.upper import Report
from wafl.theory.constants.assumptions import as_claimed, data_free_constants, task_of
from wafl.theory.constants.constant import Constant
from wafl.theory.constants.layer_by_layer import last_layer, why_unproven
from wafl.train.clients import Roster
from wafl.train.survey import SurveyReplies

MANY = 1 << 23
"""The assumed number of the clients' examples, if they have not reported it."""


def certify(post: Post, values: Mapping[str, Any]) -> None:
    """Bound the loss within each of ``radii``, for the run saved in ``folder``.

    With ``metric="error"``, the error rate is bounded. With a ``confidence``, the certificates hold for the
    distributions of the clients' test examples. The result is ``certificates.json`` in that folder.
    """
    folder, norm, confidence = Path(str(values["folder"])), float(values["norm"]), float(values["confidence"])
    check_norm(norm)
    radii = check_radii(read_value("radii", values["radii"]))
    quantity = quantity_of(str(values["metric"]))
    if confidence:
        check_confidence(confidence, "test")
    experiment, known_clients = from_run_config(values), read_roster(folder) or read_roster(folder.parent)
    run = load_run(folder, own_model(folder, experiment, known_clients))
    task, params = task_of(run)
    if missing := quantity.missing(task, run.num_classes):
        raise ConfigError(f"metric = {quantity.metric!r} {missing}")
    clients = Finder(post, experiment, folder, known=known_clients)([])
    weights = run.client_weights.double() / run.client_weights.double().sum()
    if len(weights) != clients.roster.num_clients:
        raise ConfigError(
            f"the run has {len(weights)} clients, but {clients.roster.num_clients} are here: start all of its nodes"
        )
    training, test = (_Nodes(task, params, weights, clients, split) for split in ("train", "test"))

    def means(report: Report | None, settings: Sequence[Mapping[str, float]]) -> Means:
        replies = training.answers(report, settings)
        return Means((replies.value @ weights).tolist(), (replies.cost @ weights).tolist())

    roster = clients.roster
    known = data_free_constants(task, params, math.prod(roster.input_shape), norm)
    if len(known) < 2 and quantity.has_slopes and not quantity.by_margins(task):
        raise ConfigError(
            "no bound on this model's L_zz is known without its clients' examples: certify a linear model"
        )
    known = {"L_z": UNKNOWN, "L_zz": UNKNOWN, **known}
    steep, bent = as_claimed(known, task.loss, "attested" if quantity.has_slopes else "estimate").values()
    reason = "" if steep.proven else why_unproven(task)
    by_graph = last_layer(run.module) is None and last_layer(task.module) is not None
    if by_graph and (others := clients.not_computing_its_graph(task_of(run, traced=False)[1])):
        reason = f"it computes something else than its layers on examples of {some(others)}"
        steep = Constant(float(steep), "attested", reason)
    asked = Question(quantity, norm, unit=roster.unit, by_margins=quantity.by_margins(task), reason=reason)
    asked = replace(asked, finite_above=finite_above(task, params, norm), steep=steep, bent=bent)
    room = partial(room_of, quantity, task, params, roster.input_shape, norm, asked.dtype)
    sizes = roster.num_examples
    certificates = certificates_of(means, radii, asked, room(sum(sizes) if all(sizes) else MANY))
    if confidence:
        domain = Domain(roster.input_shape, roster.bounds, roster.num_classes)
        certificates = hold_rows(beyond(certificates, training, test, domain, confidence, room))
    content = {**certificates.to_json(), "capped": capped(clients.caps, roster, weights.tolist())}
    write_whole(folder / "certificates.json", json.dumps(content, indent=1).encode())
    log(INFO, "\n%s\nwritten to %s", certificates, (folder / "certificates.json").resolve())


@dataclass(frozen=True)
class _Nodes:
    """The mixture of clients on nodes, which answer for one split of their examples."""

    task: Task
    params: Tensor
    weights: Tensor
    clients: GridClients
    split: Split

    def answers(
        self, objective: Objective | None, settings: Sequence[Mapping[str, float]], seed: int = 0
    ) -> SurveyReplies:
        return self.clients.survey(self.params, settings, cast(Any, objective), seed, self.split)


def own_model(folder: Path, experiment: Experiment, clients: Roster | None) -> nn.Module | None:
    """Build the experiment's own model as for training, or return None if wafl can build the run's model."""
    if not has_own_model(folder):
        return None
    if clients is None:
        raise ConfigError(
            f"{folder} holds a model of your own, and no roster.json says for which clients it was made: certify a run "
            "in the folder of its study"
        )
    return make_model(experiment.model, clients)
