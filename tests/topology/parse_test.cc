// Topology::parse: the grammar, the presets, and the messages of refused texts.
#include <gmock/gmock.h>

#include "ferry/status.h"
#include "ferry/topology.h"

namespace ferry {
namespace {

using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;

std::string refusal(const std::string& text) {
  try {
    Topology::parse(text);
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), Code::kInvalidArgument);
    return error.what();
  }
  ADD_FAILURE() << "accepted: " << text;
  return "";
}

TEST(Parse, ReadsLevelsFromTheOutsideIn) {
  const Topology topology = Topology::parse("host:2,numa:2,rank:4");
  EXPECT_EQ(topology.num_ranks(), 16);
  ASSERT_EQ(topology.num_levels(), 3);
  EXPECT_EQ(topology.level(0).name, "host");
  EXPECT_EQ(topology.level(1).name, "numa");
  EXPECT_EQ(topology.level(1).num_groups(), 4);
  EXPECT_EQ(topology.level(2).num_groups(), 16);
  EXPECT_THAT(topology.level(1).first, ElementsAre(0, 4, 8, 12, 16));
}

TEST(Parse, TakesOneFanOutForEachGroupAbove) {
  const Topology topology = Topology::parse("host:2,numa:2+1,rank:1+2+5");
  EXPECT_EQ(topology.num_ranks(), 8);
  EXPECT_THAT(topology.level(0).first, ElementsAre(0, 3, 8));
  EXPECT_THAT(topology.level(1).first, ElementsAre(0, 1, 3, 8));
}

TEST(Parse, ReadsLinksInAnyOrder) {
  const Topology topology = Topology::parse("host:2@5.5us@4links@100Gbit/s,numa:2@30GB/s,rank:4");
  EXPECT_EQ(topology.level(0).link,
            (Topology::Link{.bandwidth_gb_s = 12.5, .latency_us = 5.5, .count = 4}));
  EXPECT_EQ(topology.level(1).link, (Topology::Link{.bandwidth_gb_s = 30}));
  EXPECT_EQ(topology.level(2).link, Topology::Link{});
}

TEST(Parse, ReadsWhatItWrites) {
  for (const std::string text :
       {"rank:1", "rank:8", "host:2,rank:4", "host:2@12.5GB/s@5us,rank:3+5",
        "host:2@1e-07GB/s@1e+20us,rank:1", "rack:2@4xor,host:2@2links@3xor@5us,rank:4",
        "host:2@1xor@10GB/s@also0xor2.5GB/s,rank:4", "rack:2@also2xor,host:2,rank:4",
        "machine:2,host:2@pairs0-5+1-4+2-7+3-6@5us,rank:4",
        "host:3@pairs0-2+0-4+2-5+1-3+1-5+3-4,rank:2",
        "rack:2@0.125GB/s,host:2+1@8links@50GB/s@0.5us,numa:1+2+3@30GB/s,rank:1+2+3+4+5+6"}) {
    const Topology topology = Topology::parse(text);
    EXPECT_EQ(topology.to_text(), text);
    EXPECT_EQ(Topology::parse(topology.to_text()), topology);
  }
  EXPECT_EQ(Topology::parse("host:2,rank:4+4@0us@1links").to_text(), "host:2,rank:4");
  EXPECT_EQ(Topology().to_text(), "host:1,rank:1");
}

TEST(Parse, KnowsThePresets) {
  EXPECT_EQ(Topology::parse("gpu8").to_text(), "host:1,rank:8");
  EXPECT_EQ(Topology::parse("gpu8:4").to_text(), "host:4,rank:8");
  EXPECT_EQ(Topology::parse("gpu8:4@50GB/s@5us").to_text(), "host:4@50GB/s@5us,rank:8");
  EXPECT_EQ(Topology::parse("rails8x8").to_text(), "host:8@8links,rank:8");
  EXPECT_EQ(Topology::parse("rails8x8@50GB/s").to_text(), "host:8@8links@50GB/s,rank:8");
  EXPECT_EQ(Topology::parse("dies16").to_text(), "machine:1@16links,host:4,rank:4");
  EXPECT_EQ(Topology::parse("dies16:2@50GB/s").to_text(), "machine:2@16links@50GB/s,host:4,rank:4");
  EXPECT_EQ(Topology::parse("dies16:2@4links").to_text(), "machine:2@4links,host:4,rank:4");
  EXPECT_EQ(Topology::parse("dies16:2").num_nodes(), 8);
  EXPECT_EQ(Topology::parse("superpod384").to_text(), "host:1,server:24,rank:16");
  EXPECT_EQ(Topology::parse("superpod384").num_ranks(), 384);
  EXPECT_EQ(Topology::parse("superpod384").num_nodes(), 1);
}

