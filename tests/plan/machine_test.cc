// Machines as text: to_text and parse are inverse, and errors name the line and the value.
#include <gmock/gmock.h>

#include "ferry/plan.h"
#include "ferry/status.h"
#include "plan/graph.h"

namespace ferry {
namespace {

using testing::AllOf;
using testing::Contains;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::Not;

std::string refusal(const std::string& text) {
  try {
    plan(Machine::parse(text),
         {.exchange = {.max_tokens = 1, .hidden = 1, .num_experts = 64, .top_k = 1}});
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), Code::kInvalidArgument);
    return error.what();
  }
  return "accepted";
}

TEST(Machine, TextIsReadAsItIsWritten) {
  const std::string text =
      "machine:2,vnode:2,rank:4\n"
      "link peer mesh vnode 50GB/s 3us source stated: a paper\n"
      "link mate1 pairs 0-5,1-4,2-7,3-6 in machine 50GB/s\n"
      "link ib index machine 5us issue 0.1us port nic curve 1048576:0.18,1073741824:12.19\n"
      "link port10 xor 12 25GB/s\n"
      "link around ring all 1GB/s\n"
      "port nic 13GB/s of vnode half source measured: here\n"
      "engine spc 200GB/s relays reorders\n"
      "host dispatch 4us 26ns 60GB/s 18GB/s combine 4us 26ns 60GB/s 18GB/s "
      "processors 2 waiting 5us 1.5us caches 4MB 40MB rank 0.5MB network 1.3GB/s together flag "
      "26ns\n"
      "memory 64GB\n"
      "contention 1.2\n";
  EXPECT_EQ(Machine::parse(text).to_text(), text);
  EXPECT_EQ(Machine::parse("\n# a comment\n" + text + "  # another\n").to_text(), text);
}

TEST(Machine, AHostMayHaveSomeOfItsParts) {
  for (const char* const part :
       {"dispatch 4us 26ns 60GB/s 18GB/s", "combine 4us 26ns 60GB/s 18GB/s", "caches 4MB 40MB",
        "processors 2", "waiting 5us 1.5us", "rank 0.5MB", "network 1.3GB/s", "together",
        "flag 26ns", "source measured: here"}) {
    const std::string text = std::string("host:2,rank:4\nhost ") + part + "\n";
    EXPECT_EQ(Machine::parse(text).to_text(), text);
  }
}

TEST(Machine, PresetsAreReadAndTheirRatesCanBeChanged) {
  for (const std::string& preset : machine_presets()) {
    const Machine machine = Machine::parse(preset + ":2");
    EXPECT_EQ(machine.name, preset + ":2");
    EXPECT_EQ(Machine::parse(machine.to_text()).to_text(), machine.to_text());
    EXPECT_EQ(refusal(preset + ":2@" + machine.links[0].name + "=5GB/s"), "accepted");
  }
  const Machine machine = Machine::parse("ubbv2:2@port10@port10=29GB/s@nic=15GB/s");
  EXPECT_EQ(machine.links.back().gb_s, 29);
  EXPECT_EQ(machine.links.back().source, "stated: by the user");
  EXPECT_EQ(machine.ports[0].gb_s, 15);
}

TEST(Machine, RatesMayBeInGbitPerSecond) {
  const char* const text =
      "host:2@100Gbit/s,rank:4\nlink eth mesh all %s port nic\nport nic %s\nengine dma %s sends\n"
      "host dispatch 4us 26ns %s %s combine 4us 26ns %s %s network %s\n";
  const auto with = [&](const std::string& rate) {
    std::string all = text;
    while (all.find("%s") != all.npos) all.replace(all.find("%s"), 2, rate);
    return Machine::parse(all).to_text();
  };
  EXPECT_EQ(with("100Gbit/s"), with("12.5GB/s"));
  EXPECT_THAT(refusal("rank:4\nlink a mesh all 5Gbit/s 6GB/s"), HasSubstr("6GB/s after 0.625GB/s"));
  const Machine preset = Machine::parse("ubbv2:2@nic=100Gbit/s@nic=200Gbit/s@peer=80Gbit/s");
  EXPECT_EQ(preset.ports[0].gb_s, 25);
  EXPECT_EQ(preset.links[0].gb_s, 10);
  EXPECT_EQ(preset.links[0].level, "vnode");
}

