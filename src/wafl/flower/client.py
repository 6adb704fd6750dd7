"""The ClientApp: reads what it is asked, lets the node answer, and says in words what it refuses."""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import lru_cache

import torch
from flwr.app import Context, Message, RecordDict
from flwr.clientapp import ClientApp

from wafl.flower import queries
from wafl.flower.census import Hello
from wafl.flower.node import Node
from wafl.flower.wire import Reader, decode_ask, encode_replies, num_outputs, refusal

client_app = ClientApp()


@lru_cache(maxsize=1)
def _open(node_config: str, run_config: str) -> Node:
    return Node.of(json.loads(node_config), json.loads(run_config))


def _answered(message: Message, context: Context, answer: Callable[[Node, RecordDict], RecordDict]) -> Message:
    try:
        # In a simulation one process answers for many messages.
        node = _open(*(json.dumps(dict(part), sort_keys=True) for part in (context.node_config, context.run_config)))
        content = answer(node, message.content)
    except (ValueError, OSError, RuntimeError, torch.OutOfMemoryError) as error:
        content = refusal(f"{type(error).__name__}: {error}")
    return Message(content, reply_to=message)


@client_app.query("hello")
def hello(message: Message, context: Context) -> Message:
    """Which clients this node holds, and what a model for them must take; how many examples only if asked."""

    def answer(node: Node, content: RecordDict) -> RecordDict:
        clients, rows = node.site.federation, node.site.rows
        with_sizes = Reader(content, "ask").one("sizes", bool)
        numbers, sizes, tests = node.site.numbers, clients.train.num_examples, clients.test.num_examples
        return Hello(
            tuple(rows),
            None if numbers is None else tuple(numbers[name] for name in rows),
            tuple(int(sizes[row]) for row in rows.values()) if with_sizes else None,
            tuple(name for name, row in rows.items() if int(tests[row]) > 0),
            clients.input_shape,
            clients.num_classes or 0,
            clients.num_outputs,
            clients.unit,
            clients.bounds,
        ).encode()

    return _answered(message, context, answer)


def _work(message: Message, context: Context) -> Message:
    def answer(node: Node, content: RecordDict) -> RecordDict:
        task, start = node.task(num_outputs(content))
        ask = decode_ask(content, start)
        return encode_replies(ask, node.answer(ask, task))

    return _answered(message, context, answer)


@client_app.train()
def train(message: Message, context: Context) -> Message:
    """Local training: lines 3 to 8 of the paper's Algorithm 1."""
    return _work(message, context)


@client_app.evaluate()
def loss(message: Message, context: Context) -> Message:
    """The loss at given parameters, over all training examples."""
    return _work(message, context)


@client_app.evaluate("test")
def test(message: Message, context: Context) -> Message:
    """How good given parameters are on the node's own test examples, clean or attacked."""
    return _answered(message, context, queries.test)


@client_app.query("survey")
def survey(message: Message, context: Context) -> Message:
    """Two numbers a client and gamma: what a certificate is made of."""
    return _answered(message, context, queries.survey)


@client_app.query("midpoints")
def midpoints(message: Message, context: Context) -> Message:
    """Points between a client's examples and a reference: what a private distance is made of."""
    return _answered(message, context, queries.midpoints)
