"""Compute digests that identify examples, models and code: one changed bit changes the digest."""

import ast
import inspect
import json
import sys
import sysconfig
import textwrap
from collections.abc import Iterable, Iterator, Mapping
from functools import partial
from hashlib import sha256
from pathlib import Path
from types import CodeType, FunctionType, MethodType, ModuleType
from typing import Any, cast

from numpy import generic, ndarray
from torch import Tensor, float32, float64, nn, uint8


def changed(before: Mapping[str, str], now: Mapping[str, str]) -> list[str]:
    """Return the names whose digests differ or that only one side has.

    >>> changed({"model": "a", "loss": "b"}, {"model": "a", "loss": "c"})
    ['loss']
    """
    return [what for what in dict.fromkeys((*before, *now)) if before.get(what) != now.get(what)]


def tensors_digest(tensors: Iterable[Tensor], about: object = None) -> str:
    """Return the digest of all bytes of tensors, which may come from an iterator, and of plain values about them."""
    digest = sha256(json.dumps(about).encode())
    for tensor in tensors:
        if tensor.numel():  # nothing, as numpy makes it, has no strides that could be viewed as bytes
            content: Any = tensor.detach().cpu().contiguous().view(-1).view(uint8).numpy()
            digest.update(content)
    return digest.hexdigest()


def model_digest(model: nn.Module, *, dtypes: bool = False, arrays: bool = True) -> str:
    """Return the digest of a model's layers, their settings and code, its frozen parameters and its buffers.

    ``dtypes``: include the type of every number, so that a float32 and a float64 model differ.
    ``arrays``: include tensors and arrays that are plain attributes of layers or constants of your own code.
    """
    empty = vars(nn.Module()).keys() - {"training"}
    layers: list[Any] = []
    code: dict[str, str] = {}
    for name, layer in model.named_modules(remove_duplicate=False):  # a layer that is used twice counts twice
        settings = {key: value for key, value in vars(layer).items() if key not in empty}
        # torch's spectral_norm and prune keep what they compute from the parameter NAME_orig as NAME.
        owned = dict(layer.named_parameters(recurse=False))
        stated = {key: value for key, value in settings.items() if f"{key}_orig" not in owned}
        layers.append([name, _name(type(layer)), {**_plain(settings, False), **_plain(stated, arrays)}])
        functions = [value for value in settings.values() if isinstance(value, FunctionType | MethodType | partial)]
        code |= code_of([type(layer), *functions], arrays)
    trained = [[name, list(value.shape), value.requires_grad] for name, value in model.named_parameters()]
    fixed = {name: value for name, value in model.named_parameters() if not value.requires_grad}
    fixed |= dict(model.named_buffers())
    every = list(model.named_parameters(remove_duplicate=False))
    owners = {id(value): name for name, value in reversed(every)}
    # Bytes do not tell whose weights a layer shares, nor two types of the same length apart.
    unusual = [
        [name, owners[id(value)], str(value.dtype)]
        for name, value in every
        if dtypes or owners[id(value)] != name or value.dtype not in (float32, float64)
    ]
    about = [layers, trained, list(fixed), sorted(code.items()), *([unusual] if unusual else [])]
    if dtypes:
        about.append([[name, str(value.dtype)] for name, value in fixed.items()])
    return tensors_digest(fixed.values(), about)


def object_digest(thing: Any) -> str:
    """Return the digest of the plain settings of a function or object, and of its code if it is your code."""
    code = code_of([thing] if callable(thing) and hasattr(thing, "__qualname__") else [type(thing)])
    settings = vars(thing) if hasattr(thing, "__dict__") and not isinstance(thing, FunctionType) else thing
    return sha256(json.dumps([_plain(settings), sorted(code.items())]).encode()).hexdigest()


def code_of(roots: Iterable[Any], arrays: bool = True) -> dict[str, str]:
    """Return the source of your functions and classes and of all your code that they use, by name, without comments."""
    sources: dict[str, str] = {}
    waiting = list(roots)
    while waiting:
        thing: Any = waiting.pop()
        if isinstance(thing, partial):
            waiting += [cast(Any, thing).func]
            continue
        thing = thing.__func__ if isinstance(thing, MethodType) else thing
        name = _name(thing)
        if name in sources or not _is_own(thing):
            continue
        sources[name] = _source(thing)
        for used, value in () if isinstance(thing, ModuleType) else _used(thing):
            if isinstance(value, type | FunctionType | ModuleType | partial):
                waiting.append(value)
            elif (plain := _plain(value, arrays)) is not None:
                sources[f"{name}: {used}"] = json.dumps(plain)
    return sources


