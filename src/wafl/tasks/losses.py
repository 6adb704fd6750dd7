"""Define losses of a model's outputs: value, gradient, and facts that the library can use."""

import re
from abc import abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, fields
from typing import Annotated, Literal, Protocol, TypeGuard, runtime_checkable

import numpy
import torch
from torch import Tensor

from wafl.base.errors import did_you_mean
from wafl.base.norms import dual, power_norm
from wafl.base.options import NotNegative, Positive, frozen


@runtime_checkable
class OutputLoss(Protocol):
    """A loss of outputs ``[..., C]`` and labels ``[...]`` or targets ``[..., C]``, for any leading dimensions.

    For your own loss, subclass this and define :meth:`value`. Everything else is optional: each fact that you declare
    about the loss enables a faster ascent, a further option or a constant that depends on the fact. Such a constant is
    attested, not proven.

    >>> class Halved(OutputLoss):
    ...     quadratic = 0.5
    ...     def value(self, outputs, y):
    ...         return 0.5 * (outputs - y).square().sum(-1)
    >>> output_loss(Halved()).gradient(torch.tensor([[3.0]]), torch.tensor([[1.0]]))
    tensor([[2.]])
    """

    labels: Literal["classes", "targets"] | None = None
    """The type of y: integer labels below C, or floating-point targets, one per output; None accepts any."""
    convex: bool = False
    """Whether the loss is convex in the outputs; then the ascent of a linear model needs no line search."""
    logistic: bool = False
    """Whether the loss is ``logsumexp(s) - s_y``, whose constants have closed forms in ``linear_models.py``."""
    quadratic: float | None = None
    """The a of a loss ``a ||s - y||^2``; then targets can move (``label_cost``), and its constants are known."""

    @property
    def name(self) -> str:
        """The name of the loss in messages and run records."""
        return type(self).__name__

    @property
    def probabilities(self) -> Callable[[Tensor], Tensor] | None:
        """The function p of the outputs, if the gradient is ``p(s) - e_y`` with p on the simplex, such as softmax.

        The ascent of a linear model then runs on the simplex, with one restart toward each class.
        """
        return None

    @abstractmethod
    def value(self, outputs: Tensor, y: Tensor) -> Tensor:
        """Return one loss per example, ``[...]``."""
        ...

    def gradient(self, outputs: Tensor, y: Tensor) -> Tensor:
        """Return the gradient of each loss in the outputs, ``[..., C]``; by default through autograd."""
        return torch.func.grad(lambda s: self.value(s, y).sum())(outputs)

    def slopes(self, weight: Tensor, norm: float = 2) -> Tensor | None:
        """Return the largest slope of ``loss(W x + b)`` in x, for each label ``[L, C]``.

        None if it is unbounded or unknown.
        """
        return None

    def curvature(self, weight: Tensor, norm: float = 2) -> Tensor | None:
        """Return L_zz of ``loss(W x + b)``, the Lipschitz constant of its gradient in x, or None if it is unknown.

        Its shape is ``[L]``.
        """
        return None


