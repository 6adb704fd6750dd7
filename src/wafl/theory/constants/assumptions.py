"""Compute the Lipschitz constants of the paper's assumptions, and the quantities that follow from them."""

import copy
import math
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from wafl.base.bounds import check_box
from wafl.base.checks import check_positive
from wafl.base.errors import PreconditionError
from wafl.base.norms import check_norm, dual
from wafl.base.options import NotNegative, Positive
from wafl.data.bring.arrays import as_array
from wafl.data.examples import Examples
from wafl.data.federation import Federation
from wafl.data.labels import count_classes
from wafl.results.run import Run
from wafl.tasks.fitness import check_fitness
from wafl.tasks.layout import Layout
from wafl.tasks.losses import MarginLoss, OutputLoss, claim_of
from wafl.tasks.problem import Problem
from wafl.tasks.structure.sequence import copied, is_same
from wafl.tasks.structure.trace import agrees
from wafl.tasks.structured import make_task
from wafl.tasks.task import Loss, Task
from wafl.theory.constants import estimates
from wafl.theory.constants import linear_models as linear
from wafl.theory.constants.constant import Constant, Kind
from wafl.theory.constants.layer_by_layer import declared, loss_steepness, plain_form
from wafl.train.embedded import first_example

SMALLEST, LARGEST = 1e-100, 1e100
COMPARED = 256
"""The number of examples on which a module and its plain form are compared at a time."""
SEARCHED = 64
"""The number of examples on which a network's constants are searched."""


@dataclass(frozen=True)
class Constants:
    """Lipschitz constants of the loss and of its gradients, over the data domain.

    ``L_z``: of the loss in the example (in the ground norm). ``L_zz``: of its gradient there. ``L_theta``,
    ``L_theta_theta``: the same in the parameters. ``L_theta_z``: of the gradient in the parameters as the example moves
    (the paper's L_z-theta is the same number). ``max_loss``: the paper's M. Each is a :class:`Constant`, a float that
    says whether it is exact, a bound or an estimate. ``convex`` is whether the loss is convex in the parameters (the
    model is linear then, and the loss convex in the example, too), and ``quadratic`` the a of a loss ``a ||s - y||^2``.
    """

    L_z: Constant
    L_zz: Constant
    L_theta: Constant
    L_theta_theta: Constant
    L_theta_z: Constant
    max_loss: Constant
    convex: bool
    quadratic: float | None
    norm: float
    label_cost: float
    input_dim: int
    num_params: int
    params_norm: float
    params_radius: float | None
    data_bounds: tuple[float, float]
    reach: float

    @property
    def steep_everywhere(self) -> bool:
        """Whether L_z also holds outside the data domain; the squared error gets steeper there."""
        return self.quadratic is None

    @property
    def concavity_limit(self) -> float:
        """The gamma above which the inner problem is concave: ``L_zz / 2`` for the squared l2 cost, else infinity."""
        return float(self.L_zz) / 2.0 if self.norm == 2 else math.inf

    def smoothness(self, gamma: float) -> Constant:
        """Return L of phi_gamma in the parameters (lemma C.1): ``L_theta_theta + L_theta_z^2 / (2 gamma - L_zz)``.

        The paper has ``gamma - L_zz`` in the denominator, for a cost that is 1-strongly convex; the squared l2 cost is
        2-strongly convex, so ``2 gamma > L_zz`` is enough.
        """
        if self.norm != 2:
            raise PreconditionError(
                f"norm={self.norm}: the squared cost is strongly convex only for norm 2; use norm=2"
            )
        if not gamma > self.concavity_limit:
            raise PreconditionError(
                f"gamma={gamma:g} must exceed the concavity limit L_zz / 2 = {self.concavity_limit:.4g}: "
                "raise gamma, or shrink the weights (weight_decay)"
            )
        value = self.L_theta_theta + self.L_theta_z**2 / (2.0 * gamma - self.L_zz)
        proven = self.L_theta_theta.proven and self.L_theta_z.proven and self.L_zz.proven
        return Constant(value, "bound" if proven else "estimate", "L_theta_theta + L_theta_z^2 / (2 gamma - L_zz)")

    def reach_of(self, gamma: float) -> float:
        """Return the farthest distance, in l2, that phi_gamma's objective moves an example of the box, without bounds.

        Where it stops, ``2 gamma ||x' - x|| = ||grad loss(x')||`` (squared l2 cost), which is at most L_z if L_z holds
        for all inputs, and otherwise at most L_z, from the box, plus ``L_zz ||x' - x||``. In any norm the move gains at
        most ``L_z ||x' - x||``, plus ``L_zz ||x' - x||^2 / 2`` if L_z holds only in the box, and costs
        ``gamma ||x' - x||^2``.
        """
        check_positive("gamma", gamma)
        if self.norm == 2 and self.steep_everywhere:
            return float(self.L_z) / (2.0 * gamma)
        net = gamma if self.steep_everywhere else gamma - self.L_zz / 2.0
        if net <= 0:
            return math.inf
        stretch = math.sqrt(self.input_dim) if math.isinf(self.norm) else 1.0
        return stretch * float(self.L_z) / (2.0 * net if self.norm == 2 else net)

    def learning_rate_cap(self, gamma: float) -> float:
        """Return ``1 / (3 L)``, the paper's largest learning rate; :func:`convergence` allows ``1 / L``."""
        return 1.0 / (3.0 * float(self.smoothness(gamma)))


