"""Collectives that only move bytes, of any dtype: broadcast, gather, scatter, all-to-all."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import (
    AllgatherOptions,
    AllToAllOptions,
    BroadcastOptions,
    GatherOptions,
    ScatterOptions,
)

from mccl.errors import UsageError
from mccl.plans import Collective, Request
from mccl.process_group import validate
from mccl.process_group.calls import spelled
from mccl.process_group.dtypes import moved_as
from mccl.process_group.members import Members
from mccl.process_group.options import nested, one, resolve


class Moving(Members):
    """The half of the c10d interface that reduces nothing."""

    def broadcast(
        self,
        tensors: Any,
        opts: Any = None,
        timeout: timedelta | None = None,
        *,
        root: int | None = None,
    ) -> dist.Work:
        """Copy the root's tensor to every rank."""
        options = resolve(
            BroadcastOptions, opts if root is None else root, timeout, field="rootRank"
        )
        tensor = validate.memory_of(one(tensors, "broadcast"))
        where = validate.root_rank(options.rootRank, self._size, "broadcast")
        prepared = self._calls.get(
            Collective.BROADCAST,
            moved_as(tensor.dtype),
            Request(sizes=tensor.numel(), root=where),
            rooted=True,
        )
        return self._launcher.collective(
            "broadcast",
            prepared,
            (tensor,) if where == self._rank else (),
            () if where == self._rank else (tensor,),
            timeout=options.timeout,
            asynchronous=options.asyncOp,
            value=[tensor],
        )

    def allgather(
        self, outputs: Any, inputs: Any, opts: Any = None, timeout: timedelta | None = None
    ) -> dist.Work:
        """Collect every rank's tensor in a list; sizes may differ between ranks."""
        options = resolve(AllgatherOptions, opts, timeout)
        input = validate.memory_of(one(inputs, "all_gather"))
        pieces = [validate.memory_of(t) for t in nested(outputs, "all_gather")]
        validate.list_length(pieces, self._size, "all_gather", "output")
        validate.same_dtype([input, *pieces], "all_gather")
        validate.numel(pieces[self._rank], input.numel(), "all_gather", "this rank's output")
        validate.disjoint(pieces, "all_gather")
        sizes = tuple(piece.numel() for piece in pieces)
        request = Request(sizes=spelled(sizes), list_output=True)
        return self._allgather(pieces, input, request, options, value=outputs)

    def all_gather_single(
        self, output: torch.Tensor, input: torch.Tensor, opts: Any = None
    ) -> dist.Work:
        """Collect every rank's tensor, end to end, in ``output``."""
        options = resolve(AllgatherOptions, opts, None)
        output, input = validate.memory_of(output), validate.memory_of(input)
        validate.same_dtype([output, input], "all_gather_single")
        validate.numel(output, input.numel() * self._size, "all_gather_single", "output")
        request = Request(sizes=input.numel())
        return self._allgather([output], input, request, options, value=[output])

    _allgather_base = all_gather_single

    def _allgather(
        self,
        outputs: Sequence[torch.Tensor],
        input: torch.Tensor,
        request: Request,
        options: AllgatherOptions,
        value: Any,
    ) -> dist.Work:
        prepared = self._calls.get(Collective.ALL_GATHER, moved_as(input.dtype), request)
        return self._launcher.collective(
            "all_gather",
            prepared,
            (input,),
            tuple(outputs),
            timeout=options.timeout,
            asynchronous=options.asyncOp,
            value=value,
        )

    def allgather_coalesced(
        self,
        output_lists: Sequence[Sequence[torch.Tensor]],
        input_list: Sequence[torch.Tensor],
        opts: Any = None,
    ) -> dist.Work:
        """All-gather several tensors; ``output_lists[r][i]`` is rank r's tensor i."""
        options = resolve(AllgatherOptions, opts, None)
        if len(output_lists) != self._size:
            raise UsageError(
                f"all_gather_coalesced: there are {len(output_lists)} output lists; expected one "
                f"for each of the {self._size} ranks"
            )
        for outputs in output_lists:
            validate.paired(outputs, input_list, "all_gather_coalesced")
        each = AllgatherOptions()
        each.timeout, each.asyncOp = options.timeout, True
        works = [
            self.allgather([[outputs[i] for outputs in output_lists]], [input], each)
            for i, input in enumerate(input_list)
        ]
        return self._grouped(works, output_lists, options.asyncOp)

    def all_gather_single_coalesced(
        self,
        outputs: Sequence[torch.Tensor],
        inputs: Sequence[torch.Tensor],
        opts: Any = None,
    ) -> dist.Work:
        """Several ``all_gather_single``; one work for all."""
        options = resolve(AllgatherOptions, opts, None)
        validate.paired(outputs, inputs, "all_gather_single_coalesced")
        each = AllgatherOptions()
        each.timeout, each.asyncOp = options.timeout, True
        works = [
            self.all_gather_single(output, input, each)
            for output, input in zip(outputs, inputs, strict=True)
        ]
        return self._grouped(works, list(outputs), options.asyncOp)

    allgather_into_tensor_coalesced = all_gather_single_coalesced

    def gather(
        self,
        outputs: Any,
        inputs: Any,
        opts: Any = None,
        timeout: timedelta | None = None,
        *,
        root: int | None = None,
    ) -> dist.Work:
        """Collect every rank's tensor in a list on the root; all have the same size."""
        options = resolve(GatherOptions, opts if root is None else root, timeout, field="rootRank")
        input = validate.memory_of(one(inputs, "gather"))
        where = validate.root_rank(options.rootRank, self._size, "gather")
        pieces: list[torch.Tensor] = []
        if where == self._rank:
            pieces = [validate.memory_of(t) for t in nested(outputs, "gather")]
            validate.list_length(pieces, self._size, "gather", "output")
            validate.same_dtype([input, *pieces], "gather")
            for piece in pieces:
                validate.numel(piece, input.numel(), "gather", "output")
            validate.disjoint(pieces, "gather")
        elif len(outputs) and not (len(outputs) == 1 and len(outputs[0]) == 0):
            raise UsageError(
                f"gather: only the root (rank {where}) has outputs; pass an empty list on rank "
                f"{self._rank}"
            )
        prepared = self._calls.get(
            Collective.GATHER,
            moved_as(input.dtype),
            Request(sizes=input.numel(), root=where, list_output=True),
            rooted=True,
        )
        return self._launcher.collective(
            "gather",
            prepared,
            (input,),
            tuple(pieces),
            timeout=options.timeout,
            asynchronous=options.asyncOp,
            value=outputs,
        )

    def scatter(
        self,
        outputs: Any,
        inputs: Any,
        opts: Any = None,
        timeout: timedelta | None = None,
        *,
        root: int | None = None,
    ) -> dist.Work:
        """Give every rank one tensor of the root's list; all have the same size."""
        options = resolve(ScatterOptions, opts if root is None else root, timeout, field="rootRank")
        output = validate.memory_of(one(outputs, "scatter"))
        where = validate.root_rank(options.rootRank, self._size, "scatter")
        pieces: list[torch.Tensor] = []
        if where == self._rank:
            pieces = [validate.memory_of(t) for t in nested(inputs, "scatter")]
            validate.list_length(pieces, self._size, "scatter", "input")
            validate.same_dtype([output, *pieces], "scatter")
            for piece in pieces:
                validate.numel(piece, output.numel(), "scatter", "input")
        elif len(inputs) and not (len(inputs) == 1 and len(inputs[0]) == 0):
            raise UsageError(
                f"scatter: only the root (rank {where}) has inputs; pass an empty list on rank "
                f"{self._rank}"
            )
        prepared = self._calls.get(
            Collective.SCATTER,
            moved_as(output.dtype),
            Request(sizes=output.numel(), root=where, list_input=True),
            rooted=True,
        )
        return self._launcher.collective(
            "scatter",
            prepared,
            tuple(pieces),
            (output,),
            timeout=options.timeout,
            asynchronous=options.asyncOp,
            value=[output],
        )

    def all_to_all_single(
        self,
        output: torch.Tensor,
        input: torch.Tensor,
        output_split_sizes: Sequence[int] = (),
        input_split_sizes: Sequence[int] = (),
        opts: Any = None,
        timeout: timedelta | None = None,
    ) -> dist.Work:
        """Exchange pieces that lie end to end along dimension 0, even or by split sizes."""
        options = resolve(AllToAllOptions, opts, timeout)
        what = "all_to_all_single"
        output, input = validate.memory_of(output), validate.memory_of(input)
        validate.same_dtype([output, input], what)
        send = validate.split_sizes(input, input_split_sizes, self._size, what, "input")
        recv = validate.split_sizes(output, output_split_sizes, self._size, what, "output")
        request = Request(sizes=send, recv_sizes=recv)
        return self._all_to_all([output], [input], request, options)

    alltoall_base = all_to_all_single

    def alltoall(
        self,
        outputs: Sequence[torch.Tensor],
        inputs: Sequence[torch.Tensor],
        opts: Any = None,
        timeout: timedelta | None = None,
    ) -> dist.Work:
        """Send tensor r of ``inputs`` to rank r and receive tensor r of ``outputs`` from it."""
        options = resolve(AllToAllOptions, opts, timeout)
        outputs = [validate.memory_of(t) for t in outputs]
        inputs = [validate.memory_of(t) for t in inputs]
        validate.list_length(inputs, self._size, "all_to_all", "input")
        validate.list_length(outputs, self._size, "all_to_all", "output")
        validate.same_dtype([*outputs, *inputs], "all_to_all")
        validate.disjoint(outputs, "all_to_all")
        request = Request(
            sizes=tuple(t.numel() for t in inputs),
            recv_sizes=tuple(t.numel() for t in outputs),
            list_input=True,
            list_output=True,
        )
        return self._all_to_all(outputs, inputs, request, options)

    def _all_to_all(
        self,
        outputs: Sequence[torch.Tensor],
        inputs: Sequence[torch.Tensor],
        request: Request,
        options: AllToAllOptions,
    ) -> dist.Work:
        validate.own_piece(request, self._rank, "all_to_all")
        prepared = self._calls.get(Collective.ALL_TO_ALL, moved_as(inputs[0].dtype), request)
        return self._launcher.collective(
            "all_to_all",
            prepared,
            tuple(inputs),
            tuple(outputs),
            timeout=options.timeout,
            asynchronous=options.asyncOp,
            value=list(outputs),
        )
