// Each launcher's variables, as the launcher sets them, and the errors for malformed ones.
#include "bootstrap/launcher.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>

#include "ferry/status.h"

namespace ferry::internal {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using Variables = std::map<std::string, std::string>;

Launch launch(const Variables& variables) {
  return launch_from_environment(
      [&](const std::string& name) -> std::optional<std::string> {
        const auto found = variables.find(name);
        return found == variables.end() ? std::nullopt : std::optional(found->second);
      },
      4711);
}

std::string refusal(const Variables& variables) {
  try {
    launch(variables);
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), Code::kInvalidArgument);
    return error.what();
  }
  return "accepted";
}

Variables with(Variables base, const Variables& changes) {
  for (const auto& [name, value] : changes) base[name] = value;
  return base;
}

const Variables kTorchrun = {{"RANK", "3"},
                             {"WORLD_SIZE", "8"},
                             {"LOCAL_RANK", "3"},
                             {"LOCAL_WORLD_SIZE", "8"},
                             {"TORCHELASTIC_RUN_ID", "none"},
                             {"TORCHELASTIC_RESTART_COUNT", "0"},
                             {"MASTER_ADDR", "127.0.0.1"},
                             {"MASTER_PORT", "29500"}};
const Variables kOpenMpi = {{"OMPI_COMM_WORLD_RANK", "1"},
                            {"OMPI_COMM_WORLD_SIZE", "2"},
                            {"OMPI_COMM_WORLD_LOCAL_RANK", "1"},
                            {"OMPI_COMM_WORLD_LOCAL_SIZE", "2"},
                            {"OMPI_MCA_ess_base_jobid", "1549598721"}};
const Variables kHydra = {{"PMI_RANK", "1"},
                          {"PMI_SIZE", "2"},
                          {"MPI_LOCALRANKID", "1"},
                          {"MPI_LOCALNRANKS", "2"},
                          {"PMI_FD", "8"}};
const Variables kSlurm = {{"SLURM_PROCID", "2"},         {"SLURM_STEP_NUM_TASKS", "4"},
                          {"SLURM_NTASKS", "16"},        {"SLURM_LOCALID", "2"},
                          {"SLURM_JOB_ID", "77"},        {"SLURM_STEP_ID", "5"},
                          {"SLURM_STEP_NUM_NODES", "1"}, {"SLURM_NNODES", "2"}};

TEST(Environment, AddressComesFirst) {
  const Launch found =
      launch(with(kTorchrun, {{"FERRY_ADDR", "mine"}, {"FERRY_RANK", "1"}, {"FERRY_SIZE", "2"}}));
  EXPECT_EQ(found.launcher, "address");
  EXPECT_EQ(found.rank, 1);
  EXPECT_EQ(found.size, 2);
  EXPECT_EQ(found.local_size, 2);
  EXPECT_EQ(found.job, "mine");
  EXPECT_EQ(found.reason, "FERRY_RANK=1 and FERRY_SIZE=2 are set");
}

TEST(Environment, AddressWithoutItsRankIsNotPassedOver) {
  EXPECT_THAT(refusal(with(kTorchrun, {{"FERRY_ADDR", "mine"}, {"FERRY_SIZE", "2"}})),
              HasSubstr("FERRY_RANK not set"));
}

TEST(Environment, Torchrun) {
  const Launch found = launch(kTorchrun);
  EXPECT_EQ(found.launcher, "torchrun");
  EXPECT_EQ(found.rank, 3);
  EXPECT_EQ(found.size, 8);
  EXPECT_EQ(found.local_rank, 3);
  EXPECT_EQ(found.local_size, 8);
  EXPECT_EQ(found.job, "torchrun-none-0-127.0.0.1-29500");
  EXPECT_EQ(found.reason, "RANK=3 and WORLD_SIZE=8 are set");
  EXPECT_NE(launch(with(kTorchrun, {{"TORCHELASTIC_RESTART_COUNT", "1"}})).job, found.job)
      << "a restart is a new job";
  EXPECT_NE(launch(with(kTorchrun, {{"MASTER_PORT", "29501"}})).job, found.job);
}

TEST(Environment, RankAndWorldSizeAloneSuffice) {
  const Launch found = launch({{"RANK", "0"}, {"WORLD_SIZE", "1"}});
  EXPECT_EQ(found.launcher, "torchrun");
  EXPECT_EQ(found.local_size, 0);
}

