"""Collectives that add: all-reduce, reduce, reduce-scatter."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import (
    AllreduceCoalescedOptions,
    AllreduceOptions,
    ReduceOptions,
    ReduceScatterOptions,
)

from mccl.engine import EngineBroken
from mccl.errors import UsageError
from mccl.plans import Collective, Request
from mccl.process_group import profile, sparse, validate
from mccl.process_group.calls import Prepared, spelled
from mccl.process_group.dtypes import NATIVE, reduced_as, reduction
from mccl.process_group.launch import DONE
from mccl.process_group.moving import Moving
from mccl.process_group.options import UNSET, nested, one, resolve

_ORDINARY = frozenset({torch.Tensor, torch.nn.Parameter})


class Reducing(Moving):
    """The reducing half of the c10d interface."""

    _repeated: dict[tuple[torch.dtype, int, int], Prepared]
    """All-reduces that have run before, by what the shortcut of ``allreduce`` looks at."""

    def allreduce(
        self,
        tensors: Any,
        opts: Any = None,
        timeout: timedelta | None = None,
        *,
        op: Any = None,
    ) -> dist.Work:
        """Reduce a tensor over all ranks, in place, the same bits on every rank.

        The first lines are the shortcut for what training repeats most: one contiguous CPU
        tensor, synchronous, of a size seen before. It must stay a few microseconds long.
        """
        if type(opts) is AllreduceOptions and not opts.asyncOp and len(tensors) == 1:
            tensor = tensors[0]
            prepared = self._repeated.get((tensor.dtype, tensor.numel(), hash(opts.reduceOp)))
            launcher = self._launcher
            if (
                prepared is not None
                and type(tensor) in _ORDINARY
                and tensor.is_cpu
                and tensor.is_contiguous()
                and not tensor.is_neg()
                and launcher.coalescing is None
                and not profile.enabled()
            ):
                timeout = opts.timeout
                launcher.sequence += 1
                try:
                    operation = launcher.native.submit(
                        prepared.call,
                        (tensor.data_ptr(),),
                        sync=True,
                        timeout_us=launcher.timeout_us
                        if timeout == UNSET
                        else launcher.limit(timeout),
                    )
                    if operation is not None:
                        operation.wait()
                except EngineBroken as broken:
                    raise launcher.failure(broken) from broken
                return DONE
        return self._allreduce(one(tensors, "all_reduce"), opts if op is None else op, timeout)

    def _allreduce(self, tensor: torch.Tensor, given: Any, timeout: timedelta | None) -> dist.Work:
        opts = resolve(AllreduceOptions, given, timeout, field="reduceOp")
        if tensor.layout == torch.sparse_coo:
            return sparse.all_reduce(self.allgather, self._size, tensor, opts)
        tensor = validate.memory_of(tensor)
        how = reduction(opts.reduceOp)
        dtype = reduced_as(tensor.dtype, how)
        prepared = self._calls.get(Collective.ALL_REDUCE, dtype, Request(sizes=tensor.numel()), how)
        work = self._launcher.collective(
            "all_reduce",
            prepared,
            (tensor,),
            (tensor,),
            timeout=opts.timeout,
            asynchronous=opts.asyncOp,
            value=[tensor],
        )
        if how.premul == 1.0 and tensor.dtype in NATIVE and not tensor.is_complex():
            self._repeat(tensor, opts.reduceOp, prepared)
        return work

    def _repeat(self, tensor: torch.Tensor, op: Any, prepared: Prepared) -> None:
        # PREMUL_SUM's factor is not part of its hash, so it never takes the shortcut.
        # Nor does the shortcut keep the caller's stack.
        if op == dist.ReduceOp.PREMUL_SUM or self._launcher.stacks is not None:
            return
        if len(self._repeated) >= 1024:
            self._repeated.clear()
        self._repeated[(tensor.dtype, tensor.numel(), hash(op))] = prepared

    def allreduce_coalesced(self, tensors: Sequence[torch.Tensor], opts: Any = None) -> dist.Work:
        """All-reduce several tensors of one dtype; one work for all."""
        options = resolve(AllreduceCoalescedOptions, opts, None)
        if not tensors:
            raise UsageError("all_reduce_coalesced needs at least one tensor, got an empty list")
        validate.same_dtype(tensors, "all_reduce_coalesced")
        each = AllreduceOptions()
        each.reduceOp, each.timeout, each.asyncOp = options.reduceOp, options.timeout, True
        works = [self._allreduce(tensor, each, None) for tensor in tensors]
        return self._grouped(works, list(tensors), options.asyncOp)

    def reduce(
        self,
        tensors: Any,
        opts: Any = None,
        op: Any = None,
        timeout: timedelta | None = None,
        *,
        root: int | None = None,
    ) -> dist.Work:
        """Reduce a tensor into the root's copy; other ranks' tensors keep their values."""
        options = resolve(ReduceOptions, opts if root is None else root, timeout, field="rootRank")
        if op is not None:
            options.reduceOp = op
        tensor = validate.memory_of(one(tensors, "reduce"))
        where = validate.root_rank(options.rootRank, self._size, "reduce")
        how = reduction(options.reduceOp)
        prepared = self._calls.get(
            Collective.REDUCE,
            reduced_as(tensor.dtype, how),
            Request(sizes=tensor.numel(), root=where),
            how,
            rooted=True,
        )
        return self._launcher.collective(
            "reduce",
            prepared,
            (tensor,),
            (tensor,) if where == self._rank else (),
            timeout=options.timeout,
            asynchronous=options.asyncOp,
            value=[tensor],
        )

    def reduce_scatter(
        self,
        outputs: Any,
        inputs: Any,
        opts: Any = None,
        timeout: timedelta | None = None,
        *,
        op: Any = None,
    ) -> dist.Work:
        """Reduce a list of tensors, one a rank, and keep this rank's; sizes may differ."""
        options = resolve(
            ReduceScatterOptions, opts if op is None else op, timeout, field="reduceOp"
        )
        output = validate.memory_of(one(outputs, "reduce_scatter"))
        pieces = [validate.memory_of(t) for t in nested(inputs, "reduce_scatter")]
        validate.list_length(pieces, self._size, "reduce_scatter", "input")
        validate.same_dtype([output, *pieces], "reduce_scatter")
        sizes = tuple(piece.numel() for piece in pieces)
        validate.numel(output, sizes[self._rank], "reduce_scatter", "output")
        request = Request(sizes=spelled(sizes), list_input=True)
        return self._reduce_scatter(output, pieces, request, options)

    def reduce_scatter_single(
        self, output: torch.Tensor, input: torch.Tensor, opts: Any = None
    ) -> dist.Work:
        """Reduce ``size`` pieces that lie end to end in ``input`` and keep this rank's."""
        options = resolve(ReduceScatterOptions, opts, None, field="reduceOp")
        output, input = validate.memory_of(output), validate.memory_of(input)
        validate.same_dtype([output, input], "reduce_scatter_single")
        validate.numel(input, output.numel() * self._size, "reduce_scatter_single", "input")
        return self._reduce_scatter(output, [input], Request(sizes=output.numel()), options)

    _reduce_scatter_base = reduce_scatter_single

    def _reduce_scatter(
        self,
        output: torch.Tensor,
        inputs: Sequence[torch.Tensor],
        request: Request,
        options: ReduceScatterOptions,
    ) -> dist.Work:
        how = reduction(options.reduceOp)
        prepared = self._calls.get(
            Collective.REDUCE_SCATTER, reduced_as(output.dtype, how), request, how
        )
        return self._launcher.collective(
            "reduce_scatter",
            prepared,
            tuple(inputs),
            (output,),
            timeout=options.timeout,
            asynchronous=options.asyncOp,
            value=[output],
        )

    def reduce_scatter_single_coalesced(
        self,
        outputs: Sequence[torch.Tensor],
        inputs: Sequence[torch.Tensor],
        opts: Any = None,
    ) -> dist.Work:
        """Several ``reduce_scatter_single``; one work for all."""
        options = resolve(ReduceScatterOptions, opts, None, field="reduceOp")
        validate.paired(outputs, inputs, "reduce_scatter_single_coalesced")
        each = ReduceScatterOptions()
        each.reduceOp, each.timeout, each.asyncOp = options.reduceOp, options.timeout, True
        works = [
            self.reduce_scatter_single(output, input, each)
            for output, input in zip(outputs, inputs, strict=True)
        ]
        return self._grouped(works, list(outputs), options.asyncOp)

    reduce_scatter_tensor_coalesced = reduce_scatter_single_coalesced
