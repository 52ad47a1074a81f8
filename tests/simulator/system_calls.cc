// The system calls that the engine makes while ranks meet, and those on descriptors: the linker's
// --wrap redirects them here (CMakeLists.txt). While no rank of a simulation runs, and for
// descriptors of this machine, they are passed on to Linux.
#include <dlfcn.h>
#include <fcntl.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>
#include <cstdarg>
#include <cstdio>
#include <string>

#include "simulator/kernel.h"

namespace {

using ferry::test::Kernel;

// Tells an error as the system calls of Linux do, with errno.
template <typename Result>
Result told(Result result) {
  if (result >= 0) return result;
  errno = static_cast<int>(-result);
  return -1;
}

// The kernel of the simulation that has this descriptor; null: Linux has it.
Kernel* kernel_of(int descriptor) {
  return descriptor >= Kernel::kFirstDescriptor ? Kernel::of_running_rank() : nullptr;
}

}  // namespace

extern "C" {

// libstdc++ calls pthread_create, so the linker cannot wrap it, and it is defined here. It fails
// for a rank of a simulation, which has no second thread: EndpointCheck does without one.
int pthread_create(pthread_t* thread, const pthread_attr_t* attributes, void* (*run)(void*),
                   void* argument) noexcept {
  if (Kernel::of_running_rank() != nullptr) return EAGAIN;
  static auto* const real =
      reinterpret_cast<decltype(&pthread_create)>(dlsym(RTLD_NEXT, "pthread_create"));
  return real(thread, attributes, run, argument);
}

int __real_close(int);
int __real_fcntl(int, int, ...);
int __real_getentropy(void*, std::size_t);
void __real_freeifaddrs(ifaddrs*);
int __real_getifaddrs(ifaddrs**);
int __real_getrlimit(__rlimit_resource_t, rlimit*);
int __real_kill(pid_t, int);
int __real_open(const char*, int, ...);
int __real_poll(pollfd*, nfds_t, int);
pid_t __real_getpid();
ssize_t __real_readlink(const char*, char*, std::size_t);
int __real_socket(int, int, int);
long __real_syscall(long, ...);
int __real_usleep(useconds_t);

int __wrap_socket(int family, int type, int protocol) {
  Kernel* const kernel = Kernel::of_running_rank();
  return kernel ? told(kernel->socket(family)) : __real_socket(family, type, protocol);
}

int __wrap_close(int descriptor) {
  if (descriptor < Kernel::kFirstDescriptor) return __real_close(descriptor);
  Kernel* const kernel = kernel_of(descriptor);
  return kernel ? told(kernel->close(descriptor)) : 0;
}

int __wrap_fcntl(int descriptor, int command, ...) {
  std::va_list rest;
  va_start(rest, command);
  const long argument = va_arg(rest, long);
  va_end(rest);
  Kernel* const kernel = kernel_of(descriptor);
  return kernel ? told(kernel->duplicate(descriptor)) : __real_fcntl(descriptor, command, argument);
}

int __wrap_bind(int descriptor, const sockaddr* address, socklen_t bytes) {
  return told(Kernel::of_running_rank()->bind(descriptor, address, bytes));
}
int __wrap_listen(int descriptor, int) {
  return told(Kernel::of_running_rank()->listen(descriptor));
}
int __wrap_accept4(int descriptor, sockaddr*, socklen_t*, int) {
  return told(Kernel::of_running_rank()->accept(descriptor));
}
int __wrap_connect(int descriptor, const sockaddr* address, socklen_t bytes) {
  return told(Kernel::of_running_rank()->connect(descriptor, address, bytes));
}
int __wrap_getsockname(int descriptor, sockaddr* address, socklen_t* bytes) {
  return told(Kernel::of_running_rank()->name(descriptor, address, bytes, false));
}
int __wrap_getpeername(int descriptor, sockaddr* address, socklen_t* bytes) {
  return told(Kernel::of_running_rank()->name(descriptor, address, bytes, true));
}
int __wrap_getsockopt(int descriptor, int, int option, void* value, socklen_t* bytes) {
  return told(Kernel::of_running_rank()->option(descriptor, option, value, bytes));
}
int __wrap_setsockopt(int, int, int, const void*, socklen_t) { return 0; }
ssize_t __wrap_sendmsg(int descriptor, const msghdr* message, int) {
  return told(Kernel::of_running_rank()->send(descriptor, *message));
}
ssize_t __wrap_recvmsg(int descriptor, msghdr* message, int) {
  return told(Kernel::of_running_rank()->receive(descriptor, *message));
}

int __wrap_poll(pollfd* polled, nfds_t count, int wait_ms) {
  Kernel* const kernel = Kernel::of_running_rank();
  return kernel ? told(kernel->poll(polled, count, wait_ms)) : __real_poll(polled, count, wait_ms);
}

int __wrap_usleep(useconds_t us) {
  Kernel* const kernel = Kernel::of_running_rank();
  if (!kernel) return __real_usleep(us);
  kernel->sleep_us(us);
  return 0;
}

// A host has one interface.
int __wrap_getifaddrs(ifaddrs** first) {
  Kernel* const kernel = Kernel::of_running_rank();
  if (!kernel) return __real_getifaddrs(first);
  static sockaddr_in address;
  static ifaddrs interface;
  address = kernel->own_address();
  interface = {};
  interface.ifa_name = const_cast<char*>("eth0");
  interface.ifa_flags = IFF_UP;
  interface.ifa_addr = reinterpret_cast<sockaddr*>(&address);
  *first = &interface;
  return 0;
}
void __wrap_freeifaddrs(ifaddrs* first) {
  if (!Kernel::of_running_rank()) __real_freeifaddrs(first);
}

pid_t __wrap_getpid() {
  Kernel* const kernel = Kernel::of_running_rank();
  return kernel ? Kernel::kFirstPid + kernel->rank() : __real_getpid();
}

int __wrap_getentropy(void* bytes, std::size_t count) {
  Kernel* const kernel = Kernel::of_running_rank();
  if (!kernel) return __real_getentropy(bytes, count);
  kernel->fill_at_random(bytes, count);
  return 0;
}

int __wrap_kill(pid_t pid, int signal) {
  Kernel* const kernel = pid >= Kernel::kFirstPid ? Kernel::of_running_rank() : nullptr;
  return kernel ? told(kernel->runs(pid) ? 0 : -ESRCH) : __real_kill(pid, signal);
}

long __wrap_syscall(long number, ...) {
  std::va_list rest;
  va_start(rest, number);
  long words[6];
  for (long& word : words) word = va_arg(rest, long);
  va_end(rest);
  Kernel* const kernel = Kernel::of_running_rank();
  if (kernel && number == SYS_pidfd_open)
    return told(kernel->open_pidfd(static_cast<int>(words[0])));
  return __real_syscall(number, words[0], words[1], words[2], words[3], words[4], words[5]);
}

// A rank of a simulation cannot open files, such as those of /proc.
int __wrap_open(const char* path, int flags, ...) {
  std::va_list rest;
  va_start(rest, flags);
  const long mode = va_arg(rest, long);
  va_end(rest);
  return Kernel::of_running_rank() ? told(-EACCES) : __real_open(path, flags, mode);
}

int __wrap_getrlimit(__rlimit_resource_t resource, rlimit* limit) {
  const int got = __real_getrlimit(resource, limit);
  Kernel* const kernel = Kernel::of_running_rank();
  if (kernel && resource == RLIMIT_NOFILE)
    limit->rlim_cur = static_cast<rlim_t>(kernel->most_descriptors());
  return got;
}

// The names of namespaces differ between hosts.
ssize_t __wrap_readlink(const char* path, char* target, std::size_t bytes) {
  Kernel* const kernel = Kernel::of_running_rank();
  if (!kernel) return __real_readlink(path, target, bytes);
  const std::string name = "host " + std::to_string(kernel->host());
  return static_cast<ssize_t>(name.copy(target, bytes));
}

}  // extern "C"
