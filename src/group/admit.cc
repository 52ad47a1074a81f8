// How processes take the places of ranks that the view lacks (docs/protocol.md, "Ranks that come
// back").
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <iterator>
#include <map>
#include <sstream>
#include <utility>

#include "base/check.h"
#include "bootstrap/agree.h"
#include "bootstrap/handshake.h"
#include "group/state.h"

namespace ferry::internal {

namespace {

constexpr std::size_t kNameDigits = 32;
// The coordinator stops waiting for newcomers before the first deadline of a member: by this time
// or a tenth of the remaining time, whichever is less. So the others get its reason in time.
constexpr std::chrono::nanoseconds kEarly = std::chrono::milliseconds(500);

// Separates what a member sends when the members agree.
constexpr char kSeparator = '|';

// What one rank sends to the others: "+" and a text, or "-" with the code, the culprit and the
// reason of an error.
std::string willing(const std::string& text) { return '+' + text; }
std::string refusal(const Error& why) {
  return fmt::format("-{} {} {}", static_cast<int>(why.code()), why.culprit(), why.what());
}

// The text that `rank` sent. Throws its error.
std::string sent_by(int rank, const std::string& text) {
  if (text.starts_with('+')) return text.substr(1);
  int code = 0, culprit = -1, end = 0;
  const int read = std::sscanf(text.c_str(), "-%d %d %n", &code, &culprit, &end);
  if (read == 2 && code > 0 && code <= static_cast<int>(Code::kInterrupted))
    throw Error(static_cast<Code>(code), text.substr(static_cast<std::size_t>(end)), culprit);
  throw Error(Code::kMismatch, fmt::format("rank {} sent \"{}\"", rank, text), rank);
}

std::string list_of(const std::vector<int>& ranks) {
  return fmt::format("{}", fmt::join(ranks, ", "));
}

std::vector<std::uint64_t> numbers_in(const std::string& text) {
  std::istringstream numbers(text);
  return {std::istream_iterator<std::uint64_t>(numbers), {}};
}

// What the coordinator sends of an offer: the bytes of its segment, its number, and its terms.
std::string text_of(const Offer& offer) {
  return fmt::format("{} {} {}", offer.segment->bytes(), offer.number, offer.terms);
}

// Reads what text_of() wrote. Returns the offer without its segment, and the segment's bytes.
std::pair<Offer, std::size_t> offer_in(const std::string& text, int sender) {
  std::istringstream words(text);
  Offer offer;
  std::size_t bytes = 0;
  words >> bytes >> offer.number;
  if (!words || words.get() != ' ')
    throw Error(Code::kMismatch, fmt::format("rank {} offers \"{}\"", sender, text), sender);
  offer.terms = text.substr(static_cast<std::size_t>(words.tellg()));
  return {std::move(offer), bytes};
}

}  // namespace

void NextView::pass_on(std::vector<Offer>& offers, const Admission& admission, Rendezvous& meeting,
                       const Deadline& by) {
  const std::vector<int>& ranks = meeting.ranks();
  const int rank = meeting.rank();
  const auto first = std::ranges::find(ranks, admission.coordinator) - ranks.begin();
  const bool newcomer = admission.has_newcomer(rank);
  for (int i = 0; i < admission.num_offers; ++i) {
    const std::string mine = rank == admission.coordinator ? text_of(offers[i]) : "";
    auto [offer, bytes] = offer_in(meeting.all_gather(mine, by)[first], ranks[first]);
    offer.segment = meeting.pass_on(newcomer ? nullptr : offers[i].segment, bytes, by);
    offer.is_new = admission.is_new_node(rank);
    if (newcomer) offers.push_back(std::move(offer));
  }
}

// One call of admit() on a member of the view.
class Admitting {
 public:
  Admitting(GroupState& group, std::span<const int> named, const Deadline& by)
      : group_(group),
        next_(group.view().number + 1),
        named_(named.begin(), named.end()),
        by_(by) {}

  // Throws Error if this view goes on.
  void run();

