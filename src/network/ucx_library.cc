#include "network/ucx_library.h"

#include <dlfcn.h>
#include <fmt/format.h>

#include <array>
#include <csignal>
#include <filesystem>
#include <string>
#include <string_view>

#include "ferry/status.h"
#include "network/transport.h"

namespace ferry::internal {
namespace {

namespace fs = std::filesystem;

constexpr const char* kName = "libucp.so.0";
constexpr int kFoldersUp = 3;  // the depth of site-packages/ferry/bin/ferry

// Restores the signal handlers that were set before UCX was loaded.
class KeptHandlers {
 public:
  KeptHandlers() {
    for (std::size_t i = 0; i < kSignals.size(); ++i) sigaction(kSignals[i], nullptr, &kept_[i]);
  }
  ~KeptHandlers() {
    for (std::size_t i = 0; i < kSignals.size(); ++i) sigaction(kSignals[i], &kept_[i], nullptr);
  }
  KeptHandlers(const KeptHandlers&) = delete;
  KeptHandlers& operator=(const KeptHandlers&) = delete;

 private:
  static constexpr std::array kSignals{SIGHUP, SIGILL, SIGBUS, SIGFPE, SIGSEGV};
  std::array<struct sigaction, kSignals.size()> kept_{};
};

template <typename Function>
void find(void* library, const char* name, Function& function) {
  function = reinterpret_cast<Function>(dlsym(library, name));
  if (function == nullptr) {
    throw Error(Code::kSystem, fmt::format("the UCX of this host has no {}: ferry needs UCX 1.{} "
                                           "or later",
                                           name, UCP_API_MINOR));
  }
}

// The UCX that pip installed beside ferry (ferry-ep[ucx]). Both are in site-packages.
std::string pip_library() {
  Dl_info self{};
  dladdr(reinterpret_cast<const void*>(&pip_library), &self);
  const std::string_view file = self.dli_fname != nullptr ? self.dli_fname : "";
  std::error_code none;
  // The loader knows a program only by the name with which it was started.
  fs::path folder = fs::canonical(file.ends_with(".so") ? fs::path(file) : "/proc/self/exe", none);
  for (int up = 0; up < kFoldersUp; ++up) {
    folder = folder.parent_path();
    const fs::path library = folder / "libucx/lib" / kName;
    if (fs::exists(library, none)) return library;
  }
  return {};
}

// Opens UCX. It first takes the one that the program has loaded, because two in one process would
// resolve each other's functions. Otherwise it takes the newer one of pip, or else the system's.
// With RTLD_LOCAL, no other library of the process resolves its names here.
void* open_library() {
  constexpr int kFlags = RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE;
  void* library = dlopen(kName, kFlags | RTLD_NOLOAD);
  if (const std::string pip = pip_library(); library == nullptr && !pip.empty())
    library = dlopen(pip.c_str(), kFlags);
  return library != nullptr ? library : dlopen(kName, kFlags);
}

UcxLibrary load() {
  const KeptHandlers handlers;
  void* library = open_library();
  if (library == nullptr) {
    throw Error(Code::kSystem, fmt::format("this group spans hosts, and UCX could not be loaded: "
                                           "{}. Install ferry-ep[ucx] (pip) or libucx0 (Debian)",
                                           dlerror()));
  }
  UcxLibrary ucx;
  find(library, "ucp_get_version", ucx.version);
  find(library, "ucp_get_version_string", ucx.version_string);
  find(library, "ucp_config_read", ucx.config_read);
  find(library, "ucp_config_modify", ucx.config_modify);
  find(library, "ucp_config_release", ucx.config_release);
  find(library, "ucp_init_version", ucx.init_version);
  find(library, "ucp_cleanup", ucx.cleanup);
  find(library, "ucp_worker_create", ucx.worker_create);
  find(library, "ucp_worker_destroy", ucx.worker_destroy);
  find(library, "ucp_worker_get_address", ucx.worker_get_address);
  find(library, "ucp_worker_release_address", ucx.worker_release_address);
  find(library, "ucp_worker_get_efd", ucx.worker_get_efd);
  find(library, "ucp_worker_arm", ucx.worker_arm);
  find(library, "ucp_worker_signal", ucx.worker_signal);
  find(library, "ucp_worker_progress", ucx.worker_progress);
  find(library, "ucp_worker_set_am_recv_handler", ucx.worker_set_am_recv_handler);
  find(library, "ucp_am_send_nbx", ucx.am_send_nbx);
  find(library, "ucp_ep_create", ucx.ep_create);
  find(library, "ucp_ep_close_nbx", ucx.ep_close_nbx);
  find(library, "ucp_ep_print_info", ucx.ep_print_info);
  find(library, "ucp_request_check_status", ucx.request_check_status);
  find(library, "ucp_request_free", ucx.request_free);
  find(library, "ucs_status_string", ucx.status_string);
  return ucx;
}

}  // namespace

const UcxLibrary& ucx_library() {
  static const UcxLibrary library = load();
  return library;
}

std::string ucx_found() {
  try {
    const UcxLibrary& ucx = ucx_library();
    Dl_info where{};
    dladdr(reinterpret_cast<const void*>(ucx.version), &where);
    return fmt::format("{} ({})", ucx.version_string(), where.dli_fname);
  } catch (const Error&) {
    return {};
  }
}

}  // namespace ferry::internal
