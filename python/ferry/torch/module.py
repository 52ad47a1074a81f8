"""MoE: the layer as a torch.nn.Module, with its experts and its exchange.

T tokens of this rank, H hidden, K top-k, L experts of this rank. Calls ferry.torch.moe.
"""

import copy

import torch

import ferry
import ferry.placement
from ferry.torch import expert_mesh
from ferry.torch.calls import uncompiled
from ferry.torch.experts import SwiGLU
from ferry.torch.moe import moe
from ferry.torch.shared import shared
from ferry.torch.turns import take

_ROWS = torch.float32, torch.bfloat16, torch.float16  # dtypes that an exchange moves and autocast converts


class MoE(torch.nn.Module):
    """The layer with its exchange. `settings`: more of Group.exchange, such as replicas (ferry.placement). Collective.

    num_experts counts the experts of all ranks, and each rank has equally many; `experts` has the local weights (a
    SwiGLU, or the given module). A ferry.placement.Balancer in `balancer` counts the rows of each expert; switch()
    changes the placement.

    mesh: the DeviceMesh of the group's ranks, of one dimension, in their order. Parameters of the experts [L, ...] then
    are DTensors [num_experts, ...] sharded over the mesh, as fully_shard, checkpoints and optimizers of
    torch.distributed need them, and so are buffers [L, ...] (docs/moe_training.md). None: a mesh of all ranks of
    torch.distributed where they are the ranks of the group. Parameters are plain tensors where torch.distributed is not
    initialised, where ranks are threads, and where the group has one rank.

    gradients: how the gradients of the experts' parameters are scaled, as rows come from all R ranks. "mean": those of
    the mean of the ranks' losses (divided by R), as with DistributedDataParallel and fully_shard; "sum": those of the
    sum of the losses. After Group.survive() R counts the ranks of the view, and the first call of the layer agrees with
    those ranks on its settings (docs/placement.md, "When a rank is lost").

    token_ranks, expert_ranks: as of Group.exchange (docs/attention_and_experts.md). A rank without experts has a SwiGLU
    of 0 experts, and R counts the token ranks. With expert_ranks the parameters are plain tensors.

    Layers of one group with equal settings share an exchange. A call with tokens of another dtype, after half() or
    within torch.autocast, changes to an exchange of that dtype on all ranks. The weights of the SwiGLU depend on the
    seed of torch and on the number of an expert only: equal seeds give each rank its part of SwiGLU(num_experts, ..) in
    one process. deepcopy copies the weights; torch.load(.., weights_only=False) returns a layer without a group, which
    join() gives it.

    Raises InvalidArgument when the ranks with experts do not divide num_experts, for a mesh of other ranks, for a group
    of some ranks of torch.distributed without a mesh, and for a parameter of `experts` that is to be sharded and is not
    [L, ...]. Raises what Group.exchange raises."""

    def __init__(self, group, *, hidden, intermediate=None, num_experts, top_k, max_tokens, dtype=torch.bfloat16,
                 experts=None, overlap=None, mesh=None, gradients="mean", **settings):
        super().__init__()
        self.overlap, self.balancer, self.gradients, self.experts = overlap, None, gradients, experts
        self.settings = dict(max_tokens=max_tokens, hidden=hidden, num_experts=num_experts, top_k=top_k, dtype=dtype,
                             **settings)
        self._first_dtype = dtype
        self._join(group, mesh, lambda: self._make_experts(group, intermediate))

    def _make_experts(self, group, intermediate):
        hidden, num_experts, owners = self.settings["hidden"], self.settings["num_experts"], self._owners(group)
        if num_experts % len(owners):
            raise ferry.InvalidArgument(f"MoE: {num_experts} experts on {len(owners)} ranks: need equally many on each")
        if self.experts is None and intermediate is None:
            raise ferry.InvalidArgument("MoE: needs `intermediate`, or `experts`")
        for name, size in (("hidden", hidden), ("intermediate", 1 if self.experts is not None else intermediate)):
            if size < 1:
                raise ferry.InvalidArgument(f"MoE: {name} is {size}, at least 1")
        if self.gradients not in ("mean", "sum"):
            raise ferry.InvalidArgument(f"MoE: gradients is {self.gradients!r}, need 'mean' or 'sum'")
        if self.experts is None:
            self._check_blocks("makes experts")
            num_local = self._num_local(group)
            first = owners.index(group.rank) * num_local if num_local else 0
            numbers = _logical_experts(self.settings)[first:first + num_local]
            self.experts = SwiGLU(num_local, hidden, intermediate, self.settings["dtype"], numbers)

    def _check_blocks(self, what):
        """Raises InvalidArgument for settings that give a rank other experts than a block of equally many. `what` the
        layer does that needs blocks."""
        for name, least in ("expert_rank", None), ("num_shared_experts", 0), ("tp_size", 1):
            value = self.settings.get(name)
            if len(value) > 0 if hasattr(value, "__len__") else value not in (None, least):
                raise ferry.InvalidArgument(f"MoE: {name} is {value}, and a layer that {what} has a block of equally "
                                            "many experts on each rank")

    def _owners(self, group):
        """The ranks with experts, in the order of their experts."""
        return list(self.settings.get("expert_ranks") or range(group.size))

    def _num_local(self, group):
        owners = self._owners(group)
        return self.settings["num_experts"] // len(owners) if group.rank in owners else 0

    def join(self, group, mesh=None):
        """Gives a layer from torch.load its group, which must have as many ranks as the group before; `mesh` as for
        MoE(). After Group.admit() the members call it on their layer while the new processes call MoE(): the layer
        keeps its exchange and weights. Collective. Raises InvalidArgument for a layer that has another group, or has
        joined this group in this view, and what MoE() raises."""
        def check():
            if self.group is not None and (self.group is not group or self._view == group.view[0]):
                raise ferry.InvalidArgument("MoE.join: this layer has a group")
            if group.size != self._num_ranks:
                raise ferry.InvalidArgument(f"MoE.join: the group has {group.size} ranks, the layer was saved by one "
                                            f"of {self._num_ranks}")
            self.settings = {**self.settings, "dtype": self._first_dtype}  # as on a rank that makes its layer anew

        self._join(group, mesh, check)

    def _join(self, group, mesh, check):
        """Calls check() on all ranks, and sets the group, the mesh and the exchange of the layer. Collective."""
        torch_ranks = expert_mesh.torch_ranks(group, mesh)

        def prepare():
            check()
            num_local = self._num_local(group)
            if self.settings.get("expert_ranks"):  # ranks without experts have no part of a DTensor
                if mesh is not None:
                    raise ferry.InvalidArgument("MoE: mesh shards experts over all ranks, and expert_ranks is "
                                                f"{self.settings['expert_ranks']}")
                mesh_of_ranks = None
            else:
                mesh_of_ranks = expert_mesh.checked(mesh, torch_ranks)
            if isinstance(self.experts, torch.nn.Module):
                if mesh_of_ranks is not None:
                    self._check_blocks("shards experts over a mesh")
                    expert_mesh.check_weights(self.experts, num_local)
                made = expert_mesh.changed(self.experts, lambda part: part, num_local, mesh_of_ranks)
                expert_mesh.replace(self.experts, made)
            return mesh_of_ranks

        self.mesh = ferry.placement.agree(group, prepare, {})
        self.made_before_torch_distributed = group.size > 1 and torch_ranks[0][0] < 0
        self._shared = shared(group, self.settings)
        self.group, self._num_ranks, self._view = group, group.size, group.view[0]
        expert_mesh.note(self)

    @property
    def exchange(self):
        """The exchange of the next call. Layers with equal settings share it."""
        if self._shared is None:
            raise ferry.InvalidArgument("MoE: this layer was loaded from a file and has no ranks: call join(group)")
        return self._shared.exchange

    def __deepcopy__(self, memo):
        for same in (self.group, self.mesh, self._shared):
            memo[id(same)] = same
        copied = memo[id(self)] = type(self).__new__(type(self))
        # In a later view the copy does not keep the agreement of this layer on the exchange. Other ranks may have made
        # their copies before the view began, and these agree in their first call.
        view = self._view if self.group is None or self.group.view[0] == 1 else 0
        copied.__dict__.update(copy.deepcopy({**self.__dict__, "balancer": None, "_view": view}, memo))
        expert_mesh.note(copied)
        return copied

    def __getstate__(self):
        """Returns the state for torch.save. In it the weights of the experts of this rank are plain tensors."""
        state = {**self.__dict__, "group": None, "mesh": None, "_shared": None, "balancer": None}
        if isinstance(self.experts, torch.nn.Module):
            state["_modules"] = {**self._modules, "experts": expert_mesh.plain(self.experts)}
        return state

    def switch(self, old, new):
        """Moves the weights from one ferry.placement.Placement to another, between two steps; top-k ids keep their
        meaning. Collective. The parameters are new ones afterwards, so the optimizer must be made again, unless the
        placements are equal. Slots of ranks that the view lacks count as empty. The layer is unchanged when this
        raises. Raises InvalidArgument for a new placement that lacks an expert or has an empty slot on a rank of the
        view, for an old placement that is not the layer's, for experts that are not a Module, with expert_ranks, and
        after a fully_shard that splits the experts of a rank. Raises what ferry.placement.move raises."""
        group = self.group
        old, new = ferry.placement.agree(group, lambda: self._checked_switch(old, new),
                                         {"old placement": old, "new placement": new})
        moved = None
        if old != new:
            moved = expert_mesh.changed(self.experts, lambda part: ferry.placement.move(group, part, old, new),
                                        old.per_rank, self.mesh)
        settings = {**self.settings, **new.settings(self.settings.get("replica_choice", "by_token"))}
        self._shared = shared(group, settings, besides=self._shared)
        self.settings, self._view = settings, group.view[0]
        if moved:
            expert_mesh.replace(self.experts, moved)

    def sum_gradients(self, placement):
        """After backward and before the optimizer's step: all copies of an expert get the sum of their gradients, so
        that they stay equal. Collective. Raises what ferry.placement.sum_copies raises, and InvalidArgument after a
        fully_shard that splits the experts of a rank."""
        group, summed = self.group, []
        ferry.placement.agree(group, lambda: self._check_whole("sum_gradients"), {"placement": placement})
        for weights in self.experts.parameters():
            gradients = torch.zeros_like(weights) if weights.grad is None else weights.grad
            sums = ferry.placement.sum_copies(group, expert_mesh.local(gradients), placement)
            summed.append((weights, expert_mesh.like(gradients, sums)))
        for weights, gradients in summed:
            weights.grad = gradients

    def _checked_switch(self, old, new):
        """Returns both placements on the ranks of the view."""
        if not isinstance(self.experts, torch.nn.Module):
            raise ferry.InvalidArgument("MoE: only experts of a torch.nn.Module have weights to move")
        if self.settings.get("expert_ranks"):
            raise ferry.InvalidArgument("MoE: a placement has experts on all ranks, and expert_ranks is "
                                        f"{self.settings['expert_ranks']}")
        self._check_blocks("changes its placement")
        old, new = ferry.placement.in_view(self.group, old, new)
        experts, own = set(old.experts) - {-1}, self.group.rank
        if any(-1 in new.of_rank(rank) for rank in self.group.view[1]) or experts != set(new.experts) - {-1}:
            raise ferry.InvalidArgument("MoE: the new placement needs a copy of each expert of the old one, and no "
                                        "empty slot (-1)")
        said = list(old.of_rank(own))
        held = _logical_experts(self.settings)[own * len(said):(own + 1) * len(said)]
        if any(expert not in (-1, mine) for expert, mine in zip(said, held)):
            raise ferry.InvalidArgument(f"MoE: this rank holds the experts {held}, and by the old placement {said}")
        self._check_whole("switch")
        if len(old.experts) != self.settings["num_experts"]:
            raise ferry.InvalidArgument(f"MoE: the old placement has {len(old.experts)} slots, the layer "
                                        f"{self.settings['num_experts']}")
        return old, new

    def _check_whole(self, call):
        """Raises InvalidArgument if this rank has only a part of each of its experts: fully_shard over ranks with the
        same experts splits the parameters among them."""
        if any(getattr(weights, "placements", ())[1:] for weights in self.experts.parameters()):
            raise ferry.InvalidArgument(f"MoE.{call}: fully_shard has spread the weights of each rank over others, and "
                                        "copies are of whole experts")

    @property
    def _ddp_params_and_buffers_to_ignore(self):
        """DistributedDataParallel reads this attribute of the module that it wraps. A layer whose ranks hold different
        experts refuses to be that module."""
        if not expert_mesh.has_own_experts(self):
            raise AttributeError("_ddp_params_and_buffers_to_ignore")
        raise ferry.InvalidArgument("MoE: DistributedDataParallel would make all ranks' experts those of rank 0: give "
                                    "the layer to fully_shard, and wrap the model around it by ferry.torch.ddp")

    @uncompiled
    def forward(self, tokens, topk_ids, topk_weights, active_ranks=None):
        """Computes the layer for tokens [.., H], ids [.., K] and weights [.., K]. Returns [.., H] in the dtype of the
        tokens, or within torch.autocast in its dtype. active_ranks is that of moe(). Collective."""
        expert_mesh.check_wrapped(self)
        before, dtype = self.exchange, None
        if torch.is_tensor(tokens) and tokens.dtype in _ROWS:
            if torch.is_autocast_enabled("cpu"):
                tokens = tokens.to(torch.get_autocast_dtype("cpu"))
            dtype = tokens.dtype
        number, ranks = self.group.view
        if number != self._view:
            self._share(number, dtype)
        elif dtype and before.config["dtype"] != str(dtype).rpartition(".")[2]:
            self._leave(before, dtype)
            self._share(number, dtype)
        sources = set(self.settings.get("token_ranks") or ranks).intersection(ranks)
        scale = 1 / len(sources) if self.gradients == "mean" and sources else 1.0
        return moe(self.exchange, tokens, topk_ids, topk_weights, expert_mesh.on_local_tensors(self.experts, scale),
                   overlap=self.overlap, balancer=self.balancer, active_ranks=active_ranks)

    def _share(self, view, dtype):
        """Changes to an exchange of this dtype (None: the one before) that all ranks of the view share. Collective."""
        settings = {**self.settings, "dtype": dtype or self.settings["dtype"]}
        self._shared = take(shared, self.group, settings)
        self.settings, self._view = settings, view

    def _leave(self, exchange, dtype):
        """All ranks leave this exchange, as their tokens are of another dtype. Collective: a rank that keeps its dtype
        raises PeerRejected, and this rank ferry.Mismatch."""
        try:
            take(exchange.skip, f"its tokens are {dtype}")
        except ferry.Mismatch as error:
            raise ferry.Mismatch(f"MoE: the tokens of this rank are {dtype}, those of another rank "
                                 f"{exchange.config['dtype']}, as before") from error


def _logical_experts(settings):
    """The logical expert of each slot: copies of an expert are equal."""
    experts = list(range(settings["num_experts"]))
    for expert, slots in enumerate(settings.get("replicas") or ()):
        for slot in slots:
            experts[slot] = expert
    return experts
