"""A plan with cache forms as a batch: which tokens run, who attends together, and where everything lies.

The step's tokens are the plan's and the recomputed ones, ordered by the part in which they attend: part 0 are the
sequences that need no workspace, then come those that share it in turn.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from schedcore._core import BatchPlan, CacheKind
from worker.batch.paged_pool import NUM_VECTOR_KINDS, PagedPool, StepBatch, StoredTokens
from worker.batch.staging import Parcel, Staging
from worker.forms.layer_copies import LayerCopies, lane_units, num_loaded_blocks
from worker.forms.step_forms import AttentionPart, FormBatch, HiddenContext, RemainingTokens
from worker.forward.step_inputs import send_with_changes

Int32Array = npt.NDArray[np.int32]
Int64Array = npt.NDArray[np.int64]


def has_forms(plan: BatchPlan) -> bool:
    """Whether the plan needs more than the pool's K and V."""
    if len(plan.cache_kinds) == 0:
        return False
    return bool(plan.cache_kinds.any() or plan.missing_tokens.any() or plan.uncached_tokens.any())


class FormInputs:
    """What StepInputs (worker/forward/step_inputs.py) is for plain steps."""

    def __init__(self, pool: PagedPool, num_layers: int) -> None:
        """num_layers: of the model."""
        self._pool, self._num_layers = pool, num_layers
        self._staging = Staging(pool.data.device)
        layers = torch.arange(num_layers, device=pool.data.device)
        self._group_of_layer = layers // pool.layers_per_unit
        self._layer_in_unit = (layers % pool.layers_per_unit).to(torch.int32)
        self._one_layer_units = pool.data.view(-1, 1, *pool.data.shape[2:])
        num_pool_units = pool.data.shape[0] - pool.num_workspace_units - pool.num_lane_units
        self._workspace_begin = num_pool_units * pool.layers_per_unit
        self._num_workspace_blocks = pool.num_workspace_units * pool.layers_per_unit // NUM_VECTOR_KINDS

    def load(self, plan: BatchPlan, sample_tokens: Int32Array, *others: Parcel) -> FormBatch:
        """sample_tokens: ascending indices of the plan's tokens whose logits are needed. others: go along."""
        copies = LayerCopies(plan, self._pool, self._num_layers) if len(plan.copy_slots) > 0 else None
        requests = _Requests.of(plan, self._pool, self._num_workspace_blocks, self._num_layers)
        tables = {
            part: _Tables.of(part, requests, self._pool, self._num_layers)
            for part in np.unique(requests.part).tolist()
            if part > 0
        }
        arrays = _batches(plan, requests, sample_tokens)
        parcels = [parcel for of_part in tables.values() for parcel in of_part.parcels]
        parcels += [parcel for of_layer in arrays.values() for parcel in of_layer.parcels]
        send_with_changes(self._staging, plan, self._pool, *parcels, *others)

        pools = {part: self._part_pool(of_part) for part, of_part in tables.items()}
        remaining: dict[int, RemainingTokens] = {}  # the batches' own
        batches = {layer: self._batch(of_layer, pools, remaining, copies) for layer, of_layer in arrays.items()}
        for layer, of_layer in arrays.items():
            if of_layer.kept is not None:
                remaining[layer] = RemainingTokens(of_layer.kept.tensors[0], batches[layer])
        return batches[0]

    def _batch(
        self,
        arrays: _Batch,
        pools: dict[int, tuple[PagedPool, HiddenContext | None]],
        remaining: dict[int, RemainingTokens],
        copies: LayerCopies | None,
    ) -> FormBatch:
        ids, positions, token_row, query_start, seq_lens, rows, source, stored_row, stored_position = (
            arrays.step.tensors
        )
        stored = StoredTokens(stored_row, stored_position, source) if len(source) > 0 else None
        parts = [
            self._attention_part(part, ids, positions, *pools.get(number, (self._pool, None)))
            for number, part in arrays.parts.items()
        ]
        batch = StepBatch(
            token_ids=ids,
            positions=positions,
            token_row=token_row,
            query_start=query_start,
            seq_lens=seq_lens,
            rows=rows,
            sample_tokens=arrays.samples.tensors[0],
            max_query_len=arrays.max_query_len,
            max_seq_len=arrays.max_seq_len,
        )
        return FormBatch(batch, parts, stored, remaining, copies)

    def _attention_part(
        self, part: _Part, token_ids: Tensor, positions: Tensor, pool: PagedPool, context: HiddenContext | None
    ) -> AttentionPart:
        token_row, query_start, seq_lens, rows = part.batch.tensors
        batch = StepBatch(
            token_ids=token_ids[part.tokens],
            positions=positions[part.tokens],
            token_row=token_row,
            query_start=query_start,
            seq_lens=seq_lens,
            rows=rows,
            sample_tokens=token_ids.new_empty(0, dtype=torch.int64),
            max_query_len=part.max_query_len,
            max_seq_len=part.max_seq_len,
        )
        return AttentionPart(part.tokens, batch, pool, context)

    def _part_pool(self, tables: _Tables) -> tuple[PagedPool, HiddenContext | None]:
        """The tables of a part: [requests, num_layers, NUM_VECTOR_KINDS, blocks], of units of one layer."""
        pool, num_blocks = self._pool, tables.num_blocks
        rows, first, end, offset = tables.requests.tensors
        units = pool.block_table[rows.long(), :, :, :num_blocks].index_select(1, self._group_of_layer)
        units = units * pool.layers_per_unit + self._layer_in_unit[:, None, None]
        block = torch.arange(num_blocks, dtype=torch.int32, device=rows.device)
        is_in_workspace = (block >= first[:, None]) & (block < end[:, None])  # [requests, blocks]
        k_unit = self._workspace_begin + NUM_VECTOR_KINDS * (offset[:, None] + block - first[:, None])
        workspace = torch.stack((k_unit, k_unit + 1), 1)[:, None].to(torch.int32)
        table = torch.where(is_in_workspace[:, None, None], workspace, units)
        if tables.lanes is not None:
            is_loaded, lanes = tables.lanes.tensors
            num_requests, num_layers, num_kinds, _ = table.shape
            is_loaded = is_loaded.view(num_requests, num_layers, 1, num_blocks) > 0
            table = torch.where(is_loaded, lanes.view(num_requests, num_layers, num_kinds, num_blocks), table)
        return PagedPool(self._one_layer_units, table, pool.num_kv_heads, pool.head_dim), tables.hidden_context()


