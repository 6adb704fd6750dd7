"""Docstrings as the site's reference shows them: a doctest is a block of code, a role of Sphinx is a name or a link.

The site also shows the options that :mod:`wafl.base.options` adds when a module is imported.
"""

from __future__ import annotations

import inspect
import re
from importlib import import_module
from typing import Any

from griffe import Class, Docstring, Extension, Function, Object, Parameter, ParameterKind, Parameters

DOCTEST = re.compile(r"(?:^[ ]*>>> .*(?:\n(?![ ]*$).*)*\n?)+", re.MULTILINE)
DERIVED = tuple(f"wafl.base.options.{name}" for name in ("taking", "documented", "frozen"))
SEE = re.compile(r"^ *See Also:\n.*", re.MULTILINE)
"""The section of related functions, whose names are links on the site."""
ROLE = re.compile(r":\w+:`~?([\w.]+)`")


class Docstrings(Extension):
    """Rewrites each docstring once, when its object is found."""

    def on_object(self, *, obj: Object, **_: Any) -> None:
        decorators = obj.decorators if isinstance(obj, Class | Function) else []
        if any(decorator.callable_path.startswith(DERIVED) for decorator in decorators):
            made = getattr(import_module(obj.module.path), obj.name)
            obj.docstring = Docstring(inspect.getdoc(made) or "", parent=obj)
            parameters = _parameters(inspect.signature(made))
            if isinstance(obj, Function):
                obj.parameters = parameters
            else:
                obj.set_member("__init__", Function("__init__", parameters=parameters))
        if obj.docstring:
            text = SEE.sub(lambda section: ROLE.sub(_link, section[0]), obj.docstring.value)
            text = ROLE.sub(r"`\1`", text)
            obj.docstring.value = DOCTEST.sub(lambda match: f"```python\n{match[0].rstrip()}\n```\n", text)


def _link(role: re.Match[str]) -> str:
    """Return a link to the place where the function of a role is documented."""
    module, _, name = role[1].rpartition(".")
    function = getattr(import_module(module), name)
    return f"[`{role[1]}`][{function.__module__}.{function.__qualname__}]"


def _parameters(signature: inspect.Signature) -> Parameters:
    """Return the parameters of a signature for the site."""
    parameters: list[Parameter] = []
    for each in signature.parameters.values():
        annotation = re.sub(r"\b\w+\.", "", inspect.formatannotation(each.annotation))
        default = None if each.default is each.empty else repr(each.default)
        kind = ParameterKind(each.kind.description)
        parameters.append(Parameter(each.name, annotation=annotation, kind=kind, default=default))
    return Parameters(*parameters)
