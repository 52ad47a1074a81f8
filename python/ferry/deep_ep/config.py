"""Config: the queue settings of DeepEP's normal kernels, with its size hints and tables.

ferry has no queues and no SMs: of a Config only the number of channels, num_sms / 2, shows, in the channel matrices of
a handle. The hints are DeepEP's arithmetic, for programs that size buffers with them.
"""

from ferry.deep_ep.scalars import integer, rounded_up
from ferry.errors import InvalidArgument

NVL_PEERS = 8  # ranks of a node in DeepEP; of more, the internode kernels and their handles
_MOST_TOPK = 128
_MOST_SCALES = 128


class Config:
    """num_sms (even), and tokens per chunk and per queue of a (channel, peer), inside and between nodes."""

    def __init__(self, num_sms=20, num_max_nvl_chunked_send_tokens=6, num_max_nvl_chunked_recv_tokens=256,
                 num_max_rdma_chunked_send_tokens=6, num_max_rdma_chunked_recv_tokens=256):
        self.num_sms = integer("num_sms", num_sms)
        self.nvl_send = integer("num_max_nvl_chunked_send_tokens", num_max_nvl_chunked_send_tokens)
        self.nvl_recv = integer("num_max_nvl_chunked_recv_tokens", num_max_nvl_chunked_recv_tokens)
        self.rdma_send = integer("num_max_rdma_chunked_send_tokens", num_max_rdma_chunked_send_tokens)
        rdma_recv = integer("num_max_rdma_chunked_recv_tokens", num_max_rdma_chunked_recv_tokens)
        if num_sms % 2:
            raise InvalidArgument(f"num_sms is {num_sms}, need an even number")
        if not 0 < self.nvl_send < self.nvl_recv:
            raise InvalidArgument(f"NVLink chunks of {self.nvl_send} in queues of {self.nvl_recv}: "
                                  "need 0 < chunk < queue")
        if self.rdma_send == 0 or rdma_recv == 0:
            raise InvalidArgument(f"RDMA chunks of {self.rdma_send} in queues of {rdma_recv}: "
                                  "need both above 0")
        self.rdma_recv = -(-rdma_recv // self.rdma_send) * self.rdma_send
        if self.rdma_send > self.rdma_recv // 2:
            raise InvalidArgument(f"RDMA chunks of {self.rdma_send} in queues of {self.rdma_recv}: need at most half")

    @property
    def num_channels(self):
        """Parts that a rank's tokens are split in; each is a contiguous range of them."""
        return max(self.num_sms // 2, 1)

    def get_nvl_buffer_size_hint(self, hidden_bytes, num_ranks):
        """Bytes of num_nvl_bytes for rows of hidden_bytes."""
        hidden_bytes, num_ranks = _check_sizes(hidden_bytes, num_ranks)
        nodes, peers = max(-(-num_ranks // NVL_PEERS), 1), min(num_ranks, NVL_PEERS)
        queues = self.num_sms // 2 * peers
        return rounded_up(queues * ((2 * nodes + 3) * 4 + self.nvl_recv * _token_bytes(hidden_bytes)), 128)

    def get_rdma_buffer_size_hint(self, hidden_bytes, num_ranks):
        """Bytes of num_rdma_bytes; 0 inside one node."""
        hidden_bytes, num_ranks = _check_sizes(hidden_bytes, num_ranks)
        if num_ranks <= NVL_PEERS:
            return 0
        queues = self.num_sms // 2 * -(-num_ranks // NVL_PEERS) * 2  # both directions
        return rounded_up(queues * ((NVL_PEERS * 2 + 2) * 4 + self.rdma_recv * (_token_bytes(hidden_bytes) + 16)), 128)

    def __repr__(self):
        return f"Config({self.num_sms}, {self.nvl_send}, {self.nvl_recv}, {self.rdma_send}, {self.rdma_recv})"


def _check_sizes(hidden_bytes, num_ranks):
    return integer("hidden_bytes", hidden_bytes), integer("num_ranks", num_ranks, 1)


def _token_bytes(hidden_bytes):
    """A row with its source, top-k ids (int64), weights and scales, as many as DeepEP allows."""
    return hidden_bytes + 8 + _MOST_TOPK * (8 + 4) + _MOST_SCALES * 4


# Ranks -> (nvl_send, nvl_recv, rdma_send, rdma_recv).
_DISPATCH = {
    2: (24, 256, 6, 128), 4: (6, 256, 6, 128), 8: (6, 256, 6, 128),
    16: (36, 288, 20, 128), 24: (32, 288, 8, 128), 32: (32, 288, 8, 128), 48: (32, 288, 8, 128),
    64: (32, 288, 8, 128), 96: (20, 480, 12, 128), 128: (20, 560, 12, 128), 144: (32, 720, 12, 128),
    160: (28, 720, 12, 128),
}
_COMBINE = {
    2: (10, 256, 6, 128), 4: (9, 256, 6, 128), 8: (4, 256, 6, 128),
    16: (4, 288, 12, 128), 24: (1, 288, 8, 128), 32: (1, 288, 8, 128), 48: (1, 288, 8, 128),
    64: (1, 288, 8, 128), 96: (1, 480, 8, 128), 128: (1, 560, 8, 128), 144: (2, 720, 8, 128),
    160: (2, 720, 8, 128),
}


def dispatch_config(num_sms, num_ranks):
    """DeepEP's recommendation; for a number of ranks it does not list, that of the next larger one it does."""
    return _recommended(_DISPATCH, num_sms, num_ranks)


def combine_config(num_sms, num_ranks):
    """DeepEP's recommendation for combine, chosen as in dispatch_config."""
    return _recommended(_COMBINE, num_sms, num_ranks)


def _recommended(table, num_sms, num_ranks):
    num_ranks = integer("num_ranks", num_ranks, 1)
    return Config(num_sms, *table[next((listed for listed in table if listed >= num_ranks), max(table))])
