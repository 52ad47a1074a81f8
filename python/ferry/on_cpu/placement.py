"""Places tensors, modules and generators on the CPU when a program names a mapped device for them.

Functions of torch are replaced, in all threads, by functions that change the argument `device` and call the original.
`x.device` is the CPU, and so is `torch.device("cuda")`, so the two are equal. `x.is_cuda` is True, because programs
assert it.
"""

import functools

import torch

_CPU = torch.device("cpu")
_Device, _Generator = torch.device, torch.Generator
_names = set()  # device types that mean the CPU

_FACTORIES = (
    "empty", "empty_permuted", "empty_strided", "ones", "zeros", "full", "arange", "range", "linspace", "logspace",
    "eye", "rand", "randn", "randint", "randperm", "normal", "tensor", "as_tensor", "asarray", "scalar_tensor",
    "from_file",
    "bartlett_window", "blackman_window", "hamming_window", "hann_window", "kaiser_window", "tril_indices",
    "triu_indices", "sparse_coo_tensor", "sparse_compressed_tensor", "sparse_csr_tensor", "sparse_csc_tensor",
    "sparse_bsr_tensor", "sparse_bsc_tensor", "empty_like", "ones_like", "zeros_like", "full_like", "rand_like",
    "randn_like", "randint_like",
)
_NEW = ("new_empty", "new_empty_strided", "new_full", "new_ones", "new_tensor", "new_zeros")
_TYPES = ("Bool", "Byte", "Char", "Double", "Float", "Half", "Int", "Long", "Short", "BFloat16")


def placed(device):
    """Returns the CPU for a mapped device or a number, and any other value unchanged."""
    if isinstance(device, str):
        return _CPU if device.partition(":")[0] in _names else device
    if isinstance(device, _Device):
        return _CPU if device.type in _names else device
    return _CPU if type(device) is int else device


class _DeviceType(type):
    def __instancecheck__(cls, value):
        return isinstance(value, _Device)


class device(metaclass=_DeviceType):
    """Replaces torch.device. Returns the CPU for a device type that map_device() was given, and for a number."""

    def __new__(cls, *args, **kwargs):
        named = args[0] if args else kwargs.get("type", kwargs.get("device"))
        return _CPU if placed(named) is not named else _Device(*args, **kwargs)


class _GeneratorType(type):
    def __instancecheck__(cls, value):
        return isinstance(value, _Generator)


class Generator(metaclass=_GeneratorType):
    """Replaces torch.Generator. A generator of a mapped device is one of the CPU."""

    def __new__(cls, device="cpu"):
        return _Generator(placed(device))


def _of(function, drops_pinning=False):
    """Wraps `function` so that its keyword `device` is placed(). With drops_pinning it ignores pin_memory."""

    @functools.wraps(function)
    def call(*args, **kwargs):
        if kwargs:
            if kwargs.get("device") is not None:
                kwargs["device"] = placed(kwargs["device"])
            if drops_pinning:
                kwargs.pop("pin_memory", None)
        return function(*args, **kwargs)

    return call


def _first_placed(args, kwargs):
    """Returns the arguments of a call of `.to` with the device, the first argument or a keyword, placed()."""
    if kwargs.get("device") is not None:
        kwargs = {**kwargs, "device": placed(kwargs["device"])}
    return (placed(args[0]), *args[1:]) if args else args, kwargs


def _names_cpu(args, kwargs):
    """Whether the arguments of a call of `.to` name the CPU."""
    named = args[0] if args else kwargs.get("device")
    return named == "cpu" if isinstance(named, str) else isinstance(named, _Device) and named.type == "cpu"


def _host_type(name):
    """Returns the name of the CPU's tensor type, such as torch.FloatTensor for torch.cuda.FloatTensor."""
    return name.replace("torch.cuda.", "torch.").replace("torch.npu.", "torch.")