TEST(Parse, RefusesNamesOfLevels) {
  EXPECT_THAT(refusal(""), HasSubstr("the last level must be 'rank'"));
  EXPECT_THAT(refusal("host:2"), AllOf(HasSubstr("topology 'host:2'"), HasSubstr("rails8x8")));
  EXPECT_THAT(refusal("host:2,host:2,rank:4"), HasSubstr("two levels are named 'host'"));
  EXPECT_THAT(refusal("rank:2,host:2"), HasSubstr("level 'host' is inside 'rank'"));
  EXPECT_THAT(refusal("rank:2,rank:2"), HasSubstr("two levels are named 'rank'"));
  for (const char* text : {":2,rank:4", "Host:2,rank:4", "2:2,rank:4", "host: 2,rank:4x"})
    EXPECT_NE(refusal(text), "");
  EXPECT_THAT(refusal(" rank:4"), HasSubstr("' rank' is not a name of a level"));
  EXPECT_THAT(refusal("rank"), HasSubstr("'rank' is not of the form name:count"));
  EXPECT_THAT(refusal("host:2,"), HasSubstr("'' is not of the form"));
}

TEST(Parse, RefusesFanOuts) {
  EXPECT_THAT(refusal("host:0,rank:4"), HasSubstr("host: '0' is not a number from 1 to 65536"));
  EXPECT_THAT(refusal("rank:-4"), HasSubstr("'-4'"));
  EXPECT_THAT(refusal("rank:4x"), HasSubstr("'4x'"));
  EXPECT_THAT(refusal("host:2,rank:3+"), HasSubstr("rank: ''"));
  EXPECT_THAT(refusal("rank:"), HasSubstr("rank"));
  EXPECT_THAT(refusal("rank:99999999999"), HasSubstr("'99999999999'"));
  EXPECT_THAT(refusal("host:2,rank:3+5+1"),
              AllOf(HasSubstr("level 'rank' has 3 fan-outs"), HasSubstr("2 groups above")));
  EXPECT_THAT(refusal("rank:3+5"), HasSubstr("there is 1 group above"));
  EXPECT_THAT(refusal("host:2,rank:60000"), HasSubstr("120000 groups, at most 65536"));
}