def _used(thing: Any) -> Iterator[tuple[str, Any]]:
    """Yield the names and values that your function or class refers to."""
    if isinstance(thing, type):
        for base in thing.__mro__[1:]:
            yield base.__name__, base
        functions = [inspect.unwrap(value) for value in map(_bare, vars(thing).values()) if callable(value)]
    else:
        functions = [inspect.unwrap(thing)]
    for function in functions:
        if isinstance(function, FunctionType):
            known = {**function.__globals__, **_closure(function)}
            for name in _names(function.__code__):
                if name in known:
                    yield name, known[name]


def _bare(member: Any) -> Any:
    """Return the function behind a static method, class method or property."""
    return getattr(member, "__func__", None) or getattr(member, "fget", None) or member


def _closure(function: FunctionType) -> dict[str, Any]:
    values = dict[str, Any]()
    for name, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=True):
        try:
            values[name] = cell.cell_contents
        except ValueError:  # it is still empty
            continue
    return values


def _names(code: CodeType) -> Iterator[str]:
    yield from dict.fromkeys((*code.co_names, *code.co_freevars))
    for inner in code.co_consts:
        if isinstance(inner, CodeType):
            yield from _names(inner)


def _plain(value: Any, arrays: bool = True) -> Any:
    """Convert a value to JSON.

    Functions become their names, arrays their digests, and values without a lasting form None.
    """
    value = cast(Any, value).item() if isinstance(value, generic) else value
    if isinstance(value, bytes | float):
        return value.hex()
    if value is None or isinstance(value, bool | int | str):
        return value
    if isinstance(value, Mapping):
        return {str(key): _plain(item, arrays) for key, item in cast(Mapping[Any, Any], value).items()}
    if isinstance(value, list | tuple):
        return [_plain(item, arrays) for item in cast(Iterable[Any], value)]
    if isinstance(value, partial):
        made = cast(Any, value)
        return [_plain(each, arrays) for each in (made.func, made.args, made.keywords)]
    if isinstance(value, Tensor | ndarray):
        return _array_digest(value) if arrays else None
    return _name(value) if callable(value) and hasattr(value, "__qualname__") else None


def _array_digest(array: Any) -> str:
    if isinstance(array, ndarray) and array.dtype.hasobject:
        return sha256(json.dumps(_plain(array.tolist())).encode()).hexdigest()
    values: Any = array.detach().to_dense().resolve_conj().cpu() if isinstance(array, Tensor) else array
    about = [type(array).__name__, str(values.dtype), list(values.shape)]
    if isinstance(values, Tensor):
        return tensors_digest([values], about)
    return sha256(json.dumps(about).encode() + values.tobytes()).hexdigest()


def _name(thing: Any) -> str:
    if isinstance(thing, ModuleType):
        return thing.__name__
    return f"{getattr(thing, '__module__', None)}.{getattr(thing, '__qualname__', type(thing).__qualname__)}"


def _is_own(thing: Any) -> bool:
    """Return whether the code is the user's, and not from wafl, Python or an installed library."""
    module = thing if isinstance(thing, ModuleType) else sys.modules.get(getattr(thing, "__module__", None) or "")
    if module is None or module.__name__.partition(".")[0] in {"wafl", "torch", *sys.stdlib_module_names}:
        return False
    file = getattr(module, "__file__", None)
    libraries = {sysconfig.get_path(kind) for kind in ("stdlib", "platstdlib", "purelib", "platlib")}
    return file is None or not any(Path(file).is_relative_to(library) for library in libraries)


def _source(thing: Any) -> str:
    """Return the source without comments and layout, or an empty text if there is none, as at a prompt."""
    try:
        text = textwrap.dedent(inspect.getsource(thing))
    except (OSError, TypeError):
        return ""
    try:
        return ast.unparse(ast.parse(text))
    except SyntaxError:  # a lambda in the middle of an expression
        return text
