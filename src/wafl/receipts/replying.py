"""Create a receipt: a site's reply to a request, computed from its examples and signed with its key."""

import json
import os
from contextlib import nullcontext
from hashlib import sha256
from pathlib import Path

from torch import nn

from wafl.base.fingerprint import object_digest
from wafl.base.json_types import as_type
from wafl.data.federation import Federation
from wafl.promises.promise import digest_of
from wafl.promises.receipts import UNSIGNED, Numbers, Receipt, Request, as_time, is_signed, now, read, signed
from wafl.promises.sign import public_digits
from wafl.promises.verify import module_and_loss
from wafl.receipts.answered import Answered
from wafl.receipts.questions import Questions
from wafl.receipts.reply import Reply, TooFewExamplesError, reply_of
from wafl.receipts.requesting import Place, loss_name
from wafl.results.run import Run
from wafl.tasks.losses import OutputLoss
from wafl.tasks.task import Loss


def receipt(
    request: Request | Place,
    model: Run | nn.Module,
    data: Federation,
    *,
    key: Place,
    owner: Place | None = None,
    loss: Loss | None = None,
    state: Place | None = None,
    again: bool = False,
) -> Receipt:
    """Return a site's signed reply to a request. Nothing leaves the site until you send the receipt.

    If a client has fewer examples than the request requires, its receipt has no numbers.

    Args:
        request: the request, or its file.
        model: the model of the request, checked by its digest.
        data: one client: the site's examples, all of which are used.
        key: the file of the site's private key, whose public key is invited.
        owner: the file of the public key that must have signed the request.
        loss: the loss; by default the run's loss, or cross-entropy.
        state: the folder that records the examples of the site's answers; by default in the user's state folder.
        again: if True, answer different questions, or questions about a different model, with examples of earlier
            answers.
    """
    asked, own = opened(request, owner), public_digits(key, private=True)
    name = next((name for name, known in asked.invited.items() if known == own), None)
    if name is None:
        raise ValueError(f"the key {own} was not invited: use the private key of a public key that the owner has")
    if now() > as_time(asked.deadline):
        raise ValueError(f"the deadline {asked.deadline} has passed: ask the owner for a new request")
    content = numbers(asked, model, data, own, loss=loss, state=state, again=again)
    answer = Receipt("wafl receipt", 1, asked.digest, own, now().isoformat(), content, UNSIGNED)
    return signed(answer, key)


def opened(request: Request | Place, owner: Place | None = None) -> Request:
    """Return a request that its owner has signed; raise ValueError for any other request."""
    asked = request if isinstance(request, Request) else read(Request, Path(request))
    if not is_signed(asked):
        raise ValueError("the request was not signed by its owner, or was changed since: do not rely on it")
    if owner is not None and public_digits(owner, private=False) != asked.owner:
        raise ValueError(f"the request was signed with the key {asked.owner}, not with this one: do not rely on it")
    return asked


def numbers(
    asked: Request,
    model: Run | nn.Module,
    data: Federation,
    who: str,
    *,
    loss: Loss | None = None,
    state: Place | None = None,
    again: bool = False,
    remember: bool = True,
) -> Numbers | None:
    """Return the requested numbers, or None if there are too few examples.

    With ``remember``, they are recorded. An error is raised if earlier numbers of `who` and these would reveal
    examples.
    """
    module, known_loss = module_and_loss(model, loss)
    if (digest := digest_of(module)) != asked.model:
        raise ValueError(f"this model has the digest {digest}, and the request is about {asked.model}")
    if (name := loss_name(known_loss)) != asked.loss:
        raise ValueError(f"this model has the loss {name!r}, and the request is about {asked.loss!r}")
    if data.unit != asked.unit:
        raise ValueError(f"the data are in {data.unit!r}, and the request is about {asked.unit!r}: prepare them alike")
    if data.num_clients != 1:
        raise ValueError(f"a receipt is about 1 client, and these data have {data.num_clients}: give the data of one")
    questions = questions_of(asked)
    about = f"the model {asked.model}, {_read(data, known_loss)}, and the questions {questions.digest}"
    remedy = None if again else "other numbers about the same examples reveal more: pass again=True (--again) for them"
    once = Answered(state_folder(state)).once(who, about, data, other=remedy) if remember else nullcontext()
    try:
        with once:
            reply = reply_of(questions, module, data, len(asked.invited), known_loss)
    except TooFewExamplesError:
        return None
    return as_type(Numbers, Reply.of(reply.content, questions).content)


def _read(data: Federation, loss: OutputLoss) -> str:
    """Return a description of the preprocessing and the loss, which change numbers just as a different model does."""
    prepared = sha256(json.dumps(data.train.prepare.to_json(), sort_keys=True).encode()).hexdigest()
    return f"its inputs {prepared}, its loss {object_digest(loss)}"


def questions_of(asked: Request) -> Questions:
    """Return the questions of a request."""
    return Questions.of(vars(asked.questions), "request")


def state_folder(state: Place | None) -> Path:
    """Return the folder in which a site records its answers."""
    if state is not None:
        return Path(state)
    if named := os.environ.get("WAFL_STATE"):
        return Path(named)
    from platformdirs import user_state_path

    return user_state_path("wafl")