@dataclass(frozen=True, slots=True)
class _Tables:
    """What the tables of a part come from."""

    num_blocks: int  # of the longest request
    requests: Parcel  # row, first and end block in the workspace, offset
    context: Parcel | None  # by hidden token: row, row of the part's tables, position
    lanes: Parcel | None  # [requests, layers, blocks] whether loaded; [requests, layers, NUM_VECTOR_KINDS, blocks] unit

    @property
    def parcels(self) -> list[Parcel]:
        return [parcel for parcel in (self.requests, self.context, self.lanes) if parcel is not None]

    def hidden_context(self) -> HiddenContext | None:
        if self.context is None:
            return None
        rows, rows_in_part, positions = self.context.tensors
        return HiddenContext(StoredTokens(rows, positions), StoredTokens(rows_in_part, positions))

    @classmethod
    def of(cls, part: int, requests: _Requests, pool: PagedPool, num_layers: int) -> _Tables:
        members = np.flatnonzero(requests.part == part)
        by_request = Parcel(
            requests.row[members],
            requests.first_block[members],
            requests.end_block[members],
            requests.workspace_offset[members],
            dtype=np.int32,
        )
        num_blocks = -(-int(requests.end[members].max()) // pool.block_size)
        is_loaded = bool(requests.is_loaded[members].any())
        lanes = _lanes(members, requests, pool, num_layers, num_blocks) if is_loaded else None
        return cls(num_blocks, by_request, _context(members, requests, pool.block_size), lanes)


def _lanes(members: Int64Array, requests: _Requests, pool: PagedPool, num_layers: int, num_blocks: int) -> Parcel:
    """Where layers are loaded, the blocks lie in their lanes."""
    layer, block = np.arange(num_layers), np.arange(num_blocks)
    is_layer = requests.is_loaded[members, None] & (layer >= requests.num_layers[members, None])
    is_block = block < requests.num_loaded[members, None]
    k_unit = lane_units(layer[None, :, None], requests.lane_offset[members, None, None] + block, pool)
    is_loaded, lanes = is_layer[:, :, None] & is_block[:, None], np.stack((k_unit, k_unit + 1), 2)
    return Parcel(is_loaded.ravel(), lanes.ravel(), dtype=np.int32)


def _context(members: Int64Array, requests: _Requests, block_size: int) -> Parcel | None:
    begin = np.maximum(requests.first_block * block_size, requests.num_uncached)[members]
    lengths = np.where(requests.is_hidden[members], np.maximum(requests.begin[members] - begin, 0), 0)
    if not lengths.any():
        return None
    request = np.repeat(members, lengths)
    return Parcel(requests.row[request], requests.row_in_part[request], _ranges(begin, lengths), dtype=np.int32)


@dataclass(frozen=True, slots=True)
class _Part:
    """The sequences of a batch that attend together."""

    tokens: slice  # of the batch's
    batch: Parcel  # token_row, query_start, seq_lens, rows
    max_query_len: int
    max_seq_len: int

    @classmethod
    def of(cls, part: int, requests: _Requests, tokens: _Tokens) -> _Part:
        seqs = tokens.seqs_of_part(part, requests)
        own = slice(int(tokens.query_start[seqs.start]), int(tokens.query_start[seqs.stop]))
        batch = Parcel(
            requests.row_in_part[tokens.request[own]],
            tokens.query_start[seqs.start : seqs.stop + 1] - own.start,
            tokens.last[seqs],
            requests.row_in_part[tokens.request_of_seq[seqs]],
            dtype=np.int32,
        )
        return cls(own, batch, tokens.longest(seqs), int(tokens.last[seqs].max(initial=0)))


@dataclass(frozen=True, slots=True)
class _Batch:
    """The tokens that some layer, and those behind it, compute."""

    step: Parcel  # token_ids, positions, token_row, query_start, seq_lens, rows; of stored tokens: which, row, position
    samples: Parcel
    kept: Parcel | None  # of the tokens that the layer before computes; None for the first
    parts: dict[int, _Part]
    max_query_len: int
    max_seq_len: int

    @property
    def parcels(self) -> list[Parcel]:
        kept = [] if self.kept is None else [self.kept]
        return [self.step, self.samples, *kept, *(part.batch for part in self.parts.values())]

    @classmethod
    def of(
        cls, plan: BatchPlan, requests: _Requests, tokens: _Tokens, sample_tokens: Int32Array, kept: Parcel | None
    ) -> _Batch:
        stored = np.flatnonzero(
            requests.is_hidden[tokens.request] & (tokens.position >= requests.num_missing[tokens.request])
        )
        step = Parcel(
            tokens.token_id,
            tokens.position,
            requests.row[tokens.request],
            tokens.query_start,
            tokens.last,
            requests.row[tokens.request_of_seq],
            stored,
            requests.row[tokens.request[stored]],
            tokens.position[stored],
            dtype=np.int32,
        )
        parts = {part: _Part.of(part, requests, tokens) for part in np.unique(requests.part).tolist()}
        samples = Parcel(tokens.places_of(plan, sample_tokens))
        return cls(step, samples, kept, parts, tokens.longest(slice(None)), int(tokens.last.max()))


def _batches(plan: BatchPlan, requests: _Requests, sample_tokens: Int32Array) -> dict[int, _Batch]:
    """By the layer from which on they are computed: 0, and those where recomputed tokens leave."""
    tokens = _Tokens.of(plan, requests, 0)
    batches = {0: _Batch.of(plan, requests, tokens, sample_tokens, None)}
    for layer in np.unique(requests.num_layers[(requests.num_layers > 0) & requests.is_loaded]).tolist():
        kept = np.flatnonzero(~tokens.is_recomputed | (requests.num_layers[tokens.request] > layer))
        tokens = _Tokens.of(plan, requests, layer)
        batches[layer] = _Batch.of(plan, requests, tokens, sample_tokens, Parcel(kept))
    return batches


@dataclass(frozen=True, slots=True)
class _Requests:
    """By request of the plan; positions in tokens."""

    row: Int64Array
    begin: Int64Array  # of what the plan computes
    end: Int64Array
    is_hidden: npt.NDArray[np.bool_]
    num_uncached: Int64Array
    num_missing: Int64Array
    first_block: Int64Array  # blocks [first, end) are in the workspace
    end_block: Int64Array
    part: Int64Array  # in which it attends
    row_in_part: Int64Array  # of the part's tables
    workspace_offset: Int64Array  # blocks of others of its part before its own
    num_layers: Int64Array  # through which its uncached tokens are recomputed
    num_loaded: Int64Array  # blocks that are loaded for the layers behind
    lane_offset: Int64Array  # blocks of others in the lanes before its own

    @property
    def is_loaded(self) -> npt.NDArray[np.bool_]:
        return self.num_loaded > 0

    @classmethod
    def of(cls, plan: BatchPlan, pool: PagedPool, num_workspace_blocks: int, num_layers: int) -> _Requests:
        block_size = pool.block_size
        row, end, num_uncached, num_missing, num_hidden = (
            values.astype(np.int64)
            for values in (plan.rows, plan.seq_lens, plan.uncached_tokens, plan.missing_tokens, plan.hidden_tokens)
        )
        begin = end - np.diff(plan.query_start)
        is_hidden = plan.cache_kinds == CacheKind.HIDDEN
        first_block = np.where(is_hidden, begin - num_hidden, 0) // block_size
        end_block = -(-np.where(is_hidden, end, np.minimum(num_missing, end)) // block_size)
        part, offset = _assign_parts(end_block - first_block, num_workspace_blocks)
        row_in_part = row.copy()
        for number in range(1, part.max() + 1):
            members = part == number
            row_in_part[members] = np.arange(members.sum())
        recomputed, num_loaded = np.full_like(row, num_layers), np.zeros_like(row)
        if len(plan.copy_slots) > 0:
            recomputed = plan.recomputed_layers.astype(np.int64)
            num_loaded = num_loaded_blocks(plan, block_size, num_layers).astype(np.int64)
        return cls(
            row, begin, end, is_hidden, num_uncached, num_missing, first_block, end_block, part, row_in_part, offset,
            recomputed, num_loaded, np.cumsum(num_loaded) - num_loaded,
        )  # fmt: skip


@dataclass(frozen=True, slots=True)
class _Tokens:
    """The step's tokens in order, and the sequences that they form."""

    token_id: Int32Array  # [T]
    position: Int64Array  # [T]
    request: Int64Array  # [T]
    query_start: Int64Array  # [S + 1]
    last: Int64Array  # [S] position of the last token + 1
    request_of_seq: Int64Array  # [S]
    seq_of_request: Int64Array  # of what the plan computes of it
    is_recomputed: npt.NDArray[np.bool_]  # [T]

    @classmethod
    def of(cls, plan: BatchPlan, requests: _Requests, layer: int) -> _Tokens:
        """Those that the layer computes."""
        num_requests, num_uncached = plan.num_seqs, requests.num_uncached
        recomputed = np.flatnonzero((num_uncached > 0) & (requests.num_layers > layer))
        request = np.concatenate((np.arange(num_requests), recomputed))
        order = np.argsort(requests.part[request], kind="stable")
        first = np.concatenate((requests.begin, np.zeros_like(recomputed)))[order]
        last = np.concatenate((requests.end, num_uncached[recomputed]))[order]
        uncached_start = plan.num_tokens + np.cumsum(num_uncached) - num_uncached
        source = np.concatenate((plan.query_start[:-1].astype(np.int64), uncached_start[recomputed]))[order]
        lengths, request = last - first, request[order]
        seq_of_request = np.empty(num_requests, np.int64)
        seq_of_request[order[order < num_requests]] = np.flatnonzero(order < num_requests)
        known = np.concatenate((plan.token_ids, plan.uncached_token_ids))
        return cls(
            token_id=known[_ranges(source, lengths)],
            position=_ranges(first, lengths),
            request=np.repeat(request, lengths),
            query_start=np.concatenate(([0], np.cumsum(lengths))),
            last=last,
            request_of_seq=request,
            seq_of_request=seq_of_request,
            is_recomputed=np.repeat(order >= num_requests, lengths),
        )

    def places_of(self, plan: BatchPlan, tokens: Int32Array) -> Int64Array:
        """Where the plan's tokens are among the step's."""
        request = np.searchsorted(plan.query_start, tokens, side="right") - 1
        places: Int64Array = self.query_start[self.seq_of_request[request]] + tokens - plan.query_start[request]
        return places

    def seqs_of_part(self, part: int, requests: _Requests) -> slice:
        begin, end = np.searchsorted(requests.part[self.request_of_seq], (part, part + 1))
        return slice(int(begin), int(end))

    def longest(self, seqs: slice) -> int:
        return int(np.diff(self.query_start)[seqs].max(initial=0))


def _assign_parts(num_blocks: Int64Array, capacity: int) -> tuple[Int64Array, Int64Array]:
    """Part and offset in it, by request: as many in a part as its workspace holds, in order. Part 0 needs none."""
    if num_blocks.max() > capacity:
        raise RuntimeError(f"a request needs {num_blocks.max()} blocks of workspace, there are {capacity}")
    part, offset = np.zeros_like(num_blocks), np.zeros_like(num_blocks)
    current, used = 1, 0
    for i in np.flatnonzero(num_blocks):
        if used + num_blocks[i] > capacity:
            current, used = current + 1, 0
        part[i], offset[i] = current, used
        used += num_blocks[i]
    return part, offset


def _ranges(starts: Int64Array, lengths: Int64Array) -> Int64Array:
    """[start, start + length) of each, one after the other."""
    ends = np.cumsum(lengths)
    return np.repeat(starts - ends + lengths, lengths) + np.arange(ends[-1] if len(ends) else 0)
