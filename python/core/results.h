// Handle and Received for Python: views of ferry's memory as arrays of the caller's library.
#pragma once

#include <nanobind/nanobind.h>

#include <memory>

#include "core/arrays.h"
#include "core/forked.h"
#include "core/tensor.h"
#include "ferry/exchange.h"

namespace ferry::python {

struct PyHandle {
  Handle handle;
  Library library;
  int num_ranks;
};

struct PyReceived {
  std::unique_ptr<Kept<Received>> kept = std::make_unique<Kept<Received>>(Received{});
  Library library = Library::kNone;
  std::shared_ptr<const ExchangeConfig> config = {};
  Element scale_element = Element::kOther;  // type of the caller's scales
  int num_ranks = 0;
};

// Throws Error(kInvalidArgument) for anything but a ferry.Handle.
Handle read_handle(nb::handle object);

}  // namespace ferry::python
