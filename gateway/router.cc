#include "gateway/router.h"

#include <algorithm>
#include <tuple>

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

double PredictedSeconds(const WorkerSnapshot& worker, const RequestShape& shape, double typical_rate) {
  const double rate = worker.prefill_tokens_per_s > 0.0 ? worker.prefill_tokens_per_s : typical_rate;
  return static_cast<double>(worker.queued_prompt_tokens + shape.prompt_tokens) / rate;
}

// Smaller is better.
using DecodeRank = std::tuple<bool, bool, int64_t>;
DecodeRank RankDecode(const WorkerSnapshot& worker, const RequestShape& shape) {
  const bool full = worker.pages_free < PagesNeeded(shape, worker.page_tokens);
  return {worker.suspect, full, -worker.pages_free};
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

int64_t PagesNeeded(const RequestShape& shape, int64_t page_tokens) {
  if (page_tokens <= 0) return 0;
  const int64_t all = (shape.prompt_tokens + shape.max_tokens - 1 + page_tokens - 1) / page_tokens;
  const int64_t shared = shape.prompt_tokens / page_tokens;
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

StatusOr<int> PickPrefill(const FleetSnapshot& fleet, int decode, const RequestShape& shape,
                          const std::set<int>& excluded) {
  const double typical_rate = TypicalRate(fleet.prefill);
  const auto rank = [&](int i) {
    return std::tuple(fleet.prefill[i].suspect, PredictedSeconds(fleet.prefill[i], shape, typical_rate));
  };
  int best = -1;
  std::string mismatch;
  for (int i = 0; i < static_cast<int>(fleet.prefill.size()); ++i) {
    if (!Usable(fleet.prefill, i, excluded)) continue;
    std::string difference = Mismatch(fleet.prefill[i], fleet.decode[decode]);
    if (!difference.empty()) {
      mismatch = std::move(difference);
    } else if (best < 0 || rank(i) < rank(best)) {
      best = i;
    }
  }
  if (best >= 0) return best;
  if (!mismatch.empty()) return absl::FailedPreconditionError(mismatch);
  return absl::UnavailableError(WhyNone("prefill", fleet.prefill, excluded));
}

// Life of a request, step 2: choose decode by the pages it has free, then prefill by when it would be done.
StatusOr<Route> Pick(const FleetSnapshot& fleet, const RequestShape& shape, const Excluded& excluded) {
  std::vector<int> candidates;
  for (int i = 0; i < static_cast<int>(fleet.decode.size()); ++i) {
    if (Usable(fleet.decode, i, excluded.decode)) candidates.push_back(i);
  }
  std::stable_sort(candidates.begin(), candidates.end(), [&](int a, int b) {
    return RankDecode(fleet.decode[a], shape) < RankDecode(fleet.decode[b], shape);
  });
  Status why_not = absl::UnavailableError(WhyNone("decode", fleet.decode, excluded.decode));
  for (const int decode : candidates) {
    const StatusOr<int> prefill = PickPrefill(fleet, decode, shape, excluded.prefill);
    if (prefill.ok()) return Route{.decode = decode, .prefill = *prefill};
    why_not = prefill.status();
  }
  return why_not;
}

}  // namespace sluice
