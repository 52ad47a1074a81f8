// The calls of ferry.Collectives. They read arguments with the GIL and move data without it.
#pragma once

#include <nanobind/nanobind.h>

#include <algorithm>
#include <atomic>
#include <iterator>
#include <memory>
#include <string>
#include <vector>

#include "core/group.h"
#include "core/turn.h"
#include "ferry/collectives.h"

namespace ferry::python {

namespace nb = nanobind;

// A message that has begun. It keeps its tensor.
struct PyMessage {
  Message message;
  nb::object rows;
};

struct HeldCollectives {
  Collectives collectives;
  std::atomic<bool> busy{false}, moves_messages{false};
  // The messages that may not have ended: ferry reads and writes their tensors, whether Python
  // keeps a PyMessage or not. Used with the GIL only.
  std::vector<PyMessage> in_flight;

  // Drops the messages that have ended. The release of a tensor may run any code of Python, so it
  // comes last.
  void look() {
    const auto ended = std::ranges::partition(
        in_flight, [](const PyMessage& each) { return !each.message.ended(); });
    const std::vector<PyMessage> forgotten(std::make_move_iterator(ended.begin()),
                                           std::make_move_iterator(ended.end()));
    in_flight.erase(ended.begin(), ended.end());
  }
};

struct PyCollectives : Closable<HeldCollectives> {
  using Closable::Closable;
};

PyCollectives make_collectives(const PyGroup& group, nb::handle deadline, std::int64_t window_bytes,
                               nb::handle creation_deadline, std::int64_t shared_bytes);
nb::object empty(const PyCollectives& self, std::int64_t size, nb::handle dtype);

void all_to_all_v(const PyCollectives& self, nb::handle out, nb::handle rows, nb::handle out_counts,
                  nb::handle in_counts, nb::handle deadline);
void all_gather_v(const PyCollectives& self, nb::handle out, nb::handle mine, nb::handle counts,
                  nb::handle deadline);
void reduce_scatter_v(const PyCollectives& self, nb::handle out, nb::handle rows, nb::handle counts,
                      const std::string& op, nb::handle deadline);
void all_reduce(const PyCollectives& self, nb::handle out, nb::handle rows, const std::string& op,
                nb::handle deadline);
void reduce(const PyCollectives& self, nb::handle out, nb::handle rows, int root,
            const std::string& op, nb::handle deadline);
void broadcast(const PyCollectives& self, nb::handle rows, int root, nb::handle deadline);
void gather_v(const PyCollectives& self, nb::handle out, nb::handle rows, nb::handle counts,
              int root, nb::handle deadline);
void scatter_v(const PyCollectives& self, nb::handle out, nb::handle rows, nb::handle counts,
               int root, nb::handle deadline);
void barrier(const PyCollectives& self, nb::handle deadline);
void refuse_call(const PyCollectives& self, const std::string& why);
std::vector<std::string> latest_calls(const PyCollectives& self, int rank);
void send(const PyCollectives& self, nb::handle rows, int peer, std::int64_t tag,
          nb::handle deadline);
int recv(const PyCollectives& self, nb::handle rows, int peer, std::int64_t tag,
         nb::handle deadline);

PyMessage begin_send(const PyCollectives& self, nb::handle rows, int peer, std::int64_t tag,
                     nb::handle deadline);
PyMessage begin_recv(const PyCollectives& self, nb::handle rows, int peer, std::int64_t tag,
                     nb::handle deadline);
void progress(const PyCollectives& self, bool wait);
int finish(const PyMessage& self);

}  // namespace ferry::python
