"""Why Flower's secure aggregation protects no node of `wafl`: it takes other messages, and yields to a server.

If a test fails with another version of Flower, read docs/security.md again: its "no" may have become a "yes".
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from flwr.app import ConfigRecord, Context, Message, RecordDict
from flwr.client.mod import secaggplus_mod
from flwr.common import bytes_to_ndarray, ndarrays_to_parameters
from flwr.common.secure_aggregation.crypto.shamir import combine_shares
from flwr.common.secure_aggregation.ndarrays_arithmetic import (
    factor_extract,
    get_parameters_shape,
    parameters_mod,
    parameters_multiply,
    parameters_subtraction,
)
from flwr.common.secure_aggregation.quantization import dequantize
from flwr.common.secure_aggregation.secaggplus_constants import RECORD_KEY_CONFIGS, Key, Stage
from flwr.common.secure_aggregation.secaggplus_utils import pseudo_rand_gen
from flwr.common.typing import Code, FitRes, Status
from flwr.compat.common import recorddict_compat
from flwr.server.workflow import SecAggPlusWorkflow

from tests.oracles import flower_fakes as fakes
from wafl.flower.node.queries import answer
from wafl.flower.node.work import Node
from wafl.flower.wire.values import NodeQuery, encode_query
from wafl.parts.messages import Query

NODE, RANGE, MODULUS, CLIP = 5, 1 << 22, 1 << 32, 8.0


class Server:
    """A server with one node, whose ClientApp is Flower's mod around a training function."""

    def __init__(self, train: Any) -> None:
        self._train, self._context = train, Context(1, NODE, {}, RecordDict(), {})

    def ask(self, stage: str, **values: Any) -> ConfigRecord:
        content = RecordDict({RECORD_KEY_CONFIGS: ConfigRecord({Key.STAGE: stage, **values})})
        message = Message(content, NODE, "train")
        message.metadata.__dict__["_message_id"] = stage
        reply = secaggplus_mod(message, self._context, self._train)
        return reply.content.config_records[RECORD_KEY_CONFIGS]

    def masked(self, threshold: int) -> list[Any]:
        """Return what a cohort of one sends: its masked vectors, and its weight before them."""
        numbers = {Key.SAMPLE_NUMBER: 1, Key.SHARE_NUMBER: 1, Key.THRESHOLD: threshold, Key.CLIPPING_RANGE: CLIP}
        limits = {Key.TARGET_RANGE: RANGE, Key.MOD_RANGE: MODULUS, Key.MAX_WEIGHT: 1000.0}
        keys = self.ask(Stage.SETUP, **numbers, **limits)
        self.ask(Stage.SHARE_KEYS, **{str(NODE): [keys[Key.PUBLIC_KEY_1], keys[Key.PUBLIC_KEY_2]]})
        reply = self.ask(Stage.COLLECT_MASKED_VECTORS, **{Key.CIPHERTEXT_LIST: [], Key.SOURCE_LIST: []})
        return [bytes_to_ndarray(each) for each in reply[Key.MASKED_PARAMETERS]]  # type: ignore[union-attr]

    def shares(self, active: list[int], dead: list[int]) -> list[bytes]:
        reply = self.ask(Stage.UNMASK, **{Key.ACTIVE_NODE_ID_LIST: active, Key.DEAD_NODE_ID_LIST: dead})
        return list(reply[Key.SHARE_LIST])  # type: ignore[arg-type]


@pytest.fixture(autouse=True)
def identity(monkeypatch: pytest.MonkeyPatch) -> None:
    fakes.virtual(monkeypatch)


def trained(update: np.ndarray[Any, Any]) -> Any:
    """A training function that replies with this update, as Flower's older API has it."""

    def train(message: Message, _: Context) -> Message:
        result = FitRes(Status(Code.OK, ""), ndarrays_to_parameters([update]), 1000, {})
        return Message(recorddict_compat.fitres_to_recorddict(result, keep_input=True), reply_to=message)

    return train


def test_the_mod_unmasks_a_cohort_of_one() -> None:
    """The server asks for a threshold of 1, gets the only share of the only mask, and reads the update."""
    update = np.linspace(-1.0, 1.0, 7)
    server = Server(trained(update))
    masked = server.masked(threshold=1)
    seed = combine_shares(server.shares([NODE], []))
    mask = pseudo_rand_gen(seed, MODULUS, get_parameters_shape(masked))
    weight, vectors = factor_extract(parameters_mod(parameters_subtraction(masked, mask), MODULUS))
    (found,) = parameters_multiply(dequantize(vectors, CLIP, RANGE), RANGE / weight)
    np.testing.assert_allclose(found, update, atol=1e-5)


def test_the_mod_reveals_both_secrets_of_a_node_that_is_called_active_and_dead() -> None:
    """The private mask and the key of the pairwise masks, of which a server must learn at most one."""
    server = Server(trained(np.zeros(3)))
    server.masked(threshold=1)
    shares = server.shares([NODE], [NODE])
    assert len({*map(combine_shares, ([share] for share in shares))}) == 2


def test_flowers_workflow_takes_only_the_context_of_its_older_api() -> None:
    workflow: Any = SecAggPlusWorkflow(3, 2)
    with pytest.raises(TypeError, match="LegacyContext"):
        workflow(None, Context(1, NODE, {}, RecordDict(), {}))


def test_the_mod_cannot_read_a_reply_of_ours(tmp_path: Path) -> None:
    data = fakes.write(tmp_path / "data", fakes.make_clients((20,)))
    schedule = {"rounds": 1, "local_steps": 1, "learning_rate": 0.1}
    experiment = fakes.flat({"methods": [{"method": "FedAvg"}], "schedule": schedule})
    node = Node.of({"data": str(data), "state": str(tmp_path / "state")}, experiment)
    scalars = {"learning_rate": 0.1, "momentum": 0.0, "weight_decay": 0.0}
    run = Query("train", 0, 0, (0,), torch.ones(1, dtype=torch.float64), torch.zeros(15), scalars)
    content = encode_query(NodeQuery("fedavg", (0,), (run,), {0: "c00"}, 3, "training"))
    reply = answer("train", lambda: node, content)
    assert set(reply) == {"reply", "numbers", "vectors"}
    with pytest.raises(KeyError, match="fitres"):
        Server(lambda message, _: Message(reply, reply_to=message)).masked(threshold=1)
