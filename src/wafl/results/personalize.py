"""Personalization: fine-tune a trained model on one client's examples, and test it before and after."""

import copy
import math
from dataclasses import dataclass, field
from typing import Annotated, Any

import torch
from torch import Tensor, nn

from wafl.base.errors import did_you_mean
from wafl.base.options import Count, Positive, check_options, frozen
from wafl.data.federation import Federation
from wafl.tasks.fitness import takes_integers
from wafl.tasks.losses import output_loss
from wafl.tasks.task import Loss

NOT_COVERED = "Certificates and statements about the next client cover the global model only, not this one."


@frozen
class Personalization:
    """How a model is fine-tuned on one client's training examples, by plain gradient descent."""

    steps: Annotated[int, Count(), "Steps, each with the mean gradient of all of the client's training examples."] = 10
    learning_rate: Annotated[float, Positive(), "The length of a step, in gradients."] = 0.1
    layers: Annotated[
        str, "What changes: 'head' (the layer with parameters that the model defines last), 'all', or a layer's name."
    ] = "head"

    def __post_init__(self) -> None:
        check_options(self)

    def chosen(self, model: nn.Module) -> dict[str, nn.Parameter]:
        """Return the parameters that change, by name."""
        named = dict(model.named_parameters())
        if self.layers == "all":
            return named
        layer = next(reversed(named)).rpartition(".")[0] if self.layers == "head" else self.layers
        chosen = {name: value for name, value in named.items() if layer in ("", name) or name.startswith(f"{layer}.")}
        if not chosen:
            known = ["head", "all", *dict.fromkeys(name.rpartition(".")[0] for name in named)]
            hint = did_you_mean(self.layers, known) or f": use one of {', '.join(filter(None, known))}"
            raise ValueError(f"layers={self.layers!r} is no layer with parameters{hint}")
        return chosen


@dataclass(frozen=True)
class Measured:
    """The mean loss, and for classes the accuracy, on a client's held-out examples."""

    loss: float
    accuracy: float | None

    def __str__(self) -> str:
        return f"loss {self.loss:.4g}" if self.accuracy is None else f"accuracy {self.accuracy:.1%}"


@dataclass(frozen=True)
class Personalized:
    """A model that was fine-tuned on one client: what :meth:`wafl.Run.personalize` returns.

    Args:
        model: the fine-tuned model, in evaluation mode.
        client: the client's name.
        changed: the names of the parameters that changed.
        before: the global model on the client's held-out examples.
        after: the fine-tuned model on the same examples.
        examples: how many training and held-out examples the client has.
        options: how the model was fine-tuned.
    """

    model: nn.Module = field(repr=False)
    client: str
    changed: tuple[str, ...]
    before: Measured
    after: Measured
    examples: tuple[int, int]
    options: Personalization

    @property
    def better(self) -> bool:
        """Whether the fine-tuned model is better on the held-out examples; if not, use the global model."""
        if self.before.accuracy is None or self.after.accuracy is None:
            return self.after.loss < self.before.loss
        return (self.after.accuracy, -self.after.loss) > (self.before.accuracy, -self.before.loss)

    def to_json(self) -> dict[str, Any]:
        """Return everything but the model, as plain values."""
        numbers = {"before": vars(self.before), "after": vars(self.after), "better": self.better}
        counts = dict(zip(("training_examples", "held_out_examples"), self.examples, strict=True))
        about = {"client": self.client, "changed": list(self.changed), **vars(self.options)}
        return {**about, **counts, **numbers, "note": NOT_COVERED}

    def __str__(self) -> str:
        train, test = self.examples
        advice = "" if self.better else " It is no better: use the global model."
        return (
            f"{self.client}: {self.before} before and {self.after} after {self.options.steps} steps on {train} "
            f"training examples; measured on {test} held-out examples.{advice} {NOT_COVERED}"
        )


def personalize(model: nn.Module, loss: Loss, client: Federation, options: Personalization) -> Personalized:
    """Fine-tune a copy of a model on the training examples of one client, in evaluation mode.

    Statistics of BatchNorm stay, and dropout is off. Nothing is drawn, so the same call gives the same bits.
    """
    if client.num_clients != 1:
        raise ValueError(f"client has {client.num_clients} clients, and one is wanted: use clients.of_clients([0])")
    name, lost = client.names[0], output_loss(loss)
    examples = int(client.train.num_examples[0]), int(client.test.num_examples[0])
    if not all(examples):
        raise ValueError(
            f"{name} has {examples[0]} training and {examples[1]} held-out examples, and needs at least one of each: "
            "make the federation with test_fraction > 0"
        )
    tuned = copy.deepcopy(model).eval()
    chosen = options.chosen(tuned)
    for key, value in tuned.named_parameters():
        value.requires_grad_(key in chosen)
    like = next(tuned.parameters())

    def prepared(split: Any) -> tuple[Tensor, Tensor]:
        x, y = split.of(0)
        x = x.to(like)
        whole = takes_integers(tuned, x[:1])
        y = y.to(like.device)
        return x.long() if whole else x, y.to(like.dtype) if y.is_floating_point() else y

    def measured(x: Tensor, y: Tensor) -> Measured:
        with torch.no_grad():
            outputs = tuned(x).double()
            right = (outputs.argmax(-1) == y).double().mean() if client.num_classes is not None else None
            return Measured(float(lost.value(outputs, y).mean()), None if right is None else float(right))

    train, test = prepared(client.train), prepared(client.test)
    before = measured(*test)
    for _ in range(options.steps):
        value = lost.value(tuned(train[0]), train[1]).mean()
        gradients = torch.autograd.grad(value, list(chosen.values()), materialize_grads=True)
        with torch.no_grad():
            for parameter, gradient in zip(chosen.values(), gradients, strict=True):
                parameter.sub_(gradient, alpha=options.learning_rate)
    after = measured(*test)
    if not math.isfinite(after.loss):
        raise ValueError(
            f"the loss on {name} is {after.loss} after {options.steps} steps with learning_rate="
            f"{options.learning_rate}: lower it (before, the loss was {before.loss:.4g})"
        )
    tuned.requires_grad_(True)
    return Personalized(tuned, name, tuple(chosen), before, after, examples, options)
