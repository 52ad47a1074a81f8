# A model in two parts: ranks 0 to 2 compute attention and gates, ranks 3 and 4 the experts of every layer.
# Alone it makes five processes; or: ferry launch -n 5 --hosts .. -- python attention_and_experts.py
import os

import ferry
import torch
from ferry.moe import MoE, SwiGLU
from torch.nn.functional import layer_norm, scaled_dot_product_attention

ATTENTION, EXPERTS = [0, 1, 2], [3, 4]
TOKENS, HIDDEN, INNER, NUM_EXPERTS, TOP_K, LAYERS = 40, 64, 32, 8, 2, 3


def attention_part(tokens, gates, layers):
    for gate, layer in zip(gates, layers):
        known = layer_norm(tokens, [HIDDEN])
        tokens = tokens + scaled_dot_product_attention(known, known, known)
        known = layer_norm(tokens, [HIDDEN])
        weights, ids = (known @ gate).softmax(-1).topk(TOP_K)
        tokens = tokens + layer(known, ids, weights)
    return tokens


def expert_part(layers):
    for layer in layers:  # the same calls, without tokens
        layer(torch.empty(0, HIDDEN), torch.empty(0, TOP_K, dtype=torch.int64), torch.empty(0, TOP_K))


def dense(experts):
    def layer(tokens, ids, weights):
        order = ids.flatten().argsort(stable=True)
        rows = torch.empty(len(order), HIDDEN)
        rows[order] = experts(tokens[order // TOP_K], ids.flatten().bincount(minlength=NUM_EXPERTS).tolist())
        return (rows.view(-1, TOP_K, HIDDEN) * weights[..., None]).sum(1)

    return layer


@torch.no_grad()
def run(group):
    torch.set_num_threads(1)
    torch.manual_seed(0)  # all ranks make the same numbers and keep their part
    layers = [MoE(group, hidden=HIDDEN, intermediate=INNER, num_experts=NUM_EXPERTS, top_k=TOP_K, max_tokens=TOKENS,
                  dtype=torch.float32, token_ranks=ATTENTION, expert_ranks=EXPERTS) for _ in range(LAYERS)]
    gates, tokens = torch.randn(LAYERS, HIDDEN, NUM_EXPERTS), torch.randn(len(ATTENTION), TOKENS, HIDDEN)
    window = layers[0].exchange.window_bytes.worst
    if group.rank in EXPERTS:
        expert_part(layers)
        return f"rank {group.rank}: experts, {'a' if window else 'no'} window"
    out = attention_part(tokens[group.rank], gates, layers)
    torch.manual_seed(0)  # and now with all experts here
    whole = [dense(SwiGLU(NUM_EXPERTS, HIDDEN, INNER, torch.float32)) for _ in range(LAYERS)]
    assert torch.allclose(out, attention_part(tokens[group.rank], gates, whole), rtol=1e-4, atol=1e-4)
    return f"rank {group.rank}: attention, {'a' if window else 'no'} window, results as in one process"


if __name__ == "__main__":
    if "WORLD_SIZE" in os.environ:  # `ferry launch` or torchrun made the ranks
        with ferry.init() as group:
            print(run(group))
            group.barrier()
    else:
        print(*ferry.spawn(len(ATTENTION + EXPERTS), run), sep="\n")
