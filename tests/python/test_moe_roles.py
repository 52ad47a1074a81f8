"""ferry.torch.MoE with token_ranks and expert_ranks: results, gradients, and what is refused."""

import pytest

torch = pytest.importorskip("torch", minversion="2.9")

import ferry  # noqa: E402
from ferry.moe import MoE, SwiGLU  # noqa: E402
from ferry.placement import blocks  # noqa: E402

TOKENS, HIDDEN, INNER, EXPERTS, TOP_K = [5, 3], 8, 4, 4, 2  # ranks 0 and 1 have tokens, 3 and 2 the experts
ROLES = dict(token_ranks=[0, 1], expert_ranks=[3, 2])


def inputs(rank):
    random = torch.Generator().manual_seed(rank)
    count = TOKENS[rank] if rank < len(TOKENS) else 0
    ids = torch.rand(count, EXPERTS, generator=random).argsort(1)[:, :TOP_K]
    return torch.randn(count, HIDDEN, generator=random), ids, torch.rand(count, TOP_K, generator=random)


def make(group, **more):
    return MoE(group, **{**dict(hidden=HIDDEN, intermediate=INNER, num_experts=EXPERTS, top_k=TOP_K, max_tokens=8,
                                dtype=torch.float32), **ROLES, **more})


def dense():
    """(results of ranks 0 and 1, the experts with the gradients of the mean of their losses, gradients of tokens)."""
    torch.manual_seed(0)
    experts, outs, tokens = SwiGLU(EXPERTS, HIDDEN, INNER, torch.float32), [], []
    for rank in range(len(TOKENS)):
        x, ids, weights = inputs(rank)
        x.requires_grad_()
        order = ids.flatten().argsort(stable=True)
        counts = ids.flatten().bincount(minlength=EXPERTS).tolist()
        rows = torch.zeros(len(order), HIDDEN).index_copy(0, order, experts(x[order // TOP_K], counts))
        outs.append((rows.view(-1, TOP_K, HIDDEN) * weights[..., None]).sum(1))
        tokens.append(x)
    (sum(out.square().sum() for out in outs) / len(TOKENS)).backward()
    return outs, experts, [x.grad * len(TOKENS) for x in tokens]


def train(group):
    torch.manual_seed(0)
    layer = make(group)
    x, ids, weights = inputs(group.rank)
    x.requires_grad_()
    out = layer(x, ids, weights)
    out.square().sum().backward()
    return out.detach(), x.grad, [weight.grad for weight in layer.experts.parameters()]


@pytest.mark.parametrize("topology", ["", "host:2,rank:2"])
def test_results_and_gradients_are_those_of_the_dense_layer(topology, monkeypatch):
    if topology:
        monkeypatch.setenv("FERRY_TOPOLOGY", topology)
    ranks = ferry.spawn(4, train, deadline=60.0)
    outs, experts, of_tokens = dense()
    for rank in range(2):
        torch.testing.assert_close(ranks[rank][0], outs[rank].detach())
        torch.testing.assert_close(ranks[rank][1], of_tokens[rank])
    for rank, first in ((3, 0), (2, 2)):  # in the order of expert_ranks
        for have, whole in zip(ranks[rank][2], experts.parameters()):
            torch.testing.assert_close(have, whole.grad[first:first + 2])
    assert [len(ranks[rank][2][0]) for rank in (0, 1)] == [0, 0]


def refusals(group):
    def told(call):
        with pytest.raises(ferry.Error) as error:
            call()
        return str(error.value)

    layer = make(group)
    x, ids, weights = inputs(0)
    mine = slice(0, 2 if group.rank == 3 else 0)
    with torch.no_grad():
        tokens = told(lambda: layer(x[mine], ids[mine], weights[mine]))
    switch = told(lambda: layer.switch(blocks(EXPERTS, 4), blocks(EXPERTS, 4)))
    uneven = told(lambda: make(group, expert_ranks=[1, 2, 3]))
    return tokens, switch, uneven


def test_what_does_not_fit_is_refused_on_all_ranks():
    for tokens, switch, uneven in ferry.spawn(4, refusals, deadline=60.0):
        assert "2 tokens on rank 3, need 0 outside token_ranks [0, 1]" in tokens
        assert "expert_ranks is [3, 2]" in switch
        assert "4 experts on 3 ranks" in uneven


class Model(torch.nn.Module):
    def __init__(self, group):
        super().__init__()
        torch.manual_seed(group.rank)  # so that an expert of one rank equals none of the other
        self.linear = torch.nn.Linear(HIDDEN, HIDDEN)
        self.moe = make(group, token_ranks=[], expert_ranks=[1, 0])

    def forward(self, tokens, ids, weights):
        return self.moe(self.linear(tokens), ids, weights)


def clip(group):
    torch.manual_seed(group.rank)
    layer, dense = make(group), torch.nn.Parameter(torch.ones(3))
    layer(*inputs(group.rank)).square().sum().backward()
    dense.grad = torch.ones(3)
    own = sum(weights.grad.double().square().sum().item() for weights in layer.experts.parameters())
    total = ferry.torch.clip_grad_norm_([dense, *layer.experts.parameters()], 0.5)
    return own, total.item(), dense.grad


def test_experts_of_all_ranks_count_in_the_norm_of_gradients():
    own, totals, gradients = zip(*ferry.spawn(4, clip, deadline=60.0))
    assert own[2] > 0 and own[3] > 0
    assert totals == pytest.approx([(3 + sum(own)) ** 0.5] * 4)
    assert all(torch.equal(gradient, gradients[0]) for gradient in gradients)


def unplaced(group):
    whole = dict(token_ranks=[], expert_ranks=[])
    for settings in dict(expert_rank=[0, 1, 0, 1]), dict(num_shared_experts=1, num_shared_ranks=1), dict(tp_size=2):
        with pytest.raises(ferry.Error, match=next(iter(settings))):
            make(group, **whole, **settings)
    layer = make(group, **whole, expert_rank=[], num_shared_experts=0, tp_size=1)
    half = blocks(2, 2)
    with pytest.raises(ferry.InvalidArgument, match="2 slots, the layer 4"):
        layer.switch(half, half)


def test_experts_that_are_no_blocks_are_refused():
    ferry.spawn(2, unplaced, deadline=60.0)


def train_wrapped(group, path):
    torch.distributed.init_process_group("gloo", init_method=f"file://{path}", rank=group.rank, world_size=group.size)
    model = Model(group)
    experts = [weights.detach().clone() for weights in model.moe.experts.parameters()]
    wrapped = ferry.torch.ddp(model)
    wrapped(*inputs(group.rank)).sum().backward()
    assert all(map(torch.equal, experts, model.moe.experts.parameters()))
    torch.distributed.barrier()
    with pytest.raises(ferry.InvalidArgument, match="wrap the model by ferry.torch.ddp"):
        torch.nn.parallel.DistributedDataParallel(Model(group))(*inputs(group.rank))
    with pytest.raises(ferry.InvalidArgument, match="wrap the model around it by ferry.torch.ddp"):
        torch.nn.parallel.DistributedDataParallel(model.moe)
    torch.distributed.destroy_process_group()
    return [weights.grad for weights in (*model.moe.experts.parameters(), model.linear.weight)]


def test_data_parallel_wrappers_leave_the_experts_of_each_rank_alone(tmp_path):
    (*first, linear), (*second, same) = ferry.spawn(2, train_wrapped, tmp_path / "store", deadline=60.0)
    assert torch.equal(linear, same)
    assert not any(map(torch.equal, first, second))
