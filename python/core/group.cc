#include "core/group.h"

#include <nanobind/stl/function.h>
#include <nanobind/stl/map.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <utility>

#include "core/arguments.h"
#include "core/bindings.h"
#include "core/config.h"
#include "core/errors.h"
#include "ferry/exchange.h"

namespace ferry::python {

namespace nb = nanobind;
using nb::arg;

namespace {

using Stop = std::shared_ptr<std::atomic<bool>>;

// The arguments that all functions that make a group have.
struct Given {
  const std::string& name;
  double deadline;
  const std::string& topology;
  bool newcomer = false;
  const std::vector<int>& members = {};
};

GroupOptions options(const Given& given, const Stop& stop) {
  return {
      .deadline = to_deadline(given.deadline),
      .interrupted = [stop] { return stop->load(std::memory_order_relaxed) || signal_raised(); },
      .name = given.name,
      .topology = given.topology,
      .newcomer = given.newcomer,
      .members = given.members};
}

PyGroup hold(Group group, const Stop& stop) {
  return {std::make_shared<Kept<Group>>(std::move(group)), stop};
}

// Creates a group without the GIL; `create` gets the options.
template <typename Create>
PyGroup create_group(const Given& given, const Create& create) {
  const Stop stop = std::make_shared<std::atomic<bool>>(false);
  return hold(without_gil([&] { return create(options(given, stop)); }), stop);
}

std::map<std::string, std::string> await_place() {
  return without_gil([] {
    const Place place = ferry::await_place(signal_raised);
    return std::map<std::string, std::string>(place.begin(), place.end());
  });
}

PyGroup from_environment(const std::string& name, double deadline, const std::string& topology) {
  return create_group({name, deadline, topology},
                      [](const GroupOptions& o) { return Group::from_environment(o); });
}

PyGroup connect(const std::string& address, int rank, int size, const std::string& name,
                double deadline, const std::string& topology, bool newcomer,
                const std::vector<int>& members) {
  const Given given{name, deadline, topology, newcomer, members};
  return create_group(
      given, [&](const GroupOptions& o) { return Group::connect(address, rank, size, o); });
}

// `gather` takes the bytes of this rank and returns the list of the bytes of all ranks, in rank
// order.
PyGroup from_all_gather(int rank, int size, const nb::callable& gather, const std::string& name,
                        double deadline, const std::string& topology) {
  const AllGather call = [&](const void* mine, void* all, std::size_t bytes) {
    const HeldGil held;
    try {
      nb::object parts = gather(nb::bytes(mine, bytes));
      auto* out = static_cast<std::byte*>(all);
      for (int r = 0; r < size; ++r) {
        const auto part = nb::cast<nb::bytes>(nb::object(parts[r]));
        if (part.size() != bytes) return false;
        std::memcpy(out + r * bytes, part.data(), bytes);
      }
      return true;
    } catch (nb::python_error& error) {
      error.restore();  // raised after the creation of the group has ended
      return false;
    } catch (const std::exception&) {
      return false;
    }
  };
  return create_group({name, deadline, topology}, [&](const GroupOptions& o) {
    return Group::from_all_gather(rank, size, call, o);
  });
}

std::vector<PyGroup> threads(int size, const std::string& name, double deadline,
                             const std::string& topology) {
  const Stop stop = std::make_shared<std::atomic<bool>>(false);
  std::vector<PyGroup> groups;
  for (Group& group : Group::threads(size, options({name, deadline, topology}, stop))) {
    groups.push_back(hold(std::move(group), stop));
  }
  return groups;
}

// The first message of a gather: the length of the data, and the data as far as they fit.
struct Head {
  std::uint64_t bytes;
  char data[1016];
};

// Throws on all ranks unless the lengths of all members are equal.
void check_equal(const std::vector<Head>& heads, const std::vector<int>& members) {
  const int first = members[0];
  for (const int rank : members) {
    if (heads[rank].bytes == heads[first].bytes) continue;
    check({Code::kMismatch,
           fmt::format("all_gather: rank {} gives {} bytes, rank {} gives {}: need equal lengths",
                       first, heads[first].bytes, rank, heads[rank].bytes),
           rank});
  }
}

nb::list all_gather(const PyGroup& self, const nb::bytes& mine) {
  Group group = self.get();
  const std::size_t bytes = mine.size(), inside = std::min(bytes, sizeof(Head::data));
  Head head{bytes, {}};
  std::memcpy(head.data, mine.data(), inside);
  std::vector<Head> heads(group.size());
  check(without_gil([&] { return group.all_gather(&head, sizeof head, heads.data()); }));
  const std::vector<int>& members = group.view().members;
  check_equal(heads, members);
  const std::size_t more = bytes - inside;
  std::string tails(more * group.size(), '\0');
  const char* from = static_cast<const char*>(mine.data()) + inside;
  if (more) check(without_gil([&] { return group.all_gather(from, more, tails.data()); }));
  nb::list parts;
  for (int rank = 0; rank < group.size(); ++rank) {
    if (!std::binary_search(members.begin(), members.end(), rank)) {
      parts.append(nb::bytes("", 0));
      continue;
    }
    std::string part(heads[rank].data, inside);
    part.append(tails, rank * more, more);
    parts.append(nb::bytes(part.data(), part.size()));
  }
  return parts;
}

nb::tuple view_of(const PyGroup& self) {
  const View& view = self.get().view();
  nb::list ranks;
  for (const int rank : view.members) ranks.append(rank);
  return nb::make_tuple(view.number, nb::tuple(ranks));
}

nb::tuple survive(const PyGroup& self, nb::handle deadline) {
  Group group = self.get();  // a copy: destroy() may run while this rank waits
  const std::chrono::nanoseconds limit = read_deadline(deadline);
  check(without_gil([&] { return group.survive(limit); }));
  return view_of(self);
}

nb::tuple admit(const PyGroup& self, const std::vector<int>& ranks, nb::handle deadline) {
  Group group = self.get();  // a copy: destroy() may run while this rank waits
  const std::chrono::nanoseconds limit = read_deadline(deadline);
  check(without_gil([&] { return group.admit(ranks, limit); }));
  return view_of(self);
}

}  // namespace

Group& PyGroup::get() const {
  if (!kept->mine()) {
    throw Error(Code::kClosed,
                "this process was forked after the group was made: a forked child is not a member, "
                "make a new group there");
  }
  return **kept;
}

namespace {

// Leaves the group without the GIL, because other ranks of this process may need the interpreter
// until they find that this rank has departed.
void destroy(const PyGroup& self) {
  if (!self.kept->mine()) return;
  Group leaving = std::exchange(self.get(), Group());
  without_gil([&] { leaving.destroy(); });
}

void bind_functions(nb::module_& module) {
  module.def("await_place", &await_place);
  module.def("from_environment", &from_environment, arg("name"), arg("deadline"), arg("topology"));
  module.def("connect", &connect, arg("address"), arg("rank"), arg("size"), arg("name"),
             arg("deadline"), arg("topology"), arg("newcomer") = false,
             arg("members") = std::vector<int>());
  module.def("from_all_gather", &from_all_gather, arg("rank"), arg("size"), arg("all_gather"),
             arg("name"), arg("deadline"), arg("topology"));
  module.def("threads", &threads, arg("size"), arg("name"), arg("deadline"), arg("topology"));
  module.def(
      "window_bytes",
      [](int num_ranks, std::optional<int> rank, const nb::kwargs& config) {
        const ExchangeConfig wanted = read_config(config);
        const WindowBytes bytes =
            rank ? window_bytes(wanted, num_ranks, *rank) : window_bytes(wanted, num_ranks);
        return nb::module_::import_("ferry.stats").attr("WindowBytes")(bytes.expected, bytes.worst);
      },
      arg("num_ranks"), arg("rank") = nb::none(), arg("config"),
      nb::sig("def window_bytes(num_ranks: int, rank: int | None = None, **config: "
              "typing_extensions.Unpack[Settings]) -> WindowBytes"),
      "Shared memory of one rank for an exchange of these settings: ferry.WindowBytes(expected, "
      "worst). rank: one that may have no experts or no tokens; None: a rank that has both.");
}

void bind_views(nb::class_<PyGroup>& type) {
  type.def("survive", &survive, arg("deadline") = nb::none(),
           nb::sig(
               "def survive(self, deadline: float | None = None) -> tuple[int, tuple[int, ...]]"),
           "Collective among the ranks that live: begins the next view, without the ranks that "
           "died or left, and returns it. Exchanges go on, with the same rank numbers; operations "
           "in flight have ended. No other call of this rank may be in progress. ferry.Timeout "
           "names a rank that is alive and did not come (deadline in seconds, None: that of the "
           "group). Between nodes ferry.PeerLost says that the ranks which can be reached are too "
           "few to go on, and ferry.Closed that the others went on without this one.")
      .def("admit", &admit, arg("ranks") = nb::tuple(), arg("deadline") = nb::none(),
           nb::sig("def admit(self, ranks: collections.abc.Sequence[int] = (), deadline: float | "
                   "None = None) -> tuple[int, tuple[int, ...]]"),
           "Collective among the ranks of the view, between two operations: lets processes take "
           "the places of `ranks`, which the view lacks (of all that it lacks if empty). They call "
           "ferry.init(address=, slot=, size=). Begins the next view, which has them, and returns "
           "it. If it raises, this view goes on on all ranks: ferry.PeerRejected if no process "
           "came for a rank in time (deadline in seconds, None: that of the group) or it died; "
           "ferry.PeerLost if a member died. Exchanges that all members have go on: the new "
           "processes join them (join_exchange). Only for processes.")
      .def(
          "fence",
          [](const PyGroup& self, int rank) {
            Group group = self.get();
            check(without_gil([&] { return group.fence(rank); }));
          },
          arg("rank"),
          "Ends the process of a rank (SIGKILL) that is alive and does not come to survive(), such "
          "as one that is stuck or stopped. Local; returns when the process has ended. Raises "
          "ferry.InvalidArgument if the group is usable, or for this rank, a thread of this "
          "process, a rank of another host, and one that the view lacks.")
      .def_prop_ro("view", &view_of, nb::sig("def view(self, /) -> tuple[int, tuple[int, ...]]"),
                   "(number, ranks): the ranks that the group consists of, and how often they have "
                   "changed, from 1.");
}

void bind_calls(nb::class_<PyGroup>& type) {
  type.def(
          "barrier",
          [](const PyGroup& self) {
            Group group = self.get();  // a copy: destroy() may run while the barrier waits
            check(without_gil([&] { return group.barrier(); }));
          },
          "Waits until every rank has called it.")
      .def("all_gather", &all_gather, arg("data"),
           nb::sig("def all_gather(self, data: bytes) -> list[bytes]"),
           "Gathers `data` (equal lengths on all ranks): a list of bytes in rank order, b\"\" of a "
           "rank that the view lacks.")
      .def(
          "refuse_exchange",
          [](const PyGroup& self, const std::string& why) {
            Group group = self.get();
            const Status status(Code::kInvalidArgument, why, group.rank());
            try {
              without_gil([&] { Exchange::refuse(group, status); });
            } catch (const Error& error) {
              if (error.code() != status.code()) throw;  // not the error of this refusal
            }
          },
          arg("why"),
          "Replaces exchange() on a rank that will not make one: the other ranks raise "
          "ferry.PeerRejected.")
      .def(
          "interrupt",
          [](const PyGroup& self) { self.stop->store(true, std::memory_order_relaxed); },
          "Ends the waits of this rank (of all ranks, if they are threads) with ferry.Interrupted; "
          "breaks the group. Any thread may call it.")
      .def("destroy", &destroy,
           "Leaves the group: local, immediate. Received rows and handles stay valid.")
      .def(
          "__enter__", [](nb::handle self) { return nb::borrow(self); },
          nb::sig("def __enter__(self) -> Group"))
      .def(
          "__exit__", [](const PyGroup& self, const nb::args&) { destroy(self); },
          nb::sig("def __exit__(self, *args: object) -> None"))
      .def("__repr__", [](const PyGroup& self) {
        if (!self.kept->mine() || !self.get().state())
          return nb::str("<ferry.Group, not a member>");
        return nb::str("<ferry.Group rank {} of {}>").format(self.get().rank(), self.get().size());
      });
}

}  // namespace

void bind_group(nb::module_& module) {
  nb::class_<PyGroup> type(
      module, "Group",
      "One rank's membership in the ranks that exchange tokens, from ferry.init, ferry.spawn or "
      "ferry.run_threads. barrier, all_gather and exchange are collective: every rank calls them "
      "in the same order.");
  type.def_prop_ro(
          "rank", [](const PyGroup& self) { return self.get().rank(); },
          "This rank, 0 to size - 1.")
      .def_prop_ro(
          "size", [](const PyGroup& self) { return self.get().size(); }, "Number of ranks.")
      .def_prop_ro(
          "origin",
          [](const PyGroup& self) {
            const GroupOrigin& origin = self.get().origin();
            return nb::make_tuple(origin.launcher, origin.reason);
          },
          nb::sig("def origin(self, /) -> tuple[str, str]"),
          "(launcher, reason): the launcher that started the ranks, and how it was found.")
      .def_prop_ro(
          "address", [](const PyGroup& self) { return self.get().origin().address; },
          "Where a process can take the place of a lost rank: ferry.init(address=, slot=, size=, "
          "name=). Empty for threads, and for several hosts that met by an all-gather without "
          "FERRY_SECRET.")
      .def_prop_ro(
          "topology", [](const PyGroup& self) { return self.get().topology().to_text(); },
          "Levels of the ranks, \"host:2,rank:4\": as given, else by the hosts of the ranks.")
      .def_prop_ro(
          "usable", [](const PyGroup& self) { return self.kept->mine() && self.get().usable(); },
          "False after a rank died, left, or missed a deadline: survive() goes on, or a new "
          "group.");
  bind_views(type);
  bind_calls(type);
  bind_functions(module);
}

}  // namespace ferry::python
