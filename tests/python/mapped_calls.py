"""Calls that a program may make on a CUDA device that is the CPU: run by test_map_cuda.py in a separate process."""

import copy
import io
import pickle
import threading

import torch

from ferry import on_cpu

on_cpu.map_device("cuda")
on_cpu.map_device("cuda")  # a second call changes nothing

FACTORIES = {
    "zeros": (3,), "ones": (3,), "empty": (3,), "rand": (3,), "randn": (3,), "arange": (3,), "randperm": (3,),
    "eye": (3,), "full": ((3,), 1.0), "randint": (0, 3, (3,)),
    "tensor": ([1.0, 2.0],), "as_tensor": ([1.0, 2.0],), "linspace": (0, 1, 3), "tril_indices": (2, 2),
    "hann_window": (4,),
}
DEVICES = ["cuda", "cuda:1", 0, torch.device("cuda"), torch.device("cuda", 1)]


def tensors():
    for name, arguments in FACTORIES.items():
        for device in DEVICES:
            assert getattr(torch, name)(*arguments, device=device).is_cuda, name
    x = torch.ones(3, device="cuda")
    for device in DEVICES:
        assert x.to(device) is x is x.to(device=device) and x.to(device, torch.float16).dtype is torch.float16
        assert torch.zeros_like(x, device=device).is_cuda and x.new_zeros(2, device=device).is_cuda
        assert x.device == torch.device(device)
    assert x.cuda(1) is x and x.pin_memory() is x and x.record_stream(torch.cuda.current_stream()) is None
    assert torch.zeros(2, pin_memory=True).is_cuda and x.type("torch.cuda.HalfTensor").dtype is torch.float16
    host = x.cpu()
    host_too = x.to("cpu")
    x.zero_()
    assert host.sum() == host_too.sum() == 3  # a copy, as from a device
    layer = torch.nn.Linear(2, 2, device="cuda").cuda().to("cuda", torch.bfloat16)
    assert layer.weight.dtype is torch.bfloat16 and copy.deepcopy(layer).weight.is_cuda
    assert torch.rand(3, device="cuda", generator=torch.Generator(device="cuda").manual_seed(1)).is_cuda
    with torch.device("cuda"):
        assert torch.zeros(1).is_cuda
    torch.set_default_device("cuda")
    assert torch.zeros(1).is_cuda
    saved = io.BytesIO()
    torch.save(x, saved)
    saved.seek(0)
    assert torch.load(saved, map_location="cuda:0").is_cuda
    device = pickle.loads(pickle.dumps(torch.device("cuda")))
    assert isinstance(device, torch.device) and isinstance(torch.Generator(), torch.Generator)
    with torch.autocast("cuda", dtype=torch.bfloat16):
        assert (torch.ones(2, 2) @ torch.ones(2, 2)).dtype is torch.bfloat16
    with torch.random.fork_rng(devices=[0]):
        torch.cuda.manual_seed_all(3)


def streams():
    stream, start, end = torch.cuda.Stream(), *(torch.cuda.Event(enable_timing=True) for _ in range(2))
    assert isinstance(stream, torch.cuda.Stream) and isinstance(torch.cuda.current_stream(), torch.cuda.Stream)
    start.record()
    with torch.cuda.stream(stream), torch.cuda.device(3):
        assert torch.cuda.current_stream() is stream and torch.cuda.current_device() == 3
        stream.wait_stream(torch.cuda.default_stream())
        stream.wait_event(stream.record_event())
    assert torch.cuda.current_stream() is torch.cuda.default_stream() and torch.cuda.current_device() == 0
    end.record(stream)
    torch.cuda.synchronize()
    assert end.query() and 0 < start.elapsed_time(end) < 60e3
    torch.cuda.nvtx.range_push("a")
    torch.cuda.nvtx.range_pop()
    torch.cuda.cudart().cudaProfilerStart()


def questions():
    cuda = torch.cuda
    assert cuda.is_available() and cuda.device_count() == 8 and cuda.get_device_capability() == (9, 0)
    properties = cuda.get_device_properties("cuda")
    free, total = cuda.mem_get_info()
    assert properties.multi_processor_count > 0 and 0 < free <= total == properties.total_memory
    assert cuda.get_device_name(0) == "cpu" and cuda.nccl.version() > (2, 0) and cuda.memory_allocated() == 0
    assert not cuda.is_current_stream_capturing() and cuda.is_bf16_supported() and torch.version.cuda


class Doubled(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x * 2

    @staticmethod
    def backward(ctx, grad):
        return grad * torch.full((), 2.0, device="cuda").cuda()


def in_threads_and_backward():
    x = torch.ones(2, device="cuda", requires_grad=True)
    Doubled.apply(x).sum().backward()
    made = []
    thread = threading.Thread(target=lambda: made.append(torch.zeros(2, device="cuda:3")))
    thread.start()
    thread.join()
    assert x.grad.tolist() == [2, 2] and len(made) == 1


def operators():
    library = torch.library.Library("mapped_calls", "DEF")
    library.define("more(Tensor x) -> Tensor")
    library.impl("more", lambda x: x + 1, "CUDA")
    library.define("both(Tensor x) -> Tensor")
    library.impl("both", lambda x: x + 1, "CPU")
    library.impl("both", lambda x: x + 2, "CUDA")  # the CPU has a generator of its own

    @torch.library.custom_op("mapped_calls::times", mutates_args=(), device_types="cuda")
    def times(x: torch.Tensor) -> torch.Tensor:
        return x * 3

    one = torch.ones((), device="cuda")
    assert torch.ops.mapped_calls.more(one) == torch.ops.mapped_calls.both(one) == 2 and times(one) == 3

    @torch.compile(dynamic=True)
    def function(x):
        return x + 1

    assert function(one) == torch.compile(lambda x: x + 1)(one) == 2
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]):
        function(one)


def refusals():
    for name, call in {
            "torch.cuda.graph": lambda: torch.cuda.graph(torch.cuda.CUDAGraph()),
            "replay": lambda: torch.cuda.CUDAGraph().replay(),
            "torch.cuda.current_blas_handle": torch.cuda.current_blas_handle,
            "cudaMalloc": lambda: torch.cuda.cudart().cudaMalloc(3),
            "torch.cuda.MemPool": torch.cuda.MemPool,
            "from_ipc_handle": lambda: torch.cuda.Event.from_ipc_handle(0, b"")}.items():
        try:
            call()
        except NotImplementedError as error:
            assert name in str(error) and isinstance(error, on_cpu.NotMapped), error
        else:
            raise AssertionError(f"{name} was not refused")


if __name__ == "__main__":
    for check in (tensors, streams, questions, in_threads_and_backward, operators, refusals):
        check()
    print("all calls answered")
