"""Why a model has no proof."""

from wafl.tasks.structure.sequence import is_plain
from wafl.tasks.task import Task
from wafl.theory.constants.layer_by_layer import LAST, declared, is_bounded, last_layer, plain_layers


def why_unproven(task: Task) -> str:
    """Explain why no bound on a model's slope is known: its code, one of its layers, or its loss."""
    layers = plain_layers(task.module)
    if declared(task.module) is not None and last_layer(task.module) is None:
        return "its Lipschitz constant is only attested (model.lipschitz)"
    if layers == [task.module] and type(task.module) not in LAST:
        return f"{type(task.module).__name__} is a module of your own, not an nn.Sequential of layers with known bounds"
    for layer in layers or ():
        name = type(layer).__name__
        if not is_plain(layer, type(layer)):
            return f"its layer {name} has hooks or replaced methods"
        if not is_bounded(layer):
            return f"no bound is known for its layer {name}"
    if last_layer(task.module) is None:
        return "it does not end with a linear layer"
    return f"no bound is known for the loss {task.loss.name} of these layers"
