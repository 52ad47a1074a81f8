"""deep_ep.utils.find_pkgs: DeepEP's search for CUDA and its libraries. ferry on a CPU uses none of them."""

from ferry.deep_ep.elastic_sessions import NotBuilt


def _absent(name):
    raise NotBuilt(f"{name}: ferry on a CPU uses no CUDA, NCCL or NVSHMEM")


def find_pkg_root(pkg_name: str = ""):
    """Raises ferry.deep_ep.elastic.NotBuilt, as the others do."""
    _absent(f"find_pkg_root({pkg_name!r})")


def find_nccl_root():
    _absent("find_nccl_root")


def find_nvshmem_root():
    _absent("find_nvshmem_root")


def find_cuda_home() -> str:
    _absent("find_cuda_home")


def check_nccl_so():
    """Does nothing: no NCCL is loaded."""


def init_jit():
    """Does nothing: no kernel is compiled."""
