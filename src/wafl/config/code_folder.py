"""Read the modules in the folder of an experiment once, so that imports run exactly the digested code."""

import ast
import importlib
import os
import sys
from collections.abc import Generator, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import cache
from hashlib import file_digest, sha256
from importlib.abc import ExecutionLoader, MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder
from importlib.util import decode_source, spec_from_file_location
from pathlib import Path
from typing import Any

from wafl.base.errors import ConfigError

FOREIGN = (".pyc", ".so", ".pyd", ".pth")
"""The endings of files that Python would run, but that cannot be read as source."""
CACHE = "__pycache__"
"""The folder of Python's compiled files, which are never read here."""


class CodeFolder(ExecutionLoader, MetaPathFinder):
    """The modules of a folder for imports, as the bytes that were read; compiled code and doubles raise errors."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder.resolve()
        self._libraries = frozenset(_path()) - {self.folder}
        self._files: dict[str, Path] = {}
        self._content: dict[Path, bytes] = {}
        for path in _modules(self.folder):
            parts = path.relative_to(self.folder).with_suffix("").parts
            name = ".".join(part for part in parts if part != "__init__")
            if name in self._files:
                raise ConfigError(
                    f"{self.folder} has two modules called {name}, {_within(path, self.folder)} and "
                    f"{_within(self._files[name], self.folder)}: rename one of them"
                )
            self._files[name], self._content[path] = path, path.read_bytes()

    def __contains__(self, name: str) -> bool:
        """Return whether the folder has a module of this name."""
        return name in self._files

    def digest(self, names: Sequence[str]) -> str:
        """Return the digest of the folder's path, these names, all importable modules, and the files they name."""
        digest = sha256(repr([str(self.folder), *names]).encode())  # in quotes, so that no name reads like a file
        for path, content in self._content.items():
            digest.update(f"\n{_within(path, self.folder)!r} {len(content)}\n".encode() + content)
        for path in self.named_files():
            with path.open("rb") as file:
                digest.update(f"\n{str(path)!r} {file_digest(file, sha256).hexdigest()}".encode())
        return digest.hexdigest()

    def named_files(self) -> list[Path]:
        """Return the files whose names are written in the modules, and all files in folders that are named there.

        Names are looked up in this folder and in the working directory; folders count only inside of these.
        """
        texts = {text for content in self._content.values() for text in _texts(content)}
        files = set[Path]()
        for text, base in ((text, base) for text in texts for base in (self.folder, Path.cwd())):
            with suppress(OSError, ValueError):  # too long for a name, or no text that a name may have
                path = (base / text).resolve()
                inside = path.rglob("*") if path.is_dir() and base in path.parents else [path]
                files |= {each for each in inside if each.is_file()}
        return sorted(files - self._content.keys())

    @contextmanager
    def importable(self, names: Iterable[str]) -> Generator[None, None, None]:
        """Make these modules importable during the block, after all libraries, and load ``names`` anew."""
        try:
            self.install(names)
            yield
        finally:
            sys.meta_path.remove(self)

    def install(self, names: Iterable[str]) -> None:
        """Make these modules importable for the rest of this process, and load ``names`` anew."""
        sys.meta_path.insert(0, self)
        for name in dict.fromkeys(names):
            self._load(name)

    def _load(self, name: str) -> None:
        file, known = self._files.get(name), sys.modules.get(name)
        if file is None:
            return
        before = _loader_of(known)
        if before is None and getattr(known, "__file__", None) == str(file):  # you imported it yourself
            return
        if before is not None and (self.folder, self._content) == (before.folder, before._content):
            return
        if (known is not None and before is None) or self._is_installed(name):
            raise ConfigError(f"{file} has the name of an installed library: rename your module")
        for other, module in list(sys.modules.items()):  # of another experiment in this process
            if other.partition(".")[0] in self._files and _loader_of(module) is not None:
                del sys.modules[other]
        try:
            importlib.import_module(name)
        except ImportError as error:
            raise ConfigError(f"{file} cannot be imported: {error}") from error

    def _is_installed(self, name: str) -> bool:
        """Return whether a library has the name, and is not a copy of the module.

        Flower puts an app's folder on the path.
        """
        if name in sys.stdlib_module_names:
            return True
        folders = [folder for folder in sys.path if Path(folder).resolve() != self.folder]
        spec = PathFinder.find_spec(name, folders)
        if spec is None or spec.origin is None:
            return spec is not None
        return Path(spec.origin).read_bytes() != self._content.get(self._files[name])

    # -- What Python asks of a finder and of a loader ------------------------------------------------------------

    def find_spec(self, fullname: str, path: Any = None, target: Any = None) -> ModuleSpec | None:
        """Return the spec of a module in the folder, or None."""
        file = self._files.get(fullname)
        if file is None and any(name.startswith(f"{fullname}.") for name in self._files):
            return ModuleSpec(fullname, None, is_package=True)  # a folder of modules inside a package
        if file is None or ("." not in fullname and self._is_installed(fullname)):
            self._check_unread(fullname)
            return None
        spec = spec_from_file_location(fullname, file, loader=self)
        if spec is not None and self.is_package(fullname):
            spec.submodule_search_locations = []  # nothing is looked for on the disk
        return spec

    def _check_unread(self, name: str) -> None:
        """Raise ImportError if Python itself would import a module from this folder, without a digest.

        It looks there if it was started in the folder, or if code puts a part of the folder on Python's path.
        """
        entries = [each for each in _path() if each not in self._libraries and each.is_relative_to(self.folder)]
        spec = PathFinder.find_spec(name) if entries and "." not in name else None
        places = () if spec is None else (spec.origin,) if spec.origin else spec.submodule_search_locations or ()
        for place, entry in ((Path(place).resolve(), entry) for place in places for entry in entries):
            if place.is_relative_to(entry) and place.relative_to(entry).parts[0].partition(".")[0] == name:
                raise ImportError(
                    f"{_within(place, self.folder)} of {self.folder} was not read before the code ran: put it into a "
                    "module next to the experiment, or into a package there, a folder with __init__.py",
                    name=name,
                )

    def get_filename(self, fullname: str) -> str:
        """Return the path of a module."""
        return str(self._files[fullname])

    def get_source(self, fullname: str) -> str:
        """Return the source of a module, from the bytes that were read."""
        return decode_source(self._content[self._files[fullname]])

    def is_package(self, fullname: str) -> bool:
        """Return whether a module is a package."""
        return self._files[fullname].stem == "__init__"


