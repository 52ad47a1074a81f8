"""Weights of experts as DTensors, so that torch.distributed knows that each rank holds experts of its own.

Rank r of R holds experts [r * L, (r + 1) * L): a parameter [L, ...] of its module is the shard of a DTensor
[R * L, ...] over the DeviceMesh of the R ranks, which is what checkpoints and fully_shard read (docs/moe_training.md).
Where ranks are not processes of torch.distributed there is no mesh, and parameters are plain tensors.

The experts compute with the local tensors. The gradients of these are multiplied by 1 / R if the loss is the mean of
the losses of the ranks: an expert adds the gradients of the rows of all R ranks, while DDP and fully_shard average
gradients over the ranks.

torch.distributed.tensor is loaded when it is needed."""

import copy
import struct
import sys
import weakref
from functools import partial

import torch

import ferry
from ferry.views import need_all_ranks

_NOWHERE = -1  # torch.distributed is not initialised


def torch_ranks(group, mesh):
    """Returns for each rank of the group (its rank in torch.distributed or -1, whether it has a mesh). Collective."""
    need_all_ranks(group)
    said = group.all_gather(struct.pack("qq", _torch_rank(), mesh is not None))
    return [struct.unpack("qq", each) for each in said]


def _torch_rank():
    return torch.distributed.get_rank() if _initialised() else _NOWHERE


def _initialised():
    return torch.distributed.is_available() and torch.distributed.is_initialized()


def checked(mesh, said):
    """Returns `mesh` if it is given. Otherwise returns a new DeviceMesh of all ranks of torch.distributed, or None: for
    one rank, for ranks that are threads, and where torch.distributed is not in use. `said` is the result of
    torch_ranks(). Raises InvalidArgument if the mesh does not fit the ranks, if only some ranks gave one, or if none
    can be made."""
    ranks = [rank for rank, _ in said]
    given = [has_mesh for _, has_mesh in said]
    if any(given) and not all(given):
        raise ferry.InvalidArgument(f"MoE: rank {given.index(0)} has no mesh, rank {given.index(1)} has one")
    if mesh is not None:
        return _fitting(mesh, ranks)
    if len(set(ranks)) < len(ranks) and ranks.count(_NOWHERE) in (0, len(ranks)):
        return None  # ranks are threads, or torch.distributed is not in use
    if len(ranks) == 1:
        return None  # this rank has all experts
    if _NOWHERE in ranks:
        raise ferry.InvalidArgument(f"MoE: torch.distributed is not initialised on rank {ranks.index(_NOWHERE)}")
    if ranks != list(range(torch.distributed.get_world_size())):
        raise ferry.InvalidArgument(f"MoE: the ranks of this group are {ranks} of the "
                                    f"{torch.distributed.get_world_size()} of torch.distributed: give mesh=, their "
                                    "DeviceMesh, such as mesh['ep'] (docs/moe_training.md)")
    from torch.distributed.device_mesh import DeviceMesh

    return DeviceMesh.from_group(torch.distributed.group.WORLD, "cpu", mesh_dim_names=("ep",))


def _fitting(mesh, ranks):
    from torch.distributed.device_mesh import DeviceMesh

    if not isinstance(mesh, DeviceMesh):
        raise ferry.InvalidArgument(f"MoE: mesh is {type(mesh).__name__}, not a torch DeviceMesh")
    if mesh.ndim != 1:
        raise ferry.InvalidArgument(f"MoE: mesh has the {mesh.ndim} dimensions {mesh.mesh_dim_names}: give the one of "
                                    "the ranks that share the experts, such as mesh['ep']")
    if mesh.mesh.tolist() != ranks:
        raise ferry.InvalidArgument(f"MoE: mesh has the ranks {mesh.mesh.tolist()} of torch.distributed, the group "
                                    f"{ranks}")
    return mesh


def check_weights(experts, num_local):
    """Raises InvalidArgument unless the first dimension of each parameter is the number of local experts. Sharded
    experts need that."""
    for name, weight in experts.named_parameters():
        shape = list(local(weight).shape)
        if shape[:1] != [num_local]:
            raise ferry.InvalidArgument(f"MoE: parameter {name!r} of the experts is {shape}: to be sharded it needs "
                                        f"{num_local}, the experts of this rank, as its first dimension. ferry.moe.moe "
                                        "takes any experts")


def changed(experts, change, num_local, mesh):
    """Returns {id of a tensor: the tensor that replaces it} for replace(). A parameter, or a buffer [L, ...], is
    replaced by change(its local tensor), as a DTensor over the mesh, or as a plain tensor if `mesh` is None. Kept are
    other buffers, and tensors that `change` returns unchanged and that are on this mesh, or on none, already."""
    tensors = {id(tensor): tensor for tensor in (*experts.parameters(), *experts.buffers())}
    return {key: _changed(tensor, change, num_local, mesh) for key, tensor in tensors.items()}


def replace(experts, made):
    """Gives the experts the tensors of changed()."""
    for module in experts.modules():
        for tensors in (module._parameters, module._buffers):
            for name, tensor in tensors.items():
                if tensor is not None:
                    tensors[name] = made[id(tensor)]


def _changed(tensor, change, num_local, mesh):
    is_parameter, part = isinstance(tensor, torch.nn.Parameter), local(tensor).detach()
    if not is_parameter and part.shape[:1] != (num_local,):
        return tensor
    made = change(part)
    if made is part and (tensor.device_mesh if is_sharded(tensor) else None) == mesh:
        return tensor
    made = made if mesh is None else sharded(made, mesh)
    return torch.nn.Parameter(made, tensor.requires_grad) if is_parameter else made