TEST(Parse, RefusesLinks) {
  EXPECT_THAT(refusal("host:2@12.5GiB/s,rank:4"),
              HasSubstr("level 'host': '12.5GiB/s' is not a number with GB/s, Gbit/s, us, links or "
                        "xor, nor pairs, nor also"));
  EXPECT_THAT(refusal("host:2@2xor,rank:6"),
              HasSubstr("with 2xor a group has a multiple of 4 ranks, but 0 has 6"));
  EXPECT_THAT(refusal("host:2,numa:2@1xor,rank:2"), HasSubstr("'numa' has 1xor, but no mates"));
  EXPECT_THAT(refusal("host:2@1xor@2xor,rank:4"), HasSubstr("two rules for mates"));
  EXPECT_THAT(refusal("host:2@1xor@pairs0-2+1-3,rank:2"), HasSubstr("two rules for mates"));
  EXPECT_THAT(refusal("host:2@also1,rank:2"), HasSubstr("'also1' is not of the form also4xor"));
  EXPECT_THAT(refusal("host:2@also1xor3us,rank:2"), HasSubstr("a second way has the rate '3us'"));
  EXPECT_THAT(refusal("host:2@also1xor@also3xor,rank:4"), HasSubstr("two second ways"));
  EXPECT_THAT(refusal("host:2@also1xor,rank:3"), HasSubstr("a multiple of 2 ranks, but 0 has 3"));
  EXPECT_THAT(refusal("host:2@1xor@also1xor,rank:2"), HasSubstr("same ranks as the first (1xor)"));
  EXPECT_THAT(refusal("host:2@also1xor5GB/s,rank:2"), HasSubstr("a first one of unknown rate"));
  EXPECT_THAT(refusal("rack:2,host:2@also1xor,rank:2"), HasSubstr("only the outermost level"));
  EXPECT_THAT(refusal("rank:2@also1xor"), HasSubstr("'rank' has a second way"));
  EXPECT_THAT(refusal("host:2@pairs,rank:2"), HasSubstr("'host' has no pairs"));
  EXPECT_THAT(refusal("host:2@pairs0-2+1,rank:2"), HasSubstr("'1' is not a pair"));
  EXPECT_THAT(refusal("host:2@pairs0-2+1-x,rank:2"), HasSubstr("'x' is not a number from 0"));
  EXPECT_THAT(refusal("host:2@pairs0-2+1-4,rank:2"),
              HasSubstr("1-4 has a position outside [0, 4)"));
  EXPECT_THAT(refusal("host:2@pairs0-2+0-1,rank:2"), HasSubstr("0-1 are of the same host"));
  EXPECT_THAT(refusal("host:2@pairs0-2,rank:2"),
              HasSubstr("1 do not give each of 4 ranks one in each of 2 hosts"));
  EXPECT_THAT(refusal("host:65536@pairs0-1,rank:1"), HasSubstr("each of 65536 ranks"));
  EXPECT_THAT(refusal("host:2@pairs0-2+1-2,rank:2"), HasSubstr("2 has 2 in host 0, not one"));
  EXPECT_THAT(refusal("rack:2,host:2@pairs0-2+1-3,rank:2+2+2+3"), HasSubstr("each of 5 ranks"));
  EXPECT_THAT(refusal("host:2,numa:2@pairs0-1,rank:1"), HasSubstr("'numa' has pairs of mates"));
  for (const char* property : {"", "5", "us", "1.2.3us", "-5us", "infus", "1e999us", "5 us"})
    EXPECT_THAT(refusal(std::string("host:2@") + property + ",rank:4"), HasSubstr("level 'host'"));
  EXPECT_THAT(refusal("host:2@0links,rank:4"), HasSubstr("'0' is not a number from 1"));
  EXPECT_THAT(refusal("host:2@1.5links,rank:4"), HasSubstr("'1.5'"));
  EXPECT_THAT(refusal("host:2@1us@2us,rank:4"), HasSubstr("two latencies"));
  EXPECT_THAT(refusal("host:2@1GB/s@8Gbit/s,rank:4"), HasSubstr("two bandwidths"));
  EXPECT_THAT(refusal("host:2@1links@8links,rank:4"), HasSubstr("two numbers of links"));
}

TEST(Parse, RefusesPresets) {
  EXPECT_THAT(refusal("gpu8:2,rank:4"), HasSubstr("'gpu8' is a preset and stands alone"));
  EXPECT_THAT(refusal("host:2,gpu8:2"), HasSubstr("'gpu8' is a preset and stands alone"));
  EXPECT_THAT(refusal("rails8x8:2"), HasSubstr("has 8 hosts and takes no number"));
  EXPECT_THAT(refusal("gpu8:0"), HasSubstr("'0'"));
  EXPECT_THAT(refusal("gpu8:"), HasSubstr("''"));
  EXPECT_THAT(refusal("gpu9:2"), HasSubstr("name a preset; did you mean 'gpu8'?"));
  EXPECT_THAT(refusal("supperpod384"),
              HasSubstr("name:count, or name a preset; did you mean 'superpod384'?"));
  EXPECT_THAT(refusal("x:2"), HasSubstr("name a preset; there are gpu8, rails8x8"));
}

}  // namespace
}  // namespace ferry
