// ferry.Collectives: names, parameters and docstrings of the calls in collective_calls.cc.
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include "core/bindings.h"
#include "core/collective_calls.h"
#include "core/docs.h"

namespace ferry::python {

namespace {

using nb::arg;

auto deadline() { return arg("deadline").none() = nb::none(); }

void bind_moves(nb::class_<PyCollectives>& type) {
  type.def("all_to_all_v", &all_to_all_v, arg("out"), arg("rows"), arg("out_counts"),
           arg("in_counts"), nb::kw_only(), deadline(),
           nb::sig("def all_to_all_v(self, out: AnyArray, rows: AnyArray, "
                   "out_counts: collections.abc.Sequence[int], "
                   "in_counts: collections.abc.Sequence[int], *, "
                   "deadline: float | None = None) -> None"),
           "Sends in_counts[r] elements of rows to each rank r, in rank order, and receives "
           "out_counts[r] from each into out, likewise. The in_counts of each rank equal the "
           "out_counts of the others for it.")
      .def("all_gather_v", &all_gather_v, arg("out"), arg("mine"), arg("counts"), nb::kw_only(),
           deadline(),
           nb::sig("def all_gather_v(self, out: AnyArray, mine: AnyArray, "
                   "counts: collections.abc.Sequence[int], *, "
                   "deadline: float | None = None) -> None"),
           "Receives into out the counts[r] elements of each rank r, in rank order. mine has "
           "counts[rank], and may be its place in out.")
      .def("broadcast", &broadcast, arg("rows"), arg("root"), nb::kw_only(), deadline(),
           nb::sig("def broadcast(self, rows: AnyArray, root: int, *, "
                   "deadline: float | None = None) -> None"),
           "Copies rows of the root into rows of all ranks.")
      .def("gather_v", &gather_v, arg("out").none(), arg("rows"), arg("counts"), arg("root"),
           nb::kw_only(), deadline(),
           nb::sig("def gather_v(self, out: AnyArray | None, rows: AnyArray, "
                   "counts: collections.abc.Sequence[int], root: int, *, "
                   "deadline: float | None = None) -> None"),
           "Receives in out of the root the counts[r] elements of each rank r, in rank order. rows "
           "has counts[rank]; out may be None except on the root.")
      .def("scatter_v", &scatter_v, arg("out"), arg("rows").none(), arg("counts"), arg("root"),
           nb::kw_only(), deadline(),
           nb::sig("def scatter_v(self, out: AnyArray, rows: AnyArray | None, "
                   "counts: collections.abc.Sequence[int], root: int, *, "
                   "deadline: float | None = None) -> None"),
           "Sends counts[r] elements of the root's rows to each rank r, in rank order. out has "
           "counts[rank]; rows may be None except on the root.");
}

void bind_reductions(nb::class_<PyCollectives>& type) {
  type.def("reduce_scatter_v", &reduce_scatter_v, arg("out"), arg("rows"), arg("counts"),
           arg("op") = "sum", nb::kw_only(), deadline(),
           nb::sig("def reduce_scatter_v(self, out: AnyArray, rows: AnyArray, "
                   "counts: collections.abc.Sequence[int], op: str = 'sum', *, "
                   "deadline: float | None = None) -> None"),
           "Reduces rows over all ranks; out receives block `rank` of the result, the blocks "
           "having counts[r] elements. out may be that block of rows.")
      .def("all_reduce", &all_reduce, arg("out"), arg("rows"), arg("op") = "sum", nb::kw_only(),
           deadline(),
           nb::sig("def all_reduce(self, out: AnyArray, rows: AnyArray, op: str = 'sum', *, "
                   "deadline: float | None = None) -> None"),
           "Reduces rows over all ranks into out, which may be rows.")
      .def("reduce", &reduce, arg("out").none(), arg("rows"), arg("root"), arg("op") = "sum",
           nb::kw_only(), deadline(),
           nb::sig("def reduce(self, out: AnyArray | None, rows: AnyArray, root: int, "
                   "op: str = 'sum', *, deadline: float | None = None) -> None"),
           "Reduces rows over all ranks into out of the root; elsewhere out may be None.");
}

void bind_messages(nb::class_<PyCollectives>& type) {
  type.def("barrier", &barrier, nb::kw_only(), deadline(),
           nb::sig("def barrier(self, *, deadline: float | None = None) -> None"),
           "Waits until every rank has called it.")
      .def("latest_calls", &latest_calls, arg("rank"),
           nb::sig("def latest_calls(self, rank: int) -> list[str]"),
           "The latest ten calls of a rank, as far as this rank knows; call it after an error.")
      .def("refuse", &refuse_call, arg("why"),
           "Takes the place of a collective call on a rank that cannot make it: the other ranks "
           "raise ferry.PeerRejected.")
      .def("send", &send, arg("rows"), arg("peer"), arg("tag") = 0, nb::kw_only(), deadline(),
           nb::sig("def send(self, rows: AnyArray, peer: int, tag: int = 0, *, "
                   "deadline: float | None = None) -> None"),
           "Sends rows to peer; returns when they have been copied.")
      .def("recv", &recv, arg("rows"), arg("peer") = -1, arg("tag") = 0, nb::kw_only(), deadline(),
           nb::sig("def recv(self, rows: AnyArray, peer: int = -1, tag: int = 0, *, "
                   "deadline: float | None = None) -> int"),
           "Receives the next message of peer (-1: of any rank) with this tag into rows; returns "
           "the sender. ferry.Mismatch for a message of another size or type, which stays.");
}

void bind_begun_messages(nb::module_& module, nb::class_<PyCollectives>& type) {
  nb::class_<PyMessage>(module, "Message",
                        "A send or a receive that has begun (Collectives.begin_send, begin_recv).")
      .def_prop_ro(
          "ended", [](const PyMessage& self) { return self.message.ended(); },
          "Whether the message has been moved, or has ended with an error.")
      .def("finish", &finish,
           "Returns the sender, or raises the error, of a message that has ended.");
  type.def("begin_send", &begin_send, arg("rows"), arg("peer"), arg("tag") = 0, nb::kw_only(),
           deadline(),
           nb::sig("def begin_send(self, rows: AnyArray, peer: int, tag: int = 0, *, "
                   "deadline: float | None = None) -> Message"),
           "Begins a send, which progress moves, and returns. rows must stay as they are until it "
           "has ended. Another thread may be in progress.")
      .def("begin_recv", &begin_recv, arg("rows"), arg("peer") = -1, arg("tag") = 0, nb::kw_only(),
           deadline(),
           nb::sig("def begin_recv(self, rows: AnyArray, peer: int = -1, tag: int = 0, *, "
                   "deadline: float | None = None) -> Message"),
           "Begins a receive, likewise.")
      .def("progress", &progress, nb::kw_only(), arg("wait") = true,
           nb::sig("def progress(self, *, wait: bool = True) -> None"),
           "Moves the messages that have begun; returns when one has ended or none is on its way, "
           "and without wait at once.");
}

}  // namespace

void bind_collectives(nb::module_& module) {
  nb::class_<PyCollectives> type(module, "Collectives", kCollectivesDoc);
  type.def(
          "__init__",
          [](PyCollectives* self, const PyGroup& group, nb::handle limit, std::int64_t window_bytes,
             nb::handle creation, std::int64_t shared_bytes) {
            new (self)
                PyCollectives(make_collectives(group, limit, window_bytes, creation, shared_bytes));
          },
          arg("group"), nb::kw_only(), deadline(),
          arg("window_bytes") = CollectivesOptions().window_bytes,
          arg("creation_deadline").none() = nb::none(), arg("shared_bytes") = 0,
          nb::sig("def __init__(self, group: Group, *, deadline: float | None = None, "
                  "window_bytes: int = 2097152, creation_deadline: float | None = None, "
                  "shared_bytes: int = 0) -> None"))
      .def_prop_ro(
          "rank", [](const PyCollectives& self) { return self.get()->collectives.rank(); },
          "This rank, 0 to size - 1.")
      .def_prop_ro(
          "size", [](const PyCollectives& self) { return self.get()->collectives.size(); },
          "Number of ranks.")
      .def("empty", &empty, arg("size"), arg("dtype"),
           nb::sig("def empty(self, size: int, dtype: typing.Any) -> typing.Any"),
           "A new array of one dimension, of torch or of numpy, in memory that the other ranks of "
           "the node can read, taken from shared_bytes. Local. Data of all_gather_v, "
           "reduce_scatter_v and broadcast that lie there and do not fit the caches are read in "
           "place, without a copy into the window. Elsewhere it is an array as any other. It may "
           "outlive this object. ferry.Capacity if no free piece of shared_bytes is large enough, "
           "or if the machine lacks the memory.")
      .def(
          "close", [](const PyCollectives& self) { self.close(); }, "Releases the window. Local.");
  bind_moves(type);
  bind_reductions(type);
  bind_messages(type);
  bind_begun_messages(module, type);
}

}  // namespace ferry::python
