"""What torch's ranks exchange: through this process's group, or else through torch's own."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Sequence

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


def mean(tensors: Sequence[Any], rows: int) -> list[Any]:
    """Return the means of tensors over the rows of all ranks.

    `tensors`: Means over this rank's rows.
    """
    import numpy as np
    import torch

    wide = [
        each.detach() if each.dtype in {torch.float32, torch.float64} else each.detach().float()
        for each in tensors
    ]
    if _group is None or any(each.device.type != "cpu" for each in wide):
        total = torch.tensor(float(rows), device=wide[0].device)
        *sums, total = add_up([*(each * rows for each in wide), total])
        means = [each / total.to(each.dtype) for each in sums]
    else:
        is_double = any(each.dtype == torch.float64 for each in wide)
        dtype = np.dtype(np.float64 if is_double else np.float32)
        sums, _ = _group.add_up([each.numpy() for each in wide], dtype=dtype, weight=rows)
        means = [torch.from_numpy(each) for each in sums]
    return [each.to(old.dtype) for each, old in zip(means, tensors, strict=True)]


def add_up(tensors: Sequence[Any]) -> list[Any]:
    """Return the tensors' sums over all ranks. All must call it, with the same shapes."""
    import torch

    found: list[Any] = [None] * len(tensors)
    groups: dict[Any, list[int]] = {}
    for place, tensor in enumerate(tensors):
        groups.setdefault((tensor.dtype, tensor.device), []).append(place)
    for places in groups.values():
        # One collective operation for all tensors of a type.
        flat = torch.cat([tensors[place].detach().reshape(-1) for place in places])
        total = all_reduce(flat)
        sizes = [tensors[place].numel() for place in places]
        for place, part in zip(places, total.split(sizes), strict=True):
            found[place] = part.reshape(tensors[place].shape)
    return found


def of_chief(flat: Any) -> Any:
    """Return the chief's values of a one-dimensional tensor, to the bit."""
    import torch

    if _group is not None and flat.device.type == "cpu":
        mine = flat.view(torch.uint8)
        # The others add zeros.
        return all_reduce(mine if _group.rank == 0 else torch.zeros_like(mine)).view(flat.dtype)
    torch.distributed.broadcast(flat, src=0)
    return flat
