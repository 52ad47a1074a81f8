# A Mixture-of-Experts layer on four ranks: each holds two of the eight experts and sees only its own tokens.
import ferry
import torch


def moe_layer(exchange, experts, tokens, gate):
    topk_weights, topk_ids = (tokens @ gate).softmax(-1).topk(2)
    received = exchange.dispatch(tokens, topk_ids)  # the rows of this rank's experts, expert by expert
    outputs = exchange.empty(received.num_rows)  # memory that combine reads where it lies
    counts = received.handle.tokens_per_expert.tolist()
    for expert, rows, out in zip(experts, received.rows.split(counts), outputs.split(counts)):
        torch.mm(rows, expert, out=out)
    return exchange.combine(outputs, received.handle, topk_weights)


def run(group):
    torch.manual_seed(0)  # all ranks make the same numbers and keep their part
    gate, experts, tokens = torch.randn(64, 8), torch.randn(8, 64, 64) / 8, torch.randn(4, 100, 64)[group.rank]
    exchange = group.exchange(max_tokens=100, hidden=64, num_experts=8, top_k=2, dtype=torch.float32)
    out = moe_layer(exchange, experts[2 * group.rank : 2 * group.rank + 2], tokens, gate)
    weights, ids = (tokens @ gate).softmax(-1).topk(2)  # and now densely, with all experts here
    parts = [weights[:, k, None] * torch.einsum("th,tho->to", tokens, experts[ids[:, k]]) for k in range(2)]
    assert torch.allclose(out, parts[0] + parts[1], rtol=1.3e-6, atol=1e-5)
    return f"rank {group.rank}: {len(tokens)} tokens as in the dense layer"


if __name__ == "__main__":
    print(*ferry.spawn(4, run), sep="\n")