def constants(
    model: nn.Module | Run,
    data: Federation | tuple[Any, Any],
    *,
    data_bounds: tuple[float, float] | None = None,
    params_radius: float | None = None,
    norm: float = 2,
    label_cost: float = math.inf,
    reach: float = 0.0,
    loss: Loss | None = None,
) -> Constants:
    """Compute the Lipschitz constants of a model's loss on given data.

    For linear models every value is proven, in closed form (``linear_models.py``). For networks L_z and L_zz are
    bounded layer by layer if possible (``layer_by_layer.py``; there is no L_zz if a gradient jumps, as with ReLU).
    All other constants are searched on some of the examples: such values are labeled as estimates.

    Args:
        model: a model, or a run, which brings its loss.
        data: a federation, or a pair ``(x, y)``.
        data_bounds: a box that contains every input, not only those in ``data``; by default the federation's bounds,
            or else the span of its examples.
        params_radius: C, to take the supremum over all parameters with ``||theta|| <= C``, as the generalization bounds
            need; by default the constants hold at the model's parameters.
        norm: the ground norm, 1, 2 or inf.
        label_cost: kappa, the price of changing a label; if finite, L_z includes labels.
        reach: how far an objective without bounds may leave the box (in l2; see :meth:`Constants.reach_of`).
        loss: the loss to use instead of the run's loss; cross-entropy for a plain model.

    >>> import torch, wafl
    >>> clients = wafl.load_dataset("digits").partition(num_clients=4, iid=True)
    >>> known = constants(wafl.models.mlr(clients), clients, params_radius=2.0)
    >>> round(known.L_z, 4), known.L_z.kind
    (2.8284, 'exact')
    """
    check_norm(norm)
    Positive("; inf keeps labels fixed", infinite=True).check("label_cost", label_cost)
    NotNegative.check("reach", reach)
    task, params = task_of(model, loss, same_parameters=True)
    clients = data if isinstance(data, Federation) else _alone(data)
    check_fitness(Problem(task, params[None]), *first_example(clients, params), clients.num_classes)
    box = check_box(data_bounds) or clients.bounds or _span(clients)
    if not all(map(math.isfinite, box)):
        raise ValueError(
            f"data_bounds={box} must be finite: on unbounded data L_theta and the largest loss are infinite"
        )
    low, high = _span(clients)
    if low < box[0] or high > box[1]:
        raise ValueError(f"the examples lie in [{low:g}, {high:g}], outside data_bounds={box}: widen them")
    own_norm = float(params[: task.num_params].norm())
    if params_radius is not None:
        check_positive("params_radius", params_radius)
        if params_radius < own_norm:
            raise ValueError(
                f"params_radius={params_radius:g} leaves out the model, whose parameters have norm {own_norm:.4g}: "
                "give at least that"
            )
    domain = linear.Domain(*box, math.prod(clients.input_shape), reach, _targets(clients))
    values = _values(task, params, clients, domain, params_radius, norm)
    steep = values["L_z"]
    if math.isfinite(label_cost):
        # |loss(x, y) - loss(x', y')| <= L_z ||x - x'|| + G [y != y'] <= sqrt(L_z^2 + G^2 / k) d, by Cauchy-Schwarz.
        swap = values["label_gap"]
        kind = "bound" if steep.proven and swap.proven else "estimate"
        values["L_z"] = Constant(math.hypot(steep, swap / math.sqrt(label_cost)), kind, f"{steep.why}; labels move")
    values = as_claimed(values, task.loss)
    return Constants(
        **{name: values[name] for name in ("L_z", "L_zz", "L_theta", "L_theta_theta", "L_theta_z", "max_loss")},
        convex=task.linear(params[None]) is not None and task.loss.convex,
        quadratic=task.loss.quadratic,
        norm=norm,
        label_cost=label_cost,
        input_dim=domain.input_dim,
        num_params=task.num_params,
        params_norm=own_norm,
        params_radius=params_radius,
        data_bounds=box,
        reach=reach,
    )


