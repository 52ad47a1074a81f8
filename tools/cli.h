// Declares CLI11's App. A file that adds options includes CLI11 itself.
#pragma once

namespace CLI {  // NOLINT(readability-identifier-naming): the name that CLI11 gives it
class App;
}
