"""MoE: the layer as a torch.nn.Module, with its experts and its exchange.

T tokens of this rank, H hidden, K top-k, L experts of this rank. Calls ferry.torch.moe.
"""

import torch

import ferry
import ferry.placement
from ferry.torch import expert_mesh
from ferry.torch.experts import SwiGLU
from ferry.torch.moe import moe
from ferry.torch.refusing import Refusing


class MoE(torch.nn.Module):
    """The layer with its exchange. `settings`: more of Group.exchange, such as replicas (ferry.placement). Collective.

    num_experts is of all ranks, and each rank has equally many; `experts` has the local weights (a SwiGLU, or the given
    module). A ferry.placement.Balancer in `balancer` counts the rows of each expert; switch() changes the placement.

    mesh: the DeviceMesh of the group's ranks, of one dimension, in their order. Parameters of the experts [L, ...] then
    are DTensors [num_experts, ...] sharded over the mesh, as fully_shard, checkpoints and optimizers of
    torch.distributed need them, and so are buffers [L, ...] (docs/moe_training.md). None: a mesh of all ranks of
    torch.distributed where they are the ranks of the group. Parameters are plain tensors where torch.distributed is not
    initialised, where ranks are threads, and where the group has one rank.

    Raises InvalidArgument when the ranks do not divide num_experts, for a mesh of other ranks, for a group of some
    ranks of torch.distributed without one, for a parameter of `experts` that is to be sharded and is not [L, ...], and
    what Group.exchange raises."""

    def __init__(self, group, *, hidden, intermediate=None, num_experts, top_k, max_tokens, dtype=torch.bfloat16,
                 experts=None, overlap=None, mesh=None, **settings):
        super().__init__()
        torch_ranks = expert_mesh.torch_ranks(group, mesh)
        with Refusing(group.refuse_exchange):
            if num_experts % group.size:
                raise ferry.InvalidArgument(f"MoE: {num_experts} experts on {group.size} ranks: need equally many on "
                                            "each")
            if experts is None and intermediate is None:
                raise ferry.InvalidArgument("MoE: needs `intermediate`, or `experts`")
            for name, size in (("hidden", hidden), ("intermediate", 1 if experts else intermediate)):
                if size < 1:
                    raise ferry.InvalidArgument(f"MoE: {name} is {size}, at least 1")
            num_local = num_experts // group.size
            self.mesh = expert_mesh.checked(mesh, torch_ranks)
            self.experts = experts or SwiGLU(num_local, hidden, intermediate, dtype)
            if isinstance(self.experts, torch.nn.Module):
                if self.mesh is not None:
                    expert_mesh.check_weights(self.experts, num_local)
                expert_mesh.replace(self.experts, lambda part: part, num_local, self.mesh)
        self.made_before_torch_distributed = group.size > 1 and torch_ranks[0][0] < 0
        self.overlap, self.balancer = overlap, None
        self.settings = dict(max_tokens=max_tokens, hidden=hidden, num_experts=num_experts, top_k=top_k, dtype=dtype,
                             **settings)
        self.exchange = group.exchange(**self.settings)

    def switch(self, old, new):
        """Moves the weights from one ferry.placement.Placement to another, between two steps; top-k ids keep their
        meaning. Collective. The parameters are new ones afterwards, so the optimizer must be made again. Raises
        InvalidArgument for a placement without one of the experts, and after fully_shard. Raises what
        ferry.placement.move raises."""
        group = self.exchange.group
        ferry.placement.agree(group, lambda: self._check_switch(old, new), {"old placement": old, "new placement": new})
        expert_mesh.replace(self.experts, lambda part: ferry.placement.move(group, part, old, new), old.per_rank,
                            self.mesh)
        self.settings.update(new.settings(self.settings.get("replica_choice", "by_token")))
        self.exchange = None
        self.exchange = group.exchange(**self.settings)

    def sum_gradients(self, placement):
        """After backward and before the optimizer's step: all copies of an expert get the sum of their gradients, so
        that they stay equal. Collective. Raises what ferry.placement.sum_copies raises, and InvalidArgument after a
        fully_shard that splits the experts of a rank."""
        group = self.exchange.group
        ferry.placement.agree(group, lambda: self._check_whole("sum_gradients"), {"placement": placement})
        for weights in self.experts.parameters():
            gradients = torch.zeros_like(weights) if weights.grad is None else weights.grad
            summed = ferry.placement.sum_copies(group, expert_mesh.local(gradients), placement)
            weights.grad = expert_mesh.like(gradients, summed)

    def _check_switch(self, old, new):
        if not isinstance(self.experts, torch.nn.Module):
            raise ferry.InvalidArgument("MoE: only experts of a torch.nn.Module have weights to move")
        if -1 in new.experts or set(old.experts) - {-1} != set(new.experts):
            raise ferry.InvalidArgument("MoE: the new placement needs a copy of each expert of the old one, and no "
                                        "empty slot (-1)")
        self._check_whole("switch")

    def _check_whole(self, call):
        """fully_shard over ranks with the same experts leaves a part of each parameter."""
        if any(getattr(weights, "placements", ())[1:] for weights in self.experts.parameters()):
            raise ferry.InvalidArgument(f"MoE.{call}: fully_shard has spread the weights of each rank over others, and "
                                        "copies are of whole experts")

    @property
    def _ddp_params_and_buffers_to_ignore(self):
        """DistributedDataParallel reads this name of a module. It cannot average anything of a layer alone."""
        if self.mesh is None:
            raise AttributeError("_ddp_params_and_buffers_to_ignore")
        raise ferry.InvalidArgument("MoE: DistributedDataParallel would make all ranks' experts those of rank 0: give "
                                    "the layer to fully_shard, and wrap the model around it by ferry.torch.ddp")

    def forward(self, tokens, topk_ids, topk_weights, active_ranks=None):
        """tokens [T, H], ids [T, K], float32 weights [T, K] -> [T, H]; active_ranks as for moe()."""
        expert_mesh.check_wrapped(self)
        return moe(self.exchange, tokens, topk_ids, topk_weights, self.experts, overlap=self.overlap,
                   balancer=self.balancer, active_ranks=active_ranks)