def task_of(
    model: nn.Module | Run,
    loss: Loss | None = None,
    *,
    traced: bool = True,
    same_parameters: bool = False,
    examples: Examples | None = None,
) -> tuple[Task, Tensor]:
    """Return a model's task and parameters in float64, so that rounding does not spoil proofs.

    If ``traced``, a module that computes known layers is replaced by these layers, unless its outputs on the examples
    differ. With ``same_parameters``, it is not replaced if that would change its parameters: constants in
    the parameters are about the trained parameters, and not about weights that are computed from them.
    """
    layout = None
    if isinstance(model, Run):
        loss = loss if loss is not None else model.loss
        model, layout = model.module, model.layout
    module = copied(model).cpu().double()
    if not is_same(model, module):
        raise PreconditionError("the model is compiled, or copies itself as another one: give the plain one instead")
    if traced:
        module, layout = _plain_form(module, layout, same_parameters, examples)
    task = make_task(module, loss if loss is not None else "cross_entropy", layout=layout)
    params = task.initial()
    sizes = params[(params != 0) & params.isfinite()].abs()
    lost = sizes[(sizes < SMALLEST) | (sizes > LARGEST)]
    if len(lost):
        raise PreconditionError(
            f"a parameter has size {float(lost[0]):.3g}: float64 loses squares of numbers outside of {SMALLEST:g} to "
            f"{LARGEST:g}, and with them every proof; set tiny parameters to 0"
        )
    return task, params


def _plain_form(
    module: nn.Module, layout: Layout | None, same_parameters: bool, examples: Examples | None
) -> tuple[nn.Module, Layout | None]:
    form = plain_form(module)
    old = {**dict(module.named_parameters()), **dict(module.named_buffers())}
    own = {id(value) for value in old.values()}
    if form is module or (same_parameters and any(id(value) not in own for value in form.parameters())):
        return module, layout
    if examples is not None and not _agree(module, form, examples):
        return module, layout
    if layout is not None:
        # The parameters of a run are still the trained ones, under the names that the layers have in the plain form.
        trained = {id(old[name]) for name in layout.shapes}
        params = {name: value for name, value in form.named_parameters() if value.requires_grad or id(value) in trained}
        layout = Layout(
            {name: value.shape for name, value in params.items() if id(value) in trained or id(value) not in own},
            {name: value.shape for name, value in form.named_buffers() if id(value) in trained},
        )
    return form, layout


def computes_its_graph(task: Task, params: Tensor, examples: Examples) -> bool:
    """Return whether a module with these parameters has the outputs of its graph of layers on all examples."""
    module = task.module_at(params)
    return _agree(module, plain_form(module), examples)


def _agree(module: nn.Module, form: nn.Module, examples: Examples) -> bool:
    whole, plain = (copy.deepcopy(each).eval() for each in (module, form))
    rows = torch.arange(len(examples.y)).split(COMPARED)
    return agrees(whole, plain, (examples.rows(some, torch.float64) for some in rows))


def _values(
    task: Task, params: Tensor, clients: Federation, domain: linear.Domain, params_radius: float | None, norm: float
) -> dict[str, Constant]:
    layer = task.linear(params[None])
    if layer is not None and linear.known(task.loss):
        weight, bias = (part[0] for part in layer)
        has_bias = len(params) > weight.numel()
        if params_radius is None:
            return linear.at_parameters(task.loss, weight, bias, has_bias, domain, norm)
        return linear.over_ball(task.loss, params_radius, len(weight), has_bias, domain, norm)
    if params_radius is not None:
        raise PreconditionError(
            f"params_radius={params_radius:g} needs a linear model with cross-entropy or squared error: for others the "
            "constants are known at the model's own parameters only; leave it out"
        )
    return _searched(task, params, clients, norm)