@dataclass(frozen=True)
class CrossEntropy(OutputLoss):
    """Multinomial logistic loss: ``logsumexp(s) - s_y``."""

    labels = "classes"
    convex = True
    logistic = True

    @property
    def name(self) -> str:
        """The name of the loss."""
        return "cross_entropy"

    def value(self, outputs: Tensor, y: Tensor) -> Tensor:
        """Return one loss per example, ``[...]``."""
        # log_softmax, because logsumexp - s_y loses digits if the model is confident; classes first, as below.
        return -outputs.mT.log_softmax(-2).gather(-2, y[..., None, :]).squeeze(-2)

    @property
    def probabilities(self) -> Callable[[Tensor], Tensor]:
        """The softmax."""
        return _softmax

    def gradient(self, outputs: Tensor, y: Tensor) -> Tensor:
        """Return the gradient of each loss in the outputs, ``[..., C]``."""
        return _softmax(outputs).scatter_(-1, y[..., None], -1.0, reduce="add")

    def slopes(self, weight: Tensor, norm: float = 2) -> Tensor:
        """Return the largest slope of ``loss(W x + b)`` for each label y: the largest ``||w_j - w_y||_*``, ``[L, C]``.

        The gradient in x is ``sum_j p_j (w_j - w_y)``, a mean of such differences. As x moves far in the direction of
        the farthest w_j, p tends to ``e_j``.
        """
        if norm == 2:
            moved = weight - weight[:, :1]  # changes no difference, but keeps digits that a Gram matrix would lose
            gram = torch.bmm(moved, moved.mT)
            norms = gram.diagonal(dim1=-2, dim2=-1)
            return (norms[:, :, None] + norms[:, None, :] - 2.0 * gram).amax(-1).clamp_min(0.0).sqrt()
        rows = range(weight.shape[1])
        return torch.stack([power_norm(weight - weight[:, [j]], dual(norm), 1).amax(-1) for j in rows], dim=1)

    def curvature(self, weight: Tensor, norm: float = 2) -> Tensor:
        """Return L_zz of ``loss(W x + b)``: the largest ``||w_j - w_k||_*^2 / 4``.

        The Hessian in x is ``W^T (diag p - p p^T) W``, so along a unit vector v it is the variance of ``<w_j, v>``
        under p. A variable with range r has a variance of at most ``r^2 / 4``, attained with half of the mass at either
        end; along the best v the range is the largest distance between two rows of W.
        """
        return self.slopes(weight, norm).amax(-1).square() / 4.0


@frozen
class MarginLoss(OutputLoss):
    """The loss ``t CE((s - u e_y) / t)``: cross-entropy that requests a lead of about u, which moves must first remove.

    >>> MarginLoss(1.0, 0.5).value(torch.tensor([[3.0, 1.0]]), torch.tensor([0]))
    tensor([0.0635])
    """

    offset: Annotated[
        float,
        NotNegative,
        "u, how far the label's output is to be above all others; in the unit of the data, for a network that is "
        "1-Lipschitz.",
    ] = 1.0
    temperature: Annotated[float, Positive(), "t, how soft the margin is."] = 0.25
    labels = "classes"
    convex = True

    @property
    def name(self) -> str:
        """The name of the loss, with its options."""
        return f"margin({self.offset!r}, {self.temperature!r})"

    def logits(self, outputs: Tensor, y: Tensor) -> Tensor:
        """Return the logits of the cross-entropy."""
        taken = torch.zeros_like(outputs).scatter(-1, y[..., None], self.offset)
        return (outputs - taken) / self.temperature

    def value(self, outputs: Tensor, y: Tensor) -> Tensor:
        """Return one loss per example, ``[...]``."""
        return self.temperature * CrossEntropy().value(self.logits(outputs, y), y)

    def gradient(self, outputs: Tensor, y: Tensor) -> Tensor:
        """Return the gradient of each loss in the outputs, ``[..., C]``."""
        return CrossEntropy().gradient(self.logits(outputs, y), y)

    def slopes(self, weight: Tensor, norm: float = 2) -> Tensor:
        """Return the largest slope for each label, the same as for cross-entropy."""
        return CrossEntropy().slopes(weight, norm)

    def curvature(self, weight: Tensor, norm: float = 2) -> Tensor:
        """Return L_zz, the L_zz of cross-entropy divided by t."""
        return CrossEntropy().curvature(weight, norm) / self.temperature


@dataclass(frozen=True)
class SquaredError(OutputLoss):
    """The squared error ``||s - y||^2``, summed over outputs."""

    labels = "targets"
    convex = True
    quadratic = 1.0

    @property
    def name(self) -> str:
        """The name of the loss."""
        return "squared_error"

    def value(self, outputs: Tensor, y: Tensor) -> Tensor:
        """Return one loss per example, ``[...]``."""
        return (outputs - _targets(outputs, y)).square().sum(-1)

    def gradient(self, outputs: Tensor, y: Tensor) -> Tensor:
        """Return the gradient of each loss in the outputs, ``[..., C]``."""
        return 2.0 * (outputs - _targets(outputs, y))

    def curvature(self, weight: Tensor, norm: float = 2) -> Tensor:
        """Return L_zz of ``||W x + b - y||^2``: the largest ``2 ||W v||^2`` over ``||v|| <= 1``.

        For l2 this is twice the largest eigenvalue of ``W W^T``. For l1 the maximum is at a corner, a single
        coordinate. For l_inf ``(W v)_c`` is at most ``||w_c||_1``, which some v attains if there is a single output.
        """
        if norm == 2:
            return 2.0 * torch.linalg.matrix_norm(weight, ord=2).square()
        if norm == 1:
            return 2.0 * weight.square().sum(-2).amax(-1)
        return 2.0 * weight.abs().sum(-1).square().sum(-1)


