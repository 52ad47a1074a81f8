// Declares CLI11's App. A file that adds options includes CLI11 itself.
#pragma once

namespace CLI {  // the library's name
class App;
}
