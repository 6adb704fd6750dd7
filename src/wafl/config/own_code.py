"""Your own functions in an experiment, ``module:function``: where they are looked for, and whether they may run.

Whoever starts an experiment wants its code to run. Whoever only reads a study, which may come from a stranger, is asked
first; what has run once is remembered by a digest of the code, not by its place.
"""

from __future__ import annotations

import importlib
import inspect
import os
import sys
import sysconfig
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from hashlib import sha256
from importlib.machinery import PathFinder
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from typing import Any

from wafl.base.errors import ConfigError, UntrustedError
from wafl.config import experiment as config


def imports(experiment: config.Experiment, *, data: bool = True) -> list[str]:
    """Every ``module:function`` that an experiment names; ``data=False`` leaves out that of its data."""
    named: list[Any] = [experiment.data.source if data else None, experiment.model.kind]
    for method in experiment.methods:
        rule, server, local = (getattr(method, slot, None) for slot in ("client_weights", "server", "local"))
        parts = [getattr(part, "kind", None) for part in (rule, server, getattr(server, "optimizer", None), local)]
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
    """A block in which imports find the modules of a folder, after all others: none stands in for a library.

    ``names`` are every ``module:function`` that will be imported. ``trust`` says whether they may run if this code has
    never run here; what may run is remembered.
    """
    check_code(folder, names, trust=trust)
    if not names or folder is None:
        yield
        return
    place = str(folder.resolve())
    sys.path.append(place)
    try:
        for name in dict.fromkeys(name.partition(":")[0].partition(".")[0] for name in names):
            _load(name, folder.resolve())
        yield
    finally:
        sys.path.remove(place)


_loaded: set[str] = set()
"""The names of your own modules; another experiment in this process may have one of the same name."""


def _load(name: str, folder: Path) -> None:
    """Import a module from its file, if it is in the folder, whatever other modules have its name."""
    file = next((file for file in (folder / f"{name}.py", folder / name / "__init__.py") if file.is_file()), None)
    known = sys.modules.get(name)
    if file is None or getattr(known, "__file__", None) == str(file):
        return
    places = {sysconfig.get_path(kind) for kind in ("stdlib", "platstdlib", "purelib", "platlib")}
    library = name in sys.stdlib_module_names or PathFinder.find_spec(name, list(places)) is not None
    if (known is not None and name not in _loaded) or library:
        raise ConfigError(f"{file} has the name of an installed library: rename your module")
    for other in [other for other in sys.modules if other.partition(".")[0] == name]:
        del sys.modules[other]
    spec = spec_from_file_location(name, file)
    assert spec is not None
    assert spec.loader is not None
    _loaded.add(name)
    sys.modules[name] = module = module_from_spec(spec)
    try:
        spec.loader.exec_module(module)
    except BaseException as error:
        del sys.modules[name]
        if isinstance(error, ImportError):
            raise ConfigError(f"{file} cannot be imported: {error}") from error
        raise


_ask: ContextVar[Callable[[str], bool]] = ContextVar("ask", default=lambda _: False)


@contextmanager
def asking(allow: Callable[[str], bool]) -> Generator[None, None, None]:
    """A block in which ``allow`` decides about code that has never run here; it is told what would run."""
    token = _ask.set(allow)
    try:
        yield
    finally:
        _ask.reset(token)


def check_code(folder: Path | None, names: Sequence[str], *, trust: bool) -> None:
    """Refuse code that has never run here and may not; what may run now may always run."""
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


def _state() -> Path:
    """Where the digests of code that may run are remembered."""
    from platformdirs import user_state_path

    return user_state_path("wafl") / "trusted"


def _digest(folder: Path | None, names: Sequence[str]) -> str:
    """The digest of the names, and of all modules in the folder that they could import."""
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
