#include "prefill/wire_choice.h"

#include <algorithm>
#include <cstddef>
#include <iterator>
#include <utility>

#include "common/status.h"

namespace sluice::prefill {

namespace {

int Rank(const WireSituation& s, KvCodec codec) {
  if (s.f16_saturates && (codec == KvCodec::kF16 || codec == KvCodec::kBf16))
    codec = codec == KvCodec::kF16 ? KvCodec::kBf16 : KvCodec::kF16;
  return AccuracyRank(codec);
}

size_t TokenBytes(const WireSituation& s, KvCodec codec) { return Bytes(s.layout, codec, 1); }

KvCodec MostAccurateOfUse(const WireSituation& s) {
  const bool ours_is_less = Rank(s, s.our_store) > Rank(s, s.their_store);
  const bool ours_is_smaller = TokenBytes(s, s.our_store) < TokenBytes(s, s.their_store);
  return ours_is_less && ours_is_smaller ? s.our_store : s.their_store;
}

// What may be sent, the most accurate first.
std::vector<KvCodec> Candidates(const WireSituation& s) {
  const int best = Rank(s, MostAccurateOfUse(s));
  std::vector<KvCodec> candidates;
  std::copy_if(s.shared.begin(), s.shared.end(), std::back_inserter(candidates),
               [&](KvCodec codec) { return Rank(s, codec) >= best; });
  if (candidates.empty()) candidates = s.shared;
  std::sort(candidates.begin(), candidates.end(), [&](KvCodec a, KvCodec b) { return Rank(s, a) < Rank(s, b); });
  return candidates;
}

}  // namespace

double LinkRatio(const WireSituation& s, KvCodec codec) {
  if (s.link_bytes_per_s <= 0 || s.tokens_per_s <= 0) return 0;
  return s.link_bytes_per_s / (static_cast<double>(TokenBytes(s, codec)) * s.tokens_per_s);
}

WireChoice ChooseWire(const WireSituation& s) {
  SLUICE_CHECK(!s.shared.empty(), "no wire codec to choose from");
  const std::vector<KvCodec> candidates = Candidates(s);
  const auto choice = [&s](KvCodec codec) { return WireChoice{.codec = codec, .link_ratio = LinkRatio(s, codec)}; };
  if (s.link_may_be_faster || s.link_bytes_per_s <= 0 || s.tokens_per_s <= 0) return choice(candidates.front());
  for (const KvCodec codec : candidates) {
    const bool improves = s.current && Rank(s, codec) < Rank(s, *s.current);
    if (LinkRatio(s, codec) >= (improves ? kLinkRatioToImprove : kLinkRatioEnough)) return choice(codec);
  }
  return choice(*std::min_element(candidates.begin(), candidates.end(),
                                  [&](KvCodec a, KvCodec b) { return TokenBytes(s, a) < TokenBytes(s, b); }));
}

}  // namespace sluice::prefill
