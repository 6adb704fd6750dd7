"""The ClientApp of a Flower quickstart; the line that WAFL changes is marked."""

from __future__ import annotations

from typing import cast

from flwr.app import Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from task import accuracy, load_data, make_loader, make_model, moved
from torch.utils.data import TensorDataset

import wafl.flower

app = ClientApp()


@app.train()
def train(message: Message, context: Context) -> Message:
    data, _ = own_data(context)
    round_ = cast(int, message.content.config_records["config"]["server-round"])
    loader = make_loader(data, int(context.run_config["batch-size"]), seed=round_)
    return wafl.flower.train(make_model(), loader, message, context)  # WAFL: was a training loop and a reply


@app.evaluate()
def evaluate(message: Message, context: Context) -> Message:
    model = make_model()
    model.load_state_dict(message.content.array_records["arrays"].to_torch_state_dict())
    _, data = own_data(context)
    x, y = data.tensors
    metrics = MetricRecord(
        {
            "eval_acc": accuracy(model, x, y),
            "eval_acc_moved": accuracy(model, moved(model, x, y), y),
            "num-examples": len(x),
        }
    )
    return Message(RecordDict({"metrics": metrics}), reply_to=message)


def own_data(context: Context) -> tuple[TensorDataset, TensorDataset]:
    return load_data(int(context.node_config["partition-id"]), int(context.node_config["num-partitions"]))
