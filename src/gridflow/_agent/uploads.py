"""Sends files in the background: results, checkpoints, TensorBoard's event files."""

from __future__ import annotations

import contextlib
import threading
from concurrent.futures import Future, ThreadPoolExecutor, wait
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from gridflow._features.checkpoints.agent import Checkpoints
    from gridflow._wire.client import CoordinatorClient

_FOLLOW_SECONDS: Final = 2.0


class Uploads:
    """Uploads files one after the other, in the background.

    `me`: What identifies this agent: ``rank``, ``agent``, ``launch``.
    """

    def __init__(
        self, client: CoordinatorClient, me: dict[str, Any], checkpoints: Checkpoints
    ) -> None:
        self._client, self._me, self._checkpoints = client, me, checkpoints
        self._executor = ThreadPoolExecutor(1, thread_name_prefix="gridflow-upload")
        self._futures: list[Future[Any]] = []
        #: For each file: its inode, and how many bytes of it the driver has.
        self._sent: dict[Path, tuple[int, int]] = {}
        self._following: Path | None = None
        self._timer: threading.Timer | None = None

    def file(
        self, path: Path, header: dict[str, Any], done: Callable[[BaseException | None], None]
    ) -> None:
        """Send a file; ``done`` gets the error, or None.

        `header`: One of `gridflow._wire.headers.UPLOADS`, without the sender.
        """
        self._queue(self._client.upload, path, {**self._me, **header}, done)

    def checkpoint(
        self, path: Path, header: dict[str, Any], done: Callable[[BaseException | None], None]
    ) -> None:
        """Put a checkpoint where it is kept; ``done`` gets the error, or None."""
        self._queue(self._checkpoints.send, path, {**self._me, **header}, done)

    def _queue(
        self,
        send: Callable[[Path, dict[str, Any]], object],
        path: Path,
        header: dict[str, Any],
        done: Callable[[BaseException | None], None],
    ) -> None:
        future = self._executor.submit(send, path, header)
        future.add_done_callback(lambda ended: done(ended.exception()))
        self._futures = [each for each in self._futures if not each.done()] + [future]

    def after(self, done: Callable[[BaseException | None], None]) -> None:
        """Call ``done`` once everything that is queued has been sent."""
        self._executor.submit(lambda: None).add_done_callback(lambda _: done(None))

    def follow(self, folder: Path) -> None:
        """Keep sending what is appended to the files of a folder."""
        if self._following != folder:
            self._following = folder
            self._again()

    def catch_up(self) -> None:
        """Queue what was appended since the last time."""
        if self._following is not None:
            future = self._executor.submit(self._send_new, self._following)
            self._futures = [each for each in self._futures if not each.done()] + [future]

    def drain(self, seconds: float) -> None:
        """Wait until everything queued has been sent, at most some seconds."""
        wait(self._futures, seconds)

    def close(self) -> None:
        """Drop what is still queued and end the threads."""
        self._following = None
        if self._timer is not None:
            self._timer.cancel()
        self._executor.shutdown(wait=False, cancel_futures=True)

    def _again(self) -> None:
        if self._following is None:
            return
        if all(future.done() for future in self._futures):
            self.catch_up()
        self._timer = threading.Timer(_FOLLOW_SECONDS, self._again)
        self._timer.daemon = True
        self._timer.start()

    def _send_new(self, folder: Path) -> None:
        for path in sorted(each for each in folder.rglob("*") if each.is_file()):
            found = path.stat()
            node, sent = self._sent.get(path, (found.st_ino, 0))
            if node != found.st_ino or found.st_size < sent:  # another file, or rewritten
                sent = 0
            if found.st_size <= sent:
                continue
            header = {**self._me, "kind": "tensorboard", "name": str(path.relative_to(folder))}
            # If it fails, what the driver has of it is unknown, so all of it is sent again.
            self._sent[path] = found.st_ino, 0
            with contextlib.suppress(pa.ArrowException, OSError):  # nor do the others wait for it
                self._sent[path] = found.st_ino, sent + self._client.upload(path, header, sent)
