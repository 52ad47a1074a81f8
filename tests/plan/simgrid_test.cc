// SimGrid as an oracle: random flows over random links have the rates and ends of the fluid
// simulation. Built where libsimgrid-dev is installed.
#include <gtest/gtest.h>

#include <random>
#include <simgrid/s4u.hpp>
#include <string>
#include <vector>

#include "plan/schedule.h"

namespace ferry::internal {
namespace {

namespace sg4 = simgrid::s4u;

constexpr int kGraphs = 60;

// Flows that start at once, over one to four of up to eight links.
Schedule random_flows(std::mt19937& random) {
  const auto number = [&](int least, int most) {
    return std::uniform_int_distribution<int>(least, most)(random);
  };
  Schedule schedule;
  for (int link = number(1, 8); link > 0; --link)
    schedule.resources.push_back({.capacity = 1.0 * number(1, 100)});
  for (int flow = number(1, 10); flow > 0; --flow) {
    Task task{.what = "flow", .bytes = 1e6 * number(1, 1000)};
    const int links = static_cast<int>(schedule.resources.size()), first = number(0, links - 1);
    for (int i = number(1, std::min(4, links)); i > 0; --i)
      task.uses.push_back({.resource = (first + i) % links});
    schedule.tasks.push_back(task);
  }
  return schedule;
}

// All graphs at once, as SimGrid has one engine in a process. Graphs share no links.
class Oracle {
 public:
  Oracle() : engine_(make()), zone_(sg4::create_full_zone("all")) {}

  void add(const Schedule& schedule, std::vector<double>& end_us) {
    const std::string graph = std::to_string(graphs_++) + ".";
    std::vector<sg4::LinkInRoute> links;
    for (const Resource& resource : schedule.resources) {
      const std::string name = graph + "link" + std::to_string(links.size());
      links.emplace_back(zone_->create_link(name, resource.capacity * 1e6)->set_latency(0)->seal());
    }
    for (std::size_t i = 0; i < schedule.tasks.size(); ++i) {
      const std::string flow = graph + std::to_string(i);
      sg4::Host* const from = zone_->create_host(flow + "from", 1e9)->seal();
      sg4::Host* const to = zone_->create_host(flow + "to", 1e9)->seal();
      std::vector<sg4::LinkInRoute> route;
      for (const Use& use : schedule.tasks[i].uses) route.push_back(links[use.resource]);
      zone_->add_route(from->get_netpoint(), to->get_netpoint(), nullptr, nullptr, route, false);
      const auto bytes = static_cast<std::uint64_t>(schedule.tasks[i].bytes);
      flows_.push_back({flow, from, to, bytes, &end_us[i]});
    }
  }

  void run() {
    zone_->seal();
    for (const Flow& flow : flows_) {
      sg4::Actor::create("send", flow.from, [flow] {
        static int payload = 0;
        sg4::Mailbox::by_name(flow.name)->put(&payload, flow.bytes);
      });
      sg4::Actor::create("receive", flow.to, [flow] {
        sg4::Mailbox::by_name(flow.name)->get<int>();
        *flow.end_us = sg4::Engine::get_clock() * 1e6;
      });
    }
    engine_.run();
  }

 private:
  struct Flow {
    std::string name;
    sg4::Host *from, *to;
    std::uint64_t bytes;
    double* end_us;
  };

  // Links as fluids: without latency, without acknowledgements in the other direction.
  static sg4::Engine make() {
    std::vector<std::string> words = {"simgrid_test", "--cfg=network/model:CM02",
                                      "--cfg=network/crosstraffic:0", "--cfg=network/weight-S:0",
                                      "--cfg=network/TCP-gamma:0"};
    std::vector<char*> arguments;
    for (std::string& word : words) arguments.push_back(word.data());
    int count = static_cast<int>(arguments.size());
    arguments.push_back(nullptr);
    return sg4::Engine(&count, arguments.data());
  }

  sg4::Engine engine_;
  sg4::NetZone* zone_;
  std::vector<Flow> flows_;
  int graphs_ = 0;
};

TEST(SimGrid, FlowsEndWhenTheFluidSimulationSays) {
  std::mt19937 random(15);
  std::vector<Schedule> schedules;
  std::vector<std::vector<double>> end_us;
  for (int i = 0; i < kGraphs; ++i) schedules.push_back(random_flows(random));
  for (const Schedule& schedule : schedules) end_us.emplace_back(schedule.tasks.size());
  Oracle oracle;
  for (int i = 0; i < kGraphs; ++i) oracle.add(schedules[i], end_us[i]);
  oracle.run();
  for (int i = 0; i < kGraphs; ++i) {
    const Timeline timeline = simulate(schedules[i]);
    for (std::size_t flow = 0; flow < end_us[i].size(); ++flow) {
      ASSERT_GT(end_us[i][flow], 0);
      EXPECT_NEAR(timeline.tasks[flow].end_us / end_us[i][flow], 1, 1e-3)
          << "graph " << i << ", flow " << flow;
    }
  }
}

}  // namespace
}  // namespace ferry::internal
