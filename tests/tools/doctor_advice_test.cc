// The doctor's advice on invented machines: each rule gives its advice when it applies, and only
// then.
#include <gmock/gmock.h>

#include "tools/doctor/findings.h"
#include "tools/text.h"

namespace ferry::tools {
namespace {

using testing::HasSubstr;
using testing::IsEmpty;

// A machine with nothing to complain of.
Findings good_machine() {
  Findings findings;
  MachineFacts& machine = findings.machine;
  machine.cpus = {0, 1, 2, 3, 4, 5, 6, 7};
  machine.num_sockets = machine.num_numa = 1;
  machine.num_cores = machine.num_threads = 8;
  machine.memory_bytes = machine.memory_available = std::uint64_t{1} << 40;
  machine.limit_address_space = machine.limit_file_size = machine.limit_open_files = kUnlimited;
  machine.shmem_thp = "never";
  for (const char* name : {"memfd", "huge pages", "pidfd", "group"}) {
    findings.trials.push_back({.name = name, .needed = true, .ok = true, .detail = ""});
  }
  findings.speed = Speed{.touch_ns = 2000,
                         .commit_ns = 200,
                         .flag_ns = 60,
                         .flag_on_two_cpus = true,
                         .copy_bytes_per_s = 1e10};
  return findings;
}

void fail_trial(Findings& findings, const std::string& name, bool needed) {
  for (Trial& trial : findings.trials) {
    if (trial.name == name)
      trial = {.name = name, .needed = needed, .ok = false, .detail = "EPERM"};
  }
}

// The only advice that a machine gets, in one text.
std::string only_advice(const Findings& findings) {
  const std::vector<Advice> advice = advise(findings);
  EXPECT_EQ(advice.size(), 1U);
  if (advice.empty()) return "";
  return advice[0].finding + "; " + advice[0].consequence + "; " + advice[0].remedy;
}

TEST(DoctorAdvice, GoodMachineNeedsNothing) {
  EXPECT_THAT(advise(good_machine()), IsEmpty());
  EXPECT_THAT(problems(good_machine()), IsEmpty());
}

TEST(DoctorAdvice, NarrowAffinity) {
  Findings findings = good_machine();
  findings.machine.cpus = {2, 3, 4, 7};
  EXPECT_THAT(only_advice(findings), HasSubstr("4 of 8 hardware threads (cpus 2-4,7)"));
}

TEST(DoctorAdvice, ProcessorTimeOfTheControlGroup) {
  Findings findings = good_machine();
  findings.machine.cpu_limit = 2.5;
  EXPECT_THAT(only_advice(findings), HasSubstr("at most 2 ranks"));
  findings.machine.cpu_limit = 8;
  EXPECT_THAT(advise(findings), IsEmpty());
}

TEST(DoctorAdvice, HardwareThreadsThatShareCores) {
  Findings findings = good_machine();
  findings.machine.num_cores = 4;
  EXPECT_THAT(only_advice(findings), HasSubstr("one rank per core, 4 in all"));
}

TEST(DoctorAdvice, NumaDomains) {
  Findings findings = good_machine();
  findings.machine.num_numa = 2;
  EXPECT_THAT(only_advice(findings), HasSubstr("2 NUMA domains"));
}

TEST(DoctorAdvice, MoreRanksThanProcessors) {
  Findings findings = good_machine();
  findings.launch.emplace();
  findings.launch->launcher = "torchrun";
  findings.launch->size = 9;
  EXPECT_THAT(only_advice(findings), HasSubstr("torchrun started 9 ranks for 8"));
  findings.launch->size = 8;
  EXPECT_THAT(advise(findings), IsEmpty());
}

TEST(DoctorAdvice, LittleMemory) {
  Findings findings = good_machine();
  findings.machine.memory_available = std::uint64_t{256} << 20;
  EXPECT_THAT(only_advice(findings), HasSubstr("256 MiB of memory"));
}

TEST(DoctorAdvice, SmallPagesOnlyWhereNothingElseHelps) {
  Findings findings = good_machine();
  fail_trial(findings, "huge pages", false);
  EXPECT_THAT(only_advice(findings), HasSubstr("takes 0.52 s"));
  findings.machine.shmem_thp = "advise";
  EXPECT_THAT(advise(findings), IsEmpty());
}

TEST(DoctorAdvice, Limits) {
  Findings findings = good_machine();
  findings.machine.limit_open_files = 256;
  EXPECT_THAT(only_advice(findings), HasSubstr("ulimit -n 1024"));
  findings = good_machine();
  findings.machine.limit_address_space = std::uint64_t{4} << 30;
  EXPECT_THAT(only_advice(findings), HasSubstr("limited to 4 GiB"));
  findings = good_machine();
  findings.machine.limit_file_size = 4096;
  EXPECT_THAT(only_advice(findings), HasSubstr("limited to 4 KiB"));
}

TEST(DoctorAdvice, SlowFlagsAndNoPidfd) {
  Findings findings = good_machine();
  findings.speed->flag_ns = 2300;
  EXPECT_THAT(only_advice(findings), HasSubstr("a flag takes 2.3 us"));
  findings.speed->flag_on_two_cpus = false;  // the affinity says it already
  EXPECT_THAT(advise(findings), IsEmpty());
  fail_trial(findings, "pidfd", false);
  EXPECT_THAT(only_advice(findings), HasSubstr("no pidfd: EPERM"));
  EXPECT_THAT(problems(findings), IsEmpty());
}

TEST(DoctorReport, FailedTrialIsAProblem) {
  Findings findings = good_machine();
  fail_trial(findings, "memfd", true);
  findings.speed.reset();
  ASSERT_EQ(problems(findings).size(), 1U);
  EXPECT_EQ(problems(findings)[0].finding, "memfd: EPERM");
  EXPECT_THAT(doctor_report(findings).render(false),
              HasSubstr("ferry cannot work here\n  - memfd: EPERM"));
  EXPECT_THAT(doctor_report(findings).render(true), HasSubstr("\"ok\": false"));
}

TEST(DoctorReport, TextsOfNumbers) {
  EXPECT_EQ(bytes_text(1536), "1.5 KiB");
  EXPECT_EQ(bytes_text(kUnlimited), "unlimited");
  EXPECT_EQ(ranges_text({0, 1, 2, 5, 7, 8}), "0-2,5,7-8");
}

}  // namespace
}  // namespace ferry::tools
