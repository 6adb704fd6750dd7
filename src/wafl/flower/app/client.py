"""Define the ClientApp: a node answers each message from its data and the experiment of the Flower run."""

import json
from collections.abc import Sequence
from functools import lru_cache, partial

from flwr.app import Context, Message
from flwr.clientapp import ClientApp
from flwr.clientapp.typing import Mod

from wafl.flower.node.app_code import load_app
from wafl.flower.node.queries import HANDLERS, answer
from wafl.flower.node.refusals import signed
from wafl.flower.node.work import Node

MOST = 4096
"""The maximum number of nodes that one process of a simulation remembers. They share the data set's examples."""


@lru_cache(maxsize=MOST)
def _open(node_config: str, run_config: str) -> Node:
    """Open the node that the two configurations describe; in a simulation, one process answers for many nodes."""
    options = json.loads(node_config)
    return Node.of(options, load_app(run_config, own_data="data" in options))


def reply(message: Message, context: Context) -> Message:
    """Return the node's reply to a message, by the handler of its type in :mod:`wafl.flower.node.queries`."""
    configs = [json.dumps(dict(each), sort_keys=True) for each in (context.node_config, context.run_config)]
    content = answer(message.metadata.message_type, partial(_open, *configs), message.content)
    return Message(signed(content, str(context.node_config.get("name", ""))), reply_to=message)


def make_client_app(mods: Sequence[Mod] = ()) -> ClientApp:
    """Return a ClientApp with Flower's mods around it, from the outside in."""
    app = ClientApp(mods=list(mods))
    for kind in HANDLERS:
        category, _, action = kind.partition(".")
        register = {"train": app.train, "evaluate": app.evaluate, "query": app.query}[category]
        register(*([action] if action else []))(reply)
    return app


client_app = make_client_app()
