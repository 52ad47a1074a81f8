// Runs `ferry top`: its options, and the loop that takes samples and prints them. Calls sample.h,
// remote.h and report.h.
#include <fmt/format.h>
#include <unistd.h>
#include <CLI/CLI.hpp>

#include <chrono>
#include <iostream>
#include <memory>
#include <sstream>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include "ferry/status.h"
#include "tools/commands.h"
#include "tools/launch/process.h"
#include "tools/launch/remote.h"
#include "tools/top/remote.h"
#include "tools/top/report.h"
#include "tools/top/sample.h"

namespace ferry::tools {
namespace {

constexpr double kShortestS = 0.1, kLongestS = 3600;
constexpr const char* kTopFooter =
    R"(Every group of every program that uses ferry, of this user and on this host: what each rank
did per second of the interval, what part of its time it waited, for whom most (network: for its own
messages to leave), and its memory. Programs need no option for it and are not disturbed. With
--hosts the same of other hosts, as `ferry launch --hosts` reaches them: ferry top --hosts a:4,b:4;
the numbers of ranks may be left out.

Exit code: 0, 1 if --once finds nothing or a host cannot be reached, 2 for a wrong command line.)";

struct TopOptions {
  bool once = false, json = false;
  double interval_s = 1;
  std::string hosts;
  std::string ssh{kSsh};
};

std::vector<std::string> words_of(const std::string& text, char between) {
  std::istringstream stream(text);
  std::vector<std::string> words;
  for (std::string word; std::getline(stream, word, between);) {
    if (!word.empty()) words.push_back(word);
  }
  return words;
}

std::vector<RemoteTop> reach(const TopOptions& options) {
  std::vector<RemoteTop> hosts;
  for (const std::string& part : words_of(options.hosts, ',')) {
    const std::size_t colon = part.rfind(':');
    const bool counts = colon != std::string::npos &&
                        part.find_first_not_of("0123456789", colon + 1) == std::string::npos;
    hosts.emplace_back(words_of(options.ssh, ' '), part.substr(0, counts ? colon : part.size()),
                       options.interval_s);
  }
  return hosts;
}

// Takes the next sample: of the other hosts, which wait for the interval themselves before they
// reply; or, if none was named, of this host after the interval.
Sample next_sample(std::vector<RemoteTop>& hosts, double wait_s) {
  Sample sample;
  for (RemoteTop& host : hosts) host.add_next(sample);
  if (!hosts.empty()) return sample;
  std::this_thread::sleep_for(std::chrono::duration<double>(wait_s));
  return look_here();
}

void print(const TopOptions& options, const Sample& before, const Sample& now) {
  if (options.json) {
    std::cout << top_json(before, now) << std::endl;
    return;
  }
  const std::string table = top_table(before, now);
  if (!options.once && isatty(STDOUT_FILENO))
    std::cout << "\033[H\033[J";  // the top of a clear screen
  std::cout << (table.empty() ? "no program of this user uses ferry here\n" : table) << std::endl;
}

int run(const TopOptions& options) {
  std::vector<RemoteTop> hosts = reach(options);
  Sample before = next_sample(hosts, 0);
  for (;;) {
    Sample now = next_sample(hosts, options.interval_s);
    print(options, before, now);
    if (options.once) return now.empty() ? 1 : 0;
    before = std::move(now);
  }
}

}  // namespace

void add_top(CLI::App& app, int& exit_code) {
  CLI::App* const verb =
      app.add_subcommand("top", "What the ranks of running programs do, at a glance");
  verb->footer(kTopFooter);
  const auto options = std::make_shared<TopOptions>();
  verb->add_flag("--once", options->once, "One table, and the end");
  verb->add_flag("--json", options->json, "A line of JSON instead of a table");
  verb->add_option("--interval", options->interval_s, "Seconds between two tables")
      ->check(CLI::Range(kShortestS, kLongestS))
      ->capture_default_str();
  verb->add_option("--hosts", options->hosts,
                   "Look at these hosts instead, [USER@]NAME[:RANKS],..");
  verb->add_option("--ssh", options->ssh, "Command that gets a host and a line for its shell")
      ->envname("FERRY_SSH")
      ->capture_default_str();
  verb->callback([options, &exit_code] {
    try {
      exit_code = run(*options);
    } catch (const std::runtime_error& error) {
      std::cerr << "ferry top: " << error.what() << '\n';
      exit_code = 1;
    }
  });
}

}  // namespace ferry::tools
