"""The ClientApp of a Flower quickstart; the line that WAFL changes is marked."""

from __future__ import annotations

from flwr.app import Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from task import accuracy, load_data, make_loader, make_model, moved

import wafl.flower

app = ClientApp()


@app.train()
def train(message: Message, context: Context) -> Message:
    data, _ = load_data(context.node_config["partition-id"], context.node_config["num-partitions"])
    loader = make_loader(data, context.run_config["batch-size"], seed=message.content["config"]["server-round"])
    return wafl.flower.train(make_model(), loader, message, context)  # WAFL: was a training loop and a reply


@app.evaluate()
def evaluate(message: Message, context: Context) -> Message:
    model = make_model()
    model.load_state_dict(message.content["arrays"].to_torch_state_dict())
    _, data = load_data(context.node_config["partition-id"], context.node_config["num-partitions"])
    x, y = data.tensors
    metrics = {
        "eval_acc": accuracy(model, x, y),
        "eval_acc_moved": accuracy(model, moved(model, x, y), y),
        "num-examples": len(x),
    }
    return Message(RecordDict({"metrics": MetricRecord(metrics)}), reply_to=message)
