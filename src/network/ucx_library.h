// UcxLibrary: the functions of UCX that ferry calls. They are loaded when the first group spans
// hosts. ferry is not linked with UCX, because loading it replaces the process's handlers of
// SIGSEGV and other signals, and a program on one host does not need it.
#pragma once

#include <ucp/api/ucp.h>

namespace ferry::internal {

struct UcxLibrary {
  decltype(&ucp_get_version) version;
  decltype(&ucp_get_version_string) version_string;
  decltype(&ucp_config_read) config_read;
  decltype(&ucp_config_modify) config_modify;
  decltype(&ucp_config_release) config_release;
  decltype(&ucp_init_version) init_version;
  decltype(&ucp_cleanup) cleanup;
  decltype(&ucp_worker_create) worker_create;
  decltype(&ucp_worker_destroy) worker_destroy;
  decltype(&ucp_worker_get_address) worker_get_address;
  decltype(&ucp_worker_release_address) worker_release_address;
  decltype(&ucp_worker_get_efd) worker_get_efd;
  decltype(&ucp_worker_arm) worker_arm;
  decltype(&ucp_worker_signal) worker_signal;
  decltype(&ucp_worker_progress) worker_progress;
  decltype(&ucp_worker_set_am_recv_handler) worker_set_am_recv_handler;
  decltype(&ucp_am_send_nbx) am_send_nbx;
  decltype(&ucp_ep_create) ep_create;
  decltype(&ucp_ep_close_nbx) ep_close_nbx;
  decltype(&ucp_ep_print_info) ep_print_info;
  decltype(&ucp_request_check_status) request_check_status;
  decltype(&ucp_request_free) request_free;
  decltype(&ucs_status_string) status_string;
};

// Loads UCX at the first call, and never unloads it. Throws Error(kSystem) if UCX is not installed.
const UcxLibrary& ucx_library();

}  // namespace ferry::internal
