"""The last state of an object that may be gone by the next look."""

from __future__ import annotations

import json
import subprocess
import threading
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Sequence

_CHUNK = 4096


class Watch:
    """Follows one object by ``kubectl get --watch``, which misses no change of it.

    A server ends each watch after some minutes, so it is begun anew until it is closed. Who may not
    watch, by the rules of the cluster, has no last state.

    Parameters
    ----------
    words : sequence of str
        The command that gets the object.
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
        """Return the object as it was seen last, None if it never was."""
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
                if line.rstrip() != "}":  # the object's own end isn't indented
                    continue
                try:
                    self._last, end = decoder.raw_decode(text.lstrip())
                except ValueError:
                    continue
                text = text.lstrip()[end:]
