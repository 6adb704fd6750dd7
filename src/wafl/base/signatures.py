"""Decorate functions that take the options of a dataclass by name, and list the options in their help."""

import inspect
from collections.abc import Callable
from functools import wraps
from typing import Any, ParamSpec, Protocol, TypeVar

from wafl.base.options import check_names, plain_signature, with_arguments

A_contra = TypeVar("A_contra", contravariant=True)
B_contra = TypeVar("B_contra", contravariant=True)
C_contra = TypeVar("C_contra", contravariant=True)
R_co = TypeVar("R_co", covariant=True)
T = TypeVar("T")
P = ParamSpec("P")


class Taking(Protocol[A_contra, B_contra, C_contra, P, R_co]):
    """A function of a model, clients and a method that takes the fields of a dataclass by name."""

    def __call__(self, model: A_contra, clients: B_contra, method: C_contra, *args: P.args, **kwargs: P.kwargs) -> R_co:
        """Call the function with the fields of the dataclass as keyword arguments."""
        ...


def taking(
    options: Callable[P, T],
) -> Callable[[Callable[[A_contra, B_contra, C_contra, T], R_co]], Taking[A_contra, B_contra, C_contra, P, R_co]]:
    """Decorate a function that takes one dataclass, so that callers pass the fields of the dataclass by name.

    The signature and the ``Args`` of the docstring list each field as a parameter.
    """
    kind: Any = options

    def decorate(
        function: Callable[[A_contra, B_contra, C_contra, T], R_co],
    ) -> Taking[A_contra, B_contra, C_contra, P, R_co]:
        signature = _listed(function, kind)
        *names, _ = inspect.signature(function).parameters

        @wraps(function)
        def called(*args: Any, **kwargs: Any) -> R_co:
            check_names(function.__name__, kwargs, signature)
            try:
                bound = signature.bind(*args, **kwargs).arguments
            except TypeError as error:
                raise TypeError(f"{function.__name__}: {error}") from None
            model, clients, method = (bound.pop(name) for name in names)
            return function(model, clients, method, kind(**bound))

        return _with_help(called, signature, kind)

    return decorate


def listing(kind: type, **defaults: Any) -> Callable[[Callable[P, T]], Callable[P, T]]:
    """Decorate a function with ``**options``, so that its help lists the fields of a dataclass in their place.

    Args:
        kind: the dataclass.
        defaults: values for fields whose default differs in this function.
    """

    def decorate(function: Callable[P, T]) -> Callable[P, T]:
        signature = _listed(function, kind, **defaults)

        @wraps(function)
        def called(*args: Any, **kwargs: Any) -> T:
            check_names(function.__name__, kwargs, signature)
            return function(*args, **{**defaults, **kwargs})

        return _with_help(called, signature, kind)

    return decorate


def _listed(function: Callable[..., Any], kind: type, **defaults: Any) -> inspect.Signature:
    """Return the function's signature, with the fields of a dataclass in place of its last parameter."""
    signature = inspect.signature(function, eval_str=True)
    *first, _ = signature.parameters.values()
    named = [each.replace(kind=inspect.Parameter.KEYWORD_ONLY) for each in plain_signature(kind).parameters.values()]
    listed = [each.replace(default=defaults.get(each.name, each.default)) for each in named]
    return signature.replace(parameters=[*first, *listed])


def _with_help(called: Any, signature: inspect.Signature, kind: type) -> Any:
    """Return the function with this signature, and with the fields of a dataclass in its docstring."""
    called.__signature__ = signature
    called.__doc__ = with_arguments(called.__doc__ or "", kind)
    return called
