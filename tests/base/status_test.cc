// require_ok: the Error has the code, message and culprit of the status.
#include <gtest/gtest.h>

#include "ferry/status.h"

namespace ferry {
namespace {

TEST(RequireOk, ThrowsAStatusThatIsNotOk) {
  require_ok({});
  try {
    require_ok({Code::kPeerLost, "rank 3 died", 3});
    FAIL() << "nothing was thrown";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), Code::kPeerLost);
    EXPECT_STREQ(error.what(), "rank 3 died");
    EXPECT_EQ(error.culprit(), 3);
  }
}

}  // namespace
}  // namespace ferry
