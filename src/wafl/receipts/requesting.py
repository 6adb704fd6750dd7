"""Create a request: an owner's questions to sites about a model, signed before any site answers."""

import os
import secrets
from datetime import UTC, datetime, time, timedelta
from pathlib import Path

from torch import nn

from wafl.base.errors import PreconditionError
from wafl.base.json_types import as_type
from wafl.promises.promise import digest_of
from wafl.promises.receipts import UNSIGNED, Asked, Request, now, signed
from wafl.promises.sign import public_digits, public_keys
from wafl.promises.verify import module_and_loss
from wafl.receipts.questions import Questions
from wafl.receipts.reply import check_invited
from wafl.results.run import Run
from wafl.sets.answers import Scorer
from wafl.sets.scores import make_score
from wafl.sets.shifted import check_moves
from wafl.tasks.losses import OutputLoss, spelled
from wafl.tasks.task import Loss

DAYS = 30
"""The default number of days until the deadline."""
Place = str | os.PathLike[str]


def request(
    model: Run | nn.Module,
    questions: Questions | Place,
    *,
    invite: Place,
    key: Place,
    trained: Place | None = None,
    deadline: str | datetime | None = None,
    loss: Loss | None = None,
    unit: str | None = None,
) -> Request:
    """Return a signed request.

    Save it with ``request.save(path)`` and send the file to the sites, before any of them answers.

    Args:
        model: the model of the questions.
        questions: the questions, or a TOML file of them.
        invite: a folder with one Ed25519 public key per site, ``NAME.pub`` or ``NAME.pem``. The list is final: a site
            that does not answer counts as infinity.
        key: the file of the owner's private key.
        trained: the keys of clients that trained, in a file or a folder. None of them may answer.
        deadline: the deadline for answers; a date includes its whole day, in UTC. By default in 30 days.
        loss: the loss; by default the run's loss, or cross-entropy.
        unit: the unit of the data; by default the run's unit, or ``"input units"``.
    """
    owner = public_digits(key, private=True)
    asked = questions if isinstance(questions, Questions) else Questions.read(questions)
    invited = public_keys(Path(invite)) if Path(invite).is_dir() else {}
    if not invited:
        raise ValueError(f"{invite} has no public keys: pass a folder with NAME.pub or NAME.pem for each site")
    check_invited(asked, len(invited))
    if isinstance(model, Run):
        check_model(asked, model)
    module, name = module_and_loss(model, loss)
    known = model.settings.get("unit") if isinstance(model, Run) else None
    issued, until = now(), _time(deadline)
    if until <= issued:
        raise ValueError(f"deadline={until.isoformat()} has passed: pass a later one")
    whole = Request(
        kind="wafl request",
        format=1,
        nonce=secrets.token_hex(16),
        model=digest_of(module),
        loss=loss_name(name),
        unit=unit or known or "input units",
        questions=as_type(Asked, asked.content),
        invited=dict(sorted(invited.items())),
        trained=() if trained is None else tuple(sorted(set(public_keys(trained).values()))),
        issued=issued.isoformat(),
        deadline=until.isoformat(),
        owner=owner,
        signature=UNSIGNED,
    )
    return signed(whole, key)


def check_model(questions: Questions, run: Run) -> None:
    """Raise ValueError, before any site is asked, if the questions do not suit a run."""
    score = make_score(questions.score, run.num_classes)
    if questions.metric == "error" and not score.of_classes:
        raise PreconditionError("metric='error' is for classes: use metric = \"loss\" for regression")
    if run.intake.shape is not None and any(radius > 0 for radius in questions.radii):
        check_moves(Scorer.of_shape(run, score, run.intake.shape).problem, score)


def loss_name(loss: OutputLoss) -> str:
    """Return the name of a loss in a request."""
    return spelled(loss) or f"a loss of your own, {loss.name}"


def _time(deadline: str | datetime | None) -> datetime:
    if deadline is None:
        return now() + timedelta(days=DAYS)
    try:
        when = deadline if isinstance(deadline, datetime) else datetime.fromisoformat(deadline)
    except ValueError:
        raise ValueError(f"deadline={deadline!r} must be a date or a time, such as 2027-01-31") from None
    if isinstance(deadline, str) and len(deadline) == len("2027-01-31"):
        when = datetime.combine(when, time(23, 59, 59))
    return when.replace(microsecond=0, tzinfo=when.tzinfo or UTC)
