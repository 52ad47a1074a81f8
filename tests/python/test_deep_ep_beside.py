"""The modules of deep_ep.utils: names and signatures as in DeepEP, and the results of the functions."""

import gc
import importlib
import inspect
import sys

import pytest

torch = pytest.importorskip("torch")

import ferry
import ferry.deep_ep
from ferry import _core
from ferry.deep_ep.beside import comm, envs, find_pkgs, gate, math, private, refs, semantic, testing
from ferry.conformance.low_latency_case import quantised

_ARGUMENTS = {
    "math": {"calc_diff": "x y", "safe_div": "a b", "ceil_div": "x y", "align": "x y", "per_token_cast_to_fp8": "x",
             "per_token_cast_back": "x_fp8 x_scales", "inplace_unique": "x num_slots",
             "create_grouped_scores": "scores group_idx num_groups", "hash_tensor": "t", "hash_tensors": "args",
             "count_bytes": "args"},
    "envs": {"init_dist": "local_rank num_local_ranks seed", "init_seed": "seed", "get_local_seed": "",
             "get_global_seed": "", "dist_print": "s once_in_node", "get_physical_domain_size": "group",
             "get_logical_domain_size": "group allow_hybrid_mode", "check_nvlink_connections": "group",
             "check_torch_deterministic": "", "get_nvlink_gbs": "factor", "get_rdma_gbs": "nic_name",
             "check_fast_rdma_atomic_support": "nic_name"},
    "refs": {"dispatch": "x topk_idx topk_weights num_max_tokens_per_rank num_experts",
             "generate_pre_combine_data": "src_token_global_idx num_max_tokens_per_rank num_topk hidden",
             "ordered_accumulate": "data initial_value",
             "combine": "y topk_idx num_scaleout_ranks num_scaleup_ranks num_experts bias reduce_in_local "
                        "reduce_in_scaleup"},
    "gate": {"get_unbalanced_scores": "num_tokens num_experts num_ranks num_topk ratio precise"},
    "testing": {"bench": "fn num_warmups num_tests post_fn flush_l2",
                "bench_kineto": "fn kernel_names num_tests suppress_kineto_output trace_path flush_l2 "
                                "barrier_comm_profiling num_kernels_per_period barrier",
                "flush_l2_cache": "enabled", "suppress_stdout_stderr": "", "empty_suppress": ""},
    "semantic": {"value_or": "value default", "weak_lru": "maxsize typed"},
    "comm": {"get_nccl_comm_handle": "group force_new_comm", "destroy_all_managed_nccl_comm": ""},
}


@pytest.mark.parametrize("module", _ARGUMENTS)
def test_names_and_arguments(module):
    ferry.deep_ep.install()
    found = importlib.import_module(f"deep_ep.utils.{module}")
    for name, arguments in _ARGUMENTS[module].items():
        assert list(inspect.signature(getattr(found, name)).parameters) == arguments.split(), name
    for name in [name for name in sys.modules if name.partition(".")[0] == "deep_ep"]:
        del sys.modules[name]


def test_rounding_and_comparisons():
    x = torch.randn(5, 7)
    assert math.calc_diff(x, x) == pytest.approx(0, abs=1e-15) and math.calc_diff(x, -x) > 0.1
    assert math.safe_div(0, 0) == 0 and math.safe_div(3, 2) == 1.5 and (math.ceil_div(7, 3), math.align(7, 3)) == (3, 9)
    with pytest.raises(ZeroDivisionError):
        math.safe_div(1, 0)
    assert math.count_bytes(x, None, (x, [x])) == 3 * 140
    assert math.hash_tensors(x, (x,)) == 0 and math.hash_tensors(x, None) == math.hash_tensor(x)
    assert math.hash_tensor(x) == int(x.view(torch.int32).long().sum())


