// Computes SPAKE2 with points of libcrypto. Random bytes come from the kernel and from libcrypto.
#include "bootstrap/handshake.h"

#include <fmt/format.h>
#include <openssl/bn.h>
#include <openssl/ec.h>
#include <openssl/evp.h>
#include <openssl/hmac.h>
#include <openssl/kdf.h>
#include <openssl/obj_mac.h>
#include <openssl/sha.h>
#include <unistd.h>

#include <array>
#include <cctype>
#include <set>

#include "base/bytes.h"
#include "base/check.h"
#include "bootstrap/libcrypto.h"
#include "ferry/status.h"

namespace ferry::internal {
namespace {

using Number = Owned<BIGNUM, BN_clear_free>;
using Point = Owned<EC_POINT, EC_POINT_clear_free>;
using KeyContext = Owned<EVP_PKEY_CTX, EVP_PKEY_CTX_free>;

const EC_GROUP* curve() {
  static const EC_GROUP* const group =
      checked(EC_GROUP_new_by_curve_name(NID_X9_62_prime256v1));  // never freed
  return group;
}

Point make_point() { return Point(checked(EC_POINT_new(curve()))); }

// Reads a point of RFC 9382, section 6. The discrete logarithms of these points are not known.
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

// Adds a field to the transcript: its length, then its bytes.
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

// Derives a key for one purpose from the common key of both sides, with HKDF (RFC 5869).
std::string derived(const std::string& key, std::string_view purpose) {
  const KeyContext context(checked(EVP_PKEY_CTX_new_id(EVP_PKEY_HKDF, nullptr)));
  std::string made(RecordCipher::kKeyBytes, '\0');
  std::size_t bytes = made.size();
  checked(EVP_PKEY_derive_init(context.get()) > 0);
  checked(EVP_PKEY_CTX_set_hkdf_md(context.get(), EVP_sha256()) > 0);
  checked(EVP_PKEY_CTX_set1_hkdf_key(context.get(), octets(key), static_cast<int>(key.size())) > 0);
  checked(EVP_PKEY_CTX_add1_hkdf_info(context.get(), octets(purpose),
                                      static_cast<int>(purpose.size())) > 0);
  checked(EVP_PKEY_derive(context.get(), octets(made), &bytes) > 0);
  FERRY_CHECK(bytes, ==, made.size());
  return made;
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

// The values w, w*M and w*N of the RFC.
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
  std::set<char> distinct(text.begin(), text.end());
  std::erase_if(distinct, [](unsigned char c) { return std::isspace(c) != 0; });
  if (distinct.size() < kLeastDistinct) {
    throw Error(Code::kInvalidArgument,
                fmt::format("FERRY_SECRET has {} different characters without blanks, need {} or "
                            "more: `openssl rand -hex 16` makes one",
                            distinct.size(), kLeastDistinct));
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
  FERRY_CHECK(share_.size(), ==, kShareBytes);
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
  const std::string from_member = derived(key, "ferry records from the member");
  const std::string from_coordinator = derived(key, "ferry records from the coordinator");
  record_keys_ = {member ? from_member : from_coordinator, member ? from_coordinator : from_member};
  return true;
}

std::string Handshake::seal(std::string_view text) const {
  FERRY_CHECK(seal_key_.empty(), ==, false);  // take_share() makes the key
  std::string sealed;
  RecordCipher(seal_key_, RecordCipher::Use::kSeal).seal(text, sealed);
  return sealed;
}

std::optional<std::string> Handshake::open(std::string_view sealed) const {
  if (open_key_.empty()) return std::nullopt;
  std::string text;
  if (!RecordCipher(open_key_, RecordCipher::Use::kOpen).open(sealed, text)) return std::nullopt;
  return text;
}

}  // namespace ferry::internal
