"""The contestant: fedjax, by ``for_each_client``, its jit backend and the optimizer of its tutorials."""

import fedjax
import jax
import jax.numpy as jnp
import numpy as np
from handed import compete

jax.tree_map = jax.tree_util.tree_map  # fedjax 0.0.17 knows it by its old name


def conv(params, name, x, stride):
    size = params[name].shape[-1] // 2
    return jax.lax.conv(x, params[name], (stride, stride), [(size, size)] * 2)


def group_norm(params, name, x):
    grouped = x.reshape(len(x), 32, -1)
    mean, variance = grouped.mean(2, keepdims=True), grouped.var(2, keepdims=True)
    normal = ((grouped - mean) / jnp.sqrt(variance + 1e-5)).reshape(x.shape)
    return normal * params[f"{name}.weight"][:, None, None] + params[f"{name}.bias"][:, None, None]


def resnet18(params, x):
    x = conv(params, "0.weight", x, 1) + params["0.bias"][:, None, None]
    for block in range(1, 9):
        stride = 2 if block in (3, 5, 7) else 1
        inner = jax.nn.relu(group_norm(params, f"{block}.norms.0", conv(params, f"{block}.first.weight", x, stride)))
        inner = group_norm(params, f"{block}.norms.1", conv(params, f"{block}.second.weight", inner, 1))
        x = jax.nn.relu(inner + (conv(params, f"{block}.short.weight", x, 2) if stride == 2 else x))
    return x.mean((2, 3)) @ params["11.weight"].T + params["11.bias"]


def logits(model, params, x):
    if model == "mlr":
        return x.reshape(len(x), -1) @ params["1.weight"].T + params["1.bias"]
    if model == "resnet":
        return resnet18(params, x)
    for layer in ("0", "3"):
        x = jax.lax.conv(x, params[f"{layer}.weight"], (1, 1), "SAME") + params[f"{layer}.bias"][:, None, None]
        x = jax.lax.reduce_window(jax.nn.relu(x), -jnp.inf, jax.lax.max, (1, 1, 2, 2), (1, 1, 2, 2), "VALID")
    x = jax.nn.relu(x.reshape(len(x), -1) @ params["7.weight"].T + params["7.bias"])
    return x @ params["9.weight"].T + params["9.bias"]


def prepare(work):
    model, optimizer = work.about["model"], fedjax.optimizers.sgd(work.about["learning_rate"])

    def loss(params, batch):
        scores = jax.nn.log_softmax(logits(model, params, batch["x"]))
        return -jnp.take_along_axis(scores, batch["y"][:, None], 1).mean()

    def client_init(params, _):
        return {"params": params, "state": optimizer.init(params)}

    def client_step(state, batch):
        state_, params = optimizer.apply(jax.grad(loss)(state["params"], batch), state["state"], state["params"])
        return {"params": params, "state": state_}

    def client_final(params, state):
        return jax.tree_util.tree_map(lambda before, after: before - after, params, state["params"])

    each_client = fedjax.for_each_client(client_init, client_step, client_final)
    server = fedjax.optimizers.sgd(1.0)

    def batches(round_, index, client):
        x, y = work.client(client)
        for rows in work.batches(round_, index):
            yield {"x": x[rows], "y": y[rows]}

    def train(rounds):
        params = {name: jnp.asarray(value) for name, value in work.params.items()}
        state = server.init(params)
        for round_ in range(rounds):
            clients = [
                (str(client), batches(round_, index, client), ()) for index, client in enumerate(work.cohorts[round_])
            ]
            sizes = [len(work.client(client)[1]) for client in work.cohorts[round_]]
            deltas = (delta for _, delta in each_client(params, clients))
            mean = fedjax.tree_util.tree_mean(zip(deltas, sizes, strict=True))
            state, params = server.apply(mean, state, params)
        return {name: np.asarray(value) for name, value in params.items()}

    return train


compete(prepare)
