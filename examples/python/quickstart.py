# Four ranks as threads. Every expert doubles its rows; each token goes to two experts, with weight 1/2 each.
import ferry
import numpy as np


def run(group):
    exchange = group.exchange(max_tokens=16, hidden=64, num_experts=8, top_k=2, dtype="float32")
    tokens = np.full((16, 64), 1.0 + group.rank, np.float32)
    experts = np.array([[t % 8, (t + 3) % 8] for t in range(16)])
    received = exchange.dispatch(tokens, experts)  # the rows that were sent to this rank's two experts
    doubled = 2 * received.rows
    out = exchange.combine(doubled, received.handle, np.full((16, 2), 0.5, np.float32))
    assert (out == 2 * tokens).all()
    return f"rank {group.rank}: {len(received.rows)} rows received, {len(out)} results returned"


print(*ferry.run_threads(4, run), sep="\n")
