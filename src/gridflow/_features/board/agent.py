"""TensorBoard beside the chief: sends event files to the driver, serves its page on request."""

from __future__ import annotations

import importlib.util
import json
import secrets
import subprocess
import sys
import threading
from typing import TYPE_CHECKING, Final

from gridflow._features.base import Feature
from gridflow._spec.cluster import EVALUATOR
from gridflow._spec.network import local_address
from gridflow._wire import commands, reports

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from gridflow._features.base import Tools
    from gridflow._wire.commands import Command

_SERVER_MODULE: Final = "gridflow._features.board.server"


class Board(Feature):
    """The event files of the chief and of an evaluator, and the chief's TensorBoard."""

    def __init__(self, tools: Tools) -> None:
        super().__init__(tools)
        self._reporter = tools.reporter
        self._folder = tools.folder / "tensorboard"
        self._server: subprocess.Popen[str] | None = None

    def begin(self) -> None:
        """Send the event files to the driver as they grow; serve the page if requested."""
        spec, rank = self.tools.payload.spec, self.tools.rank
        # Any rank may become the chief where workers come and go.
        if rank == 0 or spec.least is not None or spec.tasks[rank].role == EVALUATOR:
            self._follow()
        if rank == 0 and spec.training.tensorboard.serve:
            self._serve(local_address(self.tools.payload.coordinator))

    def obey(self, command: Command) -> bool:
        """Send what a rank without event files of its own profiles."""
        if isinstance(command, commands.Inspect) and command.profile:
            self._follow()
        return False

    def _follow(self) -> None:
        self._folder.mkdir(exist_ok=True)
        self.tools.uploads.follow(self._folder)

    def _serve(self, host: str) -> None:
        """Serve the page on one interface, under a path that can't be guessed.

        TensorBoard has no login: whoever has the URL, which only the driver gets, can see it.
        """
        if importlib.util.find_spec("tensorboard") is None:
            self._reporter.lines(
                ["gridflow: TensorBoard isn't installed here: pip install 'gridflow[tensorboard]'"]
            )
            return
        self._server = serve_board(self._folder, host, secret_path())
        threading.Thread(target=self._announce, args=(self._server,), daemon=True).start()

    def close(self) -> None:
        """End the server."""
        if self._server is not None:
            end_board(self._server)

    def _announce(self, server: subprocess.Popen[str]) -> None:
        line = server.stdout.readline() if server.stdout is not None else ""
        if line.startswith("http"):
            self._reporter.report(reports.BoardServed(line.strip()))


def secret_path() -> str:
    """Return a path that can't be guessed, as TensorBoard has no login."""
    return secrets.token_urlsafe(24)


def serve_board(
    folder: Path | str, host: str, path: str, *, port: int = 0, options: Sequence[str] = ()
) -> subprocess.Popen[str]:
    """Start a server; it prints its URL, and ends with this process."""
    server = subprocess.Popen(
        [sys.executable, "-m", _SERVER_MODULE],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        start_new_session=True,
    )
    settings = {
        "folder": str(folder),
        "host": host,
        "path": path,
        "port": port,
        "options": list(options),
    }
    assert server.stdin is not None
    # Through the pipe, not the command line, which every user of the host can read. It stays open:
    # its end tells the server that this process is gone.
    server.stdin.write(json.dumps(settings) + "\n")
    server.stdin.flush()
    return server


def end_board(server: subprocess.Popen[str]) -> None:
    server.kill()
    server.wait()
    for pipe in (server.stdin, server.stdout):
        if pipe is not None:
            pipe.close()