 private:
  std::vector<int> newcomers() const;
  void check() const;
  std::chrono::nanoseconds agree();
  std::chrono::nanoseconds first_deadline();
  std::string my_terms() const;
  void keep_common_offers(const std::vector<std::string>& ids);
  int coordinator() const;
  std::string await_newcomers(std::chrono::nanoseconds limit);
  void invite(std::chrono::nanoseconds limit);
  Error of_view(const Error& why) const;

  GroupState& group_;
  const std::uint64_t next_;  // the view that begins
  const std::vector<int> named_;
  const Deadline by_;
  std::vector<Offer> offers_;  // after agree() those that all members have, in one order
  Admission admission_;
  std::unique_ptr<BootstrapCollectives> invited_;  // set on the coordinator
};

Status GroupState::admit(std::span<const int> ranks, std::chrono::nanoseconds limit) noexcept {
  std::atomic<bool>& surviving = survival_.surviving();
  // Sequentially consistent: partner: Making.
  if (surviving.exchange(true, std::memory_order_seq_cst)) {
    return {Code::kInvalidArgument,
            fmt::format("admit: another thread of rank {} is in survive() or admit()", rank_),
            rank_};
  }
  Status status;
  try {
    Admitting(*this, ranks, deadline(limit)).run();
  } catch (const Error& error) {
    status = {error.code(), fmt::format("admit: {}", error.what()), error.culprit()};
  } catch (const std::exception& failure) {
    status = {Code::kSystem, fmt::format("admit: {}", failure.what()), rank_};
  }
  surviving.store(false, std::memory_order_release);
  return status;
}

void Admitting::run() {
  require_ok(group_.verdict());
  if (!group_.rendezvous().admits()) {
    throw Error(
        Code::kInvalidArgument,
        "the ranks are threads of one process, and only processes can come to a group later",
        group_.rank());
  }
  const std::chrono::nanoseconds limit = agree();
  try {
    invite(limit);
    NextView::enter(group_, admission_, std::move(offers_), invited_.get(), by_);
  } catch (const Error& error) {
    throw of_view(error);
  }
}

std::vector<int> Admitting::newcomers() const {
  std::vector<int> ranks = named_;
  for (int rank = 0; named_.empty() && rank < group_.size(); ++rank)
    if (!group_.survival().has(rank)) ranks.push_back(rank);
  std::ranges::sort(ranks);
  return ranks;
}

// Throws an error of this rank, which the others get too.
void Admitting::check() const {
  const int mine = group_.rank();
  Survival& survival = group_.survival();
  for (const int rank : named_) {
    check_rank(rank, group_.size());
    if (survival.has(rank) || std::ranges::count(named_, rank) > 1) {
      throw Error(Code::kInvalidArgument,
                  fmt::format("rank {} is in view {} already, or is named twice; the view has "
                              "ranks {}",
                              rank, survival.view().number, list_of(survival.view().members)),
                  mine);
    }
  }
  if (newcomers().empty()) {
    throw Error(Code::kInvalidArgument,
                fmt::format("view {} has all {} ranks, so there is no place to take",
                            survival.view().number, group_.size()),
                mine);
  }
  require_ok(next_view_held(group_));
}

// The newcomers, and the objects that this rank offers them.
std::string Admitting::my_terms() const {
  std::vector<std::uint64_t> ids;
  for (const Offer& offer : offers_) ids.push_back(offer.number);
  return fmt::format("{}{}{}", list_of(newcomers()), kSeparator, fmt::join(ids, " "));
}

// Waits until all members have come, and compares the newcomers that they name. Returns the time
// until the first of their deadlines.
std::chrono::nanoseconds Admitting::agree() {
  std::optional<Error> mine;
  std::string text;
  try {
    check();
    offers_ = group_.survival().offers();
    text = willing(my_terms());
  } catch (const Error& error) {
    mine = error;
    text = refusal(Error(Code::kPeerRejected,
                         fmt::format("rank {} refused: {}", group_.rank(), error.what()),
                         group_.rank()));
  }
  const std::vector<int>& members = group_.view().members;
  const std::vector<std::string> texts = gather_in_view(group_, text, by_);
  if (mine) throw *mine;
  std::string named;
  std::vector<std::string> ids(texts.size());
  for (std::size_t place = 0; place < texts.size(); ++place) {
    std::istringstream sent(sent_by(members[place], texts[place]));
    std::string ranks;
    std::getline(sent, ranks, kSeparator);
    std::getline(sent, ids[place]);
    if (place == 0) named = ranks;
    if (ranks != named) {
      throw Error(Code::kMismatch,
                  fmt::format("rank {} admits ranks {}, rank {} admits ranks {}", members[0], named,
                              members[place], ranks),
                  members[place]);
    }
  }
  keep_common_offers(ids);
  return first_deadline();
}

// The ranks send their remaining times when all have come, because clocks of hosts differ.
std::chrono::nanoseconds Admitting::first_deadline() {
  const std::vector<int>& members = group_.view().members;
  const std::vector<std::string> texts =
      gather_in_view(group_, willing(fmt::to_string(by_.remaining_ns())), by_);
  std::int64_t least_ns = by_.remaining_ns();
  for (std::size_t place = 0; place < texts.size(); ++place)
    least_ns =
        std::min<std::int64_t>(least_ns, std::atoll(sent_by(members[place], texts[place]).c_str()));
  return std::chrono::nanoseconds(least_ns);
}

// `ids`: for each member those of its objects. The order is that of the first member.
void Admitting::keep_common_offers(const std::vector<std::string>& ids) {
  std::vector<std::uint64_t> common = numbers_in(ids[0]);
  for (const std::string& one : ids) {
    const std::vector<std::uint64_t> theirs = numbers_in(one);
    std::erase_if(common, [&](std::uint64_t id) { return !std::ranges::count(theirs, id); });
  }
  std::map<std::uint64_t, Offer> mine;
  for (Offer& offer : std::exchange(offers_, {})) mine[offer.number] = std::move(offer);
  for (const std::uint64_t id : common) offers_.push_back(std::move(mine.at(id)));
}

// The member that newcomers find at the address of the group: the lowest one of the first node that
// has members.
int Admitting::coordinator() const {
  const Topology& topology = group_.topology();
  return *std::ranges::min_element(
      group_.view().members, {}, [&](int rank) { return std::pair(topology.node_of(rank), rank); });
}

// The coordinator waits for the newcomers, and the other members wait for the coordinator.
void Admitting::invite(std::chrono::nanoseconds limit) {
  const View& view = group_.view();
  const int first = coordinator();
  const std::string mine = group_.rank() == first ? await_newcomers(limit) : "";
  const std::vector<std::string> texts = gather_in_view(group_, mine, by_);
  const std::string& text = texts[std::ranges::find(view.members, first) - view.members.begin()];
  const std::vector<int> ranks = newcomers();
  admission_ = admission_in(sent_by(first, text), ranks[0], group_.size());
  if (admission_.view != next_ || admission_.members != view.members ||
      admission_.newcomers != ranks || admission_.num_offers != std::ssize(offers_) ||
      admission_.coordinator != first || admission_.nodes != group_.rendezvous().nodes())
    throw Error(Code::kMismatch, fmt::format("rank {} sent \"{}\"", first, text), first);
}

std::string Admitting::await_newcomers(std::chrono::nanoseconds limit) {
  const View& view = group_.view();
  admission_ = {.view = next_,
                .number = NextView::last_admission(group_) + 1,
                .group = group_.survival().meeting().group,
                .coordinator = group_.rank(),
                .members = view.members,
                .newcomers = newcomers(),
                .nodes = group_.rendezvous().nodes(),
                .num_offers = static_cast<int>(offers_.size()),
                .name = hex(fresh_nonce()).substr(0, kNameDigits),
                .place = {}};
  const std::function<void()> look = [this] { NextView::look_for_loss(group_); };
  const Deadline early = by_.earlier(limit - std::min(limit / 10, kEarly));
  try {
    invited_ = group_.rendezvous().await_newcomers(admission_, early.looking(look));
    return willing(admission_.text());
  } catch (const Error& error) {
    return refusal(error);
  }
}

// The error of admit(). Before this rank comes to the next view, an error that no member caused is
// reported so that this view goes on.
Error Admitting::of_view(const Error& why) const {
  if (NextView::has_come(group_, next_)) return why;
  if (const auto loss = NextView::loss_in(group_)) {  // others said less of it
    if (loss->culprit() == why.culprit()) return *loss;
    return {loss->code(), fmt::format("{}; {}", loss->what(), why.what()), loss->culprit()};
  }
  const bool of_member = why.culprit() >= 0 && group_.survival().has(why.culprit());
  if (of_member || Status(why.code(), "").group_usable()) return why;
  return {Code::kPeerRejected, fmt::format("view {} goes on: {}", group_.view().number, why.what()),
          why.culprit()};
}

// On one member of each node that has members. Another rank may write these places, because no rank
// reads them before the next view begins. A newcomer itself writes there only after that: it may be
// late, and another process may have taken the place.
void NextView::make_places(GroupState& group, const Admission& admission,
                           const std::vector<Offer>& offers) {
  const int rank = group.rank_;
  if (admission.is_new_node(rank) || rank != admission.led_node_ranks(rank)[0]) return;
  for (const int newcomer : admission.newcomers) {
    group.flags_->make_place(newcomer, admission.view, number_in(admission.name, rank));
    for (const Offer& offer : offers)
      group.survival_.make_place(*offer.segment, newcomer, admission.view);
  }
}

std::unique_ptr<Rendezvous> NextView::meet(GroupState& group, const Admission& admission,
                                           BootstrapCollectives* invited, const Deadline& by) {
  std::unique_ptr<Rendezvous> meeting = group.rendezvous_->among(admission, invited, by);
  meeting->pass_on(group.flags_->segment(), SharedFlags::bytes(group.size_), by);
  return meeting;
}

void NextView::enter(GroupState& group, const Admission& admission, std::vector<Offer> offers,
                     BootstrapCollectives* invited, const Deadline& by) {
  const auto way = group.one_node() ? enter_on_one_node : enter_between_nodes;
  way(group, admission, std::move(offers), invited, by);
}

// All ranks of an admission meet anew and get ready for the next view. Then one word in the memory
// of the group decides for all of them whether that view begins.
void NextView::enter_on_one_node(GroupState& group, const Admission& admission,
                                 std::vector<Offer> offers, BootstrapCollectives* invited,
                                 const Deadline& by) {
  const bool is_member = admission.has_member(group.rank_);
  SharedFlags& flags = *group.flags_;
  const std::function<void()> look = [&group] { look_for_loss(group); };
  const Deadline looking = is_member ? by.looking(look) : by;
  std::unique_ptr<Rendezvous> meeting;
  std::optional<Error> failure;
  try {
    if (is_member) meeting = meet(group, admission, invited, looking);
    Rendezvous& all = is_member ? *meeting : *group.rendezvous_;
    group.meet_neighbours(all, looking);
    pass_on(offers, admission, all, looking);
    make_places(group, admission, offers);
    if (is_member) NextView::prepare(group, admission.view);
    all.all_gather("", looking);
  } catch (const Error& error) {
    failure = error;
  } catch (const std::exception& other) {
    failure = Error(Code::kSystem, other.what(), group.rank_);
  }
  std::uint64_t why =
      failure ? AbortWord::make(failure->code(), failure->culprit()) : AbortWord::kNone;
  why = flags.decide_admission(admission.coordinator, admission.number, why);
  if (why != AbortWord::kNone) {
    if (failure) throw *failure;
    throw Error(AbortWord::code(why), "another rank could not go on to the next view",
                AbortWord::culprit(why));
  }
  flags.decide_seat(group.rank_, admission.view, Seat::in(admission.view));
  if (is_member) group.rendezvous_ = std::move(meeting);
  const View view{.number = admission.view, .members = admission.ranks()};
  group.survival_.set_met_for(view);
  if (is_member) offers.clear();
  NextView::begin(group, view, std::move(offers));
}

std::uint64_t NextView::last_admission(const GroupState& group) noexcept {
  return group.flags_->last_admission(group.rank_);
}

}  // namespace ferry::internal