@pytest.mark.parametrize("hidden", [128, 200, 512])
def test_fp8_and_back(hidden):
    x = (torch.randn(6, hidden) * 3).bfloat16()
    x[0] = 0
    rows, scales = math.per_token_cast_to_fp8(x)
    bytes_, exact = quantised(x, "fp8")
    assert torch.equal(rows.view(torch.uint8), bytes_) and torch.equal(scales, exact)
    assert math.calc_diff(math.per_token_cast_back(rows, scales), x) < 9e-4
    assert math.per_token_cast_back(rows[:0], scales[:0]).shape == (0, hidden)
    packed = torch.full((6, -(-hidden // 512)), 0x80808080 - (1 << 32), dtype=torch.int64).to(torch.int32)  # 2 each
    assert torch.equal(math.per_token_cast_back(rows, packed), (rows.float() * 2).bfloat16())


_SHAPES_OF_SCALES = {  # of 8 rows of 512 channels: upstream's callers give any of these
    "rows": lambda scales: scales,
    "flat": lambda scales: scales.reshape(-1),
    "experts": lambda scales: scales.view(2, 4, -1),
    "by_128": lambda scales: scales.view(-1, 512 // 128),
    "columns": lambda scales: scales.t().contiguous().t(),
    "strided": lambda scales: torch.stack([scales, scales + 1], 2)[:, :, 0],
}


@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize("shape", _SHAPES_OF_SCALES)
def test_scales_count_by_their_number_whatever_their_shape(shape, packed):
    rows = (torch.randn(8, 512) * 3).to(torch.float8_e4m3fn)
    exponents = torch.arange(115, 115 + 32).view(8, 4)
    exact = torch.ldexp(torch.ones(8, 4), exponents - 127)
    scales = exponents.to(torch.uint8).view(torch.int32) if packed else exact
    wanted = (rows.float().view(8, 4, 128) * exact.unsqueeze(2)).view(8, 512).bfloat16()
    assert torch.equal(math.per_token_cast_back(rows, _SHAPES_OF_SCALES[shape](scales)), wanted)


def test_other_numbers_of_scales():
    rows = torch.ones(6, 300).to(torch.float8_e4m3fn)
    of_rows = torch.arange(1.0, 7).view(6, 1)
    assert torch.equal(math.per_token_cast_back(rows, of_rows), of_rows.expand(6, 300).bfloat16())
    assert math.per_token_cast_back(rows.view(2, 3, 300)[:0], of_rows[:0]).shape == (0, 3, 300)
    assert torch.equal(math.per_token_cast_back(torch.ones(300, 6).to(torch.float8_e4m3fn).t(), of_rows),
                       of_rows.expand(6, 300).bfloat16())
    with pytest.raises(ValueError, match=r"x_scales \[5, 3\] has 15 scales for 6 rows of 3 groups"):
        math.per_token_cast_back(rows, torch.ones(5, 3))
    with pytest.raises(ValueError, match=r"x_scales \[6, 2\] has 12 scales for 6 rows of 3 groups"):
        math.per_token_cast_back(rows, torch.ones(6, 2))


def test_groups_and_distinct_values():
    x = torch.tensor([[3, 1, 3, -1], [-1, -1, -1, -1], [0, 2, 1, 3]])
    math.inplace_unique(x, 4)
    assert x.tolist() == [[3, 1, -1, -1], [-1, -1, -1, -1], [3, 2, 1, 0]]
    wide = torch.tensor([[1, 1, 0]])
    math.inplace_unique(wide, 2)
    assert wide.tolist() == [[1, 0, -1]]
    with pytest.raises(ValueError, match="below num_slots=1"):
        math.inplace_unique(wide, 1)
    scores = math.create_grouped_scores(torch.ones(2, 6), torch.tensor([[0], [2]]), 3)
    assert scores.tolist() == [[1, 1, 0, 0, 0, 0], [0, 0, 0, 0, 1, 1]]


@pytest.mark.parametrize("ratio", [1.0, 1.5, 3.0])
@pytest.mark.parametrize("precise", [False, True])
def test_a_router_that_prefers_the_first_rank(ratio, precise):
    torch.manual_seed(3)
    scores = gate.get_unbalanced_scores(512, 32, 8, 4, ratio, precise)
    tokens = ((scores.topk(4, dim=1).indices // 4).unsqueeze(2) == torch.arange(8)).any(1).sum(0)
    assert scores.shape == (512, 32) and scores.dtype == torch.float32 and int(tokens.sum()) <= 2048
    assert float(tokens[0]) / float(tokens[1:].float().mean()) == pytest.approx(ratio, rel=0.1 if precise else 0.2)


def test_timers_keep_the_shape_of_results_and_run_the_same_number_of_rounds():
    calls = []
    average, least, most = testing.bench(lambda: calls.append(1), num_tests=100)
    assert 0 < least <= average <= most and len(calls) <= 10
    assert testing.bench_kineto(lambda: None, "kernel") > 0
    assert [len(each) for each in testing.bench_kineto(lambda: None, ("a", "b"), num_kernels_per_period=2)] == [2, 2]
    one, = testing.bench_kineto(lambda: None, ["a"], suppress_kineto_output=True)
    assert one > 0


def test_nothing_is_printed_inside(capfd):
    with testing.suppress_stdout_stderr():
        print("lost")
    with testing.empty_suppress():
        print("kept")
    assert capfd.readouterr().out == "kept\n"


def test_references():
    data = torch.randn(4, 3, 8).bfloat16()
    total = ((data[:, 0].float() + data[:, 1].float()) + data[:, 2].float()).bfloat16()
    assert torch.equal(refs.ordered_accumulate(data), total)
    ids = torch.tensor([[0, 1, 2], [3, 3, -1], [-1, -1, -1], [1, 2, 3]])  # 4 experts, 2 nodes of 1 rank
    local = (data[:, 0].float() + data[:, 1].float()).bfloat16()
    assert torch.equal(refs.combine(data, ids, 2, 1, 4, None, True, False)[0],
                       (local[0].float() + data[0, 2].float()).bfloat16())
    assert torch.equal(refs.combine(data, ids, 2, 1, 4, total, False, False)[2], total[2])
    with pytest.raises(ValueError, match="needs reduce_in_local"):
        refs.combine(data, ids, 2, 1, 4, None, False, True)


def test_a_cache_that_keeps_no_object():
    class Layer:
        calls = 0

        @semantic.weak_lru(maxsize=4)
        def square(self, x):
            self.calls += 1
            return x * x

    layer = Layer()
    assert layer.square(3) == layer.square(3) == 9 and layer.calls == 1
    kept = __import__("weakref").ref(layer)
    del layer
    gc.collect()
    assert kept() is None and semantic.value_or(None, 4) == 4 and semantic.value_or(0, 4) == 0


@pytest.mark.parametrize("call", [comm.NCCLCommHandle, lambda: comm.get_nccl_comm_handle(None),
                                  find_pkgs.find_cuda_home, find_pkgs.find_nccl_root,
                                  private.calculate_elastic_buffer_size])
def test_what_a_cpu_does_not_have_is_refused_by_name(call):
    with pytest.raises(ferry.Error, match="[A-Za-z_]+: there is no|uses no CUDA|is private"):
        call()


def test_what_runs_at_import():
    assert find_pkgs.check_nccl_so() is find_pkgs.init_jit() is comm.destroy_all_managed_nccl_comm() is None
    assert private.get_elastic_buffer_alignment() == 2 << 20 and private.is_sm90_compiled() is _core.cuda_built()
    assert envs.get_nvlink_gbs() > 0 and envs.get_rdma_gbs("mlx5_0") > 0
    assert envs.check_fast_rdma_atomic_support("mlx5_0") is False
    envs.check_torch_deterministic()
