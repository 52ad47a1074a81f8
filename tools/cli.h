// CLI11's App, by name only: whoever takes options includes all of it.
#pragma once

namespace CLI {  // NOLINT(readability-identifier-naming): the library's
class App;
}
