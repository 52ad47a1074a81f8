"""The EPImplementations of transformers. They send the tokens of an experts module to the experts of other ranks, and
return the weighted sums.

T tokens of this rank, H hidden, K top-k, E experts, L experts of this rank, N rows received. Calls ferry.torch and
exchanges.py."""

import torch
from torch.distributed.tensor import DTensor, Replicate, Shard
from transformers.distributed.expert_parallel import EPImplementation

import ferry.torch
from ferry.transformers import exchanges


class _Exchanged(EPImplementation):
    """The base of both implementations. It finds the exchange, takes this rank's slice of a batch that ranks share, and
    handles a rank that receives no rows."""

    @torch.compiler.disable
    def __call__(self, hidden_states, top_k_index, top_k_weights):
        """Returns the weighted sums [T, H] for tokens [T, H], global expert ids [T, K] and weights [T, K]. Collective,
        and so is backward()."""
        if self.tp_mesh.size() == 1:
            return self.move(hidden_states, top_k_index, top_k_weights)
        # The ranks of a tensor parallel group hold the same batch: each sends a slice of it to the experts, and all get
        # the whole result.
        sums = self.move(*(self._slice(each) for each in (hidden_states, top_k_index, top_k_weights)))
        whole = dict(shape=hidden_states.shape, stride=(hidden_states.size(1), 1))
        return DTensor.from_local(sums.contiguous(), self.tp_mesh, [Shard(0)], **whole).full_tensor()

    def _slice(self, whole):
        whole = DTensor.from_local(whole, self.tp_mesh, [Replicate()], run_check=False)
        return whole.redistribute(self.tp_mesh, [Shard(0)]).to_local()

    def move(self, hidden_states, top_k_index, top_k_weights):
        raise NotImplementedError

    def dispatch(self, layout, hidden_states, top_k_index, top_k_weights):
        """Makes a dispatch and returns (exchange, ferry.torch.Dispatched). The rows are views of the window, since the
        experts copy the rows that they need."""

        def send(exchange):
            return ferry.torch.dispatch(exchange, hidden_states, top_k_index, top_k_weights, copy=False)

        return exchanges.of(self.ep_mesh.get_group()).dispatch(
            send,
            len(hidden_states),
            layout=layout,
            hidden=hidden_states.size(1),
            num_experts=self.num_local_experts * self.ep_mesh.size(),
            top_k=top_k_index.size(1),
            dtype=hidden_states.dtype,
        )

    def run(self, rows, ids, weights):
        """Calls the experts with rows [N, H], local ids [N, k] and weights [N, k]."""
        if len(rows):
            return self.experts_forward(rows, ids, weights)
        # No row came. A row that depends on the empty result brings every parameter and the exchange into the graph:
        # without their backward on this rank, the other ranks would wait for it.
        sums = rows.sum(0, keepdim=True) + weights.sum()
        return self.experts_forward(sums, ids.new_zeros(1, 1), rows.new_ones(1, 1))[:0]


class ExpertMajor(_Exchanged):
    """Sends a row for each (token, expert), grouped by expert. The weights stay on the source, which adds the rows.

    The source adds float32 products in the order of the top-k list, as transformers' "all_to_all" does, so with float32
    rows the results are equal bit for bit.
    """

    def move(self, hidden_states, top_k_index, top_k_weights):
        exchange, received = self.dispatch("expert_major", hidden_states, top_k_index, None)
        counts = received.handle.tokens_per_expert
        ids = torch.arange(self.num_local_experts).repeat_interleave(counts).unsqueeze(1)
        outputs = self.run(received.rows, ids, received.rows.new_ones(ids.shape))
        return ferry.torch.combine(exchange, outputs, received.handle, top_k_weights.float())


class RankMajor(_Exchanged):
    """Sends a row for each (token, rank), with top-k ids and weights. The forward of the experts applies the experts of
    the rank to the row and adds their weighted outputs.

    An entry for an expert of another rank has the id num_local_experts and weight 0, which transformers' experts skip.
    """

    def move(self, hidden_states, top_k_index, top_k_weights):
        exchange, received = self.dispatch("rank_major", hidden_states, top_k_index, top_k_weights.float())
        ids = received.topk_ids.long()
        ids.masked_fill_(ids < 0, self.num_local_experts)
        outputs = self.run(received.rows, ids, received.weights)
        return ferry.torch.combine(exchange, outputs, received.handle)