@dataclass(frozen=True)
class SoftLabels(OutputLoss):
    """The loss ``-sum_c t_c log softmax(s + r)_c``; y has the targets t and an offset r, ``[..., 2, C]``."""

    def value(self, outputs: Tensor, y: Tensor) -> Tensor:
        """Return one loss per example, ``[...]``."""
        targets, offset = y.unbind(-2)
        return -(targets * (outputs + offset).log_softmax(-1)).sum(-1)

    def gradient(self, outputs: Tensor, y: Tensor) -> Tensor:
        """Return the gradient of each loss in the outputs, ``[..., C]``."""
        targets, offset = y.unbind(-2)
        return targets.sum(-1, keepdim=True) * (outputs + offset).softmax(-1) - targets


@dataclass(frozen=True)
class Product(OutputLoss):
    """The loss ``<s, y>``, whose gradient in the outputs is y; it replaces any loss once its slopes are known."""

    def value(self, outputs: Tensor, y: Tensor) -> Tensor:
        """Return one loss per example, ``[...]``."""
        return (outputs * y).sum(-1)

    def gradient(self, outputs: Tensor, y: Tensor) -> Tensor:
        """Return y."""
        return y


@dataclass(frozen=True)
class CustomLoss(OutputLoss):
    """Your function of ``(outputs [B, C], y [B])`` that returns one loss per example, without known facts."""

    function: Callable[[Tensor, Tensor], Tensor]

    @property
    def name(self) -> str:
        """The name of the function."""
        return getattr(self.function, "__name__", type(self.function).__name__)

    def value(self, outputs: Tensor, y: Tensor) -> Tensor:
        """Return one loss per example; raise ValueError if the function returns another shape."""
        lead = outputs.shape[:-1]
        losses = self.function(outputs.flatten(0, -2), y.flatten(0, len(lead) - 1))
        if losses.numel() != lead.numel():
            raise ValueError(
                f"loss {self.name} returned shape {tuple(losses.shape)} for {lead.numel()} examples: "
                "it must return one loss per example (torch losses: reduction='none')"
            )
        return losses.view(lead)


BUILT_IN = (CrossEntropy, MarginLoss, SquaredError)


def _functions(kind: type) -> dict[str, tuple[object, object]]:
    """Return what a class and its parents define, except for Python's own notes, with the code of functions."""
    return {
        f"{each.__qualname__}.{name}": (value, getattr(value, "__code__", None))
        for each in kind.__mro__
        if each.__module__ == __name__
        for name, value in vars(each).items()
        if callable(value) or not name.startswith("__")
    }


_ORIGINAL: dict[type, dict[str, tuple[object, object]]] = {kind: _functions(kind) for kind in BUILT_IN}


def is_built_in(loss: object) -> TypeGuard[CrossEntropy | MarginLoss | SquaredError]:
    """Return whether a loss is one of wafl's losses, unchanged, so that proofs can rest on its traits.

    >>> is_built_in(MarginLoss(2.0)), is_built_in(CustomLoss(torch.nn.functional.mse_loss))
    (True, False)
    """
    kind = type(loss)
    if kind not in BUILT_IN or _functions(kind) != _ORIGINAL[kind]:
        return False
    values = vars(loss)
    if any(type(each) not in (int, float, numpy.float64) for each in values.values()):
        return False  # numbers of another class may compute something else
    return list(values) == [each.name for each in fields(kind)] and kind(**values) == loss  # which checks the numbers


