// The JSON form of a topology.
#include <gmock/gmock.h>

#include <nlohmann/json.hpp>
#include <stdexcept>

#include "ferry/status.h"
#include "tools/topology/parts.h"

namespace ferry::tools {
namespace {

using testing::HasSubstr;
using testing::ThrowsMessage;

TEST(TopologyJson, ReadsWhatItWrites) {
  for (const char* text : {"rank:4", "host:2@8links@12.5GB/s@5us,numa:2+1,rank:1+2+3", "dies16:2",
                           "rack:2@3xor,host:2@1xor,rank:2", "rack:2,host:2@pairs0-3+1-2,rank:2",
                           "host:2@also1xor,rank:2", "host:2@2GB/s@also1xor3GB/s,rank:2"}) {
    const Topology topology = Topology::parse(text);
    const nlohmann::ordered_json object = {{"levels", levels_json(topology)}, {"more", 1}};
    EXPECT_EQ(topology_from_json(object.dump()), topology);
  }
}

TEST(TopologyJson, LeavesOutWhatIsUnknown) {
  EXPECT_EQ(topology_from_json(R"({"levels": [{"name": "host", "fanout": 2, "latency_us": 5},
                                              {"name": "rank", "fanout": [3, 5]}]})"),
            Topology::parse("host:2@5us,rank:3+5"));
}

TEST(TopologyJson, RefusesOtherThings) {
  const auto refused = [](const char* text, const char* what) {
    EXPECT_THAT([&] { topology_from_json(text); },
                ThrowsMessage<std::invalid_argument>(HasSubstr(what)))
        << text;
  };
  refused("host:2", "JSON topology: ");
  refused("{}", "levels");
  refused(R"({"levels": 3})", "JSON topology: ");
  refused(R"({"levels": [{"fanout": 3}]})", "name");
  refused(R"({"levels": [{"name": "rank"}]})", "fanout");
  refused(R"({"levels": [{"name": 3, "fanout": 3}]})", "string");
  refused(R"({"levels": [{"name": "rank", "fanout": 3, "speed": 3}]})", "'speed'");
  refused(R"({"levels": [{"name": "host:2,rank", "fanout": 3}]})", "not one level each");
  refused(R"({"levels": [{"name": "gpu8", "fanout": 3}]})", "not one level each");
  for (const char* text : {R"({"levels": []})", R"({"levels": [{"name": "rank", "fanout": "3"}]})",
                           R"({"levels": [{"name": "rank", "fanout": []}]})",
                           R"({"levels": [{"name": "rank", "fanout": 3, "latency_us": -1}]})"}) {
    EXPECT_THROW(topology_from_json(text), Error) << text;
  }
}

}  // namespace
}  // namespace ferry::tools
