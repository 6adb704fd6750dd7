"""Run ``task="next-client"`` and ``task="sets"``: statements about the next client from one reply per client."""

from collections.abc import Mapping
from logging import INFO, WARNING
from pathlib import Path
from typing import Any, Literal

from torch import nn

from wafl.base.describe import some
from wafl.base.errors import ConfigError
from wafl.config.experiment import Experiment
from wafl.config.plan import make_model, make_tolerance
from wafl.flower.node.next_client import FEW, NextClientQuery
from wafl.flower.server.census import Census
from wafl.flower.server.certify import own_model
from wafl.flower.server.exchange import Post
from wafl.flower.server.find_clients import log_settings
from wafl.flower.server.inquiry import Inquiry
from wafl.flower.wire.logs import log
from wafl.flower.wire.overrides import read_value
from wafl.flower.wire.run_config import from_run_config
from wafl.promises.promise import digest_of
from wafl.receipts.conclusion import Conclusion
from wafl.receipts.questions import Questions
from wafl.receipts.reply import Reply, check_invited
from wafl.results.saved import load_run
from wafl.studies.roster import read_roster
from wafl.train.clients import Roster


def next_client(post: Post, values: Mapping[str, Any], kind: Literal["next", "sets"]) -> None:
    """Ask each invited client once, and write the statements to ``next-client.json`` next to the model.

    The model is the run saved in ``folder``, or the parameters in a file ``*.safetensors`` for the app's model.
    ``invited`` names the invited clients; by default, all present or known clients that took no part in training.
    """
    experiment, folder = from_run_config(values), Path(str(values["folder"]))
    questions = experiment.questions
    if questions is None:
        raise ConfigError(f"task={values['task']!r} needs the section [questions] in the app's experiment")
    known, census, roster = gathered(post, experiment, folder)
    invited = _invited(roster, known, invited_names(values))
    check_support(questions, kind, len(invited))
    model = model_in(folder, experiment, known, roster)
    digest = digest_of(model)
    log(INFO, "asking %d clients about the model %s: %s", len(invited), digest, some(invited))

    def query(names: tuple[str, ...], _: tuple[int, ...]) -> NextClientQuery:
        return NextClientQuery(names, model.state_dict(), roster.num_outputs, len(invited), questions)

    inquiry = Inquiry(post, census, experiment.flower, make_tolerance(experiment, remote=True).attempts)
    replies = dict[str, Reply | str]()
    for numbers, each in inquiry.ask_all("query.next_client", invited, query, some=range(len(invited))):
        replies.update(zip((invited[number] for number in numbers), each, strict=True))
    usable = {name: reply for name, reply in replies.items() if isinstance(reply, Reply)}
    small = tuple(name for name in invited if replies.get(name) == FEW)
    missing = tuple(name for name in invited if name not in usable and name not in small)
    for name in missing:
        log(WARNING, "%s counts as infinity: %s", name, replies.get(name, "no reply"))
    conclusion = Conclusion(questions, digest, roster.unit, usable, small, missing)
    path = (folder if folder.is_dir() else folder.parent) / "next-client.json"
    conclusion.save(path)
    log(INFO, "\n%s\nwritten to %s", conclusion.lines(kind), path.resolve())


def gathered(post: Post, experiment: Experiment, folder: Path) -> tuple[Roster | None, Census, Roster]:
    """Return the roster of the study that a model belongs to, if there is one, the census, and the clients found."""
    known = read_roster(folder) or read_roster(folder.parent)
    unseen = experiment.data.unseen if known is None else None
    drawn = None if unseen is None else (unseen, experiment.data.unseen_seed)
    caps = experiment.caps.settled(remote=True)
    log_settings(experiment)
    census = Census(post, experiment.flower, False, known, caps=caps, unseen=drawn, classes=experiment.data.num_classes)
    return known, census, census.gather()


def invited_names(values: Mapping[str, Any]) -> list[str]:
    """Return the clients that ``invited`` in the run config names; an empty list means all."""
    named: Any = read_value("invited", values["invited"])
    if not isinstance(named, list) or not all(isinstance(name, str) for name in named):  # pyright: ignore[reportUnknownVariableType]
        raise ConfigError(f'run config: invited = {named!r} must be a list of clients, such as \'["north", "east"]\'')
    return named  # pyright: ignore[reportUnknownVariableType]


def check_support(questions: Questions, kind: Literal["next", "sets"], invited: int) -> None:
    """Raise PreconditionError, before any client is asked, if this number of clients cannot support the questions."""
    check_invited(questions, invited)
    if kind == "sets":
        questions.target().supported(invited)


def _invited(roster: Roster, known: Roster | None, named: list[str]) -> tuple[str, ...]:
    """Return the invited clients, all of which must be new to the model."""
    trained = known.names if known is not None else roster.names if roster.unseen else ()
    if both := sorted({*named} & {*trained}):
        raise ConfigError(
            f"run config: invited: {some(both)} trained, so their replies say nothing about the next client"
        )
    if known is None and not roster.unseen:
        log(WARNING, "no roster.json says who trained: nothing is proven if one of %s did", some(named or roster.names))
    invited = tuple(named) or tuple(name for name in (*roster.unseen, *roster.names) if name not in trained)
    if not invited:
        raise ConfigError(
            "all clients that are here trained: start nodes that did not, or leave some out (data.unseen)"
        )
    return tuple(dict.fromkeys(invited))


def model_in(folder: Path, experiment: Experiment, known: Roster | None, roster: Roster) -> nn.Module:
    """Return the model of a saved run, or the app's model with the parameters of a file."""
    if folder.suffix != ".safetensors":
        return load_run(folder, own_model(folder, experiment, known)).module.cpu().eval()
    from safetensors.torch import load_file

    model = make_model(experiment.model, known or roster)
    try:
        model.load_state_dict(load_file(folder))
    except (OSError, RuntimeError, ValueError) as error:
        raise ConfigError(f"run config: folder={str(folder)!r} does not fit the app's model: {error}") from error
    return model.eval()
