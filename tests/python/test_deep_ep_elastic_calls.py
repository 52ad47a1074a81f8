"""Refusals of ferry.deep_ep.ElasticBuffer (an error that names the fault on the rank that is wrong, ferry.PeerRejected
on the others, and a buffer that goes on), its all-gather sessions, and features that it does not have."""

import time

import pytest

torch = pytest.importorskip("torch")

import ferry
from ferry.conformance.deep_ep_oracle import Inputs, same_bits
from ferry.deep_ep import Buffer, ElasticBuffer, EPHandle

M = 9
WRONG = 1
INPUTS = Inputs(71, [6, 9, 4], num_experts=6, top_k=2)


def arguments(rank, **more):
    return {**dict(x=INPUTS.x[rank], topk_idx=INPUTS.topk_idx[rank], topk_weights=INPUTS.topk_weights[rank],
                   num_experts=6), **more}


def check_a_good_pair(buffer, rank):
    recv_x, _, weights, handle, _ = buffer.dispatch(**arguments(rank))
    assert same_bits(recv_x, INPUTS.received(rank, INPUTS.x))
    outputs = [INPUTS.received(r, INPUTS.x) for r in range(INPUTS.num_ranks)]
    out, home, _ = buffer.combine(recv_x, handle, weights)
    assert same_bits(out, INPUTS.combined(rank, outputs))
    return handle


def refused(call, match, *, first=False, error=ferry.InvalidArgument, **options):
    """call(buffer, rank, handle) on ranks of which WRONG is wrong; `first`: there was no call before."""

    def body(group):
        rank, buffer = group.rank, ElasticBuffer(group, num_max_tokens_per_rank=M, num_gpu_timeout_secs=30, **options)
        handle = None if first else check_a_good_pair(buffer, rank)
        began = time.monotonic()
        wanted, text = (error, match) if rank == WRONG else (ferry.PeerRejected, f"rank {WRONG}")
        with pytest.raises(wanted, match=text):
            call(buffer, rank, handle)
        assert time.monotonic() - began < 20
        check_a_good_pair(buffer, rank)

    ferry.run_threads(INPUTS.num_ranks, body, deadline=30.0)


BAD_DISPATCHES = {
    "x None": (dict(x=None), "x is"),
    "x not contiguous": (dict(x=torch.zeros(16, 9, dtype=torch.bfloat16).t()), "not contiguous"),
    "x on meta": (dict(x=torch.zeros(9, 16, device="meta")), "on meta"),
    "scales of other tokens": (dict(x=(torch.zeros(9, 16), torch.zeros(8, 1))), r"scales of x are float32 \[8, 1\]"),
    "no scales": (dict(x=(torch.zeros(9, 16), torch.zeros(9, 0))), r"float32 \[9, 0\]"),
    "column-major bytes": (dict(x=(torch.zeros(9, 16), torch.zeros(9, 4, dtype=torch.uint8)),
                                use_tma_aligned_col_major_sf=True), "4 bytes each"),
    "no ids": (dict(topk_idx=None), "topk_idx is NoneType"),
    "ids float": (dict(topk_idx=torch.zeros(9, 2)), "topk_idx is float32"),
    "ids 1-d": (dict(topk_idx=torch.zeros(9, dtype=torch.int64)), r"topk_idx is int64 \[9\]"),
    "ids of no expert": (dict(topk_idx=torch.full((9, 2), 6)), "6"),
    "more tokens than ids": (dict(topk_idx=INPUTS.topk_idx[1][:8]), "x has 9 tokens, topk_idx 8"),
    "weights double": (dict(topk_weights=torch.zeros(9, 2, dtype=torch.float64)), "topk_weights"),
    "weights of other tokens": (dict(topk_weights=torch.zeros(8, 2)), r"topk_weights"),
    "no experts": (dict(num_experts=None), "num_experts is None"),
    "no alignment": (dict(expert_alignment=0), "expert_alignment is 0"),
    "negative bound": (dict(num_max_tokens_per_rank=-1), "num_max_tokens_per_rank is -1"),
    "stats int64": (dict(cumulative_local_expert_recv_stats=torch.zeros(2, dtype=torch.int64)), "recv_stats is int64"),
    "stats of all": (dict(cumulative_local_expert_recv_stats=torch.zeros(6, dtype=torch.int32)), r"need .* \[2\]"),
}


@pytest.mark.parametrize("name", BAD_DISPATCHES)
@pytest.mark.parametrize("first", [False, True])
def test_bad_dispatch(name, first):
    changes, match = BAD_DISPATCHES[name]
    refused(lambda buffer, rank, _: buffer.dispatch(**arguments(rank, **(changes if rank == WRONG else {}))), match,
            first=first)


