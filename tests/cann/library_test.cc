// A program with the shared libraries, like that of a user: errors pass from one library to the
// other and to the program. All three use one typeinfo of ferry::Error.
#include <gtest/gtest.h>

#include <cstring>
#include <string>
#include <typeinfo>

#include "ferry/aclnn.h"
#include "ferry/cann.h"
#include "ferry/cann_mega_moe.h"

namespace {

// The name in the typeinfo of the exception of `body`. Its address identifies the library that has
// the typeinfo.
template <typename Body>
const char* thrown_type(const Body& body) {
  try {
    body();
  } catch (const ferry::Error& error) {
    return typeid(error).name();
  }
  return nullptr;
}

TEST(CannLibrary, ErrorsHaveOneTypeinfo) {
  const char* const of_program = typeid(ferry::Error).name();
  const char* const of_ferry = thrown_type([] { ferry::Group::threads(0); });
  const char* const of_cann = thrown_type([] { (void)ferry::cann::max_rows({}); });
  EXPECT_EQ(of_ferry, of_program);
  EXPECT_EQ(of_cann, of_program);
}

TEST(CannLibrary, ErrorOfLibferryCrossesLibferryCann) {
  const ferry::cann::MegaMoeShape shape{
      .moe_expert_num = 2, .max_tokens = 4, .topk = 33, .hidden = 8, .intermediate = 8};
  const auto make = [&] {
    ferry::cann::MegaMoeContext(ferry::Group::threads(1)[0], shape, [](const auto&) {});
  };
  EXPECT_THROW(make(), ferry::Error);
}

TEST(CannLibrary, ErrorOfLibferryIsCaughtInLibferryCann) {
  HcclRootInfo info;
  std::memset(&info, 0, sizeof info);  // no name: Group::connect refuses it
  HcclComm comm = nullptr;
  EXPECT_EQ(HcclCommInitRootInfo(1, &info, 0, &comm), HCCL_E_PARA);
  EXPECT_NE(std::string(aclGetRecentErrMsg()).find("HcclCommInitRootInfo: "), std::string::npos)
      << aclGetRecentErrMsg();
}

}  // namespace
