"""torch_npu's MoE functions for CPU tensors, with the same names, arguments, defaults and return values in their order.

    import ferry, ferry.torch_npu as torch_npu

    group = ferry.init()
    with torch_npu.register_group("ep", group):
        expand_x, dynamic_scales, assist_info, expert_token_nums, ep_recv_counts, tp_recv_counts, expand_scales = (
            torch_npu.npu_moe_distribute_dispatch_v2(x, expert_ids, "ep", group.size, group.rank, num_experts))
        ...

`install()` makes `import torch_npu` find this module. docs/torch_npu.md has the tables of parameters, the differences
from torch_npu, and ferry's assumptions where the documentation of torch_npu says nothing.
"""

from ferry.torch_npu.distribute import (npu_moe_distribute_combine, npu_moe_distribute_combine_add_rms_norm,
                                        npu_moe_distribute_combine_v2, npu_moe_distribute_dispatch,
                                        npu_moe_distribute_dispatch_v2)
from ferry.torch_npu.groups import register_group, unregister_group
from ferry.torch_npu.install import install
from ferry.torch_npu.routing import (npu_moe_finalize_routing, npu_moe_gating_top_k, npu_moe_init_routing_v2,
                                     npu_moe_re_routing)

__all__ = [
    "install", "npu_moe_distribute_combine", "npu_moe_distribute_combine_add_rms_norm", "npu_moe_distribute_combine_v2",
    "npu_moe_distribute_dispatch", "npu_moe_distribute_dispatch_v2", "npu_moe_finalize_routing", "npu_moe_gating_top_k",
    "npu_moe_init_routing_v2", "npu_moe_re_routing", "register_group", "unregister_group",
]