TEST(Environment, NewcomerHasTheAddressOfItsGroup) {
  const Launch found = launch(with(kTorchrun, {{"FERRY_NEWCOMER", "1"}}));
  EXPECT_TRUE(found.newcomer);
  EXPECT_EQ(found.address, launch(kTorchrun).address);
  EXPECT_EQ(found.reason, "RANK=3 and WORLD_SIZE=8 are set, and FERRY_NEWCOMER=1");
  EXPECT_TRUE(launch({{"FERRY_ADDR", "mine"},
                      {"FERRY_RANK", "1"},
                      {"FERRY_SIZE", "2"},
                      {"FERRY_NEWCOMER", "1"}})
                  .newcomer);
  for (const char* none : {"", "0"})
    EXPECT_FALSE(launch(with(kTorchrun, {{"FERRY_NEWCOMER", none}})).newcomer);
  EXPECT_THAT(refusal(with(kTorchrun, {{"FERRY_NEWCOMER", "yes"}})),
              HasSubstr("FERRY_NEWCOMER=\"yes\" is not a whole number from 0 to 1"));
}

TEST(Environment, AGroupMayHaveMoreRanksThanTheJob) {
  const Launch found = launch(with(kTorchrun, {{"FERRY_GROUP_SIZE", "10"}}));
  EXPECT_EQ(found.size, 10);
  EXPECT_EQ(found.rank, 3);
  EXPECT_THAT(found.members, testing::ElementsAre(0, 1, 2, 3, 4, 5, 6, 7));
  EXPECT_EQ(found.address, launch(kTorchrun).address) << "one host";
  EXPECT_EQ(found.reason, "RANK=3 and WORLD_SIZE=8 are set, and FERRY_GROUP_SIZE=10");
  for (const char* same : {"", "8"})
    EXPECT_TRUE(launch(with(kTorchrun, {{"FERRY_GROUP_SIZE", same}})).members.empty());
  EXPECT_THAT(refusal(with(kTorchrun, {{"FERRY_GROUP_SIZE", "7"}})),
              HasSubstr("FERRY_GROUP_SIZE=\"7\" is not a whole number from 8 to"));
  const Launch hosts =
      launch(with(kTorchrun, {{"FERRY_GROUP_SIZE", "10"}, {"FERRY_ADDR", "tcp://here:4711"}}));
  EXPECT_EQ(hosts.size, 10);
  EXPECT_EQ(hosts.members.size(), 8U);
}

TEST(Environment, TorchrunOverTwoHostsMeetsBesideTorchsPort) {
  const Variables hosts =
      with(kTorchrun, {{"LOCAL_WORLD_SIZE", "4"}, {"LOCAL_RANK", "0"}, {"MASTER_ADDR", "node01"}});
  const Launch found = launch(hosts);
  EXPECT_EQ(found.launcher, "torchrun");
  EXPECT_EQ(found.address, "tcp://node01:29501");
  EXPECT_EQ(found.job, "torchrun-none-0-node01-29500");
  EXPECT_EQ(launch(with(hosts, {{"FERRY_PORT", "4000"}})).address, "tcp://node01:4000");
  EXPECT_EQ(launch(with(hosts, {{"MASTER_ADDR", "::1"}})).address, "tcp://[::1]:29501");
  EXPECT_EQ(launch(with(hosts, {{"MASTER_ADDR", "[::1]"}})).address, "tcp://[::1]:29501");
  EXPECT_EQ(launch(with(hosts, {{"MASTER_ADDR", "fe80::1%eth0"}})).address,
            "tcp://[fe80::1%eth0]:29501");
  EXPECT_EQ(launch(kTorchrun).address, launch(kTorchrun).job) << "one host";
}

TEST(Environment, TorchrunOverTwoHostsNeedsAMasterAndAPort) {
  const Variables hosts = with(kTorchrun, {{"LOCAL_WORLD_SIZE", "4"}});
  EXPECT_THAT(refusal(with(hosts, {{"MASTER_ADDR", ""}})),
              AllOf(HasSubstr("8 ranks on several hosts (LOCAL_WORLD_SIZE=4, WORLD_SIZE=8)"),
                    HasSubstr("FERRY_ADDR=tcp://host:port")));
  for (const char* host : {"node01:29500", "10.0.0.1:29500", "[::1]:29500", "[node01]", "::1:x"})
    EXPECT_THAT(refusal(with(hosts, {{"MASTER_ADDR", host}})),
                HasSubstr("MASTER_ADDR=\"" + std::string(host) + "\" is not a host"));
  EXPECT_THAT(refusal(with(hosts, {{"MASTER_PORT", "65535"}})),
              HasSubstr("MASTER_PORT=\"65535\" is not a whole number from 1 to 65534"));
  EXPECT_THAT(refusal(with(hosts, {{"FERRY_PORT", "0"}})), HasSubstr("FERRY_PORT=\"0\""));
}

