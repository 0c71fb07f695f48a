"""What torch's ranks exchange: through this process's group, or else through torch's own."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import numpy as np

    from gridflow._collectives.host import HostGroup

_group: HostGroup | None = None


def use(group: HostGroup) -> None:
    """Let this process exchange what lies in a CPU's memory through a group."""
    global _group  # noqa: PLW0603 (a process joins one group, as it does torch's)
    _group = group


def all_reduce(flat: Any) -> Any:
    """Return the sum of a one-dimensional tensor over all ranks, which may be the same memory."""
    import torch

    if _group is not None and flat.device.type == "cpu" and flat.dtype != torch.bfloat16:
        return torch.from_numpy(_group.all_reduce(flat.numpy()))
    torch.distributed.all_reduce(flat)
    return flat


def of_chief(flat: Any) -> Any:
    """Return the chief's values of a one-dimensional tensor, to the bit."""
    import torch

    if _group is not None and flat.device.type == "cpu":
        mine = flat.view(torch.uint8)
        # The others add zeros.
        return all_reduce(mine if _group.is_chief else torch.zeros_like(mine)).view(flat.dtype)
    torch.distributed.broadcast(flat, src=0)
    return flat


def all_gather(values: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """Return the arrays of all ranks, which have the same shape, by rank."""
    import numpy as np
    import torch

    if _group is not None:
        return _group.all_gather(values)
    mine = torch.from_numpy(values.copy())
    found = [torch.empty_like(mine) for _ in range(torch.distributed.get_world_size())]
    torch.distributed.all_gather(found, mine)
    return np.stack([each.numpy() for each in found])
