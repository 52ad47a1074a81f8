// Seals and opens records with AES-256-GCM of libcrypto.
#include "bootstrap/record_cipher.h"

#include <array>
#include <cstring>

#include "base/check.h"

namespace ferry::internal {

RecordCipher::RecordCipher(const std::string& key, Use use)
    : cipher_(checked(EVP_CIPHER_CTX_new())) {
  FERRY_CHECK(key.size(), ==, kKeyBytes);
  checked(EVP_CipherInit_ex(cipher_.get(), EVP_aes_256_gcm(), nullptr, octets(key), nullptr,
                            use == Use::kSeal ? 1 : 0));
}

// Begins the next record. A key is used for one direction of one connection, so no two records have
// the same key and number.
void RecordCipher::begin_record() {
  std::array<unsigned char, 12> nonce{};
  std::memcpy(nonce.data(), &num_records_, sizeof num_records_);
  ++num_records_;
  FERRY_CHECK(num_records_, >, 0U);  // with a nonce that is used twice, both texts could be read
  checked(EVP_CipherInit_ex(cipher_.get(), nullptr, nullptr, nullptr, nonce.data(), -1));
}

void RecordCipher::seal(std::string_view text, std::string& out) {
  begin_record();
  const std::size_t begin = out.size();
  out.resize(begin + text.size() + kTagBytes);
  unsigned char* record = octets(out) + begin;
  int bytes = 0;
  checked(
      EVP_CipherUpdate(cipher_.get(), record, &bytes, octets(text), static_cast<int>(text.size())));
  FERRY_CHECK(static_cast<std::size_t>(bytes), ==, text.size());
  checked(EVP_CipherFinal_ex(cipher_.get(), record + bytes, &bytes));
  checked(
      EVP_CIPHER_CTX_ctrl(cipher_.get(), EVP_CTRL_AEAD_GET_TAG, kTagBytes, record + text.size()));
}

bool RecordCipher::open(std::string_view record, std::string& out) {
  if (record.size() < kTagBytes) return false;
  begin_record();
  const std::size_t begin = out.size(), text_bytes = record.size() - kTagBytes;
  std::string tag(record.substr(text_bytes));
  out.resize(begin + text_bytes);
  int bytes = 0;
  checked(EVP_CipherUpdate(cipher_.get(), octets(out) + begin, &bytes, octets(record),
                           static_cast<int>(text_bytes)));
  checked(EVP_CIPHER_CTX_ctrl(cipher_.get(), EVP_CTRL_AEAD_SET_TAG, kTagBytes, tag.data()));
  const bool genuine = EVP_CipherFinal_ex(cipher_.get(), octets(out) + begin + bytes, &bytes) == 1;
  if (!genuine) out.resize(begin);
  return genuine;
}

}  // namespace ferry::internal
