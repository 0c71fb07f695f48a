"""Sums of torch's tensors over all ranks: through this process's group, or else through torch."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
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
