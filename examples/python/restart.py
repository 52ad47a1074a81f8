# Ranks that are killed come back:
#     ferry launch -n 4 --restart 100 -- python restart.py 1000
# In each step the ranks send tokens to the experts of all ranks, and compare the results. When a rank is killed, the
# others leave its place open and wait for the process that the launcher starts in its place. All repeat the step.
import sys

import numpy

import ferry

TOKENS, HIDDEN, NUM_EXPERTS, TOP_K = 64, 128, 8, 2
LOST = (ferry.PeerLost, ferry.PeerRejected, ferry.Broken)  # a rank was lost, or a process that was to take its place


def complete(group):
    """Returns when the group has all its ranks again. The ranks that remain call it."""
    while not group.usable or len(group.view[1]) < group.size:
        try:
            if not group.usable:
                group.survive()  # the next view, without the lost ranks
            else:
                group.admit()  # the next view, with the processes that take their places
        except (*LOST, ferry.InvalidArgument, ferry.Mismatch) as error:  # one more was lost, or a process does not fit
            print(f"again: {error}", file=sys.stderr)


def step(exchange, rank, number):
    random = numpy.random.default_rng((number, rank))
    tokens = random.integers(-8, 8, (TOKENS, HIDDEN)).astype("float32")
    ids = numpy.argsort(random.random((TOKENS, NUM_EXPERTS)))[:, :TOP_K].copy()
    received = exchange.dispatch(tokens, ids)
    counts = received.handle.tokens_per_expert
    factors = rank * len(counts) + 1 + numpy.arange(len(counts), dtype="float32")  # expert e multiplies by e + 1
    sums = exchange.combine(received.rows * numpy.repeat(factors, counts)[:, None], received.handle)
    assert numpy.array_equal(sums, tokens * (ids + 1).sum(1, keepdims=True)), f"step {number} of rank {rank}"


def run(group, num_steps):
    newcomer = group.view[0] > 1  # this process was started again; the first ones are in view 1
    number, exchange = -1 if newcomer else 0, None
    while number < num_steps:
        try:
            if exchange is None:  # at the beginning, and after complete()
                numbers = [int(text) for text in group.all_gather(b"%10d" % number)]
                number = min((each for each in numbers if each >= 0), default=0)
                exchange = group.exchange(max_tokens=TOKENS, hidden=HIDDEN, num_experts=NUM_EXPERTS, top_k=TOP_K,
                                          dtype="float32")
            step(exchange, group.rank, number)
            number += 1
        except LOST as error:
            print(f"step {number}: {error}", file=sys.stderr)
            exchange = None
            complete(group)


if __name__ == "__main__":
    with ferry.init() as group:
        run(group, int(sys.argv[1]))
        print(f"rank {group.rank}: results of all steps are right; view {group.view[0]}")
