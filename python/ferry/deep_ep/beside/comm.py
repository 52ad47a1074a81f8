"""deep_ep.utils.comm: NCCL communicators. There are none on a CPU, so these functions raise NotBuilt or do nothing."""

from ferry.deep_ep.elastic_sessions import NotBuilt


class NCCLCommHandle:
    """The type that get_nccl_comm_handle returns in DeepEP. Its constructor raises NotBuilt."""

    def __init__(self, *_, **__):
        raise NotBuilt("NCCLCommHandle: there is no NCCL communicator on a CPU; ferry joins the ranks by itself")


def get_nccl_comm_handle(group, force_new_comm: bool = False):
    """Raises ferry.deep_ep.elastic.NotBuilt."""
    raise NotBuilt("get_nccl_comm_handle: there is no NCCL communicator on a CPU; ferry joins the ranks by itself")


def destroy_all_managed_nccl_comm():
    """Does nothing: no communicator was made."""
