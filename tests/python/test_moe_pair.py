"""The forward of a micro-batch beside the backward of the one before: bits of one after the other, order, errors."""

import threading

import pytest

torch = pytest.importorskip("torch")

import ferry  # noqa: E402
from dense_layer import World, leaf  # noqa: E402
from ferry.moe import SwiGLU, moe, pair  # noqa: E402

WORLDS = [(5, 8), (1, 0), (7, 0, 4)]
LAYERS, MICRO_BATCHES = 2, 3


class Model:
    """Layers with exchanges of their own, and the inputs of their micro-batches."""

    def __init__(self, group, num_tokens):
        self.batches = [World(num_tokens, seed=seed, dtype=torch.bfloat16) for seed in range(MICRO_BATCHES)]
        self.rank = group.rank
        self.layers = [(self.batches[0].exchange(group), SwiGLU(len(self.batches[0].local_experts(group.rank)), 8, 16))
                       for _ in range(LAYERS)]  # fmt: skip
        self.leaves = [(leaf(world.tokens[self.rank]), leaf(world.topk_weights[self.rank])) for world in self.batches]
        self.outs = []
        generator = torch.Generator().manual_seed(group.rank)
        for _, experts in self.layers:  # the ranks are threads that share torch's generator
            for parameter in experts.parameters():
                torch.nn.init.normal_(parameter, std=0.3, generator=generator)

    def forward(self, number, change=lambda experts: experts):
        out, weights = self.leaves[number]
        for exchange, experts in self.layers:
            out = moe(exchange, out.tanh(), self.batches[number].topk_ids[self.rank], weights, change(experts))
        self.outs.append(out)

    def backward(self, number):
        self.outs[number].backward(self.batches[number].grads[self.rank])

    def found(self):
        held = [parameter.grad for _, experts in self.layers for parameter in experts.parameters()]
        return [out.detach() for out in self.outs], [one.grad for batch in self.leaves for one in batch], held


def trained(group, num_tokens, in_pairs):
    model = Model(group, num_tokens)
    model.forward(0)
    for number in range(1, MICRO_BATCHES):
        if in_pairs:
            pair(lambda: model.forward(number), lambda: model.backward(number - 1))
        else:
            model.forward(number)
            model.backward(number - 1)
    model.backward(MICRO_BATCHES - 1)
    return model.found()


@pytest.mark.parametrize("run", [ferry.run_threads, pytest.param(ferry.spawn, marks=pytest.mark.long)])
@pytest.mark.parametrize("num_tokens", WORLDS, ids=str)
def test_pairs_have_the_bits_of_one_after_the_other(num_tokens, run):
    size = len(num_tokens)
    for one, other in zip(ferry.run_threads(size, trained, num_tokens, False), run(size, trained, num_tokens, True)):
        for mine, theirs in zip(one, other):
            assert all(torch.equal(*each) for each in zip(mine, theirs))


def beside(group, computes):
    """Rank 1's forward begins after rank 0's backward has begun. That backward is beside rank 0's forward, which waits
    for rank 1."""
    model = Model(group, (4, 4))
    model.forward(0)

    def forward():
        if group.rank == 1:
            assert computes.wait(5)
        model.forward(1)

    def backward():
        if group.rank == 0:
            computes.set()
        model.backward(0)

    return pair(forward, backward)


def test_one_computes_while_the_other_waits():
    assert ferry.run_threads(2, beside, threading.Event()) == [(None, None)] * 2


def ordered(group):
    """The thread that made each call."""
    model, calls = Model(group, (4, 4)), []

    class Noting:
        def __init__(self, exchange):
            self.exchange = exchange

        def __getattr__(self, name):
            found = getattr(self.exchange, name)
            if name not in ("dispatch", "combine"):
                return found
            who = threading.get_ident() == mine
            return lambda *a, **k: (calls.append(("forward " if who else "backward ") + name), found(*a, **k))[1]

    mine = threading.get_ident()
    model.layers = [(Noting(exchange), experts) for exchange, experts in model.layers]
    model.forward(0)
    calls.clear()
    pair(lambda: model.forward(1), lambda: model.backward(0))
    return calls


def test_calls_alternate_until_one_has_ended():
    kinds = [["dispatch", "combine"] * 2, ["dispatch", "combine", "combine"] * 2]
    expected = [name for both in zip(*([f"{who} {kind}" for kind in each] for who, each in
                                       zip(("forward", "backward"), kinds))) for name in both]
    expected += ["backward combine", "backward combine"]
    for calls in ferry.run_threads(2, ordered):
        assert calls == expected


def failing(group):
    """Rank 1's second layer raises in the forward pass; then its ids are wrong. The other rank's gradients are
    whole."""
    told = []
    alone = Model(group, (6, 0, 3))
    alone.forward(0)
    alone.backward(0)
    alone.outs.clear()

    def raises(rows, counts):
        raise ArithmeticError("no GEMM")

    for what, error in (("experts", ArithmeticError), ("ids", ferry.InvalidArgument)):
        model = Model(group, (6, 0, 3))
        model.forward(0)
        good = model.batches[1].topk_ids
        if what == "ids" and group.rank == 1:
            model.batches[1].topk_ids = [ids[:0].double() for ids in good]
        change = {model.layers[1][1]: raises} if what == "experts" and group.rank == 1 else {}
        with pytest.raises(error if group.rank == 1 else ferry.PeerRejected) as caught:
            pair(lambda: model.forward(1, lambda experts: change.get(experts, experts)), lambda: model.backward(0))
        told.append(str(caught.value))
        for mine, theirs in zip(model.found()[1][:2], alone.found()[1][:2]):
            assert torch.equal(mine, theirs)
        model.batches[1].topk_ids = good
        model.forward(1)
        model.backward(1)
    return told


def test_a_forward_that_fails_leaves_the_backward_whole():
    for told in ferry.run_threads(3, failing, deadline=5):
        assert "no GEMM" in told[0] and "topk_ids" in told[1], told


def both_fail(group):
    with pytest.raises(ArithmeticError, match="first"):
        pair(lambda: raise_it("first"), lambda: raise_it("second"))
    with pytest.raises(ArithmeticError, match="second"):
        pair(lambda: 1, lambda: raise_it("second"))
    with pytest.raises(ferry.InvalidArgument, match="in a pair already"):
        pair(lambda: pair(int, int), int)
    world = World((3, 3))
    exchange = world.exchange(group)
    batch = leaf(world.tokens[group.rank]), world.topk_ids[group.rank], world.topk_weights[group.rank]
    out = moe(exchange, *batch, lambda rows, counts: rows, overlap="batches")
    with pytest.raises(ferry.InvalidArgument, match="do not run in a pair"):
        pair(int, lambda: out.sum().backward())
    with pytest.raises(ferry.InvalidArgument, match="overlap is 'batches', need None"):
        pair(lambda: moe(exchange, *batch, None, overlap="batches"), int)
    return pair(lambda: 1, lambda: 2)


def raise_it(what):
    raise ArithmeticError(what)


def test_what_is_raised_and_refused():
    assert ferry.run_threads(2, both_fail, deadline=5) == [(1, 2)] * 2
