"""Config has the queue settings of DeepEP's normal kernels. The size hints and the tables of settings are DeepEP's.

ferry has no queues and uses no SMs. Only the number of channels of a Config, num_sms / 2, has an effect: it is the
number of columns of the channel matrices of a handle. The size hints are for programs that size their buffers by them.
"""

from ferry.deep_ep.scalars import integer, rounded_up
from ferry.errors import InvalidArgument

NVL_PEERS = 8  # ranks of a node in DeepEP; with more ranks it uses the internode kernels and their handles
_MOST_TOPK = 128
_MOST_SCALES = 128


class Config:
    """num_sms (even), and the tokens of a chunk and of a queue, one queue for each channel and peer. The nvl numbers
    are for queues inside a node, the rdma numbers for queues between nodes."""

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
        """The number of contiguous ranges that the tokens of a rank are split into."""
        return max(self.num_sms // 2, 1)

    def get_nvl_buffer_size_hint(self, hidden_bytes, num_ranks):
        """Returns num_nvl_bytes, in bytes, for rows of hidden_bytes."""
        hidden_bytes, num_ranks = _check_sizes(hidden_bytes, num_ranks)
        nodes, peers = max(-(-num_ranks // NVL_PEERS), 1), min(num_ranks, NVL_PEERS)
        queues = self.num_sms // 2 * peers
        return rounded_up(queues * ((2 * nodes + 3) * 4 + self.nvl_recv * _token_bytes(hidden_bytes)), 128)

    def get_rdma_buffer_size_hint(self, hidden_bytes, num_ranks):
        """Returns num_rdma_bytes, in bytes, for rows of hidden_bytes; 0 inside one node."""
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
    """Returns the bytes of a row with its source and with the largest number of top-k ids (int64), weights and scales
    that DeepEP allows."""
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
    """Returns the Config that DeepEP recommends for a dispatch. For a number of ranks that is not in DeepEP's table, it
    is that of the next larger number in the table, or else of the largest."""
    return _recommended(_DISPATCH, num_sms, num_ranks)


def combine_config(num_sms, num_ranks):
    """Returns the Config that DeepEP recommends for a combine, chosen as in dispatch_config."""
    return _recommended(_COMBINE, num_sms, num_ranks)


def _recommended(table, num_sms, num_ranks):
    num_ranks = integer("num_ranks", num_ranks, 1)
    return Config(num_sms, *table[next((listed for listed in table if listed >= num_ranks), max(table))])
