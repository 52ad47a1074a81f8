"""The experts of lost ranks, which the ranks that remain load from the model's checkpoint."""

import torch
from vllm.model_executor.layers.fused_moe.routed_experts import RoutedExperts
from vllm.model_executor.layers.fused_moe.unquantized_fused_moe_method import UnquantizedFusedMoEMethod
from vllm.model_executor.model_loader import get_model_loader


def owners_among(ranks, owners):
    """Returns the rank that owns each expert when only `ranks` remain: an expert of a lost rank goes to the rank that
    has the fewest experts by then, the lowest of these. `owners` are the ranks of before, by expert."""
    counts = {rank: owners.count(rank) for rank in ranks}
    found = list(owners)
    for expert, owner in enumerate(owners):
        if owner not in counts:
            found[expert] = min(ranks, key=lambda rank: (counts[rank], rank))
            counts[found[expert]] += 1
    return found


def load(layers, model, config, experts):
    """Makes `experts`, ascending, those of this rank in each layer of layers_of(model), and reads from the checkpoint
    those that a layer lacks. `config` is vLLM's. After an error the caller restores the layers."""
    if all(layer.experts == experts for layer in layers):
        return
    more = sorted(set(experts).difference(layers[0].experts))
    for layer in layers:
        layer.make_place(more)
    weights = get_model_loader(config.load_config).get_all_weights(config.model_config, model)
    model.load_weights((name, weight) for name, weight in weights if ".experts." in name)
    for layer in layers:
        layer.keep(experts, more)


def layers_of(model):
    """The Mixture-of-Experts layers."""
    return [_Layer(each) for each in model.modules() if isinstance(each, RoutedExperts)]


class _Layer:
    """A layer, and the experts of this rank in it as they are now."""

    def __init__(self, layer):
        self._layer = layer
        self._weights = dict(layer._parameters)
        self._kernel = layer.quant_method.moe_kernel
        self.experts = layer.expert_map_manager.get_local_expert_ids()

    def restore(self):
        """Gives the layer the experts that it had at first."""
        self._layer._parameters.update(self._weights)
        self._layer.quant_method.moe_kernel = self._kernel
        self._set_experts(self.experts)

    def make_place(self, more):
        """Gives the layer the experts `more` alone, whose weights are not loaded yet."""
        layer = self._layer
        if not isinstance(layer.quant_method, UnquantizedFusedMoEMethod):
            raise NotImplementedError("experts of quantised models")
        self._set_experts(more)
        layer.quant_method.moe_kernel = None  # vLLM then takes these weights for the first ones of the layer
        layer.quant_method.create_weights(layer, num_experts=len(more), hidden_size=layer.hidden_size,
                                          unpadded_hidden_size=layer.moe_config.hidden_dim_unpadded,
                                          intermediate_size_per_partition=layer.intermediate_size_per_partition,
                                          params_dtype=layer.params_dtype, weight_loader=layer.weight_loader,
                                          global_num_experts=layer.global_num_experts)  # fmt: skip

    def keep(self, experts, more):
        """Gives the layer `experts`, when those of make_place() are loaded."""
        self._layer.quant_method.process_weights_after_loading(self._layer)
        together = [*self.experts, *more]
        order = torch.tensor([together.index(expert) for expert in experts])
        for name, loaded in self._layer._parameters.items():
            if loaded is not self._weights[name]:  # a bias of the router is no weight of experts
                loaded.data = torch.cat([self._weights[name].data, loaded.data])[order]
        self._set_experts(experts)

    def _set_experts(self, experts):
        places = self._layer.expert_map_manager
        places._local_num_experts = len(experts)
        places._expert_map = torch.full_like(places.expert_map, -1)
        places._expert_map[experts] = torch.arange(len(experts), dtype=places.expert_map.dtype)
        self._layer.update_expert_map_info()
