// Owns fork and exec of a rank or an ssh, the texts that describe its end, and the signalfd; see
// process.h.
#include "tools/launch/process.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/prctl.h>
#include <sys/signalfd.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <cstring>

#include "ferry/status.h"

namespace ferry::tools {
namespace {

constexpr int kNotStarted = 1, kNotRunnable = 126, kNotFound = 127;

struct Pipe {
  internal::Descriptor read, write;
};

[[noreturn]] void not_started(const char* what) {
  throw SpawnError(kNotStarted, fmt::format("{}: {}", what, std::strerror(errno)));
}

Pipe make_pipe() {
  int ends[2];
  if (pipe2(ends, O_CLOEXEC) != 0) not_started("pipe");
  return {internal::Descriptor(ends[0]), internal::Descriptor(ends[1])};
}

// Makes the launcher's end of a pipe non-blocking. The rank's end stays blocking, because it has a
// file description of its own.
internal::Descriptor launcher_end(internal::Descriptor end) {
  if (fcntl(end.fd(), F_SETFL, O_NONBLOCK) != 0) not_started("fcntl");
  return end;
}

std::vector<char*> pointers(const std::vector<std::string>& texts) {
  std::vector<char*> result;
  result.reserve(texts.size() + 1);
  for (const std::string& text : texts) result.push_back(const_cast<char*>(text.c_str()));
  result.push_back(nullptr);
  return result;
}

// The values that the child needs after fork, prepared before it.
struct Start {
  std::vector<char*> arguments, environment;
  pid_t launcher = getpid();
  int in = STDIN_FILENO, out = STDOUT_FILENO, err = STDERR_FILENO;
  int failure = -1;  // the child writes the errno of a failed exec here
};

// Runs in the child, from fork to exec, and makes async-signal-safe calls only.
[[noreturn]] void become_rank(const ChildSetup& setup, const Start& start) {
  setpgid(0, 0);
  // If the launcher has died before this prctl, no signal would come; so the parent is compared.
  if (prctl(PR_SET_PDEATHSIG, SIGKILL) != 0 || getppid() != start.launcher) _exit(kNotStarted);
  dup2(start.in, STDIN_FILENO);
  dup2(start.out, STDOUT_FILENO);
  dup2(start.err, STDERR_FILENO);
  setrlimit(RLIMIT_NOFILE, &setup.descriptor_limit);
  signal(SIGPIPE, SIG_DFL);
  sigprocmask(SIG_SETMASK, &setup.signal_mask, nullptr);
  execvpe(start.arguments[0], start.arguments.data(), start.environment.data());
  const int error = errno;
  [[maybe_unused]] const ssize_t told = write(start.failure, &error, sizeof error);
  _exit(kNotFound);
}

// Waits until the child has called exec. If exec failed, this reaps the child and throws. A child
// that died before exec counts as started: the event loop then finds its end.
void check_exec(const std::string& program, pid_t pid, int failure) {
  int error = 0;
  ssize_t got = 0;
  do {
    got = read(failure, &error, sizeof error);
  } while (got < 0 && errno == EINTR);
  if (got != static_cast<ssize_t>(sizeof error)) return;
  waitpid(pid, nullptr, 0);
  throw SpawnError(error == ENOENT || error == ENOTDIR ? kNotFound : kNotRunnable,
                   fmt::format("cannot run '{}': {}", program, std::strerror(error)));
}

}  // namespace

std::string describe_end(int status) {
  if (WIFEXITED(status)) return fmt::format("exited with code {}", WEXITSTATUS(status));
  const char* const name = sigabbrev_np(WTERMSIG(status));
  return fmt::format("was killed by signal {} (SIG{}{})", WTERMSIG(status), name ? name : "?",
                     WCOREDUMP(status) ? ", core dumped" : "");
}

int shell_code(int status) {
  return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

Child spawn(const ChildSetup& setup, const std::vector<std::string>& environment,
            ChildInput input) {
  Child child;
  Pipe in, out, err, failure = make_pipe();
  Start start{.arguments = pointers(setup.program), .environment = pointers(environment)};
  start.failure = failure.write.fd();
  if (input == ChildInput::kPiped) {
    in = make_pipe();
  } else if (input == ChildInput::kNothing) {
    in.read = internal::Descriptor(open("/dev/null", O_RDONLY | O_CLOEXEC));
    if (!in.read) not_started("/dev/null");
  }
  if (input != ChildInput::kInherited) start.in = in.read.fd();
  if (setup.pipe_output) {
    out = make_pipe();
    err = make_pipe();
    start.out = out.write.fd();
    start.err = err.write.fd();
    child.out = launcher_end(std::move(out.read));
    child.err = launcher_end(std::move(err.read));
  }
  if (in.write) child.in = launcher_end(std::move(in.write));

  child.pid = fork();
  if (child.pid < 0) not_started("fork");
  if (child.pid == 0) become_rank(setup, start);
  failure.write = {};
  check_exec(setup.program[0], child.pid, failure.read.fd());
  return child;
}

LaunchSignals::LaunchSignals() {
  sigset_t watched;
  sigemptyset(&watched);
  for (int signal : {SIGINT, SIGTERM, SIGHUP, SIGQUIT, SIGUSR1, SIGUSR2, SIGCHLD, SIGTSTP})
    sigaddset(&watched, signal);
  signals_ = internal::Descriptor(signalfd(-1, &watched, SFD_CLOEXEC | SFD_NONBLOCK));
  if (!signals_) throw Error(Code::kSystem, fmt::format("signalfd: {}", std::strerror(errno)));
  // A launcher in the background must not be stopped when it reads its terminal.
  sigaddset(&watched, SIGTTIN);
  sigprocmask(SIG_BLOCK, &watched, &old_mask_);
  std::signal(SIGPIPE, SIG_IGN);
  std::signal(SIGCHLD, SIG_DFL);  // if the caller ignored SIGCHLD, no end of a rank would be seen
}

int LaunchSignals::next() {
  signalfd_siginfo info;
  const ssize_t got = read(signals_.fd(), &info, sizeof info);
  return got == static_cast<ssize_t>(sizeof info) ? static_cast<int>(info.ssi_signo) : 0;
}

}  // namespace ferry::tools
