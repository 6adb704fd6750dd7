"""Represent a model and its loss as pure functions of a flat parameter vector, batched over lanes.

Shapes: ``params [L, P]``, ``x [L, B, ...]`` (a tensor or :class:`wafl.tasks.inputs.Inputs`), ``y [L, B]`` (or targets
``[L, B, k]``), outputs ``[L, B, C]``, losses ``[L, B]``. A lane is one client's copy of the parameters in one run.
"""

import copy
from collections.abc import Callable, Mapping
from contextlib import nullcontext
from functools import cached_property, partial
from typing import Annotated, Any, Self

import torch
from torch import Tensor, nn
from torch.func import functional_call, grad, vmap

from wafl.base.options import frozen
from wafl.base.random import Key
from wafl.tasks.gpu import precision
from wafl.tasks.gpu.kernels import with_pooling
from wafl.tasks.inputs import Inputs, Shifted, dense, shared
from wafl.tasks.layout import Layout
from wafl.tasks.losses import OutputLoss
from wafl.tasks.modes.dropout import Site, draw_masks, masked, recorded
from wafl.tasks.modes.layers import changed_output, output_of
from wafl.tasks.modes.one_by_one import are_side_by_side, autograd_gradient, in_turn, written_gradient
from wafl.tasks.modes.statistics import affine_of, followed, layers_with, rest
from wafl.tasks.rescaling import Ready, make_plain, rescale, rescaled_layers
from wafl.tasks.structure.sequence import convolution_products

# It is raised for each operation without its own rule, and tells the user nothing that he could change.
torch._C._functorch._set_vmap_fallback_warning_enabled(False)  # pyright: ignore[reportPrivateUsage, reportAttributeAccessIssue]

Loss = str | OutputLoss | Callable[[Tensor, Tensor], Tensor]
Masks = tuple[Tensor, ...]
"""The factors of each dropout of a model, one row per lane."""
Moved = Tensor | Inputs | Shifted
"""Examples, moved or not."""
Params = Tensor | tuple[Tensor, ...]
"""Parameters as one vector, or one by one in the layers' layout."""


@frozen
class Traits:
    """The properties of a model, found by trial (:func:`wafl.tasks.fitness.check_fitness`)."""

    obstacle: Annotated[
        str | None, "Why ``torch.func.vmap`` cannot compute all lanes at once, so that they go one after another."
    ] = None
    busy: Annotated[
        bool, "Whether a single lane keeps the processor busy, so that lanes are faster one after another."
    ] = False
    dropout: Annotated[bool, "Whether the model drops anything while it trains."] = False
    integers: Annotated[bool, "Whether the model takes integers, such as the numbers of words."] = False
    movable: Annotated[bool, "Whether the outputs have a gradient in the inputs."] = True
    cast: Annotated[
        frozenset[str], "On a GPU, the parameters that one layer reads, as a reduced precision casts them."
    ] = frozenset()

    @property
    def batched(self) -> bool:
        """Whether lanes are computed together: nothing prevents it, and no lane keeps a processor busy."""
        return self.obstacle is None and not self.busy


