# Step 1: four ranks, threads of one process. There are eight experts, and each rank holds two of them.
import ferry
import numpy as np


def run(group):
    exchange = group.exchange(max_tokens=16, hidden=64, num_experts=8, top_k=2, dtype="float32")
    tokens = np.full((16, 64), 1.0 + group.rank, np.float32)
    ids = np.array([[t % 8, (t + 3) % 8] for t in range(16)])  # two experts for each token
    weights = np.full((16, 2), 0.5, np.float32)

    received = exchange.dispatch(tokens, ids)  # the rows of all ranks for the two experts of this rank
    outputs = 2 * received.rows  # every expert doubles its rows
    out = exchange.combine(outputs, received.handle, weights)

    assert (out == 2 * tokens).all()
    return f"rank {group.rank} received {received.num_rows} rows and combined {len(out)} tokens"


print(*ferry.run_threads(4, run), sep="\n")
