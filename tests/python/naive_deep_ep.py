"""DeepEP's interface by all-gathers of everything: slow, and short enough to be checked by reading. The conformance kit
is run on this module in test_conformance.py, whole and with one of the faults of FAULTS planted: `naive_deep_ep:fault`.
"""

import torch
import torch.distributed as dist

topk_idx_t = torch.int64

# {name: the fault}
FAULTS = {
    "signature_renamed": "an argument of dispatch has another name",
    "unused_counted": "a topk_idx of -1 counts for an expert",
    "token_counted_per_expert": "a token counts for a rank as often as it has experts there",
    "rows_by_token": "rows come by token, then source",
    "ids_global": "recv_topk_idx has global experts",
    "weights_unmasked": "weights of other ranks' experts are not zero",
    "alignment_ignored": "counts are not rounded up",
    "scales_of_neighbour": "scales are those of the token before",
    "prefix_exclusive": "handle[0] counts ranks before, without the one itself",
    "cached_stale": "a cached dispatch brings the rows of the first one",
    "sum_in_bfloat16": "combine rounds after every term",
    "bias_last": "the second bias is left out",
    "home_weights_of_one_rank": "weights come home from one rank only",
    "result_overwritten": "the next dispatch writes over the rows of the last one",
    "source_tokens_shifted": "a low-latency handle names the token after each",
    "statistics_overwritten": "statistics are set, not added to",
    "scale_not_clamped": "the scale of a row of zeros is zero",
    "weights_rounded": "low-latency combine rounds the weights to bfloat16",
    "out_ignored": "low-latency combine does not write to out",
    "zero_copy_ignored": "low-latency combine reads x in spite of zero_copy",
    "expert_start_unaligned": "expanded experts begin where the one before ends",
    "partial_not_rounded": "sums of a rank are not rounded before they are added",
    "dies": "the last rank ends in combine",
    "hangs": "rank 0 does not return from a barrier",
}


class Float8:
    """Takes the place of a tensor that torch cannot pickle."""

    def __init__(self, tensor):
        self.bytes = tensor.contiguous().view(torch.uint8)


def packed(value):
    if isinstance(value, tuple):
        return tuple(map(packed, value))
    return Float8(value) if getattr(value, "dtype", None) == torch.float8_e4m3fn else value


def unpacked(value):
    if isinstance(value, tuple):
        return tuple(map(unpacked, value))
    return value.bytes.view(torch.float8_e4m3fn) if isinstance(value, Float8) else value


def gathered(group, value):
    parts = [None] * dist.get_world_size(group)
    dist.all_gather_object(parts, packed(value), group=group)
    return list(map(unpacked, parts))


def quantised(x, round_scale, clamp=1e-4):
    groups = x.float().unflatten(1, (-1, 128))
    amax = groups.abs().amax(2).clamp(clamp)
    scales = amax / 448
    if round_scale:
        fraction, exponent = torch.frexp(scales)
        scales = torch.ldexp(torch.ones_like(scales), torch.where(fraction == 0.5, exponent - 1, exponent))
        rows = groups / scales.unsqueeze(2)
    else:
        rows = groups * (torch.full_like(amax, 448) / amax).unsqueeze(2)
    return rows.nan_to_num().to(torch.float8_e4m3fn).view(x.shape), scales


class EventHandle:
    def current_stream_wait(self):
        pass


class EventOverlap:
    def __init__(self, event=None, extra_tensors=None):
        self.event = event

    def current_stream_wait(self):
        pass

    def __enter__(self):
        return self

    def __exit__(self, *_):
        pass


class Config:
    def __init__(self, num_sms=20, *queues):
        self.num_sms = num_sms

    def get_nvl_buffer_size_hint(self, hidden_bytes, num_ranks):
        return hidden_bytes

    def get_rdma_buffer_size_hint(self, hidden_bytes, num_ranks):
        return 0