// All that follows 'source' on a line is its text, so a rate there would be lost.
TEST(Refused, ARateBehindASource) {
  const std::string mesh = "rank:4\nlink a mesh all ";
  EXPECT_THAT(refusal(mesh + "source stated: a paper 50GB/s"),
              AllOf(HasSubstr("line 2"), HasSubstr("'50GB/s' is part of the text of 'source'")));
  EXPECT_THAT(refusal(mesh + "source stated: 400Gbit/s"), HasSubstr("'400Gbit/s' is part"));
  EXPECT_THAT(refusal(mesh + "5GB/s source stated: 3us"), HasSubstr("'3us' is part"));
  EXPECT_THAT(refusal(mesh + "port b\nport b source stated: 3GB/s"), HasSubstr("'3GB/s' is part"));
  EXPECT_THAT(refusal(mesh + "5GB/s\nengine e sends source x 3GB/s"), HasSubstr("'3GB/s' is part"));
  EXPECT_THAT(refusal("rank:4\nhost source here dispatch 4us 26ns 60GB/s 18GB/s"),
              HasSubstr("'4us' is part"));
  EXPECT_EQ(refusal(mesh + "5GB/s 3us source stated: 10 % below 6GB/s and 4us"), "accepted");
}

TEST(Machine, AByteOrderMarkIsLeftOut) {
  EXPECT_EQ(Machine::parse("\xEF\xBB\xBFrank:4\nlink a mesh all 5GB/s").to_text(),
            "rank:4\nlink a mesh all 5GB/s\n");
}

// The table of the partly linked machine with its second way: rank, mate1, ib, port10.
TEST(Graph, MatesOfThePartlyLinkedMachine) {
  const internal::Graph graph(Machine::parse("ubbv2:2@port10"));
  const int expected[16][3] = {{5, 8, 12}, {4, 9, 13}, {7, 10, 14}, {6, 11, 15},
                               {1, 12, 8}, {0, 13, 9}, {3, 14, 10}, {2, 15, 11},
                               {13, 0, 4}, {12, 1, 5}, {15, 2, 6},  {14, 3, 7},
                               {9, 4, 0},  {8, 5, 1},  {11, 6, 2},  {10, 7, 3}};
  for (int rank = 0; rank < 16; ++rank) {
    for (int kind = 1; kind < 4; ++kind)
      EXPECT_THAT(graph.neighbours(rank, kind), ElementsAre(expected[rank][kind - 1])) << rank;
    EXPECT_EQ(graph.neighbours(rank, 0).size(), 3);
  }
}

// To a rank of the own virtual node one link leads, to the other virtual node two. To the other
// node RDMA and one link lead, or RDMA and two links.
TEST(Graph, LengthsOfWays) {
  const internal::Graph graph(Machine::parse("ubbv2:2"));
  const auto ways = graph.ways(0, {.closed = std::vector<bool>(3)});
  const int depth[16] = {0, 1, 1, 1, 2, 1, 2, 2, 1, 2, 2, 2, 3, 2, 3, 3};
  for (int rank = 0; rank < 16; ++rank) EXPECT_EQ(ways.reached[rank].depth, depth[rank]) << rank;
  EXPECT_EQ(ways.reached[12].from, 13);  // rank 13 serves its virtual node
}

