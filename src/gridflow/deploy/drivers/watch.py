"""Remembers the last state of an object that may disappear between two looks."""

from __future__ import annotations

import json
import subprocess
import threading
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Sequence

_CHUNK = 4096


class Watch:
    """Follows an object with ``kubectl get --watch``, which misses no change.

    The server ends each watch after some minutes, so it is restarted until it is closed. Without
    permission to watch, there is no last state.

    `words` (sequence of str): The command that gets the object.
    """

    def __init__(self, words: Sequence[str]) -> None:
        self._words = [*words, "--watch", "--output=json"]
        self._last: Any = None
        self._process: subprocess.Popen[str] | None = None
        self._lock = threading.Lock()
        self._closed = threading.Event()
        self._thread = threading.Thread(target=self._follow, name="gridflow-watch", daemon=True)
        self._thread.start()

    def last(self) -> Any:
        """Return the object's last known content, None if it was never seen."""
        return self._last

    def close(self) -> None:
        """End the watch."""
        self._closed.set()
        with self._lock:
            if self._process is not None:
                self._process.terminate()
        self._thread.join()

    def _follow(self) -> None:
        while not self._closed.is_set():
            with self._lock:
                if self._closed.is_set():
                    return
                self._process = subprocess.Popen(
                    self._words,
                    stdout=subprocess.PIPE,
                    stderr=subprocess.DEVNULL,
                    stdin=subprocess.DEVNULL,
                    text=True,
                )
            self._read(self._process)
            self._process.wait()
            self._closed.wait(1.0)

    def _read(self, process: subprocess.Popen[str]) -> None:
        assert process.stdout is not None
        decoder, text = json.JSONDecoder(), ""
        with process.stdout as stream:
            for line in stream:
                text += line
                if line.rstrip() != "}":  # the object's last line isn't indented
                    continue
                try:
                    self._last, end = decoder.raw_decode(text.lstrip())
                except ValueError:
                    continue
                text = text.lstrip()[end:]
