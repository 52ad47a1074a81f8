# Step 3: step 2 in halves. The rows of one batch travel while the experts of this rank work on the other batch.
import ferry
import numpy as np


def experts(group, received):
    factors = np.repeat([2 * group.rank + 1, 2 * group.rank + 2], received.handle.tokens_per_expert)
    return received.rows * factors[:, None].astype(np.float32)


def run(group):
    exchange = group.exchange(max_tokens=16, hidden=64, num_experts=8, top_k=2, dtype="float32", depth=2)
    tokens = np.full((16, 64), 1.0 + group.rank, np.float32)
    ids = np.array([[t % 8, (t + 3) % 8] for t in range(16)])
    weights = np.full((16, 2), 0.5, np.float32)

    batches = [slice(0, 8), slice(8, 16)]
    dispatches = [exchange.dispatch_send(tokens[batch], ids[batch]) for batch in batches]  # two in flight: depth
    combines = []
    for dispatch, batch in zip(dispatches, batches):
        received = dispatch.recv()  # waits until the rows of all ranks are here
        combines.append(exchange.combine_send(experts(group, received), received.handle, weights[batch]))
    out = np.concatenate([combine.recv() for combine in combines])

    assert (out == tokens * (ids + 1).mean(1, keepdims=True)).all()
    return f"rank {group.rank} combined {len(out)} tokens in {len(batches)} batches"


if __name__ == "__main__":
    print(*ferry.spawn(4, run), sep="\n")
