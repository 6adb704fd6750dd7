"""Step from the server's model to the clients' mean: plain, with momentum, or adapted to each parameter."""

from typing import Annotated

import torch
from torch import Tensor

from wafl.base.options import Positive, Range, Tunable, frozen, maker
from wafl.parts.messages import Vectors
from wafl.parts.server import Optimizer


@frozen
class SGD(Optimizer):
    """``params <- params + rate (mean - params)``."""

    rate: Annotated[float, Positive(), "The server's learning rate; 1 takes the clients' mean."] = 1.0

    def apply(self, params: Tensor, mean: Tensor, memory: Vectors) -> tuple[Tensor, Vectors]:
        """Return the model after a step of this rate toward the mean."""
        return mean if self.rate == 1.0 else params + self.rate * (mean - params), memory


@frozen
class Momentum(Optimizer):
    """``v <- beta v + (mean - params)``, ``params <- params + rate v``."""

    rate: Annotated[float, Positive(), Tunable(), "The server's learning rate."] = 1.0
    beta: Annotated[float, Range(0, 1, high_open=True), Tunable(), "The share of the last velocity that is kept."] = 0.9

    def initial_memory(self, params: Tensor) -> Vectors:
        """Return a velocity of zeros."""
        return {"velocity": torch.zeros_like(params)}

    def apply(self, params: Tensor, mean: Tensor, memory: Vectors) -> tuple[Tensor, Vectors]:
        """Return the model after a step along the velocity, and the velocity."""
        velocity = self.beta * memory["velocity"] + (mean - params)
        return params + self.rate * velocity, {"velocity": velocity}


@frozen
class Adam(Optimizer):
    """``params <- params + rate m / (sqrt(v) + tau)``, where m and v are running means of d and of its square.

    ``m <- beta1 m + (1 - beta1) d`` and ``v <- beta2 v + (1 - beta2) d^2``, with the direction ``d = mean - params``.
    As in the paper, v starts at ``tau^2`` and there is no bias correction.
    """

    rate: Annotated[float, Positive(), Tunable(), "The server's learning rate."] = 0.01
    beta1: Annotated[float, Range(0, 1, high_open=True), "The share of the last mean direction that is kept."] = 0.9
    beta2: Annotated[float, Range(0, 1, high_open=True), "The share of the last mean square that is kept."] = 0.99
    tau: Annotated[
        float,
        Positive(),
        Tunable(gentle="high"),
        "Added to the root mean square; the larger it is, the less the step adapts.",
    ] = 1e-3

    def initial_memory(self, params: Tensor) -> Vectors:
        """Return the running means before the first round."""
        return {"mean": torch.zeros_like(params), "square": torch.full_like(params, self.tau**2)}

    def apply(self, params: Tensor, mean: Tensor, memory: Vectors) -> tuple[Tensor, Vectors]:
        """Return the model after an adapted step, and the running means."""
        direction = mean - params
        first = self.beta1 * memory["mean"] + (1.0 - self.beta1) * direction
        second = self.next_square(memory["square"], direction.square())
        return params + self.rate * first / (second.sqrt() + self.tau), {"mean": first, "square": second}

    def next_square(self, square: Tensor, latest: Tensor) -> Tensor:
        """Return the running mean of squares after the latest square."""
        return self.beta2 * square + (1.0 - self.beta2) * latest


@frozen
class Yogi(Adam):
    """Like :class:`Adam`, but with ``v <- v - (1 - beta2) d^2 sign(v - d^2)``: it changes by at most ``d^2``."""

    def next_square(self, square: Tensor, latest: Tensor) -> Tensor:
        """Return the running value of squares, which changes by at most the latest square."""
        return square - (1.0 - self.beta2) * latest * (square - latest).sign()


sgd = maker(SGD)
momentum = maker(Momentum)
adam = maker(Adam)
yogi = maker(Yogi)
