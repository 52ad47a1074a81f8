// RecordCipher: seals the records of one direction of a connection, or opens them at the other end:
// AES-256-GCM, with the number of the record as the nonce. A record that was changed, repeated,
// left out or put in another place does not open. Called by connection.cc and handshake.cc; calls
// libcrypto.
#pragma once

#include <openssl/evp.h>

#include <cstdint>
#include <string>
#include <string_view>

#include "bootstrap/libcrypto.h"

namespace ferry::internal {

// Of one side of a connection; the other has the same two the other way round.
struct RecordKeys {
  std::string seal, open;  // kKeyBytes each
};

class RecordCipher {
 public:
  enum class Use { kSeal, kOpen };
  static constexpr std::size_t kKeyBytes = 32;
  static constexpr std::size_t kTagBytes = 16;  // that a record is longer than what it says

  RecordCipher(const std::string& key, Use use);

  // Appends the next record, which says `text`.
  void seal(std::string_view text, std::string& out);
  // Appends what the next record says. False, with `out` as it was, when this is not that record;
  // no other is opened after that.
  [[nodiscard]] bool open(std::string_view record, std::string& out);

 private:
  void begin_record();

  Owned<EVP_CIPHER_CTX, EVP_CIPHER_CTX_free> cipher_;
  std::uint64_t num_records_ = 0;
};

}  // namespace ferry::internal
