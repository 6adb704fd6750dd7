"""Answer the query about the next client: each calibration client answers the app's questions about one model."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from flwr.app import RecordDict
from torch import Tensor, nn

from wafl.data.federation import Federation
from wafl.flower.node.refusals import why_refused
from wafl.flower.node.work import Node
from wafl.flower.wire.values import (
    LARGEST,
    Reader,
    WireError,
    arrays,
    check_arrays,
    config_only,
    finite,
    num_outputs,
    read_array,
    read_doubles,
    with_arrays,
)
from wafl.promises.promise import digest_of
from wafl.receipts.questions import Questions
from wafl.receipts.reply import Reply, TooFewExamplesError, reply_of

FEW = "too few examples"
"""The reply for a client outside the population."""


@dataclass(frozen=True)
class NextClientQuery:
    """A query for the replies of calibration clients to the app's questions, about the model with this state."""

    names: tuple[str, ...]
    state: Mapping[str, Tensor]
    num_outputs: int
    invited: int
    questions: Questions

    def encode(self) -> RecordDict:
        """Return the message."""
        content = config_only("query", names=self.names, outputs=self.num_outputs, invited=self.invited)
        content["params"] = arrays(**self.state)
        return content

    def read(self, reply: RecordDict) -> list[Reply | str]:
        """Return each client's reply, or the reason why there is none."""
        read, count, questions = Reader(reply, "reply"), len(self.names), self.questions
        faults, reasons = read.many("faults", str, count), read.many("reasons", str, count)
        sizes, radii = read.many("sizes", int, count, 0, LARGEST), len(questions.radii)
        values, uppers = (read_doubles(reply, "numbers", name, (count, radii)) for name in ("values", "uppers"))
        above = read_doubles(reply, "numbers", "above", (count, radii, len(questions.thresholds)))
        asked = [questions.own_sampling and radius == 0 for radius in questions.radii]
        result = list[Reply | str]()
        for index, fault in enumerate(faults):
            if fault:
                result.append(fault[:LONGEST])
                continue
            bounds = [upper if wanted else None for upper, wanted in zip(uppers[index].tolist(), asked, strict=True)]
            numbers = {"values": values[index].tolist(), "uppers": bounds, "above": above[index].tolist()}
            content = {"examples": sizes[index], **numbers, "reason": reasons[index][:LONGEST]}
            try:
                result.append(Reply.of(content, questions))
            except ValueError as error:
                result.append(str(error))
        return result


LONGEST = 200
"""The maximum length of a sentence about a client."""


def next_client(node: Node, content: RecordDict) -> RecordDict:
    """Reply with each client's numbers for the app's questions, or with the reason why there are none."""
    questions = node.experiment.questions
    if questions is None:
        raise WireError("the app asks no questions about the next client: write [questions] into its experiment")
    read = Reader(content, "query")
    names, invited = read.different("names"), read.one("invited", int, 1, LARGEST)
    model = read_model(node, content)
    digest, rows, clients = digest_of(model), node.asked(names), node.site.federation

    def replied(name: str, client: Federation) -> Reply | str:
        try:
            with node.answers.once(name, digest, questions, client):
                return reply_of(questions, model, client, invited, node.experiment.model.loss)
        except TooFewExamplesError:
            return FEW
        except Exception as error:  # whatever the error is, the other clients of the node answer
            return why_refused(error)

    replies = [replied(name, clients.of_clients([row])) for name, row in zip(names, rows, strict=True)]
    return _encoded(replies, questions)


def read_model(node: Node, content: RecordDict) -> nn.Module:
    """Return the app's model, in evaluation mode, with the state in a query."""
    model = node.model(num_outputs(content)).eval()
    state = model.state_dict()
    check_arrays(content, "params", list(state))
    for name, like in state.items():
        value = read_array(content, "params", name, tuple(like.shape), like.dtype)
        state[name] = finite(name, value) if value.is_floating_point() else value
    model.load_state_dict(state)
    return model


def _encoded(replies: Sequence[Reply | str], questions: Questions) -> RecordDict:
    radii, thresholds = len(questions.radii), len(questions.thresholds)
    none = Reply(0, (0.0,) * radii, (None,) * radii, ((0.0,) * thresholds,) * radii)
    each = [none if isinstance(reply, str) else reply for reply in replies]
    reply = config_only(
        "reply",
        sizes=[one.examples for one in each],
        faults=[one if isinstance(one, str) else "" for one in replies],
        reasons=[one.reason for one in each],
    )
    uppers = [[0.0 if upper is None else upper for upper in one.uppers] for one in each]
    numbers = {"values": [one.values for one in each], "uppers": uppers, "above": [one.above for one in each]}
    tensors = {name: torch.tensor(value, dtype=torch.float64) for name, value in numbers.items()}
    return with_arrays(reply, "numbers", **tensors)
