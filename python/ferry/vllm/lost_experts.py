"""The experts of lost ranks, which the ranks that remain load from the model's checkpoint."""

import numpy
import torch
from vllm.model_executor.layers.fused_moe.routed_experts import RoutedExperts
from vllm.model_executor.layers.fused_moe.unquantized_fused_moe_method import UnquantizedFusedMoEMethod
from vllm.model_executor.model_loader import get_model_loader

_WEIGHTS = ("w13_weight", "w2_weight", "w13_bias", "w2_bias")  # the parameters of vLLM's experts that are not quantised
_SLICED = ("GptOssForCausalLM",)  # models that load a block of experts by the number of the rank


def owners_among(ranks, num_experts, num_ranks):
    """Returns the rank that owns each expert when `ranks` of num_ranks remain. Each has a block of experts at first, of
    which the first E % R have one more. An expert of a lost rank goes to the rank that has the fewest experts by then,
    the lowest of these."""
    blocks = numpy.array_split(range(num_experts), num_ranks)
    owners = [rank for rank, block in enumerate(blocks) for _ in block]
    counts = {rank: owners.count(rank) for rank in ranks}
    for expert, owner in enumerate(owners):
        if owner not in counts:
            owners[expert] = min(ranks, key=lambda rank: (counts[rank], rank))
            counts[owners[expert]] += 1
    return tuple(owners)


def load(layers, model, config, experts):
    """Reads from the checkpoint those of `experts` that a layer of layers_of(model) lacks. `config` is vLLM's. Then the
    caller calls keep() or restore() of the layers."""
    more = sorted(set(experts).difference(*(layer.experts for layer in layers)))
    if not more:
        return
    if type(model).__name__ in _SLICED:
        raise NotImplementedError(f"experts of {type(model).__name__}, which loads a block by the number of the rank")
    for layer in layers:
        layer.make_place(more)
    weights = get_model_loader(config.load_config).get_all_weights(config.model_config, model)
    model.load_weights((name, weight) for name, weight in weights if ".experts." in name)
    for layer in layers:
        layer.check_loaded()


def layers_of(model):
    """The Mixture-of-Experts layers."""
    return [_Layer(each) for each in model.modules() if isinstance(each, RoutedExperts)]


class _Layer:
    """A layer, and the experts of this rank in it as they are now."""

    def __init__(self, layer):
        self._layer = layer
        self._weights = dict(layer._parameters)
        self._kernel = layer.quant_method.moe_kernel
        self.experts, self._more = layer.expert_map_manager.get_local_expert_ids(), []

    def make_place(self, more):
        """Gives the layer the experts `more` alone, whose weights are NaN until they are loaded."""
        layer = self._layer
        if not isinstance(layer.quant_method, UnquantizedFusedMoEMethod):
            raise NotImplementedError("experts of quantised models")
        self._more = more
        self._set_experts(more)
        layer.quant_method.moe_kernel = None  # vLLM then takes these weights for the first ones of the layer
        layer.quant_method.create_weights(layer, num_experts=len(more), hidden_size=layer.hidden_size,
                                          unpadded_hidden_size=layer.moe_config.hidden_dim_unpadded,
                                          intermediate_size_per_partition=layer.intermediate_size_per_partition,
                                          params_dtype=layer.params_dtype, weight_loader=layer.weight_loader,
                                          global_num_experts=layer.global_num_experts)  # fmt: skip
        for weights in self._experts().values():
            weights.data.fill_(float("nan"))

    def check_loaded(self):
        for name, weights in self._experts().items():
            if weights.isnan().any():
                raise NotImplementedError(f"experts whose {name} has NaN, or is not under .experts. in the checkpoint")

    def restore(self):
        """Gives the layer the experts that it had at first."""
        self._layer._parameters.update(self._weights)
        self._layer.quant_method.moe_kernel = self._kernel
        self._set_experts(self.experts)

    def keep(self, experts):
        """Gives the layer `experts`, ascending, of those that it had and those that were loaded."""
        if experts == self.experts:
            return
        if self._more:
            self._layer.quant_method.process_weights_after_loading(self._layer)
        together = [*self.experts, *self._more]
        order = torch.tensor([together.index(expert) for expert in experts])
        for name, weights in self._experts().items():
            before = self._weights.pop(name)
            parts = [before.data] if weights is before else [before.data, weights.data]
            weights.data = torch.cat(parts)[order]
        self._set_experts(experts)

    def _experts(self):
        return {name: self._layer._parameters[name] for name in _WEIGHTS if name in self._layer._parameters}

    def _set_experts(self, experts):
        places = self._layer.expert_map_manager
        places._local_num_experts = len(experts)
        places._expert_map = torch.full_like(places.expert_map, -1)
        places._expert_map[experts] = torch.arange(len(experts), dtype=places.expert_map.dtype)
        self._layer.update_expert_map_info()