def _tensor_methods():
    """Returns {name: method} for torch.Tensor. to("cpu") and cpu() make a copy, as a move from a device does. A move to
    the device returns the tensor itself if possible, and so does to(torch.device("cpu")), as that may be the device."""
    to, cpu, as_type = torch.Tensor.to, torch.Tensor.cpu, torch.Tensor.type

    def moved(self, *args, **kwargs):
        home = _names_cpu(args, kwargs) and type(args[0] if args else kwargs.get("device")) is str
        args, kwargs = _first_placed(args, kwargs)
        result = to(self, *args, **kwargs)
        return result.clone() if home and result is self else result

    def to_host(self, *args, **kwargs):
        result = cpu(self, *args, **kwargs)
        return result.clone() if result is self else result

    def to_device(self, device=None, non_blocking=False, memory_format=torch.preserve_format):
        return to(self, _CPU, memory_format=memory_format)

    def typed(self, dtype=None, *args, **kwargs):
        if isinstance(dtype, str):
            dtype = _host_type(dtype)
        return as_type(self, dtype, *args, **kwargs) if dtype is not None else as_type(self)

    return {
        "to": functools.wraps(to)(moved), "cpu": functools.wraps(cpu)(to_host), "cuda": to_device, "type": typed,
        "pin_memory": lambda self, device=None: self, "is_pinned": lambda self, device=None: False,
        "record_stream": lambda self, stream: None, "get_device": lambda self: 0,
        "is_cuda": property(lambda self: True),
        **{name: _of(getattr(torch.Tensor, name), True) for name in _NEW},
    }


def _install_modules():
    module_to = torch.nn.Module.to

    def moved(self, *args, **kwargs):
        args, kwargs = _first_placed(args, kwargs)
        return module_to(self, *args, **kwargs)

    torch.nn.Module.to = functools.wraps(module_to)(moved)
    torch.nn.Module.cuda = lambda self, device=None: self


def _install_random():
    fork, autocast = torch.random.fork_rng, torch.autocast.__init__

    def fork_rng(devices=None, enabled=True, *args, **kwargs):
        return fork([], enabled)  # the state of the CPU is always kept

    def cast(self, device_type, *args, **kwargs):
        return autocast(self, getattr(placed(device_type), "type", device_type), *args, **kwargs)

    torch.random.fork_rng = functools.wraps(fork)(fork_rng)
    torch.autocast.__init__ = functools.wraps(autocast)(cast)


def _install_defaults():
    load, set_device, set_type = torch.load, torch.set_default_device, torch.set_default_tensor_type

    def loaded(f, map_location=None, *args, **kwargs):
        if map_location is None or isinstance(map_location, (str, _Device)):
            map_location = _CPU
        return load(f, map_location, *args, **kwargs)

    torch.load = functools.wraps(load)(loaded)
    # None: tensors are on the CPU anyway, and setting a default device in torch makes every call slower.
    torch.set_default_device = lambda device: set_device(None if placed(device) is _CPU else device)
    torch.set_default_tensor_type = lambda t: set_type(_host_type(t) if isinstance(t, str) else t)


def _install_all():
    for name in _FACTORIES:
        if hasattr(torch, name):
            setattr(torch, name, _of(getattr(torch, name), True))
    for module, names in ((torch.fft, ("fftfreq", "rfftfreq")), (torch.nested, ("nested_tensor", "as_nested_tensor"))):
        for name in names:
            setattr(module, name, _of(getattr(module, name), True))
    for name, method in _tensor_methods().items():
        setattr(torch.Tensor, name, method)
    for stand_in in (device, Generator):
        stand_in.__module__, stand_in.__qualname__ = "torch", stand_in.__name__  # pickle finds them there
        setattr(torch, stand_in.__name__, stand_in)
    _install_modules()
    _install_random()
    _install_defaults()


def install(kind):
    """Maps the device type `kind`."""
    if not _names:
        _install_all()
    _names.add(kind)
    if kind != "cuda":
        setattr(torch.Tensor, kind, torch.Tensor.cuda)
        setattr(torch.Tensor, f"is_{kind}", torch.Tensor.is_cuda)
        setattr(torch.nn.Module, kind, torch.nn.Module.cuda)


def tensor_types():
    """Returns the tensor types of the module of the device by name, such as {"FloatTensor": torch.FloatTensor}."""
    return {f"{name}Tensor": getattr(torch, f"{name}Tensor") for name in _TYPES}
