"""What a launcher gives each agent so that it can find and trust its coordinator."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from gridflow._spec.job import JobSpec
    from gridflow._wire.identity import Identity


@dataclass(frozen=True)
class AgentPayload:
    """Pickled into the launcher's own task or standard input, and never written elsewhere.

    `job`: The job's id.
    `launch`: Number of this launch of the job, from 1.
    `generation`: The generation that it starts with.
    `coordinator`: ``host:port`` of the coordinator's server.
    `datasets`: Names of the datasets that are fed.
    `has_modules`: Whether modules are shipped with the function.
    `is_watched`: Whether anybody wants to know the load of hosts.
    """

    job: str
    launch: int
    generation: int
    spec: JobSpec
    coordinator: str
    identity: Identity
    datasets: tuple[str, ...] = ()
    has_modules: bool = False
    is_watched: bool = False
