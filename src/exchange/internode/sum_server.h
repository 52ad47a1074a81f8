// SumServer: for one way, the sums that ranks of other nodes request from this rank, and the
// replies to the requests of this rank. It is called where the group makes progress. The thread of
// the exchange's caller may call ask(), forget() and all_here(), and read the flags.
//   requested_sums.h   sums requested of each mate    sums_inbox.h  the replies, as they come
//   sum_request.h  sums that a served rank requested
#pragma once

#include <atomic>
#include <cstdint>
#include <list>
#include <map>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "exchange/internode/mate_links.h"
#include "exchange/internode/message_layout.h"
#include "exchange/internode/sum_request.h"
#include "exchange/internode/sums_inbox.h"
#include "exchange/workers/worker_pool.h"

namespace ferry::internal {

class SumServer {
 public:
  SumServer(MateLinks& links, const ExchangeConfig& config)
      : links_(links), config_(config), served_(links.num_ranks()), inbox_(links.num_ranks()) {}

  // Sets the workers of the exchange, which sum rows for other ranks. Call before the first
  // operation.
  void use(std::shared_ptr<WorkerPool> workers) { workers_ = std::move(workers); }
  WorkerPool& workers() const noexcept { return *workers_; }
  MateLinks& links() const noexcept { return links_; }
  std::int64_t max_row_bytes() const noexcept { return config_.max_output_row_bytes; }

  // Reads a message of rank `from`: a request, or the next bytes of a reply.
  void take(int from, const MessageHead& head, const SumRequestMessage& ask);
  void take(int from, const MessageHead& head, const SumReply& reply);
  // Call when `source` requests nothing more.
  void end(int source);
  // Sends the sums that can be made now. True if a request is done (SumRequest::serve).
  bool serve();
  // Drops all requests of other ranks.
  void drop() noexcept {
    to_pass_on_.clear();
    requests_.clear();
  }
  // Call when a view has begun; `last` is the last operation before it. Drops the replies to
  // requests of this rank, and sets the flags below to `last`, as no rank waits for sums then. A
  // flag may fall: a process that has taken the place of a lost rank uses operation numbers that
  // the lost rank may have used.
  void begin_view(std::uint64_t last);
  // The mates whose replies this rank needs for sums for which others wait.
  std::vector<int> awaited() const;

  // [ranks] Flags for which a rank waits: the last combine of which a mate has sent this rank all
  // sums; the last combine of which this rank has sent a served rank all sums.
  const std::atomic<std::uint64_t>* summed() noexcept { return inbox_.summed().data(); }
  const std::atomic<std::uint64_t>* served() const noexcept { return served_.data(); }

  // The types of sums, and the layout of replies.
  bool exact() const noexcept { return config_.node_sums == NodeSums::kExact; }
  DataType sum_type(DataType row_type) const noexcept {
    return config_.node_sums == NodeSums::kFp32 ? DataType::kFp32 : row_type;
  }
  RowFormat row_format(const SumFormat& format) const noexcept;
  ReplyLayout reply_layout(const RowFormat& format, int scalars) const noexcept;

  // Sends `mate` the request `body` for sums of combine `number`, on behalf of rank `source`. The
  // reply will have `bytes`. If `bytes` is 0, there is no reply, and null is returned.
  struct Ask {
    std::uint64_t number;
    int source;
    std::size_t bytes;
  };
  const IncomingSums* ask(const ForwardingTable::Mate& mate, const Ask& ask,
                          std::span<const std::byte> body);
  void forget(std::uint64_t number, int source) { inbox_.forget(number, source); }
  // Whether all sums from a mate for this rank's own combine have arrived.
  bool all_here(std::uint64_t number, int mate) const {
    return inbox_.whole(number, links_.rank(), mate);
  }

 private:
  MateLinks& links_;
  ExchangeConfig config_;  // a copy: a way may outlive its exchange
  std::shared_ptr<WorkerPool> workers_ = std::make_shared<WorkerPool>(1);
  // The requests of each served rank. The key is the outermost level at which its groups and this
  // rank's differ, then the rank. So sums for the ranks furthest out are made first, since their
  // replies have the most hops to go.
  std::map<std::pair<int, int>, std::list<SumRequest>> requests_;
  std::vector<SumRequest*> to_pass_on_;             // read since the last serve()
  std::vector<std::atomic<std::uint64_t>> served_;  // [ranks] the last combine whose sums were sent
  SumsInbox inbox_;
};

}  // namespace ferry::internal
