"""Experts of transformers models (>= 5.23) spread over ranks, their tokens moved by ferry.

    import ferry.transformers

    model = AutoModelForCausalLM.from_pretrained(
        path, distributed_config=DistributedConfig(fsdp_size=2, ep_size=2, ep_implementation="ferry"))

The import registers two names: "ferry", a row for each (token, expert), and "ferry_rank_major", one for each (token,
rank). docs/transformers.md says when the second is the better one, and what holds. Calls ferry.torch."""

from transformers.distributed.expert_parallel import EPImplementationInterface

from ferry.transformers.experts import ExpertMajor, RankMajor

__all__ = ["ExpertMajor", "RankMajor"]

EPImplementationInterface.register("ferry", ExpertMajor)
EPImplementationInterface.register("ferry_rank_major", RankMajor)