class Naive:
    fault = None

    def fails(self, name):
        assert name in FAULTS
        return self.fault == name


class Buffer(Naive):
    def __init__(self, group, num_nvl_bytes=0, num_rdma_bytes=0, low_latency_mode=False, num_qps_per_rank=24,
                 allow_nvlink_for_low_latency_mode=True, allow_mnnvl=False, explicitly_destroy=False,
                 enable_shrink=False, comm=None):
        self.group, self.rank, self.size = group, dist.get_rank(group), dist.get_world_size(group)
        self.cache, self.next, self.rows = {}, {}, None

    def destroy(self):
        pass

    @staticmethod
    def capture():
        return EventOverlap(EventHandle())

    def get_comm_stream(self):
        return None

    @staticmethod
    def set_num_sms(new_num_sms):
        pass

    @staticmethod
    def get_dispatch_config(num_ranks):
        return Config()

    @staticmethod
    def get_combine_config(num_ranks):
        return Config()

    def get_local_buffer_tensor(self, dtype, size=None, offset=0, use_rdma_buffer=False):
        return torch.empty(size or 0, dtype=dtype)

    def get_dispatch_layout(self, topk_idx, num_experts, previous_event=None, async_finish=False,
                            allocate_on_comm_stream=False):
        ranks = torch.where(topk_idx >= 0, topk_idx // (num_experts // self.size), -1)
        hits = ranks.unsqueeze(2) == torch.arange(self.size)
        ids = topk_idx.clamp(0) if self.fails("unused_counted") else topk_idx
        per_expert = torch.bincount(ids[ids >= 0], minlength=num_experts).int()
        per_rank = hits.sum((0, 1)) if self.fails("token_counted_per_expert") else hits.any(1).sum(0)
        return per_rank.int(), None, per_expert, hits.any(1), EventOverlap(EventHandle())

    def dispatch(self, x, handle=None, num_tokens_per_rank=None, num_tokens_per_rdma_rank=None, is_token_in_rank=None,
                 num_tokens_per_expert=None, topk_idx=None, topk_weights=None, expert_alignment=1, num_worst_tokens=0,
                 config=None, previous_event=None, async_finish=False, allocate_on_comm_stream=False):
        event, mask = EventOverlap(EventHandle()), handle[4] if handle is not None else is_token_in_rank
        key = handle[3].data_ptr() if handle is not None else None
        if key in self.cache and self.fails("cached_stale"):
            gathered(self.group, 0)
            return self.cache[key], None, None, None, None, event
        everybodys = gathered(self.group, (x, mask, topk_idx, topk_weights, num_tokens_per_expert))
        places = [(source, int(token)) for source, (_, theirs, *_) in enumerate(everybodys)
                  for token in theirs[:, self.rank].nonzero()]
        if self.fails("rows_by_token"):
            places.sort(key=lambda place: place[::-1])
        sources = [torch.tensor([t for s, t in places if s == each], dtype=torch.int64) for each in range(self.size)]
        pick = sources if not self.fails("rows_by_token") else None

        def received(of):
            if pick is None:
                return torch.stack([of[s][t] for s, t in places]) if places else of[0][:0]
            as_bytes = [each.contiguous().view(torch.uint8) if each.dtype.itemsize == 1 else each for each in of]
            return torch.cat([each[p] for each, p in zip(as_bytes, pick)]).view(of[0].dtype)

        pair = isinstance(x, tuple)
        recv_x = tuple(received([each[0][part] for each in everybodys]) for part in range(2)) if pair else received(
            [each[0] for each in everybodys])
        if pair and self.fails("scales_of_neighbour"):
            recv_x = recv_x[0], recv_x[1].roll(1, 0)
        if not pair and self.fails("result_overwritten"):
            if self.rows is not None:
                self.rows.fill_(9)
            self.rows = recv_x
        if handle is not None:
            return recv_x, None, None, None, None, event
        per_expert = sum(each[4] for each in everybodys).view(self.size, -1)[self.rank].tolist()
        align = 1 if self.fails("alignment_ignored") else expert_alignment
        counts = [] if num_worst_tokens else [-(-count // align) * align for count in per_expert]
        ids = weights = None
        if topk_idx is not None:
            ids, weights = received([each[2] for each in everybodys]), received([each[3] for each in everybodys])
            local = len(per_expert)
            here = (ids >= 0) & (ids // local == self.rank)
            if not self.fails("ids_global"):
                ids = torch.where(here, ids - self.rank * local, -1)
            if not self.fails("weights_unmasked"):
                weights = torch.where(here, weights, torch.zeros(()))
        to = torch.stack([each[1].sum(0) for each in everybodys])
        prefix = to.cumsum(0) - (to if self.fails("prefix_exclusive") else 0)
        empty = torch.zeros(self.size, 1, dtype=torch.int32)
        handle = (prefix.int(), empty, empty, torch.cat(sources).int(), mask, empty)
        self.cache[handle[3].data_ptr()] = recv_x
        self.kept = handle  # the addresses are not used again
        if num_worst_tokens:
            recv_x, ids, weights = self._longer(recv_x, num_worst_tokens), self._longer(
                ids, num_worst_tokens, -1), self._longer(weights, num_worst_tokens)
        return recv_x, ids, weights, counts, handle, event

    def _longer(self, rows, most, fill=0):
        return torch.cat([rows, rows.new_full((most - len(rows), *rows.shape[1:]), fill)])

    def combine(self, x, handle, topk_weights=None, bias=None, config=None, previous_event=None, async_finish=False,
                allocate_on_comm_stream=False):
        if self.fails("dies") and self.rank == self.size - 1:
            import os

            os._exit(7)
        everybodys = gathered(self.group, (x, topk_weights, handle[4]))
        biases = [b for b in (bias if isinstance(bias, (tuple, list)) else (bias,)) if b is not None]
        if self.fails("bias_last"):
            biases = biases[:1]
        mask = handle[4]

        def summed(part, biases, dtype):
            total = torch.zeros(len(mask), everybodys[0][part].shape[1])
            for each in biases:
                total = total + each.float()
            for rank in range(self.size):
                first = sum(int(each[2][:, rank].sum()) for each in everybodys[:self.rank])
                tokens = mask[:, rank].nonzero().squeeze(1)
                if part == 1 and rank and self.fails("home_weights_of_one_rank"):
                    continue
                total[tokens] += everybodys[rank][part][first:first + len(tokens)].float()
                if self.fails("sum_in_bfloat16"):
                    total = total.to(dtype).float()
            return total.to(dtype)

        home = None if topk_weights is None else summed(1, [], torch.float32)
        return summed(0, biases, x.dtype), home, EventOverlap(EventHandle())

    internode_dispatch, internode_combine = dispatch, combine

    @staticmethod
    def get_low_latency_rdma_size_hint(num_max_dispatch_tokens_per_rank, hidden, num_ranks, num_experts):
        return 1

    def clean_low_latency_buffer(self, num_max_dispatch_tokens_per_rank, hidden, num_experts):
        pass

    def low_latency_dispatch(self, x, topk_idx, num_max_dispatch_tokens_per_rank, num_experts,
                             cumulative_local_expert_recv_stats=None, dispatch_wait_recv_cost_stats=None, use_fp8=True,
                             round_scale=False, use_ue8m0=False, async_finish=False, return_recv_hook=False):
        local, places = num_experts // self.size, self.size * num_max_dispatch_tokens_per_rank
        clamp = 0 if self.fails("scale_not_clamped") else 1e-4
        sent = quantised(x, round_scale, clamp) if use_fp8 else (x,)
        everybodys = gathered(self.group, (sent, topk_idx))
        rows = torch.zeros(local, places, x.shape[1], dtype=sent[0].dtype)
        scales = torch.zeros(local, x.shape[1] // 128, places).transpose(1, 2)
        tokens = torch.full((local, places), -1, dtype=torch.int32)
        layout, counts = torch.zeros(local, self.size, dtype=torch.int64), torch.zeros(local, dtype=torch.int32)
        for expert in range(local):
            for source, (theirs, ids) in enumerate(everybodys):
                wanted = (ids == self.rank * local + expert).any(1).nonzero().squeeze(1)
                begin, end = int(counts[expert]), int(counts[expert]) + len(wanted)
                rows.view(torch.uint8 if use_fp8 else x.dtype)[expert, begin:end] = theirs[0].view(
                    torch.uint8 if use_fp8 else x.dtype)[wanted]
                if use_fp8:
                    scales[expert, begin:end] = theirs[1][wanted]
                tokens[expert, begin:end] = wanted.int() + self.fails("source_tokens_shifted")
                layout[expert, source] = begin << 32 | len(wanted)
                counts[expert] = end
        if use_ue8m0:
            exponents = (torch.frexp(scales)[1] - 1 + 127).where(scales > 0, 0).to(torch.uint8)
            scales = exponents.contiguous().view(torch.int32).transpose(1, 2).contiguous().transpose(1, 2)
        stats = cumulative_local_expert_recv_stats
        if stats is not None:
            stats.copy_(counts if self.fails("statistics_overwritten") else stats + counts)
        handle = (tokens, layout, num_max_dispatch_tokens_per_rank, x.shape[1], num_experts)
        return ((rows, scales) if use_fp8 else rows, counts, handle, EventOverlap(EventHandle()),
                (lambda: None) if return_recv_hook else None)

    def get_next_low_latency_combine_buffer(self, handle):
        self.next[handle[0].data_ptr()] = torch.zeros(*handle[0].shape, handle[3], dtype=torch.bfloat16)
        return self.next[handle[0].data_ptr()]

    def low_latency_combine(self, x, topk_idx, topk_weights, handle, use_logfmt=False, zero_copy=False,
                            async_finish=False, return_recv_hook=False, out=None, combine_wait_recv_cost_stats=None):
        if zero_copy and not self.fails("zero_copy_ignored"):
            x = self.next[handle[0].data_ptr()]
        everybodys = gathered(self.group, (x, handle[0], handle[1]))
        total, local = torch.zeros(len(topk_idx), x.shape[2]), handle[4] // self.size
        if self.fails("weights_rounded"):
            topk_weights = topk_weights.bfloat16().float()
        for k in range(topk_idx.shape[1]):
            for token, expert in enumerate(topk_idx[:, k].tolist()):
                if expert < 0:
                    continue
                rows, tokens, layout = (part[expert % local] for part in everybodys[expert // local])
                begin, count = int(layout[self.rank]) >> 32, int(layout[self.rank]) & 0xffffffff
                row = begin + tokens[begin:begin + count].tolist().index(token)
                total[token] += topk_weights[token, k] * rows[row].float()
        result = total.to(x.dtype)
        if out is not None and not self.fails("out_ignored"):
            result = out.copy_(result)
        return result, EventOverlap(EventHandle()), (lambda: None) if return_recv_hook else None


class EPHandle:
    pass


class ElasticBuffer(Naive):
    def __init__(self, group, num_bytes=None, num_cpu_bytes=0, num_max_tokens_per_rank=0, hidden=0, num_topk=0,
                 use_fp8_dispatch=False, deterministic=False, allow_hybrid_mode=True, allow_multiple_reduction=True,
                 prefer_overlap_with_compute=True, sl_idx=3, num_allocated_qps=0, num_cpu_timeout_secs=300,
                 num_gpu_timeout_secs=100, explicitly_destroy=False):
        self.group, self.rank, self.size = group, dist.get_rank(group), dist.get_world_size(group)
        self.multiple_reduction = allow_multiple_reduction

    get_comm_stream, capture = Buffer.get_comm_stream, staticmethod(EventHandle)

    def destroy(self):
        pass

    def barrier(self, use_comm_stream=True, with_cpu_sync=False, sequential=True):
        while self.fails("hangs") and self.rank == 0:
            pass
        dist.barrier(self.group)

    @staticmethod
    def get_buffer_size_hint(group, num_max_tokens_per_rank, hidden, num_topk=0, use_fp8_dispatch=False,
                             allow_hybrid_mode=True, allow_multiple_reduction=True):
        return 1

    def get_physical_domain_size(self):
        return 1, self.size

    get_logical_domain_size = get_physical_domain_size

    def dispatch(self, x, topk_idx=None, topk_weights=None, cumulative_local_expert_recv_stats=None, num_experts=None,
                 num_max_tokens_per_rank=None, expert_alignment=None, num_sms=0, num_qps=0, previous_event=None,
                 previous_event_before_epilogue=None, async_with_compute_stream=False, allocate_on_comm_stream=False,
                 handle=None, do_handle_copy=True, do_cpu_sync=None, do_expand=False, do_zero_padding=False,
                 use_tma_aligned_col_major_sf=False):
        cached = handle is not None
        if cached:
            topk_idx, num_experts, do_cpu_sync = handle.topk_idx, handle.num_experts, handle.sync
            num_max_tokens_per_rank, expert_alignment = handle.num_max_tokens_per_rank, handle.expert_alignment
        x = x if isinstance(x, tuple) else (x,)
        everybodys, local = gathered(self.group, (x, topk_idx, topk_weights)), num_experts // self.size
        places = [(s, t) for s, (_, ids, _) in enumerate(everybodys)
                  for t in (torch.where(ids >= 0, ids // local, -1) == self.rank).any(1).nonzero().squeeze(1).tolist()]
        ids = torch.stack([everybodys[s][1][t] for s, t in places]) if places else topk_idx[:0]
        ids = torch.where((ids >= 0) & (ids // local == self.rank), ids - self.rank * local, -1)
        counts = [int((ids == expert).sum()) for expert in range(local)]
        aligned = [-(-count // expert_alignment) * expert_alignment for count in counts]
        starts = [sum((counts if self.fails("expert_start_unaligned") else aligned)[:e]) for e in range(local)]
        taken, metadata = list(starts), torch.full((len(places), topk_idx.shape[1] + 2), -1, dtype=torch.int32)
        for row, (source, token) in enumerate(places):
            metadata[row, 0] = source * num_max_tokens_per_rank + token
            for k, expert in enumerate(ids[row].tolist()):
                if expert >= 0:
                    metadata[row, 1] = k
                    if do_expand:
                        metadata[row, 2 + k], taken[expert] = taken[expert], taken[expert] + 1
        num_rows = sum(aligned) if do_expand else len(places)
        sync = do_cpu_sync is None or do_cpu_sync
        if not sync:
            num_rows = num_max_tokens_per_rank * self.size
        results = [torch.zeros(num_rows, part.shape[1], dtype=part.dtype) for part in x]
        weights = torch.zeros((num_rows,) if do_expand else (num_rows, ids.shape[1]))
        for row, (source, token) in enumerate(places):
            for k in range(ids.shape[1]) if do_expand else [0]:
                to = int(metadata[row, 2 + k]) if do_expand else row
                if to < 0:
                    continue
                for result, part in zip(results, everybodys[source][0]):
                    result.view(torch.uint8)[to] = part[token].contiguous().view(torch.uint8)
                if everybodys[source][2] is not None:
                    weights[to] = everybodys[source][2][token][k] if do_expand else everybodys[source][2][token]
        if use_tma_aligned_col_major_sf:
            pitch = -(-num_rows // 4) * 4
            by_column = torch.zeros(results[1].shape[1], pitch, dtype=results[1].dtype)
            by_column[:, :num_rows] = results[1].T
            results[1] = by_column.T[:num_rows]
        if cumulative_local_expert_recv_stats is not None:
            cumulative_local_expert_recv_stats += torch.tensor(counts, dtype=torch.int32)
        recv_x = tuple(results) if len(results) > 1 else results[0]
        if cached:
            return recv_x, None if do_expand else ids, weights, handle, EventOverlap(EventHandle())
        handle = EPHandle()
        handle.__dict__.update(
            do_expand=do_expand, num_experts=num_experts, expert_alignment=expert_alignment, sync=sync, num_sms=4,
            num_max_tokens_per_rank=num_max_tokens_per_rank, topk_idx=topk_idx, recv_src_metadata=metadata,
            num_recv_tokens_per_expert_list=aligned if sync else [],
            num_unaligned_recv_tokens_per_expert=torch.tensor(counts, dtype=torch.int32),
            psum_num_recv_tokens_per_scaleup_rank=torch.tensor(
                [sum(s <= source for s, _ in places) for source in range(self.size)], dtype=torch.int32),
            psum_num_recv_tokens_per_expert=torch.tensor(taken, dtype=torch.int32) if do_expand else torch.tensor(
                aligned).cumsum(0).int())
        return recv_x, None if do_expand else ids, weights, handle, EventOverlap(EventHandle())

    def combine(self, x, handle, topk_weights=None, bias=None, num_sms=0, num_qps=0, previous_event=None,
                previous_event_before_epilogue=None, async_with_compute_stream=False, allocate_on_comm_stream=False):
        everybodys = gathered(self.group, (x, handle.recv_src_metadata, topk_weights))
        ids, local, biases = handle.topk_idx, handle.num_experts // self.size, bias
        biases = [b for b in (bias if isinstance(bias, (tuple, list)) else (bias,)) if b is not None]
        total, home = torch.zeros(len(ids), x.shape[1]), torch.zeros(ids.shape)
        for each in biases:
            total = total + each.float()
        for token in range(len(ids)):
            number, terms = self.rank * handle.num_max_tokens_per_rank + token, {}
            for rank in sorted({e // local for e in ids[token].tolist() if e >= 0}):
                rows, metadata, weights = everybodys[rank]
                row = metadata[:, 0].tolist().index(number)
                here = [k for k, e in enumerate(ids[token].tolist()) if e >= 0 and e // local == rank]
                if weights is not None:
                    home[token, here] = weights[row, here]
                if not handle.do_expand:
                    terms[rank] = rows[row].float()
                elif not self.multiple_reduction:
                    terms.update({k: rows[int(metadata[row, 2 + k])].float() for k in here})
                else:
                    partial = torch.zeros(x.shape[1])
                    for k in here:
                        partial = partial + rows[int(metadata[row, 2 + k])].float()
                    terms[here[-1]] = partial if self.fails("partial_not_rounded") else partial.to(x.dtype).float()
            for _, term in sorted(terms.items()):
                total[token] += term
        return total.to(x.dtype), None if topk_weights is None else home, EventOverlap(EventHandle())


def get_physical_domain_size(group):
    return 1, dist.get_world_size(group)


get_logical_domain_size = get_physical_domain_size


class Planted:
    """The names of this module, with the fault `name`."""

    def __init__(self, name):
        self.__dict__.update({each: value for each, value in globals().items() if not each.startswith("__")})
        self.Buffer = type("Buffer", (Buffer,), {"fault": name})
        self.ElasticBuffer = type("ElasticBuffer", (ElasticBuffer,), {"fault": name})
        if name == "signature_renamed":
            self.Buffer.dispatch = lambda self, x, handle=None, tokens_per_rank=None, **rest: None


def __getattr__(name):
    if name in FAULTS:
        return Planted(name)
    raise AttributeError(name)