def sharded(tensor, mesh):
    """[L, ...] of this rank as the shard of a DTensor [R * L, ...]."""
    from torch.distributed.tensor import DTensor, Shard

    return DTensor.from_local(tensor, mesh, [Shard(0)], run_check=False)


def like(tensor, part):
    """`part` is the local tensor of a DTensor like `tensor`, or all of a plain one."""
    if not is_sharded(tensor):
        return part
    return type(tensor).from_local(part, tensor.device_mesh, tensor.placements, run_check=False)


def is_sharded(tensor):
    """Whether the tensor is a DTensor. No tensor is one before torch.distributed.tensor has been loaded."""
    loaded = sys.modules.get("torch.distributed.tensor")
    return loaded is not None and isinstance(tensor, loaded.DTensor)


def local(tensor):
    """Returns the local tensor of a DTensor, through which gradients flow, or a plain tensor unchanged."""
    return tensor.to_local() if is_sharded(tensor) else tensor


class Local:
    """Experts of a module, computed with the local tensors of its DTensors, or with its plain tensors where it has no
    DTensors. The gradients of these tensors are multiplied by `scale`."""

    def __init__(self, experts, scale):
        named = list(_named(experts))
        sharded = any(is_sharded(tensor) for _, tensor in named)
        self._experts, self._tensors = experts, {}
        for name, tensor in named:
            if is_sharded(tensor) or (not sharded and tensor.requires_grad):
                part = self._tensors[name] = local(tensor) if sharded else tensor.view_as(tensor)
                if part.requires_grad:
                    part.register_hook(partial(torch.mul, other=scale))
        self._whole = [weight for weight in experts.parameters() if sharded and not is_sharded(weight)]

    def parameters(self):
        return [*self._tensors.values(), *self._whole]

    def __call__(self, *arguments):
        return torch.func.functional_call(self._experts, self._tensors, arguments)


def on_local_tensors(experts, scale=None):
    """Returns the experts, or a Local of them if they are a module whose tensors are DTensors or whose gradients are
    scaled. Each call of the layer makes its own Local. `scale` None means 1 / R for DTensors over R ranks, and 1 for
    plain tensors."""
    if not isinstance(experts, torch.nn.Module):
        return experts
    meshes = [tensor.device_mesh for _, tensor in _named(experts) if is_sharded(tensor)]
    if meshes:
        return Local(experts, 1 / meshes[0].size() if scale is None else scale)
    return Local(experts, scale) if scale not in (None, 1.0) and torch.is_grad_enabled() else experts


def plain(experts):
    """Returns a copy of the module in which each DTensor is replaced by its local tensor. Tensors of the copy share the
    memory of the module's."""
    memo = {}
    for tensors in (experts.parameters(), experts.buffers()):
        for tensor in tensors:
            part = local(tensor).detach()
            is_parameter = isinstance(tensor, torch.nn.Parameter)
            memo[id(tensor)] = torch.nn.Parameter(part, tensor.requires_grad) if is_parameter else part
    return copy.deepcopy(experts, memo)


def _named(module):
    yield from module.named_parameters()
    yield from module.named_buffers()


def has_own_experts(layer):
    """Whether each rank of the layer's group has other experts, in torch.distributed."""
    return layer.mesh is not None or bool(layer.settings.get("expert_ranks"))


_noted: "weakref.WeakSet[torch.nn.Module]" = weakref.WeakSet()


def note(layer):
    """Remembers a layer whose experts are plain tensors and differ between ranks, for groups_of_experts()."""
    if layer.mesh is None and layer.settings.get("expert_ranks"):
        _noted.add(layer)


def groups_of_experts(parameters):
    """Returns {id of a parameter: the ferry.Group over which ranks hold other experts} for those of `parameters` that
    are plain tensors of such a layer."""
    with_weights = [layer for layer in _noted if isinstance(layer.experts, torch.nn.Module)]
    groups = {id(weights): layer.group for layer in with_weights for weights in layer.experts.parameters()}
    return {id(weights): groups[id(weights)] for weights in parameters if id(weights) in groups}


def check_wrapped(layer):
    """Raises InvalidArgument for uses of a layer in torch.distributed that are wrong and that torch does not refuse."""
    if not _initialised():
        return
    if layer.mesh is None:
        if layer.made_before_torch_distributed:
            raise ferry.InvalidArgument("MoE: torch.distributed was initialised after this layer was made, and "
                                        "takes its experts for copies: make the layer afterwards")
    if not has_own_experts(layer):
        return
    from torch.distributed.fsdp import FSDPModule
    from torch.nn.parallel import DistributedDataParallel

    for name, module in layer.experts.named_modules(prefix="experts"):
        if isinstance(module, (FSDPModule, DistributedDataParallel)):
            raise ferry.InvalidArgument(f"MoE: {name} is wrapped by {type(module).__name__}, but the number of "
                                        "calls of experts differs between ranks: give the layer to fully_shard")
    wrapper = DistributedDataParallel._get_active_ddp_module()
    if wrapper is not None:
        own = {id(weight) for weight in layer.experts.parameters()}
        if any(id(weight) in own for weight in wrapper._module_parameters):
            raise ferry.InvalidArgument("MoE: DistributedDataParallel holds the experts of this layer, and each rank "
                                        "has others: wrap the model by ferry.torch.ddp")
