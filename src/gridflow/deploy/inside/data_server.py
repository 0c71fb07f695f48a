"""A server of TensorFlow's data service, started by ``gridflow launch``."""

from __future__ import annotations

import os
import sys

from gridflow._spec.cluster import DISPATCHER, Task
from gridflow._spec.option_groups import JOURNAL
from gridflow._training.data_server import start


def main() -> None:
    """Serve the task named on the command line until the process is stopped."""
    name, dispatcher, workers, folder, patience = sys.argv[1:]
    task, addresses = Task.parse(name), workers.split(",")
    os.chdir(folder)
    journal = os.environ.get(JOURNAL) or os.path.join(folder, "journal")  # noqa: PTH118 (or a URL)
    server = start(task, dispatcher, addresses, journal=journal, patience=float(patience))
    own = dispatcher if task.role == DISPATCHER else addresses[task.index]
    sys.stderr.write(f"gridflow: {task} of the data service listens on {own}\n")
    server.join()


if __name__ == "__main__":
    main()
