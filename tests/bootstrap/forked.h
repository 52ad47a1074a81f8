// Ranks as real processes for the tests of the rendezvous: a child per body, its result as text.
#pragma once

#include <dirent.h>
#include <fcntl.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <functional>
#include <numeric>
#include <string>
#include <utility>
#include <vector>

#include "bootstrap/rendezvous.h"
#include "ferry/status.h"

namespace ferry::internal {

// One child, which ends with the test in any case.
class Forked {
 public:
  explicit Forked(const std::function<std::string()>& body) {
    int ends[2];
    if (pipe2(ends, O_CLOEXEC) != 0) return;
    pid_ = fork();
    if (pid_ == 0) play(ends[1], body);
    close(ends[1]);
    result_fd_ = ends[0];
  }
  Forked(Forked&& other) noexcept
      : pid_(std::exchange(other.pid_, -1)), result_fd_(std::exchange(other.result_fd_, -1)) {}
  Forked& operator=(Forked&&) = delete;
  ~Forked() {
    if (pid_ <= 0) return;
    kill(pid_, SIGKILL);
    result();
  }

  pid_t pid() const { return pid_; }

  // The result of the body; "<code>: <message> (culprit <rank>)" when it threw, the rank only where
  // there is one; empty when the child was killed.
  std::string result() {
    std::string text;
    char piece[4096];
    for (ssize_t got; (got = read(result_fd_, piece, sizeof(piece))) > 0;) {
      text.append(piece, static_cast<std::size_t>(got));
    }
    close(result_fd_);
    waitpid(pid_, nullptr, 0);
    pid_ = -1;
    return text;
  }

 private:
  [[noreturn]] static void play(int fd, const std::function<std::string()>& body) {
    alarm(60);
    std::string text;
    try {
      text = body();
    } catch (const Error& error) {
      text = std::string(code_name(error.code())) + ": " + error.what();
      if (error.culprit() >= 0) text += " (culprit " + std::to_string(error.culprit()) + ")";
    }
    const bool written = write(fd, text.data(), text.size()) == static_cast<ssize_t>(text.size());
    _exit(written ? 0 : 1);
  }

  pid_t pid_ = -1;
  int result_fd_ = -1;
};

// `size` ranks that share memory.
inline std::vector<int> one_node(int size) {
  return std::vector<int>(static_cast<std::size_t>(size));
}

inline std::vector<int> ranks(int size) {
  std::vector<int> all = one_node(size);
  std::iota(all.begin(), all.end(), 0);
  return all;
}

// The open descriptors of this process.
inline int open_descriptors() {
  DIR* folder = opendir("/proc/self/fd");
  int count = 0;
  while (readdir(folder) != nullptr) ++count;
  closedir(folder);
  return count;
}

// Why a segment that is too large for any machine was refused; the next one is not.
inline std::string refused_segment(Rendezvous& mine, const Deadline& by) {
  std::string why;
  try {
    mine.share_segment(std::size_t{1} << 60, by);
  } catch (const Error& error) {
    why = error.what();
  }
  mine.share_segment(4096, by);
  return why;
}

// body(rank) in a process for each of `ranks`; results in that order.
inline std::vector<std::string> in_processes(const std::vector<int>& ranks,
                                             const std::function<std::string(int)>& body) {
  std::vector<Forked> children;
  children.reserve(ranks.size());
  for (const int rank : ranks) children.emplace_back([&] { return body(rank); });
  std::vector<std::string> results;
  for (Forked& child : children) results.push_back(child.result());
  return results;
}

}  // namespace ferry::internal
