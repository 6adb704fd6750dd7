"""Your own functions in an experiment, ``module:function``: where they are looked for, and whether they may run.

Whoever starts an experiment wants its code to run. Whoever only reads a study, which may come from a stranger, is asked
first; what has run once is remembered by a digest of the code, not by its place.
"""

from __future__ import annotations

import importlib
import inspect
import os
import sys
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from hashlib import sha256
from importlib.machinery import PathFinder
from pathlib import Path
from typing import Any

from wafl.core.errors import ConfigError, UntrustedError
from wafl.runs import config


def imports(experiment: config.Experiment, *, data: bool = True) -> list[str]:
    """Every ``module:function`` that an experiment names; ``data=False`` leaves out that of its data."""
    named: list[Any] = [experiment.data.source if data else None, experiment.model.kind]
    for method in experiment.methods:
        parts = [getattr(getattr(method, slot, None), "kind", None) for slot in ("server", "local")]
        named += [method.method, getattr(method, "client_weights", None), *parts]
    return [name for name in named if isinstance(name, str) and ":" in name]


def imported(key: str, name: str) -> Callable[..., Any]:
    """Your own function, made to refuse arguments that it does not take."""
    module, _, path = name.partition(":")
    try:
        found: Any = importlib.import_module(module)
        for part in path.split("."):
            found = getattr(found, part)
    except (ImportError, AttributeError) as error:
        raise ConfigError(f"{key} = {name!r} cannot be imported: {error}") from error
    if not callable(found):
        raise ConfigError(f"{key} = {name!r} is not a function")
    function: Callable[..., Any] = found

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
    """Let imports find the modules in a folder, after all others: none of them stands in for a library.

    Args:
        folder: where your own modules are; None if there are none.
        names: every ``module:function`` that will be imported.
        trust: whether they may run if this code has never run here; what may run is remembered.
    """
    if not names:
        yield
        return
    check_code(folder, names, trust=trust)
    if folder is None:
        yield
        return
    place = str(folder.resolve())
    for name in {name.partition(":")[0].partition(".")[0] for name in names}:
        _refuse_shadow(name, folder)
        loaded = getattr(sys.modules.get(name), "__file__", None)
        if loaded is not None and Path(loaded).parent != folder.resolve() and (folder / f"{name}.py").exists():
            del sys.modules[name]  # another experiment in this process has a module of the same name
    importlib.invalidate_caches()
    sys.path.append(place)
    try:
        yield
    finally:
        sys.path.remove(place)


_ask: ContextVar[Callable[[str], bool]] = ContextVar("ask", default=lambda _: False)


@contextmanager
def asking(allow: Callable[[str], bool]) -> Generator[None, None, None]:
    """Let somebody decide about code that has never run here; ``allow`` is told what would run."""
    token = _ask.set(allow)
    try:
        yield
    finally:
        _ask.reset(token)


def check_code(folder: Path | None, names: Sequence[str], *, trust: bool) -> None:
    """An error if code that is named has never run here and may not; what may run now may always run."""
    if not names:
        return
    file = _state() / _digest(folder, names)
    if file.exists():
        return
    where = "" if folder is None else f" in {folder}"
    what = f"this experiment runs code, which has not run here before: {', '.join(dict.fromkeys(names))}{where}"
    if not trust and not _ask.get()(what):
        raise UntrustedError(f"{what}. Look at it, and add --trust if it is safe")
    file.parent.mkdir(parents=True, exist_ok=True)
    file.touch()


def _refuse_shadow(name: str, folder: Path) -> None:
    """An error if your own module has the name of a library, which would be imported in its place."""
    if not (folder / f"{name}.py").exists() and not (folder / name / "__init__.py").exists():
        return
    own = folder.resolve()
    elsewhere = [place for place in sys.path if Path(place or ".").resolve() != own]
    if name in sys.stdlib_module_names or PathFinder.find_spec(name, elsewhere) is not None:
        raise ConfigError(f"{folder / name} has the name of an installed library: rename your module")


def _state() -> Path:
    """Where the digests of code that may run are remembered."""
    from platformdirs import user_state_path

    return user_state_path("wafl") / "trusted"


def _digest(folder: Path | None, names: Sequence[str]) -> str:
    """Of the names, and of all modules in the folder that they could import."""
    digest = sha256("\n".join(names).encode())
    if folder is not None and folder.is_dir():
        for path in _modules(folder):
            content = path.read_bytes()
            digest.update(f"\n{path.relative_to(folder).as_posix()} {len(content)}\n".encode() + content)
    return digest.hexdigest()


def _modules(folder: Path) -> Iterator[Path]:
    """The modules next to each other in a folder, and those of its packages."""
    yield from sorted(path for path in folder.glob("*.py") if path.is_file())
    for package in sorted(path.parent for path in folder.glob("*/__init__.py")):
        for place, _, files in sorted(os.walk(package)):
            yield from (Path(place, name) for name in sorted(files) if name.endswith(".py"))