class Task:
    """A model and its loss: any ``nn.Module`` that treats each example separately.

    With ``masks``, one for each of its dropouts, the model is in training mode (:meth:`draw_masks`); without them, it
    is in evaluation mode. The ``layout`` describes the flat vector: the parameters, then the learned running
    statistics, ``num_statistics`` numbers without gradient (``statistics.py``), which P includes. If ``in_streams``, a
    captured step computes each lane in a separate stream; otherwise, lanes are the batch of each matrix product.
    """

    in_streams = True

    def __init__(self, module: nn.Module, loss: OutputLoss, layout: Layout) -> None:
        self.module = module
        self.loss = loss
        self.layout = layout
        self.traits = Traits()
        self.tracking = layers_with(module, layout.statistics)
        rest(module)
        self._at_rest = sharing_tensors(module).eval()
        self._read: Params | None = None  # the parameters of all lanes that are read instead of any others
        self._ready: Ready | None = None  # where they come from, if they are rescaled
        self._shapes = layout.shapes
        self._rescaled = rescaled_layers(module, list(self._shapes))
        self._sizes = [shape.numel() for shape in self._shapes.values()]
        # A layer used twice in the model is one module: torch would restore its parameters twice, and wrongly.
        everywhere = [id(layer) for _, layer in module.named_modules(remove_duplicate=False)]
        self._tie = len(everywhere) == len(set(everywhere))
        self._sites: dict[torch.Size, list[Site]] = {}
        self.num_statistics = sum(shape.numel() for shape in layout.statistics.values())
        self.num_params = sum(self._sizes) - self.num_statistics

    @property
    def steady(self) -> bool:
        """Whether a lane rounds the same alone and next to others; a batched convolution of one lane does not."""
        return not (self.in_streams and self.traits.batched)

    @property
    def rescales(self) -> bool:
        """Whether layers rescale their weights."""
        return self._rescaled is not None

    def flatten(self, params: Mapping[str, Tensor]) -> Tensor:
        """Return named parameters as one vector ``[P]``; missing statistics come from the model."""
        params = {**{name: self.module.get_buffer(name) for name in self.layout.statistics}, **params}
        missing = self._shapes.keys() ^ params.keys()
        if missing:
            raise ValueError(f"parameter names differ from the model's: {', '.join(sorted(missing))}")
        for name, shape in self._shapes.items():
            if params[name].shape != shape:
                raise ValueError(
                    f"parameter {name} has shape {tuple(params[name].shape)}, but the model needs {tuple(shape)}"
                )
        return torch.cat([params[name].detach().reshape(-1) for name in self._shapes])

    def unflatten(self, flat: Tensor) -> dict[str, Tensor]:
        """Return one vector ``[P]`` as named parameters and statistics."""
        pieces = flat.split(self._sizes)
        named = {name: piece.view(shape) for (name, shape), piece in zip(self._shapes.items(), pieces, strict=True)}
        return {**named, **{name: named[name].detach() for name in self.layout.statistics}}

    def module_at(self, params: Tensor) -> nn.Module:
        """Return a copy of the module with the parameters ``[P]``; hooks of its ``load_state_dict`` are not called."""
        module = copy.deepcopy(self.module)
        parts = (each(remove_duplicate=False) for each in (module.named_parameters, module.named_buffers))
        own = {name: value for part in parts for name, value in part}
        with torch.no_grad():
            for name, value in self.unflatten(params).items():
                own[name].copy_(value)
        return module

    def with_loss(self, loss: OutputLoss) -> Self:
        """Return the same model with another loss of its outputs."""
        other = copy.copy(self)
        other.loss = loss
        return other

    def initial(self) -> Tensor:
        """Return the model's parameters as one vector."""
        named = dict(self.module.named_parameters())
        return self.flatten({name: named[name] for name in self.layout.params})

    def batch_norm_indices(self, *, affine: bool) -> list[int]:
        """Return the indices of the running statistics in the flat vector.

        If ``affine``, the scales and offsets are included.
        """
        chosen = {*self.layout.statistics, *(affine_of(self.tracking) if affine else ())}
        names = [name for name, size in zip(self._shapes, self._sizes, strict=True) for _ in range(size)]
        return [index for index, name in enumerate(names) if name in chosen]

    def draw_masks(self, key: Key, params: Tensor, x: Tensor | Inputs) -> Masks:
        """Return the masks of one step; one key per lane determines the dropped values."""
        if not self.traits.dropout:
            return ()
        example = (x.base if isinstance(x, Inputs) else x)[0]
        if example.shape not in self._sites:
            self._sites[example.shape] = self.dropouts(params[0], example)
        return draw_masks(self._sites[example.shape], key, params)

    def dropouts(self, flat: Tensor, x: Tensor) -> list[Site]:
        """Return the dropouts of one lane that trains on ``x [B, ...]``, in the order of their calls."""
        sites: list[Site] = []
        with recorded(sites), torch.no_grad():
            self.call(flat, x, (), trains=True)
        return sites

    def convolution_products(self, flat: Tensor, x: Tensor) -> int:
        """Return the number of products in the model's convolutions for ``x [B, ...]``."""
        with torch.no_grad():
            return convolution_products(self._at_rest, lambda: self.call(flat, x))

    def cast_by_layers(self, flat: Tensor, x: Tensor) -> frozenset[str]:
        """Return the names of the parameters that layers read once each, in a reduced precision's casts."""
        named, x = self.unflatten(flat), x.long() if self.traits.integers else x
        return precision.cast_by_layers(
            lambda: functional_call(self._at_rest, named, (x,), tie_weights=self._tie), named
        )

    @cached_property
    def _casts(self) -> precision.Casts:
        return precision.casts_of(self.module)

    @cached_property
    def _side_by_side(self) -> dict[bool, nn.Module]:
        """The model in training and in evaluation mode, for captured steps."""
        return {True: with_pooling(self.module), False: with_pooling(self._at_rest)}

    @cached_property
    def _plain(self) -> "Task":
        """A copy of this task that uses rescaled weights."""
        return Task(make_plain(sharing_tensors(self.module)), self.loss, self.layout)

    def reading(self, params: Tensor) -> Self:
        """Return a copy of this task that rescales, casts and lays out these parameters once, for many calls."""
        in_streams = self.in_streams and are_side_by_side()
        if self._rescaled is None and not in_streams:
            return self
        other, values = copy.copy(self), self._values(params)
        if self._rescaled is not None:
            for name in ("module", "_at_rest", "_casts", "_side_by_side"):
                setattr(other, name, getattr(self._plain, name))
            other._ready = rescale(self._rescaled, values)
            values = other._ready.values
        if in_streams:
            cast = other._casts.params | self.traits.cast
            named = zip(self._shapes, values, strict=True)
            other._read = tuple(
                precision.aligned(precision.prepared(value) if name in cast else value) for name, value in named
            )
        else:
            other._read = torch.cat([value.flatten(1) for value in values], dim=1)
        return other

    def _values(self, params: Tensor) -> list[Tensor]:
        """Return each parameter of all lanes, ``[L, *shape]``, as views."""
        pieces = params.split(self._sizes, dim=1)
        return [piece.view(-1, *shape) for piece, shape in zip(pieces, self._shapes.values(), strict=True)]

    def _lanes(self, params: Tensor) -> Params:
        return params if self._read is None else self._read

    def _inputs(self, x: Moved) -> tuple[Tensor, ...]:
        """Return the examples and, if they move at a layer, the moves."""
        if isinstance(x, Shifted):
            return x.x, x.delta
        once = isinstance(self._read, tuple) and self._casts.inputs
        return (precision.prepared(dense(x)) if once else dense(x),)

    def outputs(self, params: Tensor, x: Moved, masks: Masks | None = None) -> Tensor:
        """Return the outputs ``[L, B, C]``."""
        return self._each_lane(self._calling(x, masks))(self._lanes(params), *self._inputs(x), masks or ())

    def forward(self, params: Tensor, x: Tensor, masks: Masks | None = None) -> Inputs:
        """Return the examples with a forward pass, if later losses and gradients can use one."""
        return shared(x)

    def losses(self, params: Tensor, x: Moved, y: Tensor, masks: Masks | None = None) -> Tensor:
        """Return the loss of each example ``[L, B]``."""
        return self.loss.value(self.outputs(params, x, masks), y)

    def losses_and_gradient(
        self, params: Tensor, x: Moved, y: Tensor, weight: Tensor, masks: Masks | None = None
    ) -> tuple[Tensor, Tensor]:
        """Return the losses ``[L, B]`` and the gradient ``[L, P]`` of ``sum_b weight_b loss_b`` in the parameters."""
        call = self._calling(x, masks)

        def total(flat: Params, y: Tensor, weight: Tensor, *inputs: Any) -> tuple[Tensor, Tensor]:
            losses = self.loss.value(call(flat, *inputs), y)
            return (weight * losses).sum(), losses

        lanes, given = self._lanes(params), (y, weight, *self._inputs(x), masks or ())
        if isinstance(lanes, tuple):
            learns = [name not in self.layout.statistics for name in self._shapes]
            losses, gradients = written_gradient(total, learns)(lanes, *given)
        else:
            gradients, losses = self._each_lane(self._gradient_of(total))(lanes, *given)
        if self._ready is not None:
            self._ready.pull_back(self._values(gradients))
        return losses, gradients

    def input_gradient(
        self, params: Tensor, x: Tensor | Shifted, y: Tensor, masks: Masks | None = None
    ) -> tuple[Tensor, Tensor]:
        """Return the losses ``[L, B]``, and their gradients in the moved inputs or features ``[L, B, ...]``."""
        if not self.traits.movable and not isinstance(x, Shifted):
            raise ValueError(self._why_not_movable())
        call = self._calling(x, masks)

        def total(moved: Tensor, flat: Params, y: Tensor, *inputs: Any) -> tuple[Tensor, Tensor]:
            *still, masks = inputs
            losses = self.loss.value(call(flat, *still, moved, masks), y)
            return losses.sum(), losses

        *still, moved = self._inputs(x)
        each_lane = self._each_lane(self._gradient_of(total))
        gradients, losses = each_lane(moved, self._lanes(params), y, *still, masks or ())
        if self._read is not None:
            gradients = gradients.to(params.dtype, memory_format=torch.contiguous_format)
        return losses, gradients

    def next_statistics(self, params: Tensor, x: Moved, weight: Tensor, masks: Masks | None = None) -> Tensor:
        """Return the running statistics ``[L, num_statistics]`` after a batch with these example weights."""
        call = self._calling(x, masks)

        def next_values(flat: Tensor, weight: Tensor, *inputs: Any) -> Tensor:
            values = self.unflatten(flat)
            running = {name: values[name] for name in self.layout.statistics}
            with followed(self.tracking, weight, running):
                call(flat, *inputs)
            return torch.cat(list(running.values()))

        return self._each_lane(next_values)(params, weight, *self._inputs(x), masks or ())

    def features(self, params: Tensor, x: Tensor | Inputs, layer: str, masks: Masks | None = None) -> Tensor:
        """Return the output of a layer ``[L, B, ...]``."""
        return self._each_lane(self._features_of(layer, masks))(params, dense(x), masks or ())

    def features_of_one(self, flat: Tensor, x: Tensor, layer: str) -> Tensor:
        """Return the output of a layer ``[B, ...]`` for one lane, with the bits of the module itself."""
        return self._features_of(layer, None)(flat, x, ())

    def features_gradient(
        self, params: Tensor, x: Tensor, layer: str, slopes: Tensor, masks: Masks | None = None
    ) -> Tensor:
        """Return the gradient ``[L, P]`` of ``sum_b <slopes_b, output of the layer at b>`` in the parameters."""
        features_of = self._features_of(layer, masks)

        def total(flat: Tensor, x: Tensor, slopes: Tensor, masks: Masks) -> tuple[Tensor, Tensor]:
            features = features_of(flat, x, masks)
            return (slopes * features).sum(), features

        return self._each_lane(self._gradient_of(total))(params, x, slopes, masks or ())[0]

    def _features_of(self, layer: str, masks: Masks | None) -> Callable[[Tensor, Tensor, Masks], Tensor]:
        """Return the function that computes a layer's output of one lane, in the mode of the masks."""
        trains = masks is not None
        module = self.module if trains else self._at_rest
        return lambda flat, x, masks: output_of(module, layer, lambda: self.call(flat, x, masks, trains=trains))

    def call(self, flat: Params, x: Tensor, masks: Masks = (), *, trains: bool = False) -> Tensor:
        """Return one lane's outputs ``[B, C]`` for ``x [B, ...]``, from its parameters ``[P]`` or prepared ones."""
        module = self.module if trains else self._at_rest
        values = self.unflatten(flat) if isinstance(flat, Tensor) else dict(zip(self._shapes, flat, strict=True))
        x = x.long() if self.traits.integers else x
        if are_side_by_side():
            module = self._side_by_side[trains]
            if precision.is_reduced():
                x, values = precision.laid_out(x), {name: precision.laid_out(value) for name, value in values.items()}
        with masked(iter(masks)) if masks else nullcontext(), precision.layers(x.device):
            return functional_call(module, values, (x,), tie_weights=self._tie).to(_outputs_type(flat))

    def _calling(self, x: Moved, masks: Masks | None) -> Callable[..., Tensor]:
        """Return :meth:`call` for the parts of x, in the mode of the masks."""
        trains = masks is not None
        if not isinstance(x, Shifted):
            return partial(self.call, trains=trains)
        module, layer = self.module if trains else self._at_rest, x.layer

        def shifted(flat: Params, x: Tensor, delta: Tensor, masks: Masks) -> Tensor:
            with changed_output(module, layer, lambda output: output + delta):
                return self.call(flat, x, masks, trains=trains)

        return shifted

    def _each_lane(self, function: Callable[..., Any]) -> Callable[..., Any]:
        return vmap(function) if self._batched else in_turn(function)

    def _gradient_of(self, function: Callable[..., tuple[Tensor, Tensor]]) -> Callable[..., tuple[Tensor, Tensor]]:
        return grad(function, has_aux=True) if self._batched else autograd_gradient(function)

    @property
    def _batched(self) -> bool:
        """Whether lanes are batched; captured steps run them side by side, which a GPU computes faster."""
        return self.traits.batched and not are_side_by_side()

    def _why_not_movable(self) -> str:
        words = [name for name, layer in self.module.named_modules() if isinstance(layer, nn.Embedding)]
        why = "takes integers" if self.traits.integers else "has no gradient in its inputs, which it rounds or casts"
        return (
            f"{type(self.module).__name__} {why}, so no example can be moved there. FedRobust, calibrate, certify and "
            "the bounds need the layers behind some layer as the model, and its outputs as the examples; otherwise let "
            f"the ball live in the space of a layer's output, such as space={[*words, 'embedding'][0]!r}"
        )

    def linear(self, params: Tensor) -> tuple[Tensor, Tensor] | None:
        """Return ``(W [L, C, D], b [L, C])`` if outputs are ``W x + b`` of the flattened input, otherwise None."""
        return None

    def curvature(self, params: Tensor, norm: float = 2) -> Tensor | None:
        """Return L_zz ``[L]``, the Lipschitz constant of the loss's input gradient, or None if it is unknown."""
        return None


def _outputs_type(flat: Params) -> torch.dtype:
    """Return the type of the parameters before their preparation."""
    if isinstance(flat, Tensor):
        return flat.dtype
    return torch.float32 if flat[0].dtype == torch.bfloat16 else flat[0].dtype


def sharing_tensors(module: nn.Module) -> nn.Module:
    """Return a copy that can be in another mode, but shares all parameters and buffers."""
    tensors = [*module.parameters(), *module.buffers()]
    return copy.deepcopy(module, {id(value): value for value in tensors})
