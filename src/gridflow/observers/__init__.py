"""Those who are told in the driver how a job goes: ``TensorflowDistributor(observers=[…])``.

`Notify` sends a message when a job has ended. Others inherit `Observer`; a package brings one by
name with an entry point of the group ``gridflow.observers``.
"""

from __future__ import annotations

from gridflow._coordinator.observing import JobEnd, JobStart, Observer
from gridflow.observers.notify import Notify

__all__ = ["JobEnd", "JobStart", "Notify", "Observer"]
