"""Run your own functions in an experiment: starting it allows them; for other people's studies, wafl asks first."""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager, nullcontext
from contextvars import ContextVar
from hashlib import sha256
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

from wafl.base.describe import some
from wafl.base.errors import ConfigError, UntrustedError
from wafl.config.code_folder import CodeFolder

if TYPE_CHECKING:
    from wafl.config.experiment import Experiment


def imports(experiment: Experiment, *, data: bool = True) -> list[str]:
    """Return every ``module:function`` in an experiment; ``data=False`` excludes the function of its data."""
    named: list[Any] = [experiment.data.source if data else None, experiment.model.kind]
    for method in experiment.methods:
        rule, server, local = (getattr(method, slot, None) for slot in ("client_weights", "server", "local"))
        parts = [getattr(part, "kind", None) for part in (rule, server, getattr(server, "optimizer", None), local)]
        named += [method.method, getattr(method, "client_weights", None), *parts]
    return [name for name in named if isinstance(name, str) and ":" in name]


def imported(key: str, name: str) -> Callable[..., Any]:
    """Return your own function, wrapped to raise an error for unknown arguments."""
    module, _, path = name.partition(":")
    try:
        target: Any = importlib.import_module(module)
        for attribute in path.split("."):
            target = getattr(target, attribute)
            if isinstance(target, ModuleType) and top_module(target.__name__) != top_module(module):
                raise ConfigError(f"{key} = {name!r} names a function of {target.__name__}: name your own")
    except (ImportError, AttributeError) as error:
        raise ConfigError(f"{key} = {name!r} cannot be imported: {error}") from error
    if not callable(target):
        raise ConfigError(f"{key} = {name!r} is not a function")
    function: Callable[..., Any] = target

    def call(*arguments: Any, **options: Any) -> Any:
        try:
            inspect.signature(function).bind(*arguments, **options)
        except TypeError as error:
            given = "the clients" if arguments else f"the options {options}" if options else "no arguments"
            raise ConfigError(f"{key} = {name!r} cannot be called with {given}: {error}") from error
        return function(*arguments, **options)

    return call


@contextmanager
def own_code(folder: Path | None, names: Sequence[str], *, trust: bool) -> Generator[None, None, None]:
    """Make a folder's modules importable during the block, after all others, from the trusted bytes."""
    code = CodeFolder(folder) if names and folder is not None else None
    if names:
        check_code(code, names, trust=trust)
    with nullcontext() if code is None else code.importable(map(top_module, names)):
        yield
    if names:
        _remember(_mark(code, names))  # with what the code itself may have written, such as a cache


def top_module(name: str) -> str:
    """Return the first part of ``package.module:function``."""
    return name.partition(":")[0].partition(".")[0]


_ask: ContextVar[Callable[[str], bool]] = ContextVar("ask", default=lambda _: False)


@contextmanager
def asking(allow: Callable[[str], bool]) -> Generator[None, None, None]:
    """Use ``allow`` during the block to decide about code that has never run here; it receives a description."""
    token = _ask.set(allow)
    try:
        yield
    finally:
        _ask.reset(token)


def check_code(code: CodeFolder | None, names: Sequence[str], *, trust: bool) -> None:
    """Raise UntrustedError for new code that is not allowed; allowed code is remembered."""
    mark = _mark(code, names)
    if mark.exists():
        return
    files = [] if code is None else list(map(str, code.named_files()))
    where = "" if code is None else f" in {code.folder}{f', which names {some(files)}' if files else ''}"
    what = f"this experiment runs code, which has not run here before: {', '.join(dict.fromkeys(names))}{where}"
    if not trust and not _ask.get()(what):
        raise UntrustedError(f"{what}. Look at it, and add --trust if it is safe")
    _remember(mark)


def _mark(code: CodeFolder | None, names: Sequence[str]) -> Path:
    """Return the file that exists if this code may run, with the current content of the files that it names."""
    from platformdirs import user_state_path

    digest = sha256(repr(list(names)).encode()).hexdigest() if code is None else code.digest(names)
    return user_state_path("wafl") / "trusted" / digest


def _remember(mark: Path) -> None:
    mark.parent.mkdir(parents=True, exist_ok=True)
    mark.touch()
