"""TensorBoard beside the chief: its event files go to the driver, its page is served on request."""

from __future__ import annotations

import importlib.util
import json
import secrets
import subprocess
import sys
import threading
from typing import TYPE_CHECKING, Final

from gridflow.wire import reports

if TYPE_CHECKING:
    from pathlib import Path

    from gridflow.agent.reporter import Reporter
    from gridflow.agent.uploads import Uploads

_SERVER_MODULE: Final = "gridflow.agent.features.board_server"


class Board:
    """The chief's TensorBoard.

    Parameters
    ----------
    reporter : Reporter
    uploads : Uploads
    folder : Path
        The agent's own; event files lie in ``tensorboard`` in it.
    """

    def __init__(self, reporter: Reporter, uploads: Uploads, folder: Path) -> None:
        self._reporter, self._uploads = reporter, uploads
        self._folder = folder / "tensorboard"
        self._server: subprocess.Popen[str] | None = None

    def follow(self) -> None:
        """Send the event files to the driver as they grow."""
        self._folder.mkdir(exist_ok=True)
        self._uploads.follow(self._folder)

    def serve(self, host: str) -> None:
        """Serve the page on one interface, under a path that can't be guessed.

        TensorBoard knows no log-in: who has the URL, which only the driver is told, may look.
        """
        if importlib.util.find_spec("tensorboard") is None:
            self._reporter.lines(
                ["gridflow: no TensorBoard here: pip install 'gridflow[tensorboard]'"]
            )
            return
        self._server = subprocess.Popen(
            [sys.executable, "-m", _SERVER_MODULE],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            start_new_session=True,
        )
        settings = {"folder": str(self._folder), "host": host, "path": secrets.token_urlsafe(24)}
        if self._server.stdin is None:
            raise AssertionError("the server was started without a pipe")
        # By the pipe, not the command line, which every user of the host can read. It stays open:
        # its end tells the server that the agent is gone.
        self._server.stdin.write(json.dumps(settings) + "\n")
        self._server.stdin.flush()
        threading.Thread(target=self._announce, args=(self._server,), daemon=True).start()

    def close(self) -> None:
        """End the server."""
        if self._server is not None:
            self._server.kill()
            self._server.wait()
            for pipe in (self._server.stdin, self._server.stdout):
                if pipe is not None:
                    pipe.close()

    def _announce(self, server: subprocess.Popen[str]) -> None:
        line = server.stdout.readline() if server.stdout is not None else ""
        if line.startswith("http"):
            self._reporter.report(reports.Board(line.strip()))