def test_more_tokens_than_the_bound():
    inputs = Inputs(72, [3, 5, 2], num_experts=6, top_k=2)

    def call(buffer, rank, _):
        buffer.dispatch(inputs.x[rank], inputs.topk_idx[rank], num_experts=6, num_max_tokens_per_rank=4)

    refused(call, "x has 5 tokens, topk_idx 5, num_max_tokens_per_rank is 4")


OTHER_SHAPES = {
    "hidden": dict(x=INPUTS.x[WRONG][:, :8].contiguous()),
    "type": dict(x=INPUTS.x[WRONG].float()),
    "scales": dict(x=(INPUTS.x[WRONG], torch.zeros(9, 1))),
    "experts": dict(num_experts=12),
    "top-k": dict(topk_idx=INPUTS.topk_idx[WRONG][:, :1].contiguous(), topk_weights=None),
    "alignment": dict(expert_alignment=8),
    "layout": dict(do_expand=True),
    "bound": dict(num_max_tokens_per_rank=10),
}


@pytest.mark.parametrize("name", OTHER_SHAPES)
def test_a_rank_that_is_alone_with_a_shape(name):
    def call(buffer, rank, _):
        buffer.dispatch(**arguments(rank, **(OTHER_SHAPES[name] if rank == WRONG else {})))

    refused(call, "another shape than the one before", error=ferry.Mismatch)


def test_ranks_that_differ_in_shapes_that_all_know():
    def body(group):
        rank, buffer = group.rank, ElasticBuffer(group, num_max_tokens_per_rank=M, num_gpu_timeout_secs=30)
        known = dict(num_experts=12), dict(expert_alignment=8)
        for shape in known:
            buffer.dispatch(**arguments(rank, **shape))
        check_a_good_pair(buffer, rank)
        with pytest.raises(ferry.Mismatch if rank == WRONG else ferry.PeerRejected, match="num_experts=12"):
            buffer.dispatch(**arguments(rank, **(known[0] if rank == WRONG else {})))
        check_a_good_pair(buffer, rank)
        with pytest.raises(ferry.Mismatch, match="num_experts=12.*num_experts=6|num_experts=6.*num_experts=12"):
            buffer.dispatch(**arguments(rank, **known[rank == WRONG]))
        check_a_good_pair(buffer, rank)

    ferry.run_threads(INPUTS.num_ranks, body, deadline=10.0)


def test_a_rank_that_is_wrong_when_the_others_change_shape():
    def call(buffer, rank, _):
        buffer.dispatch(**arguments(rank, num_experts=12, **(dict(x=None) if rank == WRONG else {})))

    refused(call, "x is")


def test_all_ranks_are_wrong():
    def body(group):
        rank, buffer = group.rank, ElasticBuffer(group, num_max_tokens_per_rank=M, num_gpu_timeout_secs=30)
        mistakes = [dict(x=None), dict(topk_weights=torch.zeros(1)), dict(topk_idx=None)]
        for _ in range(2):
            check_a_good_pair(buffer, rank)
            with pytest.raises(ferry.InvalidArgument, match="need"):
                buffer.dispatch(**arguments(rank, **mistakes[rank]))

    ferry.run_threads(3, body, deadline=30.0)


def test_ranks_that_differ_in_the_first_bound():
    def body(group):
        buffer = ElasticBuffer(group, num_max_tokens_per_rank=M + (group.rank == WRONG), num_gpu_timeout_secs=30)
        with pytest.raises(ferry.Mismatch, match="num_max_tokens_per_rank=10"):
            buffer.dispatch(**arguments(group.rank))

    ferry.run_threads(3, body, deadline=30.0)


BAD_CACHED = {
    "ids": (dict(topk_idx=INPUTS.topk_idx[1]), "takes no topk_idx"),
    "stats": (dict(cumulative_local_expert_recv_stats=torch.zeros(2, dtype=torch.int32)), "takes no cumulative"),
    "cpu sync": (dict(do_cpu_sync=True), "takes no do_cpu_sync"),
    "other experts": (dict(num_experts=7), "num_experts is 7, the handle's dispatch had 6"),
    "other bound": (dict(num_max_tokens_per_rank=8), "is 8, the handle's dispatch had 9"),
    "other alignment": (dict(expert_alignment=8), "is 8, the handle's dispatch had 1"),
    "expanded": (dict(do_expand=True), "do_expand is True"),
    "other tokens": (dict(x=INPUTS.x[0]), "x has 6 tokens, the handle's dispatch had 9"),
    "no handle of ours": (dict(handle=EPHandle(*[None] * 14)), "no tensor that a dispatch"),
    "weights double": (dict(topk_weights=torch.zeros(9, 2, dtype=torch.float64)), "topk_weights"),
}