def data_free_constants(task: Task, params: Tensor, input_dim: int, norm: float) -> dict[str, Constant]:
    """Return ``L_z`` and ``L_zz`` if they are known without examples: of linear models, and by layers."""
    layer = task.linear(params[None])
    if layer is not None and linear.known(task.loss):
        return linear.in_inputs(task.loss, layer[0][0], norm)
    layered = loss_steepness(task.module, task.loss)
    # ||g||_* is at most sqrt(d) ||g||_2 for the l_inf ball, and ||g||_2 for l1 and l2.
    stretch = math.sqrt(input_dim) if dual(norm) == 1 else 1.0
    if layered is None:
        bound = declared(task.module)
        if bound is None or not (task.loss.logistic or isinstance(task.loss, MarginLoss)):
            return {}
        # The slopes in the outputs are p - e_y, of norm at most sqrt(2).
        return {"L_z": Constant(math.sqrt(2.0) * bound * stretch, "attested", "declared by the model")}
    known = {"L_z": Constant(layered.slope * stretch, "bound", "by layers, at these parameters")}
    if math.isfinite(layered.bend):
        known["L_zz"] = Constant(layered.bend * stretch**2, "bound", "by layers, at these parameters")
    return known


def as_claimed(known: dict[str, Constant], loss: OutputLoss, kind: Kind = "attested") -> dict[str, Constant]:
    """Return constants in which proven values that rest on a user's claims about the loss have this kind."""
    if (claim := claim_of(loss)) is None:
        return known
    kinds: dict[Kind, Kind] = {"exact": kind, "bound": kind, "attested": "attested"}
    return {
        name: Constant(float(value), kinds[value.kind], f"{value.why}; rests on {claim}", value.estimate)
        if value.kind in kinds
        else value
        for name, value in known.items()
    }


def input_constants(task: Task, params: Tensor, clients: Federation, norm: float) -> dict[str, Constant]:
    """Return ``L_z`` and ``L_zz`` wherever an example may move, at the model's parameters."""
    known = data_free_constants(task, params, math.prod(clients.input_shape), norm)
    if task.linear(params[None]) is not None and len(known) == 2:
        return known
    x, y, why = _some_examples(clients, params)
    slope = estimates.largest_slope(task, params, x, y, norm)
    curvature = estimates.largest_curvature(task, params, x, y, norm)
    searched = {
        "L_z": Constant(slope, "estimate", why),
        "L_zz": Constant(curvature, "estimate", f"{why}, by power iteration"),
    }
    bounds = {name: Constant(float(value), value.kind, value.why, searched[name]) for name, value in known.items()}
    return {**searched, **bounds}


def _some_examples(clients: Federation, params: Tensor) -> tuple[Tensor, Tensor, str]:
    """Return examples to search on, taken evenly from all clients."""
    count = min(SEARCHED, len(clients.train.y))
    rows = torch.linspace(0, len(clients.train.y) - 1, count, dtype=torch.float64).round().long()
    y = clients.train.y[rows]
    y = y.to(params.dtype) if y.is_floating_point() else y
    return clients.train.rows(rows, params.dtype), y, f"largest at {count} examples"


def _searched(task: Task, params: Tensor, clients: Federation, norm: float) -> dict[str, Constant]:
    x, y, why = _some_examples(clients, params)
    losses = task.losses(params[None], x[None], y[None])
    return {
        **input_constants(task, params, clients, norm),
        "L_theta": Constant(estimates.largest_param_slope(task, params, x, y), "estimate", why),
        "L_theta_theta": Constant(
            estimates.largest_param_curvature(task, params, x, y), "estimate", f"{why}, by power iteration"
        ),
        "L_theta_z": Constant(estimates.largest_mixed(task, params, x, y), "estimate", f"{why}, by power iteration"),
        "max_loss": Constant(float(losses.max()), "estimate", why),
        "label_gap": Constant(estimates.largest_label_gap(task, params, x, _labels(clients, y)), "estimate", why),
    }


def _alone(data: tuple[Any, Any]) -> Federation:
    """Return a federation of one client, which may lack some labels."""
    return Federation.from_arrays([data], test_fraction=0.0, num_classes=count_classes([as_array(data[1])]))


def _span(clients: Federation) -> tuple[float, float]:
    spans = [part.span() for part in (clients.train, clients.test) if len(part.y)]
    return min(low for low, _ in spans), max(high for _, high in spans)


def _labels(clients: Federation, y: Tensor) -> list[Tensor]:
    """Return the possible new labels for ``y``: each class, or the lowest and the highest targets and y itself."""
    targets = _targets(clients)
    if targets is None:
        return [torch.full_like(y, label) for label in range(clients.num_classes or 0)]
    return [y, *(bound.to(y).view(y[:1].shape).expand_as(y) for bound in targets)]


def _targets(clients: Federation) -> Tensor | None:
    if clients.num_classes is not None:
        return None
    y = torch.cat([part.y for part in (clients.train, clients.test) if len(part.y)]).double()
    return torch.stack([y.amin(0), y.amax(0)]).view(2, -1)
