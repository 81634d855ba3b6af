"""Serve a report on this machine while its runs train; it is drawn again whenever their files have changed."""

import hashlib
import sys
import threading
from collections.abc import Callable, Sequence
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from fragmenta.errors import ConfigError
from fragmenta.pictures.report import report_page, waiting_page
from fragmenta.pictures.run_files import read_run_files

HOST = "127.0.0.1"


def serve_report(runs: Sequence[Path], commands: Sequence[list[str]], announce: Callable[[str], None]) -> None:
    """Serve the report of these runs, and nothing else, to this machine until Ctrl-C; announces the address."""
    page = _LivePage(runs, commands)
    with _Server((HOST, 0), _handler(page)) as server:
        announce(f"http://{HOST}:{server.server_port}/")
        try:
            server.serve_forever()
        except KeyboardInterrupt:
            return


class _LivePage:
    """The current page, drawn again on request if a file of a run has changed."""

    def __init__(self, runs: Sequence[Path], commands: Sequence[list[str]]) -> None:
        self._runs, self._commands = runs, commands
        self._drawing = threading.Lock()
        self._files: Any = None
        self._page = b""

    def draw(self) -> bytes:
        """The page, in UTF-8."""
        with self._drawing:
            files = [_files(run) for run in self._runs]
            if files != self._files:
                self._page, self._files = self._text().encode(), files
            return self._page

    def _text(self) -> str:
        try:
            return report_page([read_run_files(run) for run in self._runs], self._commands, live=True)
        except ConfigError as error:  # before the first iteration of a run
            return waiting_page(str(error))


def _files(run: Path) -> list[tuple[str, int, int]]:
    files = []
    for path in sorted(run.iterdir()) if run.is_dir() else ():
        try:
            status = path.stat()
        except FileNotFoundError:  # a temporary file
            continue
        files.append((path.name, status.st_mtime_ns, status.st_size))
    return files


class _Server(ThreadingHTTPServer):
    daemon_threads = True

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Ignore clients that disconnect."""
        if not isinstance(sys.exception(), ConnectionError):
            super().handle_error(request, client_address)


def _handler(page: _LivePage) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            """Answer with the page, or that it has not changed."""
            name = self.headers.get("Host", "").partition(":")[0]
            if name not in (HOST, "localhost"):  # the name of another site that resolves to this machine
                self.send_error(HTTPStatus.FORBIDDEN)
            elif self.path != "/":
                self.send_error(HTTPStatus.NOT_FOUND)
            else:
                self._answer(page.draw())

        def log_message(self, format: str, *args: Any) -> None:
            """Print nothing."""

        def _answer(self, content: bytes) -> None:
            tag = f'"{hashlib.sha256(content).hexdigest()[:32]}"'
            is_known = self.headers.get("If-None-Match") == tag
            self.send_response(HTTPStatus.NOT_MODIFIED if is_known else HTTPStatus.OK)
            self.send_header("ETag", tag)
            self.send_header("Cache-Control", "no-store")
            if not is_known:
                self.send_header("Content-Type", "text/html; charset=utf-8")
                self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            if not is_known:
                self.wfile.write(content)

    return Handler
