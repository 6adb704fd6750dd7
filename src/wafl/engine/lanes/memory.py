"""How many lanes fit in memory at once."""

import os

import torch

from wafl.engine.client.task import REPORT_BATCH, ClientTask, LaneInput


def lanes_that_fit(client: ClientTask, lanes: LaneInput) -> int:
    """As many lanes as half of the free memory holds, but at least one, by counting what one lane needs."""
    return max(1, free_bytes(lanes.params.device) // 2 // _lane_bytes(client, lanes))


def free_bytes(device: torch.device) -> int:
    """The free memory of a device."""
    if device.type == "cuda":
        return torch.cuda.mem_get_info(device)[0]
    return os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


def _lane_bytes(client: ClientTask, lanes: LaneInput) -> int:
    """The bytes of a lane: parameters, gradient, batch, their copies, activations for autograd, and all batches."""
    largest = int(client.examples.num_examples.max())
    batch = min(max(client.work.batch_size or largest, REPORT_BATCH), largest)
    params = lanes.params[:1]
    x = params.new_zeros(batch, *client.examples.shape)
    kept = 0

    def count(tensor: torch.Tensor) -> torch.Tensor:
        nonlocal kept
        kept += tensor.nbytes
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(count, lambda tensor: tensor), torch.enable_grad():
        client.task.call(params[0].clone().requires_grad_(), x)
    memory = sum(kept[0].nbytes for kept in lanes.memory.values())
    vectors = sum(vector[0].nbytes for vector in lanes.vectors.values())
    # Drawing one example of one step takes 64 bytes: its number, and what is compared and sorted on the way.
    drawn = 64 * max(client.work.num_steps([largest])) * client.batch_room(largest)
    again = client.local.gradients - 1  # each has its own place, gradient and moved examples
    models, batches = 6 + 2 * again, 8 + 2 * again
    return models * params.nbytes + 4 * vectors + batches * x.nbytes + 3 * kept + 4 * memory + drawn
