"""Compute the Lipschitz constants of linear models in closed form.

Outputs are ``s = W x + b``; parameters ``theta = (W, b)`` are measured in the Frobenius norm. Write ``x~ = (x, 1)``
(or ``x`` itself without a bias), R for the largest ``||x~||`` over the data domain, and k for the number of outputs.
Constants hold at the given parameters or, for ``params_radius=C``, over the ball ``||theta|| <= C``.

**Cross-entropy.** With ``p = softmax(s)`` and ``S = diag p - p p^T``:

- ``L_z``: the gradient in x is ``sum_j p_j (w_j - w_y)``, so its norm is at most the largest ``||w_j - w_k||_*``; over
  the ball ``sqrt(2) C`` (two opposite rows share C).
- ``L_zz``: the largest ``||w_j - w_k||_*^2 / 4`` (:meth:`wafl.tasks.losses.CrossEntropy.curvature`); over the ball
  ``C^2 / 2``.
- ``L_theta``: the gradient is ``(p - e_y) x~^T``, and ``||p - e_y|| <= sqrt(2) (1 - p_y)``. If no two outputs differ by
  more than g, then ``1 - p_y <= q = 1 - 1 / (1 + (k - 1) e^g)``; over the ball ``g = sqrt(2) C R``. So
  ``L_theta = sqrt(2) q R``, attained for two classes.
- ``L_theta_theta``: the Hessian is ``S (x) x~ x~^T``. Along a unit vector u, ``u^T S u`` is the variance of ``u_j``
  under p, whose range is at most ``sqrt(2)``, so it is at most 1/2. This gives ``R^2 / 2``, attained for two classes at
  ``theta = 0``.
- ``L_theta_z``: along v the gradient in theta changes by ``(S W v) x~^T + (p - e_y) (v, 0)^T``. The norm of the first
  term is at most ``||S^(1/2)|| ||S^(1/2) W v|| R <= sqrt(1/2) sqrt(L_zz) R``, and the norm of the second is at most
  ``sqrt(2) q``; ``L_theta_z`` is their sum.
- the largest loss is ``log(1 + (k - 1) e^g)``; changing a label can add g.

**Squared error.** The residual is ``r = s - y``, at most ``|r_c|`` in each output over the domain (by interval
arithmetic; over the ball ``||r|| <= C R + ||y||``), and ``||W||`` is the spectral norm:

- ``L_z``: the gradient in x is ``2 W^T r``, whose norm is at most ``2 ||W|| ||r||`` for l2,
  ``2 sum_c |r_c| ||w_c||_1`` for l_inf, and ``2 max_i sum_c |W_ci| |r_c|`` for l1; exact for a single output.
- ``L_zz``: :meth:`wafl.tasks.losses.SquaredError.curvature`; over the ball ``2 C^2``.
- ``L_theta``: ``2 ||r|| R``. ``L_theta_theta``: ``2 R^2``. ``L_theta_z``: ``2 ||W|| R + 2 ||r||``. The largest loss is
  ``||r||^2``; moving the target by one unit can add ``2 ||r||``.

A row of Frobenius norm C has a dual norm of at most C for l2 and l1 and ``sqrt(d) C`` for l_inf: this replaces C in
``L_z`` and ``L_zz``.
"""

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from wafl.tasks.losses import CrossEntropy, OutputLoss, SquaredError
from wafl.theory.constants.constant import Constant


@dataclass(frozen=True)
class Domain:
    """The boxes of inputs and of targets; an objective may leave the box of inputs by ``reach`` (in l2)."""

    low: float
    high: float
    input_dim: int
    reach: float = 0.0
    targets: Tensor | None = None
    """The lowest and highest targets, ``[2, k]``; None for classes."""

    @property
    def radius(self) -> float:
        """The largest ``||x||``."""
        return math.sqrt(self.input_dim) * max(abs(self.low), abs(self.high)) + self.reach

    def largest(self, slope: Tensor, offset: Tensor) -> Tensor:
        """Return the largest ``<slope, x> + offset``, for each row of ``slope [..., d]``."""
        box = torch.where(slope >= 0, slope * self.high, slope * self.low).sum(-1)
        return box + self.reach * slope.norm(dim=-1) + offset


Values = dict[str, Constant]


def known(loss: OutputLoss) -> bool:
    """Return whether the closed forms below hold for this loss."""
    return loss.logistic or loss.quadratic is not None


def in_inputs(loss: OutputLoss, weight: Tensor, norm: float) -> Values:
    """Return ``L_z`` and ``L_zz`` over all inputs, without bounds, at ``W [k, d]``."""
    where = "over all inputs, at these parameters"
    if loss.logistic:
        cross_entropy = CrossEntropy()
        slope = float(cross_entropy.slopes(weight[None], norm).max())
        curvature = float(cross_entropy.curvature(weight[None], norm)[0])
        # Half of the mass on each of two classes leaves none for the others; some x attains this if no other row of W
        # lies between the two, as in general position.
        differences = weight[1:] - weight[:1]
        general = len(weight) == 2 or int(torch.linalg.matrix_rank(differences)) == len(differences)
        return {
            "L_z": Constant(slope, "exact", f"largest ||w_j - w_k||_*, {where}"),
            "L_zz": Constant(curvature, "exact" if general else "bound", f"largest ||w_j - w_k||_*^2 / 4, {where}"),
        }
    curvature = float(SquaredError().curvature(weight[None], norm)[0])
    kind = "exact" if norm != math.inf or len(weight) == 1 else "bound"
    values = {
        "L_z": Constant(math.inf, "exact", "the squared error is not Lipschitz over all inputs: it needs bounds"),
        "L_zz": Constant(curvature, kind, f"2 ||W v||^2, ||v|| <= 1, {where}"),
    }
    return _times(loss, values)


