// A spare reads its place from its stdin, where the launcher writes it as lines NAME=value. After
// that stdin is /dev/null, as that of other ranks.
#include <fcntl.h>
#include <poll.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstring>
#include <mutex>
#include <sstream>

#include "base/descriptor.h"
#include "base/environment.h"
#include "ferry/group.h"
#include "ferry/status.h"

namespace ferry {
namespace {

constexpr int kLookMs = 100;                  // how often `interrupted` is called
constexpr std::size_t kLongestPlace = 65536;  // bytes

// Returns the whole input.
std::string read_stdin(const std::function<bool()>& interrupted) {
  std::string text;
  std::array<char, 4096> buffer;
  while (text.size() < kLongestPlace) {
    pollfd input{STDIN_FILENO, POLLIN, 0};
    if (poll(&input, 1, kLookMs) <= 0) {
      if (interrupted && interrupted())
        throw Error(Code::kInterrupted, "interrupted while this spare waited for a place");
      continue;
    }
    const ssize_t got = read(STDIN_FILENO, buffer.data(), buffer.size());
    if (got == 0) break;
    if (got > 0) text.append(buffer.data(), static_cast<std::size_t>(got));
    if (got < 0 && errno != EINTR && errno != EAGAIN)
      throw Error(Code::kSystem, std::string("stdin of a spare: ") + std::strerror(errno));
  }
  return text;
}

Place parse(const std::string& text) {
  Place place;
  std::istringstream lines(text);
  for (std::string line; std::getline(lines, line);) {
    const std::size_t equals = line.find('=');
    if (equals != 0 && equals != std::string::npos)
      place.emplace_back(line.substr(0, equals), line.substr(equals + 1));
  }
  return place;
}

}  // namespace

Place await_place(const std::function<bool()>& interrupted) {
  static std::mutex mutex;
  static Place place;  // of this process; empty until it has one
  const auto spare = internal::environment("FERRY_SPARE");
  if (!spare || internal::whole_number("FERRY_SPARE", *spare, 0, 1) == 0) return {};
  const std::lock_guard lock(mutex);
  if (!place.empty()) return place;
  place = parse(read_stdin(interrupted));
  if (place.empty())
    throw Error(Code::kClosed, "FERRY_SPARE=1, and stdin ended without a place for this spare");
  const internal::Descriptor nothing(open("/dev/null", O_RDONLY | O_CLOEXEC));
  if (nothing) dup2(nothing.fd(), STDIN_FILENO);
  return place;
}

}  // namespace ferry
