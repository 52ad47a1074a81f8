"""Wrappers of torch.distributed for a model with layers of ferry.moe.

    model = ferry.torch.ddp(model)                        # without the experts, which differ between ranks
    ferry.torch.clip_grad_norm_(model.parameters(), 1.0)  # weights on several meshes, or on none

docs/moe_training.md has them in a program. Calls torch."""

import struct

import torch
from torch.nn.parallel import DistributedDataParallel

import ferry
from ferry.torch.expert_mesh import groups_of_experts, has_own_experts, is_sharded
from ferry.torch.module import MoE


def ddp(model, **arguments):
    """Returns DistributedDataParallel(model, **arguments) that neither overwrites nor averages experts of which each
    rank has others. Where several ranks hold the same experts, fully_shard(layer, mesh=those ranks) must be called
    before, and averages their gradients. Collective. Raises InvalidArgument for a layer without that call."""
    size = torch.distributed.get_world_size(_process_group(arguments))
    ignored = []
    for name, layer in model.named_modules():
        if not isinstance(layer, MoE) or not has_own_experts(layer):
            continue
        held = {f"{name}.experts.{key}": tensor for key, tensor in _tensors(layer.experts)}
        meshes = [tensor.device_mesh for tensor in held.values() if is_sharded(tensor)]
        if any(mesh.size() != size for mesh in meshes):
            raise ferry.InvalidArgument(f"ddp: the experts of {name!r} are spread over {meshes[0].size()} of {size} "
                                        "ranks, so others hold the same ones: fully_shard(layer, mesh=mesh of the "
                                        "ranks with the same experts) before")
        ignored += held
    DistributedDataParallel._set_params_and_buffers_to_ignore_for_model(model, ignored)
    return DistributedDataParallel(model, **arguments)


def _process_group(arguments):
    mesh = arguments.get("device_mesh")
    return arguments.get("process_group") if mesh is None else mesh.get_group()


def _tensors(module):
    yield from module.named_parameters()
    yield from module.named_buffers()


@torch.no_grad()
def clip_grad_norm_(parameters, max_norm, norm_type=2.0, error_if_nonfinite=False):
    """Does what torch.nn.utils.clip_grad_norm_ does, but takes plain tensors and DTensors on several meshes together,
    which torch refuses. Plain tensors are equal on all ranks, except experts of layers with expert_ranks: of these each
    rank gives its own. Returns the norm of all gradients, a plain tensor. Needs torch 2.6. Collective."""
    from torch.nn.utils import clip_grads_with_norm_, get_total_norm

    parameters = [parameters] if torch.is_tensor(parameters) else list(parameters)
    groups = groups_of_experts(parameters)
    by_mesh = {groups[key]: [] for key in groups}  # a rank without gradients takes part, too
    for weights in parameters:
        if weights.grad is not None:
            mesh = weights.grad.device_mesh if is_sharded(weights.grad) else groups.get(id(weights))
            by_mesh.setdefault(mesh, []).append(weights)
    norms = []
    for mesh, held in by_mesh.items():
        norm = get_total_norm([weights.grad for weights in held], norm_type)
        if isinstance(mesh, ferry.Group):
            said = mesh.all_gather(struct.pack("d", norm.item()))  # empty for a rank that the view lacks
            norms += [torch.tensor(struct.unpack("d", each)[0]) for each in said if each]
        else:
            norms.append(norm.full_tensor() if is_sharded(norm) else norm)
    total = get_total_norm(norms, norm_type, error_if_nonfinite)
    for held in by_mesh.values():
        clip_grads_with_norm_(held, max_norm, total)
    return total