TEST(Refused, NamesLineValueAndNearestName) {
  EXPECT_THAT(refusal(""), HasSubstr("the text is empty"));
  EXPECT_THAT(refusal("host:2,rank:4\nlnik a mesh host 1GB/s"),
              testing::AllOf(HasSubstr("line 2"), HasSubstr("did you mean 'link'?")));
  EXPECT_THAT(refusal("host:2,rank:4\n\nlink a mash host 1GB/s"),
              testing::AllOf(HasSubstr("line 3"), HasSubstr("'mash'"), HasSubstr("'mesh'")));
  EXPECT_THAT(refusal("host:2,rank:4\nlink a mesh hots 1GB/s"), HasSubstr("did you mean 'host'?"));
  EXPECT_THAT(refusal("host:2,rank:4\nlink a mesh host -5GB/s"),
              HasSubstr("'-5GB/s' is not a positive quantity"));
  EXPECT_THAT(refusal("host:2,rank:4\nlink a mesh host 5Gbit"), HasSubstr("'5Gbit'"));
  EXPECT_THAT(
      refusal("host:2,rank:4\nlink a pairs 0-9 in host 5GB/s"),
      testing::AllOf(HasSubstr("line 2"), HasSubstr("pair 0-9: position 9 is not in [0, 4)")));
  EXPECT_THAT(refusal("host:2,rank:4\nlink a mesh all 5GB/s\nport b 5GB/s of hots"),
              testing::AllOf(HasSubstr("line 3"), HasSubstr("did you mean 'host'?")));
  EXPECT_THAT(refusal("rank:4\nlink a mesh all 5GB/s 6GB/s"), HasSubstr("6GB/s after 5GB/s"));
  EXPECT_THAT(refusal("rank:4\nmemory 5GB\nmemory 6GB"), HasSubstr("line 3: 6GB after 5GB"));
  EXPECT_THAT(refusal("rank:4\ncontention 0.5"), HasSubstr("contention 0.5: at least 1"));
  EXPECT_THAT(refusal("rank:4\ncontention nan"), HasSubstr("'nan' is not a positive number"));
  EXPECT_THAT(refusal("host:2,rank:4\nlink a pairs 0-0 5GB/s"), HasSubstr("joined to itself"));
  EXPECT_THAT(refusal("host:2,rank:4\nlink a pairs 0-1,1-0 5GB/s"), HasSubstr("joined twice"));
  EXPECT_THAT(refusal("host:3,rank:1\nlink a xor 2 5GB/s"), HasSubstr("a group has 3 ranks"));
  EXPECT_THAT(refusal("host:2,rank:4\nlink a mesh host 5GB/s"),
              HasSubstr("no way over links leads from rank 0 to rank 4"));
  EXPECT_THAT(refusal("rank:4\nlink a mesh all 5GB/s port nik\nport nic 1GB/s"),
              HasSubstr("did you mean 'nic'?"));
  EXPECT_THAT(refusal("rank:4\nlink a mesh all 5GB/s\nport a 1GB/s"),
              testing::AllOf(HasSubstr("line 3"), HasSubstr("'a' is used twice")));
  EXPECT_THAT(refusal("rank:4\nlink a mesh all 5GB/s curve 9:1,9:2"), HasSubstr("ascend"));
  EXPECT_THAT(refusal("ubbv3:2"), HasSubstr("did you mean 'ubbv2'?"));
  EXPECT_THAT(refusal("ubbv2:0"), HasSubstr("'0' is not a number from 1 to 64"));
  EXPECT_THAT(refusal("ubbv2:2@port11"), HasSubstr("option 'port10'"));
  EXPECT_THAT(refusal("ubbv2:2@nik=3GB/s"), HasSubstr("did you mean 'nic'?"));
  EXPECT_THAT(refusal("ubbv2:2@nic="), HasSubstr("'nic=' has no rate"));
}

// A port that no link names would limit nothing.
TEST(Refused, WhatNothingUses) {
  const std::string links = "host:2,rank:4\nlink nv mesh host 50GB/s\nlink eth index host 20GB/s\n";
  EXPECT_THAT(refusal(links + "port nic 0.5GB/s"),
              testing::AllOf(HasSubstr("line 4"), HasSubstr("port 'nic': no link uses it"),
                             HasSubstr("'port nic'")));
  EXPECT_THAT(refusal("host:2@20GB/s,rank:4\nport nic 0.5GB/s"), HasSubstr("no link uses it"));
  EXPECT_THAT(refusal(links + "engine dma 5GB/s"),
              testing::AllOf(HasSubstr("line 4"), HasSubstr("sends, relays and reorders")));
  Machine made = Machine::parse(links);
  made.links[1].port = "nik";
  EXPECT_THAT([&] { plan(made, {.exchange = {.hidden = 1, .num_experts = 8, .top_k = 1}}); },
              testing::ThrowsMessage<Error>(HasSubstr("there is no port 'nik'")));
}

std::vector<std::string> notes_of(const std::string& text) {
  return plan(Machine::parse(text),
              {.exchange = {.max_tokens = 64, .hidden = 64, .num_experts = 64, .top_k = 4}})
      .notes;
}

