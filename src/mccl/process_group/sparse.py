"""All-reduce of sparse COO tensors: gather everyone's entries, then add them up locally.

The number of entries differs between ranks, so it is exchanged first; the operation is
complete when the call returns, also when it was asked for asynchronously. Embedding gradients
under DDP (``sparse=True``) need this.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import AllgatherOptions, AllreduceOptions

from mccl.engine import RedOp
from mccl.errors import UsageError
from mccl.process_group.dtypes import reduction
from mccl.process_group.work import CompletedWork

Gatherer = Callable[[list[list[torch.Tensor]], list[torch.Tensor], AllgatherOptions], dist.Work]
"""The group's ``allgather``."""


def all_reduce(
    gather: Gatherer, size: int, tensor: torch.Tensor, opts: AllreduceOptions
) -> dist.Work:
    """Sum a sparse COO tensor over ``size`` ranks, in place. Only SUM is defined."""
    if reduction(opts.reduceOp).redop is not RedOp.SUM:
        raise UsageError(
            f"all_reduce of a sparse tensor supports SUM only, got {opts.reduceOp}; use "
            ".to_dense() for other operations"
        )
    entries = tensor.coalesce()
    mine = torch.tensor([entries._nnz(), entries.sparse_dim(), *entries.shape])
    shapes = _gather(gather, mine, [None] * size, opts)
    for rank, shape in enumerate(shapes):
        if shape[1:].tolist() != [entries.sparse_dim(), *entries.shape]:
            raise UsageError(
                f"all_reduce of sparse tensors: rank {rank} has sparse dimensions and shape "
                f"{shape[1:].tolist()}, this rank {[entries.sparse_dim(), *entries.shape]}; they "
                "must be equal"
            )
    counts = [int(shape[0]) for shape in shapes]
    # Transposed, so that a rank's entries are rows and counts may differ.
    indices = _gather(gather, entries.indices().t().contiguous(), counts, opts)
    values = _gather(gather, entries.values(), counts, opts)
    total = torch.sparse_coo_tensor(
        torch.cat(indices).t(), torch.cat(values), entries.shape, dtype=tensor.dtype
    )
    with torch.no_grad():
        tensor.copy_(total.coalesce())
    return CompletedWork([tensor])


def _gather(
    gather: Gatherer,
    tensor: torch.Tensor,
    rows: Sequence[int | None],
    opts: AllreduceOptions,
) -> list[torch.Tensor]:
    """Every rank's tensor; ``rows``: its first dimension there, None where it is as here."""
    each = AllgatherOptions()
    each.timeout, each.asyncOp = opts.timeout, True
    outputs = [
        torch.empty_like(tensor) if n is None else tensor.new_empty((n, *tensor.shape[1:]))
        for n in rows
    ]
    gather([outputs], [tensor], each).wait()
    return outputs
