"""Compute the worst expected loss of a linear model in a Wasserstein ball, and its gradient in the parameters.

The worst loss is convex in the parameters, and so is the dual in parameters and gamma together,

    inf over gamma of  gamma radius^power + E[phi_gamma],   phi_gamma = sup over z' of loss(z') - gamma cost(z', z),

because every ``loss(z') - gamma cost`` is convex. The gradient is the gradient of the loss at the moved examples.
"""

import functools
import math
from dataclasses import dataclass
from typing import Any

import numpy as np

from wafl.sklearn.descent import Array

CLOSE, STEPS, FEW_STEPS = 1e-10, 12, 6
"""The final distance of an ascent from its fixed point, and the maximum numbers of steps.

The smaller number applies where the ascent may rest on a kink.
"""
RIVALS = 2
"""The number of other classes at which an ascent starts if there may be several maxima."""
Moves = tuple[Array, Array, Array, Array]
"""phi_gamma of each example, the gradient of its loss in the outputs, its move, and the move's cost."""


@dataclass(frozen=True)
class Ball:
    """All distributions within ``radius`` of the examples, in the Wasserstein distance of order ``power``.

    A move costs ``||x' - x||^power + label_cost 1(y' != y)``; for a regression, ``label_cost ||y' - y||^2``.
    """

    radius: float
    norm: float = 2
    power: int = 2
    label_cost: float = math.inf

    def steepest(self, slopes: Array) -> tuple[Array, Array]:
        """Return the largest ``<slope, v>`` over ``||v|| <= 1`` for each row, and the v that attains it."""
        if self.norm == 2:
            size = np.linalg.norm(slopes, axis=-1)
            return size, slopes / np.maximum(size, np.finfo(float).tiny)[..., None]
        if self.norm == math.inf:
            return np.abs(slopes).sum(-1), np.sign(slopes)
        index = np.abs(slopes).argmax(-1)[..., None]
        most = np.take_along_axis(slopes, index, -1)
        move = np.zeros_like(slopes)
        np.put_along_axis(move, index, np.sign(most), -1)
        return np.abs(most)[..., 0], move


class Regression:
    """The root of the worst squared error of ``x w + b``: ``sqrt(E[r^2]) + radius sqrt(||w||_*^2 + 1 / label_cost)``.

    The parameters are ``w`` and then ``b``. With the residual r and the price gamma, an example gains most by
    ``(|r| + ||w||_* t)^2 - gamma t^2``, and the best gamma of the dual has a closed form.
    """

    def __init__(self, x: Array, y: Array, ball: Ball) -> None:
        self._x, self._y, self._ball = x, y, ball

    def __call__(self, params: Array) -> tuple[float, Array]:
        """Return the root of the worst squared error, and its gradient."""
        residual = self._x @ params[:-1] + params[-1] - self._y
        root = math.sqrt(np.mean(residual**2))
        size, move = self._ball.steepest(params[:-1])
        steep = math.sqrt(size**2 + 1.0 / self._ball.label_cost)
        share = residual / (len(residual) * root) if root > 0 else np.zeros_like(residual)
        added = self._ball.radius * (size / steep if steep > 0 else 1.0) * move
        return root + self._ball.radius * steep, np.append(share @ self._x + added, share.sum())


