// Proofs by libcrypto. Nonces come from the kernel.
#include "bootstrap/handshake.h"

#include <fmt/format.h>
#include <openssl/crypto.h>
#include <openssl/evp.h>
#include <openssl/hmac.h>
#include <unistd.h>

#include "base/bytes.h"
#include "ferry/status.h"

namespace ferry::internal {
namespace {

constexpr std::size_t kProofBytes = 32;  // of HMAC-SHA256
constexpr std::size_t kDigestDigits = 8;

bool is_digest(std::string_view text) {
  return text.size() == kDigestDigits &&
         text.find_first_not_of("0123456789abcdef") == std::string_view::npos;
}

}  // namespace

std::string fresh_nonce() {
  std::string nonce(kNonceBytes, '\0');
  if (getentropy(nonce.data(), nonce.size()) != 0)
    throw Error(Code::kSystem, "the kernel gives no random bytes (getentropy)");
  return nonce;
}

std::string hex(std::string_view bytes) {
  std::string text;
  for (const char byte : bytes) text += fmt::format("{:02x}", static_cast<unsigned char>(byte));
  return text;
}

Secret::Secret(std::string text) : text_(std::move(text)) {
  if (text_.size() >= kLeastBytes) return;
  throw Error(Code::kInvalidArgument, fmt::format("FERRY_SECRET has {} characters, need {} or more",
                                                  text_.size(), kLeastBytes));
}

std::string Secret::sign(std::string_view text) const {
  std::string proof(kProofBytes, '\0');
  const auto bytes = [](auto* data) { return reinterpret_cast<unsigned char*>(data); };
  const auto* signed_text = reinterpret_cast<const unsigned char*>(text.data());
  if (HMAC(EVP_sha256(), text_.data(), static_cast<int>(text_.size()), signed_text, text.size(),
           bytes(proof.data()), nullptr) == nullptr) {
    throw Error(Code::kSystem, "libcrypto makes no HMAC-SHA256");
  }
  return proof;
}

bool Secret::signed_by(std::string_view text, std::string_view proof) const {
  // In constant time: how much of a guess was right must not show.
  const std::string own = sign(text);
  return proof.size() == own.size() && CRYPTO_memcmp(own.data(), proof.data(), own.size()) == 0;
}

std::string Secret::digest() const {
  return hex(sign("ferry: which job is it")).substr(0, kDigestDigits);
}

std::string Handshake::challenge(const Secret& secret) {
  coordinator_nonce_ = fresh_nonce();
  return coordinator_nonce_ + secret.digest();
}

std::optional<std::string> Handshake::challenged(const std::string& challenge) {
  ByteReader reader(challenge);
  coordinator_nonce_ = as_text(reader.take(kNonceBytes));
  const std::string_view digest = as_text(reader.rest());
  return is_digest(digest) ? std::optional<std::string>(digest) : std::nullopt;
}

std::string Handshake::prove(Side side, const Secret& secret, const std::string& text) {
  if (side == Side::kMember) member_nonce_ = fresh_nonce();
  return member_nonce_ + secret.sign(statement(side, text)) + text;
}

std::optional<std::string> Handshake::proven(Side side, const Secret& secret,
                                             const std::string& payload) {
  ByteReader reader(payload);
  const std::string_view nonce = as_text(reader.take(kNonceBytes));
  const std::string_view proof = as_text(reader.take(kProofBytes));
  const std::string_view text = as_text(reader.rest());
  if (!reader.ok()) return std::nullopt;
  if (side == Side::kMember) member_nonce_ = nonce;
  if (!secret.signed_by(statement(side, text), proof)) return std::nullopt;
  return std::string(text);
}

// Nonces have one length, so no two statements are the same bytes. The side keeps a proof from
// being sent back to whoever made it.
std::string Handshake::statement(Side side, std::string_view text) const {
  std::string all = "ferry hello ";
  all += static_cast<char>(side);
  return all.append(coordinator_nonce_).append(member_nonce_).append(text);
}

}  // namespace ferry::internal
