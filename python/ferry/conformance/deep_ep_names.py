"""Clauses of deep_ep about public names and names of arguments. Inference engines read these signatures."""

import inspect

from .clauses import clause

_EXPORTS = ("Buffer", "ElasticBuffer", "EPHandle", "EventOverlap", "EventHandle", "Config", "topk_idx_t",
            "get_physical_domain_size", "get_logical_domain_size")
_LAYOUT = "num_tokens_per_rank num_tokens_per_rdma_rank is_token_in_rank num_tokens_per_expert topk_idx topk_weights"
_EVENTS = "previous_event async_finish allocate_on_comm_stream"
_BUFFER = {
    "__init__": "group num_nvl_bytes num_rdma_bytes low_latency_mode num_qps_per_rank "
                "allow_nvlink_for_low_latency_mode allow_mnnvl explicitly_destroy enable_shrink comm",
    "get_dispatch_layout": f"topk_idx num_experts {_EVENTS}",
    "dispatch": f"x handle {_LAYOUT} expert_alignment num_worst_tokens config {_EVENTS}",
    "combine": f"x handle topk_weights bias config {_EVENTS}",
    "internode_dispatch": f"x handle {_LAYOUT}",
    "internode_combine": "x handle topk_weights bias",
    "low_latency_dispatch": "x topk_idx num_max_dispatch_tokens_per_rank num_experts "
                            "cumulative_local_expert_recv_stats dispatch_wait_recv_cost_stats "
                            "use_fp8 round_scale use_ue8m0 async_finish return_recv_hook",
    "low_latency_combine": "x topk_idx topk_weights handle use_logfmt zero_copy async_finish return_recv_hook out "
                           "combine_wait_recv_cost_stats",
    "clean_low_latency_buffer": "num_max_dispatch_tokens_per_rank hidden num_experts",
    "get_low_latency_rdma_size_hint": "num_max_dispatch_tokens_per_rank hidden num_ranks num_experts",
    "get_next_low_latency_combine_buffer": "handle", "get_dispatch_config": "num_ranks",
    "get_combine_config": "num_ranks", "set_num_sms": "new_num_sms", "capture": "", "get_comm_stream": "",
    "destroy": "", "get_local_buffer_tensor": "dtype size offset use_rdma_buffer",
}
_ELASTIC_EVENTS = "previous_event previous_event_before_epilogue async_with_compute_stream allocate_on_comm_stream"
_ELASTIC = {
    "__init__": "group num_bytes num_cpu_bytes num_max_tokens_per_rank hidden num_topk use_fp8_dispatch deterministic "
                "allow_hybrid_mode allow_multiple_reduction prefer_overlap_with_compute sl_idx num_allocated_qps "
                "num_cpu_timeout_secs num_gpu_timeout_secs explicitly_destroy",
    "dispatch": "x topk_idx topk_weights cumulative_local_expert_recv_stats num_experts num_max_tokens_per_rank "
                f"expert_alignment num_sms num_qps {_ELASTIC_EVENTS} handle do_handle_copy do_cpu_sync do_expand "
                "do_zero_padding use_tma_aligned_col_major_sf",
    "combine": f"x handle topk_weights bias num_sms num_qps {_ELASTIC_EVENTS}",
    "barrier": "use_comm_stream with_cpu_sync sequential", "destroy": "", "capture": "", "get_comm_stream": "",
    "get_buffer_size_hint": "group num_max_tokens_per_rank hidden num_topk use_fp8_dispatch allow_hybrid_mode "
                            "allow_multiple_reduction",
    "get_physical_domain_size": "", "get_logical_domain_size": "",
}


def _check(world, owner, methods):
    for name, arguments in methods.items():
        method = getattr(owner, name, None)
        if method is None:
            world.complain(f"{owner.__name__}.{name} is missing")
            continue
        have = [each for each in inspect.signature(method).parameters if each != "self"]
        want = arguments.split()
        world.equal(f"the arguments of {owner.__name__}.{name}", have[:len(want)], want)


@clause("names.exports")
def exports(world):
    """The module has DeepEP's public names."""
    for name in _EXPORTS:
        world.holds(hasattr(world.api, name), f"{name} is missing")


@clause("names.buffer")
def buffer(world):
    """Buffer's methods have DeepEP's argument names, in its order."""
    _check(world, world.api.Buffer, _BUFFER)


@clause("names.elastic")
def elastic(world):
    """ElasticBuffer's methods have DeepEP's argument names, in its order."""
    _check(world, world.api.ElasticBuffer, _ELASTIC)


@clause("names.config")
def config(world):
    """get_dispatch_config and get_combine_config give a Config with size hints for 2, 4 and 8 ranks."""
    for num_ranks in (2, 4, 8):
        for make in (world.api.Buffer.get_dispatch_config, world.api.Buffer.get_combine_config):
            made = make(num_ranks)
            world.holds(isinstance(made, world.api.Config), f"{make.__name__}({num_ranks}) is no Config")
            world.holds(made.get_nvl_buffer_size_hint(512, num_ranks) > 0, "the hint of num_nvl_bytes is 0")
            world.equal("the hint of num_rdma_bytes inside a node", made.get_rdma_buffer_size_hint(512, num_ranks), 0)


@clause("events.waits")
def waits(world):
    """capture() gives something with current_stream_wait; an EventOverlap waits at the end of a with block."""
    event = world.api.Buffer.capture()
    event.current_stream_wait()
    with world.api.EventOverlap(world.api.EventHandle()):
        pass
    once = world.api.EventOverlap(world.api.EventHandle())
    once.current_stream_wait()