def at_parameters(
    loss: OutputLoss, weight: Tensor, bias: Tensor, has_bias: bool, domain: Domain, norm: float
) -> Values:
    """Return the constants over the domain at ``W [k, d]`` and ``b [k]``."""
    radius = math.hypot(domain.radius, 1.0) if has_bias else domain.radius
    where = "at these parameters"
    if loss.logistic:
        gaps = torch.stack([domain.largest(weight - weight[j], bias - bias[j]).max() for j in range(len(weight))])
        flat_curvature = float(CrossEntropy().curvature(weight[None], 2)[0])
        return {
            **in_inputs(loss, weight, norm),
            **_cross_entropy(len(weight), float(gaps.max()), radius, flat_curvature, where, attained=False),
        }
    assert domain.targets is not None
    low, high = domain.targets.to(weight)
    residual = torch.maximum(domain.largest(weight, bias - low), domain.largest(-weight, high - bias))
    spectral = float(torch.linalg.matrix_norm(weight, ord=2))
    if norm == 2:
        steep = 2.0 * spectral * float(residual.norm())
    elif norm == math.inf:
        steep = 2.0 * float(residual @ weight.abs().sum(-1))
    else:
        steep = 2.0 * float((residual[:, None] * weight.abs()).sum(0).max())
    one = len(weight) == 1 and domain.reach == 0
    values = {
        **in_inputs(SquaredError(), weight, norm),
        "L_z": Constant(steep, "exact" if one else "bound", f"residuals by interval arithmetic, {where}"),
        **_squared_error(float(residual.norm()), spectral, radius, where),
    }
    return _times(loss, values)


def over_ball(
    loss: OutputLoss, params_radius: float, outputs: int, has_bias: bool, domain: Domain, norm: float
) -> Values:
    """Return the constants over the domain and all parameters with ``||theta|| <= params_radius``."""
    radius = math.hypot(domain.radius, 1.0) if has_bias else domain.radius
    row = params_radius * (math.sqrt(domain.input_dim) if norm == math.inf else 1.0)
    where = f"for ||theta|| <= {params_radius:g}"
    if loss.logistic:
        gap = math.sqrt(2.0) * params_radius * radius
        return {
            "L_z": Constant(math.sqrt(2.0) * row, "exact", f"sqrt(2) C, over all inputs, {where}"),
            "L_zz": Constant(
                row**2 / 2.0,
                "exact" if outputs == 2 or domain.input_dim > 1 else "bound",
                f"C^2 / 2, over all inputs, {where}",
            ),
            **_cross_entropy(outputs, gap, radius, params_radius**2 / 2.0, where, attained=outputs == 2),
        }
    assert domain.targets is not None
    residual = params_radius * radius + float(domain.targets.abs().amax(0).norm())
    values = {
        "L_z": Constant(2.0 * row * residual, "bound", f"2 C ||r||, {where}"),
        "L_zz": Constant(2.0 * row**2, "exact", f"2 C^2, over all inputs, {where}"),
        **_squared_error(residual, params_radius, radius, where),
    }
    return _times(loss, values)


def _times(loss: OutputLoss, values: Values) -> Values:
    """Multiply the constants of the squared error by a, for ``a ||s - y||^2``."""
    factor = loss.quadratic
    if factor is None or factor == 1.0:
        return values
    return {
        name: Constant(factor * value, value.kind, f"{factor:g} times {value.why}") for name, value in values.items()
    }


def _cross_entropy(k: int, gap: float, radius: float, curvature: float, where: str, *, attained: bool) -> Values:
    """Return the constants of the cross-entropy.

    ``attained`` is for two classes over a ball, where a single x and theta attain all of them.
    """
    rivals = math.log(k - 1) + gap if k > 1 else -math.inf
    missed = 1.0 / (1.0 + math.exp(-rivals)) if rivals > -math.inf else 0.0
    kind = "exact" if attained else "bound"
    return {
        "L_theta": Constant(math.sqrt(2.0) * missed * radius, kind, f"sqrt(2) max(1 - p_y) ||(x, 1)||, {where}"),
        "L_theta_theta": Constant(radius**2 / 2.0, kind, "||(x, 1)||^2 / 2"),
        "L_theta_z": Constant(
            radius * math.sqrt(curvature / 2.0) + math.sqrt(2.0) * missed,
            "bound",
            f"||(x, 1)|| sqrt(L_zz / 2) + sqrt(2) max(1 - p_y), {where}",
        ),
        "max_loss": Constant(max(rivals, 0.0) + math.log1p(math.exp(-abs(rivals))), kind, f"widest logit gap, {where}"),
        "label_gap": Constant(gap, "bound", f"widest logit gap, {where}"),
    }


def _squared_error(residual: float, spectral: float, radius: float, where: str) -> Values:
    return {
        "L_theta": Constant(2.0 * residual * radius, "bound", f"2 ||r|| ||(x, 1)||, {where}"),
        "L_theta_theta": Constant(2.0 * radius**2, "exact", "2 ||(x, 1)||^2"),
        "L_theta_z": Constant(
            2.0 * spectral * radius + 2.0 * residual, "bound", f"2 ||W|| ||(x, 1)|| + 2 ||r||, {where}"
        ),
        "max_loss": Constant(residual**2, "bound", f"||r||^2, {where}"),
        "label_gap": Constant(2.0 * residual, "bound", f"2 ||r|| per unit of the target, {where}"),
    }