TEST(Environment, TcpAddressWithItsOwnRanks) {
  const Launch found = launch(
      with(kTorchrun, {{"FERRY_ADDR", "tcp://a:1"}, {"FERRY_RANK", "1"}, {"FERRY_SIZE", "2"}}));
  EXPECT_EQ(found.launcher, "address");
  EXPECT_EQ(found.address, "tcp://a:1");
  EXPECT_EQ(found.size, 2);
  EXPECT_EQ(found.local_size, 0) << "the launcher does not give it";
}

TEST(Environment, TcpAddressGoesWithAnyLauncher) {
  for (const Variables& launcher : {kTorchrun, kOpenMpi, kHydra, kSlurm}) {
    const Launch found = launch(with(launcher, {{"FERRY_ADDR", "tcp://a:1"}}));
    EXPECT_EQ(found.address, "tcp://a:1");
    EXPECT_EQ(found.job, "tcp://a:1") << "equal on all hosts";
    EXPECT_EQ(found.rank, launch(launcher).rank);
    EXPECT_EQ(found.launcher, launch(launcher).launcher);
  }
  EXPECT_THAT(refusal(with(kTorchrun, {{"FERRY_ADDR", "tcp://a"}})), HasSubstr("\"tcp://a\""));
  EXPECT_THAT(refusal(with(kTorchrun, {{"FERRY_ADDR", "tcp://a:1"}, {"FERRY_RANK", "1"}})),
              HasSubstr("FERRY_SIZE not set"));
  EXPECT_THAT(refusal({{"FERRY_ADDR", "tcp://a:1"}}), HasSubstr("no launcher was found"));
}

TEST(Environment, MpiOverTwoHostsNeedsAnAddress) {
  const std::pair<Variables, const char*> launchers[] = {{kOpenMpi, "OMPI_COMM_WORLD_LOCAL_SIZE"},
                                                         {kHydra, "MPI_LOCALNRANKS"}};
  for (const auto& [launcher, local_size] : launchers) {
    const std::string local_rank =
        launcher.contains("PMI_RANK") ? "MPI_LOCALRANKID" : "OMPI_COMM_WORLD_LOCAL_RANK";
    const Variables hosts = with(launcher, {{local_size, "1"}, {local_rank, "0"}});
    EXPECT_THAT(refusal(hosts),
                AllOf(HasSubstr(local_size), HasSubstr("set FERRY_ADDR=tcp://host:port")));
    const Launch found = launch(with(hosts, {{"MASTER_ADDR", "a"}, {"FERRY_PORT", "7"}}));
    EXPECT_EQ(found.address, "tcp://a:7");
    EXPECT_THAT(found.job, testing::Not(HasSubstr("4711"))) << "a pid names no hosts";
  }
}

TEST(Environment, OpenMpi) {
  const Launch found = launch(with(kOpenMpi, {{"SLURM_PROCID", "0"}, {"SLURM_NTASKS", "9"}}));
  EXPECT_EQ(found.launcher, "openmpi");
  EXPECT_EQ(found.rank, 1);
  EXPECT_EQ(found.size, 2);
  EXPECT_EQ(found.job, "openmpi-1549598721");
  EXPECT_EQ(launch(with(kOpenMpi, {{"PMIX_NAMESPACE", "n"}})).launcher, "openmpi");
}

TEST(Environment, HydraIsNamedByItsProxy) {
  const Launch found = launch(kHydra);
  EXPECT_EQ(found.launcher, "hydra");
  EXPECT_EQ(found.rank, 1);
  EXPECT_EQ(found.local_size, 2);
  EXPECT_EQ(found.job, "hydra-4711");
}

TEST(Environment, PmixNeedsASize) {
  const Variables pmix = {{"PMIX_RANK", "1"}, {"PMIX_NAMESPACE", "prte-1@1"}};
  EXPECT_THAT(refusal(pmix), HasSubstr("PMIx (PMIX_SIZE missing)"));
  const Launch found = launch(with(pmix, {{"PMIX_SIZE", "2"}}));
  EXPECT_EQ(found.launcher, "pmix");
  EXPECT_EQ(found.job, "pmix-prte-1@1");
}

TEST(Environment, SlurmStep) {
  const Launch found = launch(kSlurm);
  EXPECT_EQ(found.launcher, "slurm");
  EXPECT_EQ(found.rank, 2);
  EXPECT_EQ(found.size, 4) << "the step's size, not the job's";
  EXPECT_EQ(found.local_rank, 2);
  EXPECT_EQ(found.local_size, 4);
  EXPECT_EQ(found.job, "slurm-77-5");
}

