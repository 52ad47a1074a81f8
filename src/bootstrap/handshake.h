// Handshake: two ranks of a job that spans hosts prove to each other that they know the job's
// secret, over a connection that any process may have made: SPAKE2 (RFC 9382) on P-256. A process
// without the secret learns only, for each connection, that one guess was wrong. Hellos, and all
// later frames of the connection, are encrypted (AES-256-GCM) with keys that the handshake derives
// (record_cipher.h).
#pragma once

#include <cstddef>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include "bootstrap/record_cipher.h"

namespace ferry::internal {

constexpr std::size_t kNonceBytes = 32;

// fresh_nonce() returns random bytes, and hex() writes bytes as hexadecimal digits.
std::string fresh_nonce();
std::string hex(std::string_view bytes);

// A job's secret (FERRY_SECRET), as SPAKE2 uses it. Cheap to copy.
class Secret {
 public:
  static constexpr std::size_t kLeastBytes = 16;
  // The least number of different characters, without blanks. Only 1 of 2 million random texts of
  // 16 decimal digits has fewer.
  static constexpr std::size_t kLeastDistinct = 4;

  // Throws Error(kInvalidArgument) if the text is too short or too uniform. The error names lengths
  // only, not the text.
  explicit Secret(const std::string& text);

 private:
  friend class Handshake;
  struct Blinds;
  std::shared_ptr<const Blinds> blinds_;
};

// One side of one connection. Each side sends its share, then a sealed text. If a text opens, the
// other side of this connection sent it and knows the secret.
class Handshake {
 public:
  enum class Side { kCoordinator, kMember };
  static constexpr std::size_t kShareBytes = 65;

  Handshake(const Secret& secret, Side side);
  ~Handshake();
  Handshake(Handshake&&) noexcept;
  Handshake& operator=(Handshake&&) noexcept;

  const std::string& share() const noexcept { return share_; }
  // Takes the other side's share. Returns false if the share is not valid.
  bool take_share(std::string_view theirs);

  // Called at most once, after take_share().
  std::string seal(std::string_view text) const;
  // Returns nullopt if the other side does not know the secret.
  std::optional<std::string> open(std::string_view sealed) const;

  // The keys of later frames. They may be used once open() has shown that the other side has them
  // too.
  const RecordKeys& record_keys() const noexcept { return record_keys_; }

 private:
  struct Scalar;
  std::shared_ptr<const Secret::Blinds> blinds_;
  Side side_;
  std::unique_ptr<Scalar> scalar_;
  std::string share_;
  std::string seal_key_, open_key_;
  RecordKeys record_keys_;
};

}  // namespace ferry::internal
