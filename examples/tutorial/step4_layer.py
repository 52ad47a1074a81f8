# Step 4: the three calls become a layer. Its experts have weights (SwiGLU), and it trains.
import ferry
import ferry.torch
import torch


def run(group):
    torch.manual_seed(0)  # the gate is equal on all ranks; each rank makes the weights of its own two experts
    gate = torch.nn.Linear(64, 8, bias=False)
    torch.manual_seed(group.rank)
    layer = ferry.torch.MoE(group, hidden=64, intermediate=96, num_experts=8, top_k=2, max_tokens=16,
                            dtype=torch.float32)
    tokens, target = torch.randn(16, 64), torch.randn(16, 64)
    optimizer = torch.optim.AdamW(layer.parameters(), lr=0.01)
    losses = []
    for step in range(10):
        weights, ids = gate(tokens).softmax(-1).topk(2)
        loss = (layer(tokens, ids, weights) - target).square().mean()  # dispatch, experts, combine
        optimizer.zero_grad()
        loss.backward()  # collective: every rank calls it
        optimizer.step()
        losses.append(loss.item())

    assert losses[-1] < losses[0]
    return f"rank {group.rank}: loss {losses[0]:.2f}, after ten steps {losses[-1]:.2f}"


if __name__ == "__main__":
    torch.set_num_threads(1)
    print(*ferry.spawn(4, run), sep="\n")
