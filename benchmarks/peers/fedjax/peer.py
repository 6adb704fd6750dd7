"""The contestant: fedjax, by ``for_each_client``, its jit backend and the optimizer of its tutorials."""

import fedjax
import jax
import jax.numpy as jnp
import numpy as np
from handed import compete

jax.tree_map = jax.tree_util.tree_map  # fedjax 0.0.17 knows it by its old name


def logits(model, params, x):
    if model == "mlr":
        return x.reshape(len(x), -1) @ params["1.weight"].T + params["1.bias"]
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
