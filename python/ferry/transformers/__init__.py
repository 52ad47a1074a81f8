"""Experts of transformers models (>= 5.23) spread over ranks, their tokens moved by ferry.

    import ferry.transformers

    model = AutoModelForCausalLM.from_pretrained(
        path, distributed_config=DistributedConfig(fsdp_size=2, ep_size=2, ep_implementation="ferry"))

The import registers two names: "ferry", a row for each (token, expert), and "ferry_rank_major", one for each (token,
rank). docs/transformers.md says when the second is the better one, and what holds. Calls ferry.torch."""

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
