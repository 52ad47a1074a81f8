// Secret: what lets a rank of another host in. Both sides of a connection prove that they know it
// (HMAC-SHA256 over nonces of both and over what they say); it never crosses, nor does anything of
// one proof serve in another. What follows on the connection is neither signed nor encrypted.
// Called by endpoint.cc, acceptor.cc and member.cc; calls libcrypto.
#pragma once

#include <cstddef>
#include <optional>
#include <string>
#include <string_view>

namespace ferry::internal {

constexpr std::size_t kNonceBytes = 32;

// Random bytes, and as hexadecimal digits.
std::string fresh_nonce();
std::string hex(std::string_view bytes);

class Secret {
 public:
  static constexpr std::size_t kLeastBytes = 16;

  // Throws Error(kInvalidArgument) when it is too short, naming its length only.
  explicit Secret(std::string text);

  // 32 bytes.
  std::string sign(std::string_view text) const;
  bool signed_by(std::string_view text, std::string_view proof) const;

  // 8 hexadecimal digits that differ from those of other secrets: what jobs are told apart by.
  std::string digest() const;

 private:
  std::string text_;
};

// One connection's proofs, kept by each side: challenge (coordinator), signed hello (member),
// signed hello (coordinator).
class Handshake {
 public:
  // The coordinator's: a nonce of its own, and the digest of its secret.
  std::string challenge(const Secret& secret);
  // The member's; the coordinator's digest, or nullopt when this is no challenge.
  std::optional<std::string> challenged(const std::string& challenge);

  enum class Side : char { kCoordinator = 'h', kMember = 's' };
  // What `side` says, with its proof; the member's, which comes first, brings the member's nonce.
  std::string prove(Side side, const Secret& secret, const std::string& text);
  // What `side` said; nullopt when it does not know the secret.
  std::optional<std::string> proven(Side side, const Secret& secret, const std::string& payload);

 private:
  std::string statement(Side side, std::string_view text) const;

  std::string coordinator_nonce_, member_nonce_;
};

}  // namespace ferry::internal
