// RecordCipher: seals the records of one direction of a connection, or opens them at the other end.
// It uses AES-256-GCM with the number of the record as the nonce. A record does not open if it was
// changed or repeated, or if a record before it is missing or comes later.
#pragma once

#include <openssl/evp.h>

#include <cstdint>
#include <string>
#include <string_view>

#include "bootstrap/libcrypto.h"

namespace ferry::internal {

// The keys of one side of a connection. On the other side the two are swapped.
struct RecordKeys {
  std::string seal, open;  // each has kKeyBytes
};

class RecordCipher {
 public:
  enum class Use { kSeal, kOpen };
  static constexpr std::size_t kKeyBytes = 32;
  static constexpr std::size_t kTagBytes = 16;  // the bytes that a record is longer than its text

  RecordCipher(const std::string& key, Use use);

  // Appends the next record, whose contents are `text`, to `out`.
  void seal(std::string_view text, std::string& out);
  // Appends the text of the next record to `out`. Returns false, with `out` unchanged, if `record`
  // is not the next record; the caller then opens no more records.
  [[nodiscard]] bool open(std::string_view record, std::string& out);

 private:
  void begin_record();

  Owned<EVP_CIPHER_CTX, EVP_CIPHER_CTX_free> cipher_;
  std::uint64_t num_records_ = 0;
};

}  // namespace ferry::internal
