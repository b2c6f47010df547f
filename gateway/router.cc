#include "gateway/router.h"

#include <algorithm>
#include <optional>
#include <tuple>
#include <utility>

#include "absl/strings/str_join.h"

namespace sluice {

namespace {

constexpr double kUnknownTokensPerS = 100.0;  // a worker that has not computed yet; any value ranks it by its queue

// What others have shown, for workers that have not computed yet.
double TypicalRate(const std::vector<WorkerSnapshot>& prefill) {
  double sum = 0.0;
  int known = 0;
  for (const WorkerSnapshot& worker : prefill) {
    sum += worker.prefill_tokens_per_s;
    known += worker.prefill_tokens_per_s > 0.0;
  }
  return known > 0 ? sum / known : kUnknownTokensPerS;
}

double TokensPerSecond(const FleetSnapshot& fleet, int prefill) {
  const double measured = fleet.prefill[prefill].prefill_tokens_per_s;
  return measured > 0.0 ? measured : TypicalRate(fleet.prefill);
}

// Of the prompt's cached pages, how many are certainly not among the free ones: those that the cache alone holds are,
// and the request takes them from there.
int64_t PagesSharedWithOthers(const WorkerSnapshot& decode) {
  if (decode.page_tokens <= 0) return 0;
  return std::max<int64_t>(0, decode.cached_tokens / decode.page_tokens - decode.pages_cached);
}

// Smaller is better.
using Rank = std::tuple<bool, bool, bool, double, int64_t>;
Rank RankPair(const FleetSnapshot& fleet, const Route& route, const RequestShape& shape) {
  const WorkerSnapshot& decode = fleet.decode[route.decode];
  const CachePolicy policy = PolicyWith(shape, decode.policy);
  // Nothing that is cached serves a request that lets tokens go.
  const bool keeps_all = policy.kind == CachePolicyKind::kFull;
  const int64_t needed = PagesNeeded(shape, decode.page_tokens, decode.policy);
  const bool full = decode.pages_free < needed - (keeps_all ? PagesSharedWithOthers(decode) : 0);
  const double used = decode.pages_total > 0 ? 1.0 - static_cast<double>(decode.pages_free) / decode.pages_total : 0.0;
  const ShipPrediction ship = PredictShip(fleet, route, shape);
  const auto sent = static_cast<double>(policy.Kept(shape.prompt_tokens) - (keeps_all ? decode.cached_tokens : 0));
  const double seconds = ship.queue_s + ship.compute_s + sent * ship.transfer_s_per_token;
  return {decode.suspect, full, fleet.prefill[route.prefill].suspect, seconds * (1.0 + used), -decode.pages_free};
}

bool Usable(const std::vector<WorkerSnapshot>& workers, int index, const std::set<int>& excluded) {
  return workers[index].unusable_because.empty() && !excluded.contains(index);
}

std::string WhyNone(absl::string_view role, const std::vector<WorkerSnapshot>& workers, const std::set<int>& excluded) {
  std::vector<std::string> reasons;
  for (size_t i = 0; i < workers.size(); ++i) {
    const bool tried = excluded.contains(static_cast<int>(i)) && workers[i].unusable_because.empty();
    reasons.push_back(absl::StrCat(workers[i].address, ": ", tried ? "tried" : workers[i].unusable_because));
  }
  return absl::StrCat("no ", role, " worker takes this request (", absl::StrJoin(reasons, "; "), ")");
}

}  // namespace

CachePolicy PolicyWith(const RequestShape& shape, const CachePolicySpec& of_decode) {
  return Resolve(shape.policy.value_or(of_decode), shape.prompt_tokens).value_or(CachePolicy());
}

int64_t PagesNeeded(const RequestShape& shape, int64_t page_tokens, const CachePolicySpec& of_decode) {
  if (page_tokens <= 0) return 0;
  const CachePolicy policy = PolicyWith(shape, of_decode);
  const int64_t slots = policy.Slots(shape.prompt_tokens, shape.max_tokens - 1);
  const int64_t all = (slots + page_tokens - 1) / page_tokens;
  const int64_t shared = policy.kind == CachePolicyKind::kFull ? shape.prompt_tokens / page_tokens : 0;
  return all + (shape.n - 1) * (all - shared);
}

std::string Mismatch(const WorkerSnapshot& prefill, const WorkerSnapshot& decode) {
  std::vector<std::string> differences;
  const auto compare = [&](absl::string_view field, const auto& p, const auto& d) {
    if (p != d) differences.push_back(absl::StrCat(field, " ", p, " and ", d));
  };
  const proto::KvLayout& p = prefill.layout;
  const proto::KvLayout& d = decode.layout;
  compare("model hash", prefill.model_hash, decode.model_hash);
  compare("KV kind", p.kind(), d.kind());
  compare("layers", p.layers(), d.layers());
  compare("kv_heads", p.kv_heads(), d.kv_heads());
  compare("head_dim", p.head_dim(), d.head_dim());
  compare("latent", p.latent(), d.latent());
  compare("rope_dim", p.rope_dim(), d.rope_dim());
  compare("rope pairing", p.rope_pairing(), d.rope_pairing());
  compare("tensor parallel degree", p.tensor_parallel(), d.tensor_parallel());
  const bool share = std::any_of(prefill.wire_codecs.begin(), prefill.wire_codecs.end(), [&decode](const auto& name) {
    return std::find(decode.wire_codecs.begin(), decode.wire_codecs.end(), name) != decode.wire_codecs.end();
  });
  if (!share) compare("wire codecs", absl::StrJoin(prefill.wire_codecs, "|"), absl::StrJoin(decode.wire_codecs, "|"));
  if (differences.empty()) return "";
  return absl::StrCat("prefill ", prefill.address, " and decode ", decode.address, " have ",
                      absl::StrJoin(differences, ", "));
}

double PredictQueueSeconds(const FleetSnapshot& fleet, int prefill) {
  return static_cast<double>(fleet.prefill[prefill].queued_prompt_tokens) / TokensPerSecond(fleet, prefill);
}

ShipPrediction PredictShip(const FleetSnapshot& fleet, const Route& route, const RequestShape& shape) {
  const WorkerSnapshot& prefill = fleet.prefill[route.prefill];
  ShipPrediction out;
  out.queue_s = PredictQueueSeconds(fleet, route.prefill);
  out.compute_s =
      static_cast<double>(shape.prompt_tokens - prefill.cached_tokens) / TokensPerSecond(fleet, route.prefill);
  if (prefill.transfer_tokens_per_s > 0.0) out.transfer_s_per_token = 1.0 / prefill.transfer_tokens_per_s;
  return out;
}

StatusOr<int> PickPrefill(const FleetSnapshot& fleet, int decode, const RequestShape& shape,
                          const std::set<int>& excluded) {
  std::optional<std::pair<Rank, int>> best;
  std::string mismatch;
  for (int i = 0; i < static_cast<int>(fleet.prefill.size()); ++i) {
    if (!Usable(fleet.prefill, i, excluded)) continue;
    std::string difference = Mismatch(fleet.prefill[i], fleet.decode[decode]);
    if (!difference.empty()) {
      mismatch = std::move(difference);
      continue;
    }
    const std::pair<Rank, int> ranked = {RankPair(fleet, {.decode = decode, .prefill = i}, shape), i};
    if (!best || ranked < *best) best = ranked;
  }
  if (best) return best->second;
  if (!mismatch.empty()) return absl::FailedPreconditionError(mismatch);
  return absl::UnavailableError(WhyNone("prefill", fleet.prefill, excluded));
}

// Life of a request, step 2: of all pairs of workers that fit each other, the one that would be done first.
StatusOr<Route> Pick(const FleetSnapshot& fleet, const RequestShape& shape, const Excluded& excluded) {
  std::optional<std::pair<Rank, Route>> best;
  Status why_not = absl::UnavailableError(WhyNone("decode", fleet.decode, excluded.decode));
  for (int decode = 0; decode < static_cast<int>(fleet.decode.size()); ++decode) {
    if (!Usable(fleet.decode, decode, excluded.decode)) continue;
    const StatusOr<int> prefill = PickPrefill(fleet, decode, shape, excluded.prefill);
    if (!prefill.ok()) {
      why_not = prefill.status();
      continue;
    }
    const Route route = {.decode = decode, .prefill = *prefill};
    const Rank rank = RankPair(fleet, route, shape);
    if (!best || rank < best->first) best = {rank, route};
  }
  if (best) return best->second;
  return why_not;
}

}  // namespace sluice
