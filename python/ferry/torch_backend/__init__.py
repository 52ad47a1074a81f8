"""The backend `ferry` of torch.distributed: collectives of CPU tensors by ferry's engine.

    import ferry.torch_backend                     # not needed with torch 2.14 and later
    torch.distributed.init_process_group("cpu:ferry")

torch 2.14 and later find the backend by its name (the entry point torch.distributed.backends). torch 2.13 has no such
entry points, so there the program imports this module, and a process group of ferry is for the CPU alone.
docs/torch_backend.md is the guide.
"""

import torch
import torch.distributed

from ferry.errors import InvalidArgument

__all__ = ["register"]

_OLDEST = (2, 13)


def register() -> None:
    """Registers the name "ferry" with torch.distributed; a second call changes nothing.

    Raises InvalidArgument where torch is older than 2.13 or was built without torch.distributed.
    """
    version = tuple(int(part) for part in torch.__version__.split("+")[0].split(".")[:2])
    if version < _OLDEST:
        raise InvalidArgument(f"the backend ferry needs torch {'.'.join(map(str, _OLDEST))} or later: "
                              f"this is torch {torch.__version__}")
    if not torch.distributed.is_available():
        raise InvalidArgument(f"torch {torch.__version__} was built without torch.distributed")
    from ferry.torch_backend.process_group import create

    backends = torch.distributed.Backend
    if "FERRY" not in backends._plugins:
        backends.register_backend("ferry", create, extended_api=True, devices=["cpu"])


register()
