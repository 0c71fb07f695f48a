"""TensorBoard's server in its own process; it reads its settings from standard input.

Run as ``python -m gridflow._features.board.server``; it prints the URL, and ends when its
standard input does.
"""

from __future__ import annotations

import json
import os
import sys
import threading


def main() -> None:
    """Serve until the agent is gone."""
    from tensorboard import program

    settings = json.loads(sys.stdin.readline())
    threading.Thread(target=_end_with_agent, daemon=True).start()
    board = program.TensorBoard()
    board.configure(
        argv=[
            "tensorboard",
            f"--logdir={settings['folder']}",
            f"--host={settings['host']}",
            f"--port={settings['port']}",
            f"--path_prefix=/{settings['path']}",
            "--load_fast=false",  # the fast loader opens a port of its own
            *settings["options"],
        ]
    )
    url = board.launch()
    sys.stdout.write(f"{url}\n")
    sys.stdout.flush()
    threading.Event().wait()


def _end_with_agent() -> None:
    sys.stdin.read()
    os._exit(0)


if __name__ == "__main__":
    main()
