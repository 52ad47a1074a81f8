"""Spreads the experts of transformers models (>= 5.23) over ranks, and moves their tokens with ferry.

    import ferry.transformers

    model = AutoModelForCausalLM.from_pretrained(
        path, distributed_config=DistributedConfig(fsdp_size=2, ep_size=2, ep_implementation="ferry"))

The import registers two names: "ferry" sends a row for each (token, expert), and "ferry_rank_major" a row for each
(token, rank). docs/transformers.md compares the two. Calls ferry.torch."""

import importlib.metadata

try:
    from transformers.distributed.expert_parallel import EPImplementationInterface
except ImportError as error:
    try:
        _found = f"transformers {importlib.metadata.version('transformers')} is installed"
    except importlib.metadata.PackageNotFoundError:
        _found = "none is installed"
    raise ImportError(f"ferry.transformers needs transformers 5.23 or later, {_found}: {error}") from error

from ferry.transformers.experts import ExpertMajor, RankMajor

__all__ = ["ExpertMajor", "RankMajor"]

EPImplementationInterface.register("ferry", ExpertMajor)
EPImplementationInterface.register("ferry_rank_major", RankMajor)
