# Step 2: step 1 with ranks as processes, and experts that differ: expert e multiplies its rows by e + 1.
import ferry
import numpy as np


def run(group):
    exchange = group.exchange(max_tokens=16, hidden=64, num_experts=8, top_k=2, dtype="float32")
    tokens = np.full((16, 64), 1.0 + group.rank, np.float32)
    ids = np.array([[t % 8, (t + 3) % 8] for t in range(16)])
    weights = np.full((16, 2), 0.5, np.float32)

    received = exchange.dispatch(tokens, ids)
    counts = received.handle.tokens_per_expert  # rows of the first expert of this rank, then of the second
    factors = np.repeat([2 * group.rank + 1, 2 * group.rank + 2], counts)
    outputs = received.rows * factors[:, None].astype(np.float32)
    out = exchange.combine(outputs, received.handle, weights)

    assert (out == tokens * (ids + 1).mean(1, keepdims=True)).all()
    return f"rank {group.rank} computed experts {2 * group.rank} and {2 * group.rank + 1} on {counts.tolist()} rows"


if __name__ == "__main__":  # a new process imports this module
    print(*ferry.spawn(4, run), sep="\n")