class Classification:
    """The worst cross-entropy of ``x W^T + b`` over the ball; the parameters are W, b and, for power 2, ``log c``.

    The price of transport is ``gamma = c ||W||``: as W tends to 0, the best c tends to a number, and gamma to 0. For
    power 1 the best gamma has a closed form.
    """

    def __init__(self, x: Array, y: Array, classes: int, ball: Ball, restarts: bool = True) -> None:
        self._x, self._y, self._ball, self._restarts = x, y, ball, restarts
        self._classes, self._features = classes, x.shape[1]
        self._starts: dict[int, Array] = {}

    @property
    def priced(self) -> bool:
        """Whether ``log c`` is one of the parameters."""
        return self._ball.power == 2 and self._ball.radius > 0

    def __call__(self, params: Array) -> tuple[float, Array]:
        """Return the worst cross-entropy, and its gradient."""
        size = self._classes * self._features
        weight, bias = params[:size].reshape(self._classes, -1), params[size : size + self._classes]
        outputs = self._x @ weight.T + bias
        return self._priced(weight, outputs, params[-1]) if self.priced else self._order_one(weight, outputs)

    def _priced(self, weight: Array, outputs: Array, log_c: float) -> tuple[float, Array]:
        """Return the dual for power 2, ``gamma radius^2 + E[phi_gamma]``, and its gradient."""
        length = max(float(np.linalg.norm(weight)), np.finfo(float).tiny)
        gamma = math.exp(min(log_c, 700.0)) * length
        phi, lean, move, cost = self._worst_moves(weight, outputs, gamma)
        count = len(outputs)
        excess = self._ball.radius**2 - float(cost.mean())
        by_weight = lean.T @ (self._x + move) / count + excess * gamma / length**2 * weight
        gradient = np.concatenate([by_weight.ravel(), lean.mean(0), [excess * gamma]])
        return gamma * self._ball.radius**2 + float(phi.mean()), gradient

    def _worst_moves(self, weight: Array, outputs: Array, gamma: float) -> Moves:
        best: tuple[Array, ...] = self._climbed(weight, outputs, self._y, gamma, 0)
        for turn in range(1, self._classes if math.isfinite(self._ball.label_cost) else 1):
            toll = self._ball.label_cost
            other = self._climbed(weight, outputs, (self._y + turn) % self._classes, gamma, turn)
            other = (other[0] - gamma * toll, *other[1:3], other[3] + toll)
            best = _larger(best, other)
        return best[0], best[1], best[2], best[3]

    def _climbed(self, weight: Array, outputs: Array, labels: Array, gamma: float, turn: int) -> Moves:
        """Return the moves for fixed labels; ascents also start at the best rivals if several maxima may exist."""
        leads = outputs - np.take_along_axis(outputs, labels[:, None], -1)
        apart, _ = self._ball.steepest(weight[:, None] - weight)
        gram = self._gram(weight, apart)
        starts: list[Any] = [self._starts.get(turn, softmax(leads))]
        if self._restarts and (gram is None or 8.0 * gamma < apart.max() ** 2):
            corners = 0.98 * np.eye(self._classes) + 0.02 / self._classes
            rivals = np.argsort(-leads - apart[labels] ** 2 / (4.0 * gamma), -1)[:, :RIVALS]
            starts += [softmax(leads), *(corners[rival] for rival in rivals.T)]
        count = len(starts)
        leads, labels = np.tile(leads, (count, 1)), np.tile(labels, count)
        p = self._ascend(weight, gram, leads, labels, gamma, np.concatenate(starts))
        attained = (*self._at(weight, leads, labels, gamma, p), p)
        best = functools.reduce(_larger, zip(*(np.split(each, count) for each in attained), strict=True))
        self._starts[turn] = best[-1]
        return best[0], best[1], best[2], best[3]

    def _gram(self, weight: Array, apart: Array) -> Array | None:
        """Return the matrix from p to the effect of a move, if linear: for two classes, with every norm."""
        if self._classes == 2:
            return apart.max() ** 2 / 4.0 * np.array([[1.0, -1.0], [-1.0, 1.0]])
        return weight @ weight.T if self._ball.norm == 2 else None

    def _at(self, weight: Array, leads: Array, labels: Array, gamma: float, p: Array) -> Moves:
        """Return the objective at the move of p."""
        length, along = self._ball.steepest(self._lean(labels, p) @ weight)
        move = (length / (2.0 * gamma))[:, None] * along
        added = move @ weight.T
        # What the move adds to the leads over the label.
        new_leads = leads + (added - np.take_along_axis(added, labels[:, None], -1))
        cost = (length / (2.0 * gamma)) ** 2
        return np.logaddexp.reduce(new_leads, -1) - gamma * cost, self._lean(labels, softmax(new_leads)), move, cost

    def _ascend(self, weight: Array, gram: Array | None, leads: Array, labels: Array, gamma: float, p: Array) -> Array:
        """Return the p on the simplex that locally maximizes ``<p, leads> + H(p) + ||lean(p) W||_*^2 / (4 gamma)``.

        There ``p = softmax(leads + effect of its move)``. Newton's step is taken where it comes closer to this
        equation, and elsewhere the plain step, which never lowers the objective.
        """
        p, rows = p.copy(), np.arange(len(p))
        target, seen = self._target(weight, gram, leads, labels, gamma, p)
        for _ in range(FEW_STEPS if gram is None else STEPS):
            off = target - p[rows]
            far = np.abs(off).max(-1) > CLOSE
            rows, off, plain = rows[far], off[far], target[far]
            if not len(rows):
                break
            tried = np.clip(p[rows] + self._jump(off, plain, seen[far] if gram is None else gram, gamma), 0.0, None)
            tried /= tried.sum(-1, keepdims=True)
            target, seen = self._target(weight, gram, leads[rows], labels[rows], gamma, tried)
            worse = ~(np.abs(target - tried).max(-1) < 0.5 * np.abs(off).max(-1))
            p[rows] = tried
            if worse.any():
                back = rows[worse]
                p[back] = plain[worse]
                again = self._target(weight, gram, leads[back], labels[back], gamma, p[back])
                target[worse], seen[worse] = again
        return p

    def _target(
        self, weight: Array, gram: Array | None, leads: Array, labels: Array, gamma: float, p: Array
    ) -> tuple[Array, Array]:
        """Return the target of the plain step, and the effect of p's unit move on each output, ``[n, C]`` each."""
        lean = self._lean(labels, p)
        if gram is None:
            length, along = self._ball.steepest(lean @ weight)
            seen = along @ weight.T
            added = length[:, None] * seen
        else:
            seen = added = lean @ gram
        # An output that all classes share changes no softmax.
        return softmax(leads + added / (2.0 * gamma)), seen

    def _jump(self, off: Array, p: Array, seen: Array, gamma: float) -> Array:
        """Return Newton's step for ``p = target``, or the plain step where Newton's step leads down.

        ``seen`` comes from :meth:`_target`.
        """
        if self._classes == 2:
            jump = off / (1.0 - p.prod(-1) * (2.0 * seen[0, 0] / gamma))[:, None]
        else:
            bent = seen if seen.shape == (self._classes, self._classes) else seen[:, :, None] * seen[:, None]
            spread = p[:, :, None] * (np.eye(self._classes) - p[:, None])
            jump = np.linalg.solve(np.eye(self._classes) - spread @ bent / (2.0 * gamma), off[..., None])[..., 0]
        return np.where((off * jump).sum(-1, keepdims=True) > 0.0, jump, off)

    def _order_one(self, weight: Array, outputs: Array) -> tuple[float, Array]:
        """Return the dual for power 1 at the best gamma, and its gradient.

        The dual is ``gamma radius + E max over k of [loss(x, k) - gamma label_cost 1(k != y)]``. Gamma must be at least
        the largest slope L. Above it, the best gamma lets labels change until the radius is spent, the last of them in
        part.
        """
        radius, toll, count, rows = self._ball.radius, self._ball.label_cost, len(outputs), np.arange(len(outputs))
        apart, along = self._ball.steepest(weight[:, None] - weight)
        one, other = np.unravel_index(apart.argmax(), apart.shape)
        gamma = steep = float(apart[one, other])
        losses = np.logaddexp.reduce(outputs, -1, keepdims=True) - outputs
        worst, changed = losses.argmax(-1), np.zeros(count)
        gains = losses[rows, worst] - losses[rows, self._y]
        if math.isfinite(toll) and radius > 0:
            paid = radius / toll * count
            gamma = max(steep, float(np.sort(gains)[::-1][int(paid)]) / toll if paid < count else 0.0)
            changed = (gains > gamma * toll).astype(float)
            last = np.isclose(gains, gamma * toll, rtol=1e-14, atol=0.0) & (gamma > steep)
            changed[last] = (paid - changed[~last].sum()) / max(last.sum(), 1)
        spare = radius - (toll * float(changed.mean()) if changed.any() else 0.0)
        value = float(losses[rows, self._y].mean() + gamma * radius)
        value += float((changed * (gains - (gamma * toll if changed.any() else 0.0))).mean())
        lean = self._lean(self._y, softmax(outputs))
        lean[rows, self._y] += changed
        lean[rows, worst] -= changed
        by_weight = lean.T @ self._x / count
        by_weight[one] += spare * along[one, other]
        by_weight[other] -= spare * along[one, other]
        return value, np.concatenate([by_weight.ravel(), lean.mean(0)])

    def _lean(self, labels: Array, p: Array) -> Array:
        """Return ``p - e_y``, the gradient of the loss in the outputs."""
        lean = p.copy()
        lean[np.arange(len(p)), labels] -= 1.0
        return lean


def softmax(outputs: Array) -> Array:
    """Return the softmax of each row; scikit-learn's has the same bits, and takes several times as long."""
    p = np.exp(outputs - outputs.max(-1, keepdims=True))
    p /= p.sum(-1, keepdims=True)
    return p


def _larger(one: tuple[Array, ...], other: tuple[Array, ...]) -> tuple[Array, ...]:
    """Return, for each example, the values that belong to the larger of the two first values."""
    better = other[0] > one[0]
    return tuple(
        np.where(better.reshape(-1, *[1] * (old.ndim - 1)), new, old) for old, new in zip(one, other, strict=True)
    )
