// SPAKE2 by libcrypto's points. Random bytes come from the kernel and from libcrypto.
#include "bootstrap/handshake.h"

#include <fmt/format.h>
#include <openssl/bn.h>
#include <openssl/ec.h>
#include <openssl/evp.h>
#include <openssl/hmac.h>
#include <openssl/obj_mac.h>
#include <openssl/sha.h>
#include <unistd.h>

#include <array>

#include "base/bytes.h"
#include "ferry/status.h"

namespace ferry::internal {
namespace {

constexpr std::size_t kTagBytes = 16;

template <typename Object, void (*kFree)(Object*)>
struct Free {
  void operator()(Object* object) const noexcept { kFree(object); }
};
template <typename Object, void (*kFree)(Object*)>
using Owned = std::unique_ptr<Object, Free<Object, kFree>>;
using Number = Owned<BIGNUM, BN_clear_free>;
using Point = Owned<EC_POINT, EC_POINT_clear_free>;
using Cipher = Owned<EVP_CIPHER_CTX, EVP_CIPHER_CTX_free>;

// Libcrypto fails only without memory, or random bytes.
template <typename Result>
Result checked(Result result) {
  if (!result) throw Error(Code::kSystem, "libcrypto cannot compute a handshake");
  return result;
}

const unsigned char* octets(std::string_view text) noexcept {
  return reinterpret_cast<const unsigned char*>(text.data());
}
unsigned char* octets(std::string& text) noexcept {
  return reinterpret_cast<unsigned char*>(text.data());
}

const EC_GROUP* curve() {
  static const EC_GROUP* const group =
      checked(EC_GROUP_new_by_curve_name(NID_X9_62_prime256v1));  // for good
  return group;
}

Point make_point() { return Point(checked(EC_POINT_new(curve()))); }

// RFC 9382, section 6: nobody knows their logarithms.
Point constant(const char* digits) {
  Point point = make_point();
  checked(EC_POINT_hex2point(curve(), digits, point.get(), nullptr));
  return point;
}
constexpr const char* kM = "02886e2f97ace46e55ba9dd7242579f2993b64e16ef3dcab95afd497333d8fa12f";
constexpr const char* kN = "03d8bbd6c639c62937b04d997f38c3770719c629d7014d49a24b4f98baa1292b49";

std::string encoded(const Point& point) {
  std::string bytes(Handshake::kShareBytes, '\0');
  checked(EC_POINT_point2oct(curve(), point.get(), POINT_CONVERSION_UNCOMPRESSED, octets(bytes),
                             bytes.size(), nullptr) == bytes.size());
  return bytes;
}

// A field of the transcript: its length, then its bytes.
void add(std::string& transcript, std::string_view field) {
  append(transcript, std::uint64_t{field.size()});
  append(transcript, field);
}

std::string hmac(std::string_view key, std::string_view text) {
  std::string mac(SHA256_DIGEST_LENGTH, '\0');
  checked(HMAC(EVP_sha256(), key.data(), static_cast<int>(key.size()), octets(text), text.size(),
               octets(mac), nullptr));
  return mac;
}

// A key seals one text, so the nonce may be zero.
Cipher cipher_of(const std::string& key, bool encrypt) {
  constexpr std::array<unsigned char, 12> kNonce{};
  Cipher cipher(checked(EVP_CIPHER_CTX_new()));
  checked(EVP_CipherInit_ex(cipher.get(), EVP_aes_256_gcm(), nullptr, octets(key), kNonce.data(),
                            encrypt ? 1 : 0));
  return cipher;
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

// w, w*M and w*N of the RFC.
struct Secret::Blinds {
  Number w;
  Point member, coordinator;
};

Secret::Secret(const std::string& text) {
  if (text.size() < kLeastBytes) {
    throw Error(Code::kInvalidArgument, fmt::format("FERRY_SECRET has {} characters, need {} or "
                                                    "more",
                                                    text.size(), kLeastBytes));
  }
  const std::string named = "ferry secret " + text;
  std::array<unsigned char, SHA512_DIGEST_LENGTH> digest;
  SHA512(octets(named), named.size(), digest.data());
  auto blinds = std::make_shared<Blinds>(
      Blinds{Number(checked(BN_bin2bn(digest.data(), digest.size(), nullptr))), make_point(),
             make_point()});
  const Owned<BN_CTX, BN_CTX_free> context(checked(BN_CTX_new()));
  checked(BN_nnmod(blinds->w.get(), blinds->w.get(), EC_GROUP_get0_order(curve()), context.get()));
  for (const auto& [point, base] :
       {std::pair{blinds->member.get(), kM}, std::pair{blinds->coordinator.get(), kN}}) {
    checked(EC_POINT_mul(curve(), point, nullptr, constant(base).get(), blinds->w.get(), nullptr));
  }
  blinds_ = std::move(blinds);
}

struct Handshake::Scalar {
  Number value;
};

Handshake::Handshake(const Secret& secret, Side side)
    : blinds_(secret.blinds_), side_(side), scalar_(new Scalar{Number(checked(BN_new()))}) {
  checked(BN_priv_rand_range(scalar_->value.get(), EC_GROUP_get0_order(curve())));
  const Point& blind = side == Side::kMember ? blinds_->member : blinds_->coordinator;
  const Point point = make_point();
  checked(EC_POINT_mul(curve(), point.get(), scalar_->value.get(), nullptr, nullptr, nullptr));
  checked(EC_POINT_add(curve(), point.get(), point.get(), blind.get(), nullptr));
  share_ = encoded(point);
}
Handshake::~Handshake() = default;
Handshake::Handshake(Handshake&&) noexcept = default;
Handshake& Handshake::operator=(Handshake&&) noexcept = default;

bool Handshake::take_share(std::string_view theirs) {
  const bool member = side_ == Side::kMember;
  const Point point = make_point(), unblind = make_point();
  if (theirs.size() != kShareBytes ||
      EC_POINT_oct2point(curve(), point.get(), octets(theirs), theirs.size(), nullptr) != 1)
    return false;
  const Point& blind = member ? blinds_->coordinator : blinds_->member;
  checked(EC_POINT_copy(unblind.get(), blind.get()));
  checked(EC_POINT_invert(curve(), unblind.get(), nullptr));
  checked(EC_POINT_add(curve(), point.get(), point.get(), unblind.get(), nullptr));
  if (EC_POINT_is_at_infinity(curve(), point.get()) == 1) return false;
  checked(EC_POINT_mul(curve(), point.get(), nullptr, point.get(), scalar_->value.get(), nullptr));

  std::string w(32, '\0');
  checked(BN_bn2binpad(blinds_->w.get(), octets(w), static_cast<int>(w.size())) > 0);
  std::string transcript;
  add(transcript, "ferry member");
  add(transcript, "ferry coordinator");
  add(transcript, member ? share_ : theirs);
  add(transcript, member ? theirs : share_);
  add(transcript, encoded(point));
  add(transcript, w);
  std::string key(SHA256_DIGEST_LENGTH, '\0');
  SHA256(octets(transcript), transcript.size(), octets(key));
  seal_key_ = hmac(key, member ? "from the member" : "from the coordinator");
  open_key_ = hmac(key, member ? "from the coordinator" : "from the member");
  return true;
}

std::string Handshake::seal(std::string_view text) const {
  const Cipher cipher = cipher_of(seal_key_, true);
  std::string sealed(text.size() + kTagBytes, '\0');
  int bytes = 0;
  checked(EVP_CipherUpdate(cipher.get(), octets(sealed), &bytes, octets(text),
                           static_cast<int>(text.size())));
  checked(EVP_CipherFinal_ex(cipher.get(), octets(sealed) + bytes, &bytes));
  checked(EVP_CIPHER_CTX_ctrl(cipher.get(), EVP_CTRL_AEAD_GET_TAG, kTagBytes,
                              octets(sealed) + text.size()));
  return sealed;
}

std::optional<std::string> Handshake::open(std::string_view sealed) const {
  if (sealed.size() < kTagBytes || open_key_.empty()) return std::nullopt;
  const Cipher cipher = cipher_of(open_key_, false);
  std::string text(sealed.size() - kTagBytes, '\0');
  std::string tag(sealed.substr(text.size()));
  int bytes = 0;
  checked(EVP_CipherUpdate(cipher.get(), octets(text), &bytes, octets(sealed),
                           static_cast<int>(text.size())));
  checked(EVP_CIPHER_CTX_ctrl(cipher.get(), EVP_CTRL_AEAD_SET_TAG, kTagBytes, tag.data()));
  if (EVP_CipherFinal_ex(cipher.get(), octets(text) + bytes, &bytes) != 1) return std::nullopt;
  return text;
}

}  // namespace ferry::internal
