"""A clause is one promise of an interface: a name, the promise in a sentence, and a function that every rank runs.

The function makes its calls and compares the results with World.same and World.equal, which collect complaints. A rank
with a complaint continues, so that the other ranks need not wait for it. Each API has its clauses in files of its
own."""

import importlib
from typing import Any, Callable, Dict, NamedTuple

import torch

APIS = {  # the modules with the clauses of each interface
    "deep_ep": ["deep_ep_names", "deep_ep_normal", "deep_ep_low_latency", "deep_ep_elastic"],
    "torch_npu": ["torch_npu_clauses"],
}
_MOST_COMPLAINTS = 5  # the most complaints about a clause on a rank


class Clause(NamedTuple):
    name: str
    text: str
    check: Callable


_clauses = {}


def clause(name):
    """Registers the decorated function; its docstring is the promise."""

    def register(check):
        assert name not in _clauses, name
        _clauses[name] = Clause(name, " ".join(check.__doc__.split()), check)
        return check

    return register


def clauses_of(api):
    """Returns {name: Clause} of all clauses of an API, in their order."""
    modules = {f"{__package__}.{name}" for name in APIS[api]}
    for module in sorted(modules, key=[f"{__package__}.{name}" for name in APIS[api]].index):
        importlib.import_module(module)
    return {name: each for name, each in _clauses.items() if each.check.__module__ in modules}


def implementation(name):
    """Imports the module `name`, which has the names of the interface, and returns it. For "module:attribute" it
    returns the attribute of the module."""
    module, _, attribute = name.partition(":")
    found = importlib.import_module(module)
    return getattr(found, attribute) if attribute else found


class World:
    """The argument of a clause: the implementation `api`, the process group, the rank, the number of ranks, and the ids
    of a router trace, int64 [tokens, top_k], or None."""

    def __init__(self, api: Any, group: Any, rank: int, settings: Dict[str, Any]):
        self.api, self.group, self.rank, self.size = api, group, rank, settings["ranks"]
        self.device, self.seed, self.routing = settings["device"], settings["seed"], settings["routing"]
        self.complaints = []
        self._leaving = []  # functions that are called when the clause ends

    def place(self, tensor):
        """Returns the tensor, or each tensor of a pair, on the device."""
        if isinstance(tensor, (tuple, list)):
            return tuple(map(self.place, tensor))
        return tensor if self.device == "cpu" or tensor is None else tensor.to(self.device)

    def at_end(self, leave):
        """Registers `leave`, which is called when the clause ends. The last one registered is called first."""
        self._leaving.append(leave)

    def end(self):
        for leave in reversed(self._leaving):
            leave()

    def complain(self, text):
        if len(self.complaints) < _MOST_COMPLAINTS:
            self.complaints.append(text)

    def holds(self, condition, text):
        """Complains unless the condition is true."""
        if not condition:
            self.complain(text)

    def equal(self, what, have, want):
        """Compares Python values."""
        if have != want:
            self.complain(f"{what} is {have!r:.200}, need {want!r:.200}")

    def same(self, what, have, want):
        """Complains unless the tensors have the same type, shape and bits."""
        if not isinstance(have, torch.Tensor):
            return self.complain(f"{what} is {type(have).__name__}, need a tensor {_described(want)}")
        have = have.detach().cpu()
        if have.dtype != want.dtype or have.shape != want.shape:
            return self.complain(f"{what} is {_described(have)}, need {_described(want)}")
        differs = _bits(have) != _bits(want)
        if bool(differs.any()):
            at = differs.nonzero()[0].tolist()
            self.complain(f"{what}{at} is {have[tuple(at)].item()}, need {want[tuple(at)].item()} "
                          f"({int(differs.sum())} of {differs.numel()} entries differ)")
        return None

    def near(self, what, have, want, tolerance):
        """Complains unless the shapes are equal and the difference is at most `tolerance`. The difference is computed
        as in DeepEP's programs: 1 - 2 sum(xy) / sum(xx + yy), after 1 is added to both tensors."""
        x, y = have.detach().cpu().double() + 1, want.double() + 1
        difference = float(1 - 2 * (x * y).sum() / (x * x + y * y).sum()) if x.numel() else 0.0
        self.holds(have.shape == want.shape and difference <= tolerance,
                   f"{what} differs by {difference:.2e}, need at most {tolerance:.0e}")

    def raises(self, what, call):
        """Complains unless the call raises an exception, which it must do on every rank."""
        try:
            call()
        except Exception:
            return
        self.complain(f"{what} was accepted, it must raise")


def _described(tensor):
    return f"{str(tensor.dtype).replace('torch.', '')} {list(tensor.shape)}"


def _bits(tensor):
    views = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
    return tensor.contiguous().view(views[tensor.element_size()])