TEST(Environment, SlurmWithPmiIsSlurm) {
  EXPECT_EQ(launch(with(kSlurm, {{"PMI_RANK", "2"}, {"PMI_SIZE", "4"}})).launcher, "slurm");
  EXPECT_EQ(
      launch(with(kSlurm, {{"PMIX_RANK", "2"}, {"PMIX_NAMESPACE", "slurm.pmix.77.5"}})).launcher,
      "slurm");
}

TEST(Environment, OlderSlurmHasNoStepSize) {
  EXPECT_EQ(launch({{"SLURM_PROCID", "2"},
                    {"SLURM_NTASKS", "4"},
                    {"SLURM_JOB_ID", "7"},
                    {"SLURM_STEP_ID", "0"}})
                .size,
            4);
}

TEST(Environment, SlurmBatchScriptIsNotARank) {
  EXPECT_THAT(refusal({{"SLURM_PROCID", "0"}, {"SLURM_NTASKS", "4"}, {"SLURM_JOB_ID", "7"}}),
              HasSubstr("no launcher was found"));
}

TEST(Environment, SlurmOverTwoHostsMeetsAtTheFirst) {
  const Variables hosts = with(kSlurm, {{"SLURM_STEP_NUM_NODES", "2"}});
  const Variables listed =
      with(hosts, {{"SLURM_STEP_NODELIST", "node[03-04]"}, {"SLURM_JOB_NODELIST", "node[01-04]"}});
  EXPECT_EQ(launch(listed).address, "tcp://node03:21237") << "20000 + 77 * 16 + 5";
  EXPECT_EQ(launch(with(hosts, {{"SLURM_JOB_NODELIST", "a,b"}})).address, "tcp://a:21237");
  EXPECT_EQ(launch(with(listed, {{"MASTER_ADDR", "m"}, {"MASTER_PORT", "5"}})).address,
            "tcp://m:6");
  EXPECT_EQ(launch(with(listed, {{"FERRY_PORT", "9"}})).address, "tcp://node03:9");
  EXPECT_EQ(launch(listed).job, "slurm-77-5");
  EXPECT_THAT(refusal(hosts), AllOf(HasSubstr("slurm started 4 ranks on several hosts"),
                                    HasSubstr("SLURM_STEP_NUM_NODES=2")));
}

TEST(Environment, FirstHostOfSlurmsLists) {
  EXPECT_EQ(first_host("login1"), "login1");
  EXPECT_EQ(first_host("a,b[1-3]"), "a");
  EXPECT_EQ(first_host("node[01-04]"), "node01");
  EXPECT_EQ(first_host("node[07,09-12],other"), "node07");
  EXPECT_EQ(first_host("rack[1-2]n[3-4]x,other"), "rack1n3x");
  EXPECT_EQ(first_host(""), "");
}

TEST(Environment, MalformedValuesAreNamed) {
  for (const char* bad : {"x", "-1", "3x", " 3", "1e3", "99999999999999999999", "0x3", "+3"}) {
    EXPECT_THAT(refusal(with(kTorchrun, {{"RANK", bad}})),
                AllOf(HasSubstr("RANK=\""), HasSubstr(bad)));
  }
  EXPECT_THAT(refusal(with(kTorchrun, {{"RANK", "8"}})),
              HasSubstr("RANK=8 is outside of 0 to 7, as WORLD_SIZE=8"));
  EXPECT_THAT(refusal(with(kTorchrun, {{"WORLD_SIZE", "0"}})), HasSubstr("WORLD_SIZE=\"0\""));
  EXPECT_THAT(refusal(with(kTorchrun, {{"LOCAL_RANK", "y"}})), HasSubstr("LOCAL_RANK=\"y\""));
  EXPECT_THAT(refusal(with(kTorchrun, {{"LOCAL_WORLD_SIZE", "9"}})),
              HasSubstr("LOCAL_WORLD_SIZE=\"9\""));
}

TEST(Environment, NothingFoundNamesEverythingThatWasLookedFor) {
  const std::string text = refusal({{"WORLD_SIZE", "4"}, {"MASTER_PORT", "29500"}, {"RANK", ""}});
  EXPECT_THAT(text, HasSubstr("torchrun (RANK missing)"));
  for (const char* name :
       {"FERRY_ADDR", "OMPI_COMM_WORLD_RANK", "PMI_RANK", "PMIX_RANK", "SLURM_PROCID"}) {
    EXPECT_THAT(text, HasSubstr(name));
  }
}

}  // namespace
}  // namespace ferry::internal