def _path() -> Iterator[Path]:
    """Yield the folders on Python's path; an empty text there is the working directory."""
    yield from (_resolved(os.path.abspath(entry)) for entry in sys.path)


@cache
def _resolved(entry: str) -> Path:
    return Path(entry).resolve()


def _loader_of(module: Any) -> CodeFolder | None:
    loader = getattr(getattr(module, "__spec__", None), "loader", None)
    return loader if isinstance(loader, CodeFolder) else None


def _texts(module: bytes) -> Iterator[str]:
    """Yield the texts in a module's source; none if it is not Python, because then it cannot run."""
    with suppress(SyntaxError, ValueError, RecursionError, MemoryError):
        for node in ast.walk(ast.parse(module)):
            if isinstance(node, ast.Constant) and isinstance(node.value, str):
                yield node.value


def _within(path: Path, folder: Path) -> str:
    return path.relative_to(folder).as_posix()


def _modules(folder: Path) -> Iterator[Path]:
    """Yield the modules in a folder and in its packages; raise ConfigError if there is compiled code."""
    packages = sorted({path.parent for path in folder.glob("*/__init__.*")})
    inside = [Path(inner) for package in packages for inner, _, _ in sorted(os.walk(package))]
    folders = [folder, *(each for each in inside if CACHE not in each.relative_to(folder).parts)]
    for path in (path for each in folders if each.is_dir() for path in sorted(each.iterdir()) if path.is_file()):
        if path.name.lower().endswith(FOREIGN):
            raise ConfigError(
                f"{folder} holds compiled code, {_within(path, folder)}, which would run unread: remove or install it"
            )
        if path.suffix == ".py":
            yield path