def claim_of(loss: OutputLoss) -> str | None:
    """Return the facts that a user's loss declares, on which bounds rest, or None if it declares none."""
    if is_built_in(loss):
        return None
    own = [name for name in ("slopes", "curvature") if getattr(type(loss), name, None) is not getattr(OutputLoss, name)]
    facts = ["`logistic = True`"] if loss.logistic else []
    facts += [] if loss.quadratic is None else [f"`quadratic = {loss.quadratic}`"]
    facts += [f"`{name}()`" for name in own]
    facts += [f"`{kind.__name__}`" for kind in BUILT_IN if isinstance(loss, kind)]
    return f"{' and '.join(facts)} of the loss {loss.name}" if facts else None


def check_claim(loss: OutputLoss, outputs: Tensor, y: Tensor) -> None:
    """Raise ValueError if a user's loss has other values than its traits imply."""
    claim, factor = claim_of(loss), loss.quadratic
    if claim is None or not (loss.logistic or factor is not None):
        return
    value = loss.value(outputs, y)
    implied = CrossEntropy().value(outputs, y) if factor is None else factor * SquaredError().value(outputs, y)
    if bool((wrong := ~value.isclose(implied, rtol=1e-6, atol=1e-9, equal_nan=True)).any()):
        raise ValueError(
            f"{claim} is false: it implies a loss of {float(implied[wrong][0]):.6g} where the loss is "
            f"{float(value[wrong][0]):.6g}: leave it out"
        )


def spelled(loss: str | OutputLoss | Callable[[Tensor, Tensor], Tensor]) -> str | None:
    """Return the text from which :func:`output_loss` rebuilds the same loss, or None for your own."""
    if isinstance(loss, str):
        return loss
    return loss.name if is_built_in(loss) else None


def output_loss(loss: str | OutputLoss | Callable[[Tensor, Tensor], Tensor]) -> OutputLoss:
    """Return a loss from its name, your own :class:`OutputLoss`, or a function of ``(outputs, y)``.

    >>> output_loss("margin(2, 0.5)")
    MarginLoss(offset=2.0, temperature=0.5)
    """
    named: dict[str, OutputLoss] = {
        "cross_entropy": CrossEntropy(),
        "squared_error": SquaredError(),
        "margin": MarginLoss(),
    }
    if isinstance(loss, str):
        numbers = re.fullmatch(r"margin\(\s*([\d.e+-]+)\s*,\s*([\d.e+-]+)\s*\)", loss)
        if numbers is not None:
            return MarginLoss(*map(float, numbers.groups()))
        if loss not in named:
            known = f": use one of {', '.join(named)}, or a function of (outputs, y)"
            absolute = ": pass loss=lambda outputs, y: (outputs.squeeze(-1) - y).abs()"
            hint = absolute if loss.lower() in ("mae", "l1") else did_you_mean(loss, named) or known
            raise ValueError(f"unknown loss {loss!r}{hint}")
        return named[loss]
    if isinstance(loss, OutputLoss):
        return loss
    if not callable(loss):
        raise ValueError(
            f"loss {loss!r} is not a loss: use one of {', '.join(named)}, a function of (outputs, y), or an object of "
            "a subclass of wafl.OutputLoss"
        )
    return CustomLoss(loss)


def value_and_slope(loss: OutputLoss, outputs: Tensor, y: Tensor, weight: Tensor) -> tuple[Tensor, Tensor]:
    """Return each loss ``[...]``, and the gradient of ``sum weight * loss`` in the outputs ``[..., C]``."""
    if type(loss) is CrossEntropy:  # the same bits, in a fraction of the time
        log_p, labels = outputs.mT.log_softmax(-2), y[..., None, :]
        slope = torch.zeros_like(log_p).scatter_(-2, labels, -weight[..., None, :])
        value = -log_p.gather(-2, labels).squeeze(-2)
        return value, torch.ops.aten._log_softmax_backward_data(slope, log_p, -2, log_p.dtype).mT
    with torch.enable_grad():
        leaf = outputs.detach().requires_grad_()
        value = loss.value(leaf, y)
        total = (weight * value).sum()
    return value.detach(), torch.autograd.grad(total, leaf)[0]


def _softmax(outputs: Tensor) -> Tensor:
    # Softmax is slow along a short last dimension: move the classes before the examples and back.
    return outputs.mT.softmax(-2).mT


def _targets(outputs: Tensor, y: Tensor) -> Tensor:
    return y if y.ndim == outputs.ndim else y[..., None]
