"""Define the query to fine-tune a model on each client's examples; the results stay on the node's disk."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from hashlib import sha256
from logging import INFO, WARNING
from pathlib import Path

from flwr.app import RecordDict
from torch import Tensor, nn

from wafl.base.files import tensors_to_bytes, write_whole
from wafl.flower.node.agreed import check_steps
from wafl.flower.node.next_client import read_model
from wafl.flower.node.work import Node
from wafl.flower.wire.logs import log
from wafl.flower.wire.values import Reader, WireError, arrays, config_only
from wafl.promises.promise import digest_of
from wafl.results.personalize import Personalized
from wafl.results.personalize import personalize as fine_tune

FOLDER = "personal"
"""The folder in a node's state folder, with one folder per client."""


@dataclass(frozen=True)
class PersonalizeQuery:
    """A query to fine-tune the model with this state on the examples of these clients, with the app's settings."""

    names: tuple[str, ...]
    state: Mapping[str, Tensor]
    num_outputs: int

    def encode(self) -> RecordDict:
        """Return the query as a message's content."""
        content = config_only("query", names=self.names, outputs=self.num_outputs)
        content["params"] = arrays(**self.state)
        return content

    def read(self, reply: RecordDict) -> None:
        """Check that a reply contains only the format of messages."""
        Reader(reply, "reply")
        if {*reply} != {"reply"} or {*reply["reply"]} != {"format"}:
            raise WireError("a reply to query.personalize must contain only its format")


def personalize(node: Node, content: RecordDict) -> RecordDict:
    """Fine-tune the model on each client. Reply with nothing, since even success depends on the examples."""
    options = node.experiment.personalize
    if options is None:
        raise WireError("the app does not personalize models: write [personalize] into its experiment")
    names, model = Reader(content, "query").different("names"), read_model(node, content)
    if node.site.own:
        check_steps(options.steps, node.limits.max_steps)
    for name, row in zip(names, node.asked(names), strict=True):
        folder = node.state / FOLDER / sha256(name.encode()).hexdigest()[:16]
        client = node.site.federation.of_clients([row])
        try:
            result = fine_tune(model, node.experiment.model.loss, client, options)
            _store(folder, result, model)
        except Exception as error:  # the server must not learn about the error, and the other clients continue
            log(WARNING, "no model was fine-tuned for %s: %s", name, error)
        else:
            log(INFO, "%s The model and this result are in %s, and are not sent.", result, folder)
    return config_only("reply")


def _store(folder: Path, result: Personalized, model: nn.Module) -> None:
    """Write the fine-tuned model and its result, replacing earlier ones; only this user may read them."""
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    about = {**result.to_json(), "global_model": digest_of(model), "model": digest_of(result.model)}
    write_whole(folder / "model.safetensors", tensors_to_bytes(result.model.state_dict()), 0o600)
    write_whole(folder / "result.json", json.dumps(about, indent=1).encode(), 0o600)