@pytest.mark.parametrize("name", BAD_CACHED)
def test_bad_cached_dispatch(name):
    changes, match = BAD_CACHED[name]

    def call(buffer, rank, handle):
        buffer.dispatch(**{**dict(x=INPUTS.x[rank], handle=handle), **(changes if rank == WRONG else {})})

    refused(call, match)


BAD_COMBINES = {
    "x None": (dict(x=None), "x is NoneType"),
    "x int32": (lambda n: dict(x=torch.zeros(n, 16, dtype=torch.int32)), "x is int32"),
    "a row more": (lambda n: dict(x=torch.zeros(n + 1, 16, dtype=torch.bfloat16)), "need bfloat16"),
    "x 1-d": (dict(x=torch.zeros(16)), "x is float32"),
    "weights 1-d": (lambda n: dict(topk_weights=torch.zeros(n)), "topk_weights is float32"),
    "weights double": (lambda n: dict(topk_weights=torch.zeros(n, 2, dtype=torch.float64)), "topk_weights is float64"),
    "bias of other tokens": (dict(bias=torch.zeros(8, 16, dtype=torch.bfloat16)), "bias"),
    "bias float": (dict(bias=torch.zeros(9, 16)), "bias"),
    "three biases": (dict(bias=[torch.zeros(9, 16, dtype=torch.bfloat16)] * 3), "3"),
    "no handle": (dict(handle=None), "handle is NoneType, need the EPHandle"),
}


@pytest.mark.parametrize("name", BAD_COMBINES)
def test_bad_combine(name):
    changes, match = BAD_COMBINES[name]

    def call(buffer, rank, handle):
        wrong = changes(handle.num_recv_tokens) if callable(changes) else changes
        given = dict(x=INPUTS.received(rank, INPUTS.x), handle=handle)
        buffer.combine(**{**given, **(wrong if rank == WRONG else {})})

    refused(call, match)


def use_wrongly(use, buffer, rank, handle, wrong, dtype=torch.bfloat16):
    x = INPUTS.x[rank].to(dtype) if use == "dispatch" else INPUTS.received(rank, INPUTS.x)
    getattr(buffer, use)(x, handle=wrong if rank == WRONG else handle)


@pytest.mark.parametrize("use", ["dispatch", "combine"])
@pytest.mark.parametrize("rebuilt, said", [(True, "of Buffer.dispatch, need one of ElasticBuffer.dispatch"),
                                           (False, "handle is tuple, need the EPHandle of a dispatch")])
def test_a_handle_of_another_kind(use, rebuilt, said):
    def call(buffer, rank, handle):
        other = Buffer(buffer.group)
        per_rank, _, per_expert, mask, _ = other.get_dispatch_layout(INPUTS.topk_idx[rank], 6)
        *_, normal, _ = other.dispatch(INPUTS.x[rank], num_tokens_per_rank=per_rank, is_token_in_rank=mask,
                                       num_tokens_per_expert=per_expert)
        again = EPHandle(**{**dict.fromkeys(vars(handle)), "recv_src_metadata": normal[3]})
        use_wrongly(use, buffer, rank, handle, again if rebuilt else normal)

    refused(call, said)


@pytest.mark.parametrize("use", ["dispatch", "combine"])
def test_no_handle_after_an_all_gather(use):
    """The other ranks are in the exchange of the last dispatch, not in that of the gathered tensors."""

    def call(buffer, rank, handle):
        with buffer.agrs_new_session():
            buffer.all_gather(torch.zeros(3))
        use_wrongly(use, buffer, rank, handle, EPHandle(*[None] * 14))

    refused(call, "no tensor that a dispatch")


@pytest.mark.parametrize("use", ["dispatch", "combine"])
def test_no_handle_after_a_dispatch_of_another_type(use):
    """The other ranks dispatch in the exchange that repeats a handle's routes for that type, but combine in the
    exchange that made the routes."""

    def call(buffer, rank, handle):
        buffer.dispatch(INPUTS.x[rank].float(), handle=handle)
        use_wrongly(use, buffer, rank, handle, EPHandle(*[None] * 14), torch.float32)

    refused(call, "no tensor that a dispatch")


def test_weights_of_expanded_rows_need_multiple_reduction():
    def call(buffer, rank, _):
        recv_x, _, weights, handle, _ = buffer.dispatch(**arguments(rank, do_expand=True))
        buffer.combine(recv_x, handle, weights if rank == WRONG else None)

    refused(call, "multiple reduction is off", allow_multiple_reduction=False)


# ---- all-gather sessions


