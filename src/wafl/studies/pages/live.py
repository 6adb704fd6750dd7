"""Serve studies as pages while they run, with a small server that reads folders and writes nothing."""

import hmac
import ipaddress
import secrets
from collections.abc import Callable, Hashable
from hashlib import sha256
from http import HTTPStatus
from http.cookies import CookieError, SimpleCookie
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Lock
from typing import Any
from urllib.parse import parse_qs, quote, unquote, urlsplit

from wafl.base.files import is_temporary
from wafl.report.page import Page, as_html, check_page_packages, plotly_script
from wafl.studies.folder import StudyFolder
from wafl.studies.pages.shown import list_of, show_study, summary_of

HEADERS = {
    "Cache-Control": "no-store",
    "Content-Security-Policy": "default-src 'none'; script-src 'self' 'unsafe-inline'; style-src 'unsafe-inline'; "
    "img-src data: blob:; connect-src 'self'; frame-ancestors 'none'; base-uri 'none'; form-action 'none'",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
}
FILES = ("config.toml", "about.json", "metrics.jsonl", "results.json", "nodes.json")
"""The files of a page; if none of them has changed, the page is unchanged."""
COOKIE = "wafl_token"


class Pages:
    """The pages of a folder of studies, or of one study; each is rebuilt when its files have changed."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._made: dict[str, tuple[Hashable, Any]] = {}
        self._locks: dict[str, Lock] = {}
        self._lock = Lock()

    def page(self, path: str) -> str | None:
        """Return the page at a path of the address, or None if there is none."""
        if StudyFolder.is_in(self._folder):
            return self._study("", self._folder) if path == "/" else None
        studies = self.studies()
        if path == "/":
            return self._list(studies)
        name = unquote(path.removeprefix("/study/"))
        return self._study(name, studies[name]) if path.startswith("/study/") and name in studies else None

    def studies(self) -> dict[str, Path]:
        """Return the studies in the folder, by name, the latest first."""
        try:
            paths = [path for path in self._folder.iterdir() if StudyFolder.is_in(path) and not is_temporary(path)]
        except OSError:
            return {}
        return {path.name: path for path in sorted(paths, key=_changed, reverse=True)}

    def _list(self, studies: dict[str, Path]) -> str:
        summaries = [
            self._kept(f"summary {name}", path, lambda path: summary_of(path, f"/study/{quote(path.name)}"))
            for name, path in studies.items()
        ]
        return as_html(Page(f"Studies in {self._folder}", summaries, [list_of(summaries)]), live=True)

    def _study(self, name: str, path: Path) -> str:
        return self._kept(f"study {name}", path, lambda path: as_html(Page(path.name, [show_study(path)]), live=True))

    def _kept(self, key: str, path: Path, make: Callable[[Path], Any]) -> Any:
        """Return the result of ``make`` for a study, recomputed only if the study has changed."""
        signature = StudyFolder(path).status(), *(_stamp(path / name) for name in FILES)
        with self._lock:
            lock = self._locks.setdefault(key, Lock())
        with lock:  # all readers of a page wait for one computation
            if key not in self._made or self._made[key][0] != signature:
                self._made[key] = signature, make(path)
            return self._made[key][1]


class Server(ThreadingHTTPServer):
    """A server of study pages that only answers GET; other machines need the token; port 0 means any port."""

    daemon_threads = True

    def __init__(self, folder: Path, host: str = "127.0.0.1", port: int = 0, token: str | None = None) -> None:
        if token is None and not is_local(host):
            raise ValueError(f"host={host!r} can be reached from other machines: a server there needs a token")
        self.pages, self.token = Pages(folder), token
        super().__init__((host, port), _Handler)

    @property
    def url(self) -> str:
        """The address of the pages."""
        host, port = self.server_address[:2]
        return f"http://{host!s}:{port}/" + (f"?token={self.token}" if self.token else "")

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Ignore the error, since a disconnected reader does not stop the server."""


def is_local(host: str) -> bool:
    """Return whether only this machine can reach the address."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


class _Handler(BaseHTTPRequestHandler):
    server: Server  # pyright: ignore[reportIncompatibleVariableOverride]
    server_version, sys_version = "wafl", ""
    timeout = 30

    def do_GET(self) -> None:
        address = urlsplit(self.path)
        try:
            if not self._allowed(address.query):
                self._answer(HTTPStatus.FORBIDDEN, b"This page needs the address with its token.\n", "text/plain")
            elif address.path == "/plotly.js":
                self._answer(HTTPStatus.OK, plotly_script(), "text/javascript")
            elif (page := self.server.pages.page(address.path)) is None:
                self._answer(HTTPStatus.NOT_FOUND, b"There is no such page.\n", "text/plain")
            else:
                self._answer(HTTPStatus.OK, page.encode(), "text/html")
        except (OSError, ValueError) as error:
            self._answer(HTTPStatus.INTERNAL_SERVER_ERROR, f"{error}\n".encode(), "text/plain")

    def do_HEAD(self) -> None:
        self.do_GET()

    def _allowed(self, query: str) -> bool:
        """Return whether the reader has the token or, without one, used this machine's name.

        Pages of other sites use different names.
        """
        token = self.server.token
        if token is None:
            return is_local(self.headers.get("Host", "").rpartition(":")[0].strip("[]"))
        try:
            cookie = SimpleCookie(self.headers.get("Cookie", "")).get(COOKIE)
        except CookieError:
            cookie = None
        given = [*parse_qs(query).get("token", [])[:1], *([cookie.value] if cookie is not None else [])]
        return any(hmac.compare_digest(each.encode(), token.encode()) for each in given)

    def _answer(self, status: HTTPStatus, body: bytes, kind: str) -> None:
        tag = f'"{sha256(body).hexdigest()[:32]}"'
        same = status == HTTPStatus.OK and self.headers.get("If-None-Match") == tag
        self.send_response(HTTPStatus.NOT_MODIFIED if same else status)
        for name, value in HEADERS.items():
            self.send_header(name, value)
        self.send_header("ETag", tag)
        if self.server.token is not None and status == HTTPStatus.OK:
            self.send_header("Set-Cookie", f"{COOKIE}={self.server.token}; HttpOnly; SameSite=Strict; Path=/")
        if not same:
            self.send_header("Content-Type", f"{kind}; charset=utf-8")
            self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if not same and self.command != "HEAD":
            self.wfile.write(body)

    def log_message(self, format: str, *args: Any) -> None:
        """Do nothing, since requests are not logged."""


def _stamp(file: Path) -> tuple[int, int] | None:
    try:
        status = file.lstat()
    except OSError:
        return None
    return status.st_mtime_ns, status.st_size


def _changed(path: Path) -> int:
    return max((stamp[0] for name in FILES if (stamp := _stamp(path / name)) is not None), default=0)


def make_server(folder: Path, host: str = "127.0.0.1", port: int = 0) -> Server:
    """Return a listening server, with a token if other machines can reach it."""
    check_page_packages()
    try:
        return Server(folder, host, port, None if is_local(host) else secrets.token_urlsafe(24))
    except OSError as error:
        raise ValueError(f"cannot listen at {host}, port {port}: {error.strerror}. Choose another --port") from error
