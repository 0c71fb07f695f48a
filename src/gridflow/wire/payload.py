"""What a launcher hands to each agent so that it can find and trust its coordinator."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from gridflow.spec.cluster import Task
from gridflow.spec.gpus import GpuNeed, GpuOptions
from gridflow.spec.roles import Part, parts_of

if TYPE_CHECKING:
    from gridflow.feed.schema import FeedOptions
    from gridflow.spec.communication import CommunicationOptions
    from gridflow.spec.options import Deadlines
    from gridflow.spec.partitioners import Partitioner
    from gridflow.wire.identity import Identity


@dataclass(frozen=True)
class AgentPayload:
    """Pickled into the launcher's own task or standard input, never written anywhere else.

    Attributes
    ----------
    job : str
        The job's id.
    launch : int
        Which launch of the job this is, from 1.
    generation : int
        The generation that it begins with.
    tasks : tuple of str
        Role and index, those that train first, by rank.
    coordinator : str
        ``host:port`` of the coordinator's server.
    identity : Identity
    strategy : str
    deadlines : Deadlines
    feed : FeedOptions
    datasets : tuple of str
        Names of the datasets that are fed.
    environment : dict
        Variables for the training process.
    spool_dir : str or None
        Where spools lie; None: the first of Spark's local folders, or the temporary folder.
    seed : int or None
    checkpoint_every : int or None
        In steps.
    tensorboard : bool
        Whether the chief's agent serves TensorBoard.
    partitioner : Partitioner or None
        How large variables are spread over the parameter servers.
    classic_flags : bool
        Whether a script's command line is given what the classic programs ask for.
    gpus : tuple of GpuNeed
        What each task needs, by its place.
    gpu_options : GpuOptions
    communication : CommunicationOptions or None
        How the workers of ``multi_worker_mirrored`` exchange gradients.
    backend : str
        What Keras 3 trains with.
    warm_seconds : float
        How long a host's fork server stays without a process; 0: none is used.
    has_modules : bool
        Whether modules travel with the function.
    """

    job: str
    launch: int
    generation: int
    tasks: tuple[str, ...]
    coordinator: str
    identity: Identity
    strategy: str
    deadlines: Deadlines
    feed: FeedOptions
    datasets: tuple[str, ...] = ()
    environment: dict[str, str] = field(default_factory=dict)
    spool_dir: str | None = None
    seed: int | None = None
    checkpoint_every: int | None = None
    tensorboard: bool = False
    partitioner: Partitioner | None = None
    classic_flags: bool = False
    gpus: tuple[GpuNeed, ...] = ()
    gpu_options: GpuOptions = field(default_factory=GpuOptions)
    communication: CommunicationOptions | None = None
    backend: str = "tensorflow"
    warm_seconds: float = 0.0
    has_modules: bool = False

    @property
    def parts(self) -> tuple[Part, ...]:
        """What each task does, by its place."""
        return parts_of([Task.parse(name) for name in self.tasks], self.strategy)

    @property
    def fed(self) -> tuple[int, ...]:
        """Places of the tasks that rows go to."""
        return tuple(place for place, part in enumerate(self.parts) if part.is_fed)
