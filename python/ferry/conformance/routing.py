"""Router traces: ids of experts [tokens, layers, top_k] in a .npy file, as `ferry trace routing` writes them and as
engines return them for a replay. Clauses take their ids from here; without a file the ids are drawn with a skew."""

import numpy as np
import torch

_MOST_TOP_K, _MOST_EXPERTS = 8, 1024  # DeepEP's limit of K; a limit of the memory for low-latency rows


def read(text):
    """Reads "FILE[:LAYER]" and returns the ids of the layer, int64 [tokens, top_k]; -1 was not sent. Raises ValueError
    for a file that is no router trace, OSError for one that cannot be read."""
    file, colon, layer = text.rpartition(":")
    if not colon or not layer.isdigit():
        file, layer = text, "0"
    array = np.load(file, allow_pickle=False)
    if array.ndim != 3 or array.dtype.kind not in "iu" or not len(array) or not 1 <= array.shape[2] <= _MOST_TOP_K:
        raise ValueError(f"{file} has {array.dtype} {list(array.shape)}, need integers [tokens, layers, top_k] of at "
                         f"least 1 token and a top_k of 1 to {_MOST_TOP_K}")
    if int(layer) >= array.shape[1]:
        raise ValueError(f"layer {layer} of {file}, which has {array.shape[1]} layers")
    ids = array[:, int(layer)].astype(np.int64)
    if ids.min() < -1 or ids.max() >= _MOST_EXPERTS:
        raise ValueError(f"{file} has ids from {ids.min()} to {ids.max()}, need -1 to {_MOST_EXPERTS - 1}")
    return torch.from_numpy(ids)


def ids_of_ranks(world, tokens):
    """Returns (ids, num_experts). `ids` has int64 [tokens, top_k] for each rank; num_experts is a multiple of the
    number of ranks. Rank 0 gets the first tokens of the trace, rank 1 the next ones, and so on; the trace is repeated
    as often as needed. Without a trace ids are drawn with a skew."""
    if world.routing is None:
        generator = torch.Generator().manual_seed(world.seed)
        skewed = (1 / torch.arange(1, 4 * world.size + 1)).expand(tokens * world.size, -1)
        ids = torch.multinomial(skewed, 4, generator=generator)
    else:
        ids = world.routing[torch.arange(tokens * world.size) % len(world.routing)]
    highest = int(max(ids.max(), 0)) if world.routing is None else int(max(world.routing.max(), 0))
    return list(ids.contiguous().split(tokens)), -(-(highest + 1) // world.size) * world.size