@pytest.mark.parametrize("num_ranks", [1, 2, 3, 8])
def test_all_gather(num_ranks):
    def tensor(rank, shape, dtype):
        generator = torch.Generator().manual_seed(rank)
        return torch.randint(0, 100, shape, generator=generator).to(dtype)

    shapes = [((3, 5), torch.bfloat16), ((7,), torch.uint8), ((), torch.float64), ((0, 4), torch.int32),
              ((2, 1, 3), torch.bool)]

    def body(group):
        buffer = ElasticBuffer(group)
        limit = sum(ElasticBuffer.get_agrs_num_max_session_bytes(group, shape, dtype) for shape, dtype in shapes)
        assert ElasticBuffer.get_agrs_buffer_size_hint(group, limit) == 2 << 20
        buffer.agrs_set_config(limit, len(shapes))
        for _ in range(2):
            with buffer.agrs_new_session():
                mine = [tensor(group.rank, *each) for each in shapes]
                first, wait = buffer.all_gather(mine[0])
                *others, wait_all = buffer.all_gather(mine[1:])
                wait(), wait_all()
            for gathered, each in zip([first, *others], shapes):
                assert same_bits(gathered, torch.stack([tensor(rank, *each) for rank in range(num_ranks)]))

    ferry.run_threads(num_ranks, body)


def test_sessions():
    def body(group):
        buffer = ElasticBuffer(group)
        for outside in (buffer.destroy_agrs_session, lambda: buffer.all_gather(torch.zeros(1)),
                        lambda: buffer.agrs_get_inplace_tensor((1,), torch.float32)):
            with pytest.raises(ferry.InvalidArgument, match="no session"):
                outside()
        with buffer.agrs_new_session(enabled=False), pytest.raises(ferry.InvalidArgument, match="no session"):
            buffer.all_gather(torch.zeros(1))
        buffer.agrs_set_config(64, 1)
        buffer.create_agrs_session()
        for twice in (buffer.create_agrs_session, lambda: buffer.agrs_set_config(1, 1)):
            with pytest.raises(ferry.InvalidArgument, match="session"):
                twice()
        for many, match in (([torch.zeros(1)] * 2, "2 all-gathers"), ([torch.zeros(9)], "96 bytes"),
                            ([torch.zeros(2, 2).T], "contiguous")):
            with pytest.raises(ferry.InvalidArgument, match=match):
                buffer.all_gather(many)
        slot = buffer.agrs_get_inplace_tensor((2, 2), torch.float32).fill_(group.rank)
        assert [each.shape for each in buffer.agrs_get_inplace_tensor([(1, 2), (3,)], torch.int8)] == [(1, 2), (3,)]
        gathered, _ = buffer.all_gather(slot)
        assert gathered.shape == (2, 2, 2) and gathered[1 - group.rank].eq(1 - group.rank).all()
        buffer.destroy_agrs_session()

    ferry.run_threads(2, body)


def test_what_is_not_built_says_so():
    def body(group):
        buffer = ElasticBuffer(group)
        for call in (lambda: buffer.engram_write(torch.zeros(1, 8)), lambda: buffer.engram_fetch(indices=None),
                     lambda: ElasticBuffer.get_engram_storage_size_hint(num_entries=1, hidden=8),
                     lambda: buffer.pp_set_config(32, 1), lambda: buffer.pp_send(torch.zeros(8), 0),
                     lambda: buffer.pp_recv(torch.zeros(8), 0), lambda: ElasticBuffer.get_pp_buffer_size_hint(32, 1)):
            with pytest.raises(ferry.Error, match="not built") as caught:
                call()
            assert isinstance(caught.value, NotImplementedError) and caught.value.code == "not_built"

    ferry.run_threads(1, body)


# ---- processes


def _over_a_process_group(group, store):
    import torch.distributed as dist

    dist.init_process_group("gloo", init_method=f"file://{store}", rank=group.rank, world_size=group.size)
    try:
        buffer = ElasticBuffer(dist.group.WORLD, num_max_tokens_per_rank=M, explicitly_destroy=True)
        assert buffer.group is dist.group.WORLD
        assert ElasticBuffer.get_buffer_size_hint(dist.group.WORLD, M, 16, 2) > 0
        *_, handle, _ = buffer.dispatch(INPUTS.x[group.rank], INPUTS.topk_idx[group.rank], num_experts=6)
        ones = torch.ones(handle.num_recv_tokens, 16, dtype=torch.bfloat16)
        out, _, _ = buffer.combine(ones, handle)
        owners = torch.where(INPUTS.topk_idx[group.rank] < 0, -1, INPUTS.topk_idx[group.rank] // 3)
        ranks = torch.stack([(owners == rank).any(dim=1) for rank in range(2)]).sum(dim=0)
        assert out.eq(ranks.unsqueeze(1)).all()
        buffer.destroy()
    finally:
        dist.destroy_process_group()


def test_processes_of_a_torch_process_group(tmp_path):
    pytest.importorskip("torch.distributed")
    ferry.spawn(2, _over_a_process_group, str(tmp_path / "store"))
