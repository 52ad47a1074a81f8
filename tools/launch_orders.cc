// Tasks and orders as bytes: the number of bytes in a line, then texts that each end with NUL.
// See launch_orders.h.
#include "launch_orders.h"

#include <fmt/format.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <charconv>
#include <stdexcept>

#include "ferry/status.h"

namespace ferry::tools {
namespace {

class Writer {
 public:
  void text(std::string_view value) { bytes_.append(value).push_back('\0'); }
  void number(int value) { text(std::to_string(value)); }
  void texts(const std::vector<std::string>& values) {
    number(static_cast<int>(values.size()));
    for (const std::string& value : values) text(value);
  }
  std::string framed() const { return fmt::format("{}\n{}", bytes_.size(), bytes_); }

 private:
  std::string bytes_;
};

class Reader {
 public:
  explicit Reader(std::string_view bytes) : bytes_(bytes) {}
  std::string text() {
    const std::size_t end = bytes_.find('\0');
    if (end == std::string_view::npos) throw Error(Code::kSystem, "the task ends too early");
    std::string value(bytes_.substr(0, end));
    bytes_.remove_prefix(end + 1);
    return value;
  }
  int number() {
    const std::string digits = text();
    int value = 0;
    std::from_chars(digits.data(), digits.data() + digits.size(), value);
    return value;
  }
  std::vector<std::string> texts() {
    std::vector<std::string> values;
    for (int left = number(); left > 0; --left) values.push_back(text());
    return values;
  }

 private:
  std::string_view bytes_;
};

}  // namespace

std::string encode(const Task& task) {
  Writer writer;
  for (const std::string_view text :
       {std::string_view(FERRY_VERSION), std::string_view(task.host),
        std::string_view(task.directory), std::string_view(task.identity.run_id),
        std::string_view(task.identity.secret), std::string_view(task.identity.master_addr),
        std::string_view(task.identity.ferry_addr)}) {
    writer.text(text);
  }
  for (const int value : {task.identity.master_port, task.share.first_rank, task.share.num_ranks,
                          task.share.world_size, task.share.host, task.share.num_hosts}) {
    writer.number(value);
  }
  writer.texts(task.environment);
  writer.texts(task.program);
  return writer.framed();
}

Task Orders::task() {
  std::size_t line = std::string::npos, size = 0;
  while ((line = pending_.find('\n')) == std::string::npos) {
    if (!receive()) throw Error(Code::kSystem, "the launcher sent no task");
  }
  std::from_chars(pending_.data(), pending_.data() + line, size);
  while (pending_.size() < line + 1 + size) {
    if (!receive()) throw Error(Code::kSystem, "the launcher went away before its task was read");
  }
  const std::string bytes = pending_.substr(line + 1, size);
  pending_.erase(0, line + 1 + size);
  Reader reader(bytes);
  if (const std::string version = reader.text(); version != FERRY_VERSION) {
    throw Error(Code::kSystem, fmt::format("the launcher is ferry {}, this host has ferry {}",
                                           version, FERRY_VERSION));
  }
  Task task;
  for (std::string* text :
       {&task.host, &task.directory, &task.identity.run_id, &task.identity.secret,
        &task.identity.master_addr, &task.identity.ferry_addr}) {
    *text = reader.text();
  }
  for (int* value : {&task.identity.master_port, &task.share.first_rank, &task.share.num_ranks,
                     &task.share.world_size, &task.share.host, &task.share.num_hosts}) {
    *value = reader.number();
  }
  task.environment = reader.texts();
  task.program = reader.texts();
  return task;
}

bool Orders::receive() {
  std::array<char, 65536> buffer;
  ssize_t got = 0;
  do {
    got = ::read(fd_, buffer.data(), buffer.size());
  } while (got < 0 && errno == EINTR);
  if (got <= 0) {
    fd_ = -1;
    return false;
  }
  pending_.append(buffer.data(), static_cast<std::size_t>(got));
  return true;
}

std::vector<std::string> Orders::read(bool ready) {
  std::vector<std::string> orders;
  if (ready) receive();
  for (std::size_t end; (end = pending_.find('\n')) != std::string::npos;
       pending_.erase(0, end + 1)) {
    orders.push_back(pending_.substr(0, end));
  }
  return orders;
}

}  // namespace ferry::tools
