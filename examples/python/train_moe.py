"""Trains a small Mixture-of-Experts language model, character by character, on 1 rank and on 4: the same losses.

    python train_moe.py [steps]

Experts are spread over the ranks, the batch is split, everything else is replicated. The losses are equal bit for bit,
not only nearly, because no sum depends on the number of ranks:
  * The rows of an expert come in the order of source rank and token, which is their order in the whole batch: the
    expert gets the same matrix whichever rank owns it. Combine adds the experts of a token in the order of its top-k
    list.
  * The batch has PARTS, each with a copy of the replicated parameters. One of four ranks plays one part, a lone rank
    all of them. Gradients and losses of the parts are gathered and added in the order of the parts.
"""

import copy
import pathlib
import sys
import time

import ferry
import ferry.torch
import torch
from torch import nn

PARTS, SEQUENCES, CONTEXT = 4, 8, 32  # a part of a batch is SEQUENCES of CONTEXT characters
WIDTH, EXPERTS, TOP_K = 32, 8, 2
RATE = 0.5
TEXT = pathlib.Path(__file__).with_name("the_ferry.txt").read_text()
ALPHABET = sorted(set(TEXT))
CHARACTERS = torch.tensor([ALPHABET.index(character) for character in TEXT])


class Replicated(nn.Module):
    """All parts of the model but the experts: embedding, attention and gate, and the prediction after the experts."""

    def __init__(self):
        super().__init__()
        self.character, self.place = nn.Embedding(len(ALPHABET), WIDTH), nn.Embedding(CONTEXT, WIDTH)
        self.query_key_value = nn.Linear(WIDTH, 3 * WIDTH)
        self.gate = nn.Sequential(nn.LayerNorm(WIDTH), nn.Linear(WIDTH, EXPERTS), nn.Softmax(-1))
        self.predict = nn.Sequential(nn.LayerNorm(WIDTH), nn.Linear(WIDTH, len(ALPHABET)))

    def before(self, characters):
        """[SEQUENCES, CONTEXT] to tokens [T, WIDTH], topk_weights and topk_ids [T, TOP_K]."""
        x = self.character(characters) + self.place.weight
        query, key, value = self.query_key_value(x).chunk(3, -1)
        future = torch.ones(CONTEXT, CONTEXT, dtype=torch.bool).triu(1)
        scores = (query @ key.transpose(1, 2) / WIDTH**0.5).masked_fill(future, float("-inf"))
        tokens = (x + scores.softmax(-1) @ value).flatten(0, 1)
        return (tokens, *self.gate(tokens).topk(TOP_K))

    def loss(self, tokens, targets):
        return nn.functional.cross_entropy(self.predict(tokens), targets.flatten())


def make_expert(number):
    torch.manual_seed(number)
    return nn.Sequential(nn.Linear(WIDTH, 2 * WIDTH), nn.ReLU(), nn.Linear(2 * WIDTH, WIDTH))


def moe_layer(exchange, experts, tokens, topk_weights, topk_ids):
    received = ferry.torch.dispatch(exchange, tokens, topk_ids)
    blocks = received.rows.split(received.handle.tokens_per_expert.tolist())
    outputs = torch.cat([expert(rows) for expert, rows in zip(experts, blocks)])
    return tokens + ferry.torch.combine(exchange, outputs, received.handle, topk_weights)


def make_batch(step):
    """[PARTS, SEQUENCES, CONTEXT + 1] characters, the same on all ranks."""
    generator = torch.Generator().manual_seed(step)
    begins = torch.randint(len(CHARACTERS) - CONTEXT, (PARTS, SEQUENCES, 1), generator=generator)
    return CHARACTERS[begins + torch.arange(CONTEXT + 1)]


def gather(group, own):
    """Gathers float32 [parts of this rank, n] of all ranks; returns [PARTS, n]."""
    sent = bytearray(own.numel() * 4)
    torch.frombuffer(sent, dtype=torch.float32).copy_(own.flatten())
    every = bytearray().join(group.all_gather(bytes(sent)))
    return torch.frombuffer(every, dtype=torch.float32).view(PARTS, -1)


def share_gradients(group, replicas):
    """Gives every copy of the replicated parameters the gradient of the whole batch."""
    own = torch.stack([torch.cat([p.grad.flatten() for p in replica.parameters()]) for replica in replicas])
    total = gather(group, own).sum(0)
    for replica in replicas:
        nn.utils.vector_to_parameters(total, [p.grad for p in replica.parameters()])


@torch.no_grad()
def descend(parameters):
    """One step of plain gradient descent; torch.optim's first step loads torch's compiler, five seconds a process."""
    for parameter in parameters:
        parameter -= RATE * parameter.grad
        parameter.grad = None


def train(group, steps):
    """The loss of every step, on a group whose size divides PARTS."""
    torch.set_num_threads(1)  # this process is one of several on the machine
    parts, local_experts = PARTS // group.size, EXPERTS // group.size
    torch.manual_seed(1000)
    first = Replicated()
    replicas = [copy.deepcopy(first) for _ in range(parts)]
    experts = [make_expert(group.rank * local_experts + i) for i in range(local_experts)]
    parameters = list(nn.ModuleList([*replicas, *experts]).parameters())
    exchange = group.exchange(
        max_tokens=parts * SEQUENCES * CONTEXT, hidden=WIDTH, num_experts=EXPERTS, top_k=TOP_K, dtype=torch.float32
    )
    history = []
    for step in range(steps):
        own = make_batch(step)[group.rank * parts : (group.rank + 1) * parts]
        before = [replica.before(part[:, :-1]) for replica, part in zip(replicas, own)]
        tokens = moe_layer(exchange, experts, *(torch.cat(each) for each in zip(*before))).chunk(parts)
        losses = torch.stack([r.loss(x, part[:, 1:]) for r, x, part in zip(replicas, tokens, own)])
        (losses.sum() / PARTS).backward()  # collective: every rank calls it
        share_gradients(group, replicas)
        descend(parameters)
        history.append(losses.detach())
    return gather(group, torch.stack(history, 1)).mean(0).tolist()


def main(steps):
    histories, seconds = [], []
    for size, start in ((1, ferry.run_threads), (PARTS, ferry.spawn)):  # a thread of this process; four processes
        began = time.perf_counter()
        every_rank = start(size, train, steps)
        seconds.append(time.perf_counter() - began)
        assert all(history == every_rank[0] for history in every_rank), "ranks disagree on the losses"
        histories.append(every_rank[0])
    print(f"{len(TEXT)} characters, {PARTS * SEQUENCES * CONTEXT} in a batch, {EXPERTS} experts, top {TOP_K}")
    print(f"{'step':>6} {'1 rank':>10} {f'{PARTS} ranks':>10} {'difference':>11}")
    for step in sorted({*range(0, steps, max(1, steps // 8)), steps - 1}):
        one, four = histories[0][step], histories[1][step]
        print(f"{step:>6} {one:>10.6f} {four:>10.6f} {abs(one - four):>11.1e}")
    differing = sum(one != four for one, four in zip(*histories))
    print(f"{steps} steps in {seconds[0]:.1f} s and {seconds[1]:.1f} s; losses that differ: {differing}")
    return 1 if differing or histories[0][-1] > histories[0][0] - 0.5 else 0


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1]) if len(sys.argv) > 1 else 60))
