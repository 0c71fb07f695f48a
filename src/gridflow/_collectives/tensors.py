"""What torch's ranks exchange: through this process's group, or else through torch's own."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Sequence

    from gridflow._collectives.host import HostGroup


class TensorExchange:
    """How this process exchanges tensors.

    `group`: For what lies in a CPU's memory. None: through torch's own group, or, without one, not
        at all: this rank is the only one, or has yet to join the others.
    `is_of_several`: Whether it trains a model with others, also if it has yet to join them.
    `is_joining`: Whether variables keep the first values that this rank gives them: they will get
        those that the others have.
    `may_join_later`: Not used: no exchange on torch makes variables.
    """

    def __init__(self) -> None:
        self.group: HostGroup | None = None
        self.is_of_several = self.is_joining = self.may_join_later = False

    @property
    def size(self) -> int:
        """How many ranks exchange tensors now."""
        if self.group is not None:
            return self.group.size
        return _of_torch().get_world_size() if _has_torchs() else 1


#: A process joins one group, as it does torch's.
EXCHANGE: Final = TensorExchange()


def is_of_several() -> bool:
    """Return whether several processes train one model."""
    return EXCHANGE.is_of_several or _has_torchs()


def all_reduce(flat: Any) -> Any:
    """Return the sum of a one-dimensional tensor over all ranks, which may be the same memory."""
    import torch

    if EXCHANGE.group is not None and flat.device.type == "cpu":
        if flat.dtype == torch.bfloat16:  # unknown to numpy
            return all_reduce(flat.float()).to(flat.dtype)
        return torch.from_numpy(EXCHANGE.group.all_reduce(flat.numpy()))
    if _has_torchs():
        _of_torch().all_reduce(flat)
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
    if EXCHANGE.group is None or any(each.device.type != "cpu" for each in wide):
        total = torch.tensor(float(rows), device=wide[0].device)
        *sums, total = add_up([*(each * rows for each in wide), total])
        means = [each / total.to(each.dtype) for each in sums]
    else:
        is_double = any(each.dtype == torch.float64 for each in wide)
        dtype = np.dtype(np.float64 if is_double else np.float32)
        sums, _ = EXCHANGE.group.add_up([each.numpy() for each in wide], dtype=dtype, weight=rows)
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

    if EXCHANGE.group is not None and flat.device.type == "cpu":
        raw = EXCHANGE.group.of_rank(flat.view(torch.uint8).numpy(), 0)
        return torch.from_numpy(raw).view(flat.dtype)
    if _has_torchs():
        _of_torch().broadcast(flat, src=0)
    return flat


def _of_torch() -> Any:
    from torch import distributed

    return distributed


def _has_torchs() -> bool:
    """Return whether the process is in a group of torch's."""
    return bool(_of_torch().is_available() and _of_torch().is_initialized())
