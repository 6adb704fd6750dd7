"""The ClientApp: the node answers each message, knowing only its own data and the experiment of the Flower run."""

from __future__ import annotations

import json
from functools import lru_cache, partial

from flwr.app import Context, Message
from flwr.clientapp import ClientApp

from wafl.flower.node import Node
from wafl.flower.queries import answer

client_app = ClientApp()


@lru_cache(maxsize=1)
def _open(node_config: str, run_config: str) -> Node:
    """Cached, because in a simulation one process answers many messages."""
    return Node.of(json.loads(node_config), json.loads(run_config))


@client_app.train()
@client_app.evaluate()
@client_app.evaluate("test")
@client_app.query("hello")
@client_app.query("survey")
@client_app.query("midpoints")
def reply(message: Message, context: Context) -> Message:
    """See :data:`wafl.flower.queries.HANDLERS`."""
    configs = [json.dumps(dict(part), sort_keys=True) for part in (context.node_config, context.run_config)]
    content = answer(message.metadata.message_type, partial(_open, *configs), message.content)
    return Message(content, reply_to=message)
