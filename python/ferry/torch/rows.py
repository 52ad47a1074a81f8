"""Makes rows of a dispatch contiguous, writes zeros to rows without a token, and multiplies rows by their weights.

N rows of this rank, H hidden."""

import torch


def dense(tensor):
    """Returns the tensor as a contiguous one: a gradient is often one number that is expanded. Any other object is
    returned unchanged, so that the exchange refuses it on all ranks."""
    return tensor.contiguous() if torch.is_tensor(tensor) else tensor


def scale_and_dot(rows, grads, weights, scaled, dots):
    """Computes scaled [N, H] = weights [N, 1] * grads, and dots [N], the dot products of rows and grads, in float32. A
    result that is None is not computed.

    It works on blocks of rows that fit in the cache of a core: float32 copies of all rows took five times as long as
    the exchange. On a device the blocks bound the memory of the copies.
    """
    block = max(1, 2 ** (26 if grads.is_cuda else 16) // max(1, grads.shape[-1]))
    for begin in range(0, len(grads), block):
        part = slice(begin, begin + block)
        each = grads[part].float()
        if dots is not None:
            torch.sum(rows[part].float() * each, -1, out=dots[part])
        if scaled is not None:
            scaled[part] = each * weights[part]


def zero_gaps(exchange, handle, arrays):
    """Writes zeros to the undefined rows after those of each expert. A NaN there would make the gradient of a parameter
    NaN, although the true gradient is 0."""
    if arrays[0].is_cuda:
        return _zero_gaps_on_device(exchange.config, handle, arrays)
    if exchange.config["layout"] == "rank_major" or exchange.config["zero_gaps"]:
        return
    offsets = handle.expert_offsets
    for begin, end in zip((offsets[:-1] + handle.tokens_per_expert).tolist(), offsets[1:].tolist()):
        for array in arrays:
            if array is not None and begin < end:
                array.view(handle.num_rows, -1)[begin:end] = 0


def _zero_gaps_on_device(config, handle, arrays):
    """zero_gaps() where only the device knows the gaps. Also writes zeros behind the last row of a dispatch that did
    not wait for its counts."""
    num_rows = arrays[0].shape[:-1].numel()
    no_gaps = config["zero_gaps"] or config["layout"] == "rank_major"
    no_gaps = no_gaps or (config["layout"] == "expert_major" and config["expert_alignment"] == 1)
    if num_rows == 0 or (no_gaps and handle.num_rows == num_rows):
        return
    gaps = gaps_of(handle, num_rows).unsqueeze(1)
    for array in arrays:
        if array is not None:
            array.view(num_rows, -1).masked_fill_(gaps, 0)


def gaps_of(handle, num_rows):
    """Returns bool [num_rows]: True for rows that hold no token."""
    offsets, counts, of_ranks = handle.expert_offsets, handle.tokens_per_expert, handle.running_rows_per_rank
    row = torch.arange(num_rows, device=counts.device)
    if len(of_ranks) > 0:  # rank_major
        return row >= of_ranks[-1]
    if len(counts) == 0:
        return row >= 0
    expert = torch.searchsorted(offsets[1:], row, right=True).clamp_(max=len(counts) - 1)
    return row >= (offsets[:-1] + counts)[expert]
