// RefusingTransport: a transport that connects to no rank while there are refusals left.
#pragma once

#include <atomic>
#include <map>
#include <memory>
#include <string>
#include <utility>

#include "ferry/status.h"
#include "network/passing_transport.h"

namespace ferry::test {

class RefusingTransport final : public PassingTransport {
 public:
  // `refusals`: how many times the ranks that share it refuse to connect.
  RefusingTransport(std::unique_ptr<internal::Transport> transport, std::atomic<int>& refusals)
      : PassingTransport(std::move(transport)), refusals_(refusals) {}

  void connect(const std::map<int, std::string>& addresses) override {
    if (refusals_.fetch_sub(1, std::memory_order_acq_rel) > 0)
      throw Error(Code::kSystem, "no endpoint is left");
    PassingTransport::connect(addresses);
  }

 private:
  std::atomic<int>& refusals_;
};

}  // namespace ferry::test
