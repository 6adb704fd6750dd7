"""Run ``task="personalize"``: nodes fine-tune a saved model on their clients, and keep the results."""

from collections.abc import Mapping
from logging import INFO, WARNING
from pathlib import Path
from typing import Any

from wafl.base.describe import some
from wafl.base.errors import ConfigError
from wafl.config.plan import make_tolerance
from wafl.flower.node.personalize import PersonalizeQuery
from wafl.flower.server.exchange import Post
from wafl.flower.server.inquiry import Inquiry
from wafl.flower.server.next_client import gathered, invited_names, model_in
from wafl.flower.wire.logs import log
from wafl.flower.wire.run_config import from_run_config


def personalize(post: Post, values: Mapping[str, Any]) -> None:
    """Ask the nodes of all clients, or of the clients in ``invited``, to fine-tune a model; they send no results."""
    experiment, folder = from_run_config(values), Path(str(values["folder"]))
    if experiment.personalize is None:
        raise ConfigError("task='personalize' needs the section [personalize] in the app's experiment")
    known, census, roster = gathered(post, experiment, folder)
    names = tuple(dict.fromkeys(invited_names(values) or (*roster.names, *roster.unseen)))
    model = model_in(folder, experiment, known, roster)

    def query(chosen: tuple[str, ...], _: tuple[int, ...]) -> PersonalizeQuery:
        return PersonalizeQuery(chosen, model.state_dict(), roster.num_outputs)

    inquiry = Inquiry(post, census, experiment.flower, make_tolerance(experiment, remote=True).attempts)
    replies = inquiry.ask_all("query.personalize", names, query, some=range(len(names)))
    reached = {names[number] for numbers, _ in replies for number in numbers}
    if missing := [name for name in names if name not in reached]:
        log(WARNING, "no node has fine-tuned the model for %s", some(missing))
    log(INFO, "the nodes of %d clients were asked to fine-tune the model; the results are on the nodes", len(reached))