// Each thing that a machine declares is used, or a note says that it is not.
TEST(Notes, SayWhatIsNotUsed) {
  const std::string mesh = "\nlink eth mesh all 20GB/s\n";
  const auto unused = [](const std::string& text) { return Contains(HasSubstr(text)); };
  EXPECT_THAT(notes_of("host:2,rank:4" + mesh), Not(unused("is not used")));
  EXPECT_THAT(notes_of("host:1,rank:4\nlink in mesh host 50GB/s\nlink out index host port nic\n"
                       "port nic 5GB/s"),
              AllOf(unused("link 'out' is not used"), unused("port 'nic' is not used")));
  EXPECT_THAT(notes_of("rank:4" + mesh + "engine dma 5GB/s relays"), unused("engine 'dma'"));
  EXPECT_THAT(notes_of("host:1@5GB/s,rank:4"), unused("rate of level 'host' is not used"));
  EXPECT_THAT(notes_of("host:2@5GB/s@5us@1xor,rank:4" + mesh),
              AllOf(unused("latency of level 'host'"), unused("mates of level 'host'"),
                    Not(unused("rate of level"))));
}

TEST(Notes, SayWhichPropertiesOfAHostAreNotUsed) {
  const auto unused = [](const std::string& text) { return Contains(HasSubstr(text)); };
  for (const char* const part :
       {"caches 4MB 40MB", "processors 2", "waiting 5us 1.5us", "rank 0.5MB", "together"}) {
    const std::string text(part);
    EXPECT_THAT(notes_of("host:2,rank:4\nhost " + text),
                unused("host: '" + text.substr(0, text.find(' ')) + "' is not used"));
  }
  EXPECT_THAT(notes_of("host:2,rank:4\nhost network 1GB/s together"), Not(unused("host: ")));
  EXPECT_THAT(notes_of("host:2,rank:4\nlink eth mesh all 5GB/s\nhost network 1GB/s"),
              unused("host: 'network' is not used"));
  EXPECT_THAT(notes_of("host:2,rank:4\nhost dispatch 4us 26ns 60GB/s 18GB/s combine 4us 26ns "
                       "60GB/s 18GB/s processors 2 waiting 5us 1.5us caches 4MB 40MB rank 0.5MB"),
              Not(unused("host: ")));
}

TEST(Refused, ModelsByNearestName) {
  EXPECT_EQ(find_model("deepseek-v3").experts, 256);
  EXPECT_THAT([] { find_model("deepseek-v4"); },
              testing::ThrowsMessage<Error>(HasSubstr("did you mean 'deepseek-v3'?")));
}

TEST(Resized, WholeGroupsOrPartsOfOne) {
  const Machine machine = Machine::parse("ubbv2:2");
  EXPECT_EQ(machine.resized(32).tree.to_text(), "machine:4,vnode:2,rank:4");
  EXPECT_EQ(machine.resized(4).tree.to_text(), "machine:1,vnode:1,rank:4");
  EXPECT_THAT([&] { machine.resized(12); },
              testing::ThrowsMessage<Error>(HasSubstr("12 ranks do not fit machine 'ubbv2:2'")));
}

std::vector<std::string> link_names(const Machine& machine) {
  std::vector<std::string> names;
  for (const Machine::Link& link : machine.links) names.push_back(link.name);
  return names;
}

TEST(Resized, LinksThatLeadOutOfThePartAreLeftOut) {
  const Machine machine = Machine::parse("ubbv2:2@port10");
  EXPECT_THAT(link_names(machine.resized(8)), ElementsAre("peer", "mate1", "ib"));
  EXPECT_THAT(link_names(machine.resized(4)), ElementsAre("peer", "ib"));
  const Machine pairs = Machine::parse("rank:4\nlink a pairs 0-1,1-2,2-3 5GB/s");
  EXPECT_THAT(pairs.resized(2).links[0].pairs, ElementsAre(ElementsAre(0, 1)));
  const Machine mask =
      Machine::parse("rank:12\nlink a xor 2 5GB/s\nlink b ring all 5GB/s").resized(6);
  EXPECT_THAT(mask.links[0].pairs, ElementsAre(ElementsAre(0, 2), ElementsAre(1, 3)));
  const Machine around = Machine::parse("rank:5\nlink a pairs 4-0,4-1,4-2,4-3 5GB/s");
  EXPECT_THAT([&] { around.resized(4); },
              testing::ThrowsMessage<Error>(HasSubstr("no link is between them")));
  const Machine endless = Machine::parse("rank:4\nlink a pairs 0-1,0-7 5GB/s");
  EXPECT_THAT([&] { internal::Graph(endless.resized(2)); },
              testing::ThrowsMessage<Error>(HasSubstr("pair 0-7: position 7 is not in [0, 2)")));
}

}  // namespace
}  // namespace ferry
