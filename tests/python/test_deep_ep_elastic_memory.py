"""The memory in which ElasticBuffer's results lie, the time for which they keep it, and its contents before."""

import pytest

torch = pytest.importorskip("torch")

import ferry.conformance.elastic_oracle as oracle
import ferry
from ferry.conformance.deep_ep_oracle import Inputs, same_bits
from ferry.deep_ep import ElasticBuffer
from ferry.deep_ep.elastic_handle import find_state


def test_rows_of_the_window_may_be_written_to_after_combine():
    """Rank 1 has no tokens, so its combine is over while rank 0 still reads rank 1's rows."""
    inputs = Inputs(81, [1500, 0], hidden=2048, num_experts=2, top_k=2, unused=0.0)

    def body(group):
        rank, buffer = group.rank, ElasticBuffer(group, num_max_tokens_per_rank=1500)
        for expand in (False, True):
            recv_x, *_, handle, _ = buffer.dispatch(inputs.x[rank], inputs.topk_idx[rank], num_experts=2,
                                                    do_expand=expand)
            assert torch.equal(recv_x, inputs.x[0])  # one expert each: every token, once
            out, _, _ = buffer.combine(recv_x, handle)
            recv_x.fill_(float("nan"))
            assert same_bits(out, (inputs.x[rank].float() * 2).bfloat16())
            group.barrier()

    ferry.run_threads(2, body)


@pytest.mark.parametrize("column_major", [False, True])
def test_zero_padding_where_rows_were_before(column_major):
    full = Inputs(82, [20, 20], num_experts=4, top_k=4, unused=0.0)
    sparse = Inputs(83, [20, 20], num_experts=4, top_k=4, unused=0.7)

    def body(group):
        rank, buffer = group.rank, ElasticBuffer(group, num_max_tokens_per_rank=20)
        for inputs in (full, sparse):
            x = inputs.x[rank].view(torch.uint8), torch.rand(20, 3) + 1
            recv_x, *_, handle, _ = buffer.dispatch(
                x, inputs.topk_idx[rank], num_experts=4, expert_alignment=64, do_expand=True, do_zero_padding=True,
                use_tma_aligned_col_major_sf=column_major)
            is_gap = torch.tensor([slot == oracle.GAP for slot in oracle.slots(inputs, rank, 64)])
            for part in recv_x:
                assert (part[is_gap] == 0).all() and (part[~is_gap] != 0).any(dim=1).all()
            del recv_x, part

    ferry.run_threads(2, body)


def test_tokens_that_list_an_expert_many_times_outgrow_the_worst_case():
    ids = torch.zeros(5, 3, dtype=torch.int64)

    def body(group):
        rank, buffer = group.rank, ElasticBuffer(group, num_max_tokens_per_rank=5)
        x = torch.randn(5, 8, generator=torch.Generator().manual_seed(rank)).bfloat16()
        recv_x, _, weights, handle, _ = buffer.dispatch(x, ids, torch.ones(5, 3), num_experts=2, do_expand=True,
                                                        do_cpu_sync=False)
        assert len(recv_x) == len(weights) == handle.num_expanded_tokens == (30 if rank == 0 else 10)
        assert handle.psum_num_recv_tokens_per_expert.tolist() == ([30] if rank == 0 else [0])
        out, home, _ = buffer.combine(recv_x, handle, weights)
        assert same_bits(out, (x.float() * 3).bfloat16()) and (home == 1).all()

    ferry.run_threads(2, body)


@pytest.mark.parametrize("expand", [False, True])
def test_only_rows_keep_the_window(expand):
    inputs = Inputs(84, [6, 9, 4], num_experts=6, top_k=2)

    def body(group):
        rank, buffer, kept = group.rank, ElasticBuffer(group, num_max_tokens_per_rank=9), []
        for _ in range(12):
            rows, *others = buffer.dispatch(inputs.x[rank], inputs.topk_idx[rank], inputs.topk_weights[rank],
                                            num_experts=6, do_expand=expand)
            kept.append(others)
        exchange = find_state(kept[0][2]).exchange
        assert exchange.stats().bytes_copied == 0
        for _ in range(12):
            kept.append(buffer.dispatch(inputs.x[rank], handle=kept[0][2], do_expand=expand))
        assert exchange.stats().bytes_copied > 0 or len(rows) == 0  # with many rows kept they move out of the window

    ferry.run_threads(3, body)


def test_rows_are_routed_anew_once():
    inputs = Inputs(85, [6, 9, 4], num_experts=6, top_k=2)

    def body(group):
        rank, buffer = group.rank, ElasticBuffer(group, num_max_tokens_per_rank=9)
        *_, handle, _ = buffer.dispatch(inputs.x[rank], inputs.topk_idx[rank], num_experts=6)
        routes = []
        for _ in range(2):
            buffer.dispatch(inputs.x[rank].float(), handle=handle)
            routes.append(len(find_state(handle).routes))
        state = find_state(handle)
        assert routes == [2, 2] and all(route.num_rows == state.num_rows for route in state.routes.values())

    ferry.run_threads(3, body)
