"""Types of arguments and results, for type checkers. The stub of the native module uses them too."""

from typing import TYPE_CHECKING, Any, List, Literal, Protocol, TypedDict, TypeVar, Union

if TYPE_CHECKING:
    import torch
    from numpy.typing import NDArray


class SupportsDLPack(Protocol):
    """A tensor or array of torch, numpy, or another library that supports DLPack."""

    def __dlpack__(self, *args: Any, **options: Any) -> Any: ...


AnyArray = Union[SupportsDLPack, memoryview]

# Results are arrays of the library of the arguments, of any dtype and shape.
Array = TypeVar("Array", "NDArray[Any]", "torch.Tensor", memoryview)
# The result of a half: Received of a dispatch, an array of a combine.
Result = TypeVar("Result")


class _Needed(TypedDict):
    max_tokens: int
    hidden: int
    num_experts: int
    top_k: int


class Settings(_Needed, total=False):
    """Keywords of Group.exchange and ferry.window_bytes, and keys of Exchange.config (docs/python_reference.md)."""

    dtype: Any
    layout: Literal["rank_major", "expert_major", "padded"]
    expert_alignment: int
    zero_gaps: bool
    row_capacity: int
    expert_capacity: int
    expert_rank: List[int]
    token_ranks: List[int]
    expert_ranks: List[int]
    max_output_row_bytes: int
    depth: int
    workers: int
    wire: Literal["none", "int8", "int8_static", "fp8", "fp8_pow2", "fp8_ue8m0"]
    combine_wire: Literal["none", "int8_8", "int8_128", "logfmt10"]
    scale_order: Literal["row_major", "column_major"]
    scale_bytes: int
    num_shared_experts: int
    num_shared_ranks: int
    shared_rule: Literal["by_rank", "by_token"]
    zero_experts: int
    copy_experts: int
    constant_experts: int
    replicas: List[List[int]]
    replica_choice: Literal["by_rank", "by_token", "by_table"]
    tp_size: int
    algorithm: Literal["auto", "fullmesh", "hierarchical", "allgather"]
    node_sums: Literal["row_type", "fp32", "exact"]
