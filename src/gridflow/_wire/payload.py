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

    Attributes
    ----------
    job : str
        The job's id.
    launch : int
        Number of this launch of the job, from 1.
    generation : int
        The generation that it starts with.
    spec : JobSpec
    coordinator : str
        ``host:port`` of the coordinator's server.
    identity : Identity
    datasets : tuple of str
        Names of the datasets that are fed.
    has_modules : bool
        Whether modules are shipped with the function.
    """

    job: str
    launch: int
    generation: int
    spec: JobSpec
    coordinator: str
    identity: Identity
    datasets: tuple[str, ...] = ()
    has_modules: bool = False
