#include "bootstrap/parent_socket.h"

#include <fcntl.h>
#include <pthread.h>
#include <unistd.h>

#include <mutex>
#include <set>

namespace ferry::internal {
namespace {

// All such sockets of this process. This object is never destroyed, because groups may end after
// static objects.
struct Registry {
  std::mutex mutex;  // held while the process forks
  std::set<int> fds;

  static Registry& here() {
    static auto* const made = [] {
      pthread_atfork([] { here().mutex.lock(); }, [] { here().mutex.unlock(); }, replace_in_child);
      return new Registry;
    }();
    return *made;
  }

  // Replaces the sockets by /dev/null in a child. The numbers stay in use, because objects of the
  // child still close them.
  static void replace_in_child() {
    const Descriptor nothing(open("/dev/null", O_RDWR | O_CLOEXEC));
    for (const int fd : here().fds) dup3(nothing.fd(), fd, O_CLOEXEC);
    here().mutex.unlock();
  }
};

}  // namespace

ParentSocket::ParentSocket(Descriptor socket) : socket_(std::move(socket)) {
  const std::lock_guard lock(Registry::here().mutex);
  if (socket_) Registry::here().fds.insert(socket_.fd());
}

// Closes the socket under the lock, because another thread may open a socket with the same number.
ParentSocket::~ParentSocket() {
  if (!socket_) return;
  const std::lock_guard lock(Registry::here().mutex);
  Registry::here().fds.erase(socket_.fd());
  const Descriptor closed(socket_.release());
}

}  // namespace ferry::internal
