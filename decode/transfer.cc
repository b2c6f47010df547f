#include "decode/transfer.h"

#include <algorithm>
#include <iterator>

namespace sluice::decode {

namespace {

std::string ToString(const KvRange& range) {
  return absl::StrCat("tokens ", range.first_token, "..", range.first_token + range.tokens, " of layers ", range.layer,
                      "..", range.layer + range.layers);
}

// How many tokens of [first, end) lie in `ranges`.
int64_t Overlap(const std::map<int64_t, int64_t>& ranges, int64_t first, int64_t end) {
  int64_t overlap = 0;
  auto it = ranges.lower_bound(first);
  if (it != ranges.begin()) --it;
  for (; it != ranges.end() && it->first < end; ++it)
    overlap += std::max<int64_t>(0, std::min(end, it->second) - std::max(first, it->first));
  return overlap;
}

}  // namespace

StatusOr<Coverage::Share> Coverage::Look(const KvRange& range) const {
  const int layers = static_cast<int>(ranges_.size());
  const int64_t end = range.first_token + range.tokens;
  if (range.layer < 0 || range.layers < 1 || range.layers > layers - range.layer || range.first_token < first_token_ ||
      range.tokens < 1 || end > end_token_) {
    return absl::InvalidArgumentError(absl::StrCat(ToString(range), " are outside of tokens ", first_token_, "..",
                                                   end_token_, " of ", layers, " layers"));
  }
  int64_t overlap = 0;
  for (int layer = range.layer; layer < range.layer + range.layers; ++layer)
    overlap += Overlap(ranges_[static_cast<size_t>(layer)], range.first_token, end);
  if (overlap == 0) return Share::kNone;
  return overlap == range.layers * range.tokens ? Share::kAll : Share::kSome;
}

void Coverage::Add(const KvRange& range) {
  for (int layer = range.layer; layer < range.layer + range.layers; ++layer)
    Add(ranges_[static_cast<size_t>(layer)], range.first_token, range.first_token + range.tokens);
}

void Coverage::Remove(const KvRange& range) {
  for (int layer = range.layer; layer < range.layer + range.layers; ++layer)
    Remove(ranges_[static_cast<size_t>(layer)], range.first_token, range.first_token + range.tokens);
}

void Coverage::Add(Ranges& ranges, int64_t first, int64_t end) {
  const auto after = ranges.lower_bound(first);
  if (after != ranges.end() && after->first == end) {
    end = after->second;
    ranges.erase(after);
  }
  const auto behind = ranges.lower_bound(first);
  if (behind != ranges.begin() && std::prev(behind)->second == first) {
    std::prev(behind)->second = end;
  } else {
    ranges.emplace(first, end);
  }
}

void Coverage::Remove(Ranges& ranges, int64_t first, int64_t end) {
  const auto around = std::prev(ranges.upper_bound(first));
  const int64_t around_end = around->second;
  if (around->first == first) {
    ranges.erase(around);
  } else {
    around->second = first;
  }
  if (around_end > end) ranges.emplace(end, around_end);
}

bool Coverage::CoversExactly(int64_t end) const {
  return std::all_of(ranges_.begin(), ranges_.end(), [this, end](const Ranges& ranges) {
    if (end <= first_token_) return ranges.empty();
    return ranges.size() == 1 && ranges.begin()->first == first_token_ && ranges.begin()->second == end;
  });
}

int64_t Coverage::end() const {
  int64_t end = first_token_;
  for (const Ranges& ranges : ranges_) {
    if (!ranges.empty()) end = std::max(end, ranges.rbegin()->second);
  }
  return end;
}

std::string_view Name(TransferState state) {
  switch (state) {
    case TransferState::kReceiving:
      return "receiving";
    case TransferState::kCommitHeld:
      return "commit held";
    case TransferState::kComplete:
      return "complete";
    case TransferState::kFailed:
      return "failed";
  }
  return "";
}

std::optional<TransferState> Next(TransferState from, TransferEvent event) {
  using S = TransferState;
  using E = TransferEvent;
  switch (from) {
    case S::kReceiving:
      if (event == E::kFrame) return S::kReceiving;          // do renew the lease
      if (event == E::kDamaged) return S::kReceiving;        // do ask for it again
      if (event == E::kCommitEarly) return S::kCommitHeld;   // do keep the record
      if (event == E::kCommitAfterAll) return S::kComplete;  // do start decoding
      if (event == E::kFault) return S::kFailed;             // do tell prefill
      return std::nullopt;
    case S::kCommitHeld:
      if (event == E::kFrame) return S::kCommitHeld;    // do renew the lease
      if (event == E::kDamaged) return S::kCommitHeld;  // do ask for it again
      if (event == E::kLastFrame) return S::kComplete;  // do start decoding
      if (event == E::kFault) return S::kFailed;        // do tell prefill and drop the record
      return std::nullopt;
    case S::kComplete:
    case S::kFailed:
      return std::nullopt;
  }
  return std::nullopt;
}

StatusOr<bool> Transfer::Admit(const KvRange& range) {
  const StatusOr<Coverage::Share> claimed = claimed_.Look(range);
  if (!claimed.ok()) return FailWith(claimed.status());
  if (*claimed == Coverage::Share::kAll) return false;
  if (*claimed == Coverage::Share::kSome)
    return FailWith(absl::InvalidArgumentError(absl::StrCat("some of ", ToString(range), " came before")));
  if (const int64_t end = range.first_token + range.tokens; kv_tokens_ >= 0 && end > kv_tokens_) {
    return FailWith(absl::InvalidArgumentError(
        absl::StrCat("a frame reaches to token ", end, ", the commit names ", kv_tokens_, " tokens")));
  }
  claimed_.Add(range);
  ++landing_;
  return true;
}

void Transfer::OnPlaced(const KvRange&) {
  --landing_;
  const bool last = state_ == TransferState::kCommitHeld && HasAll();
  Apply(last ? TransferEvent::kLastFrame : TransferEvent::kFrame);
}

Status Transfer::OnDamaged(const KvRange& range) {
  --landing_;
  claimed_.Remove(range);
  return AskAgain(range);
}

StatusOr<bool> Transfer::OnUnusable(const KvRange& range) {
  const StatusOr<Coverage::Share> claimed = claimed_.Look(range);
  if (!claimed.ok()) return FailWith(claimed.status());
  if (*claimed != Coverage::Share::kNone) return false;
  SLUICE_RETURN_IF_ERROR(AskAgain(range));
  return true;
}

Status Transfer::AskAgain(const KvRange& range) {
  const StatusOr<Coverage::Share> asked = asked_.Look(range);
  if (!asked.ok()) return FailWith(asked.status());
  if (*asked != Coverage::Share::kNone)
    return FailWith(absl::DataLossError(absl::StrCat(ToString(range), " came damaged twice")));
  if (++damaged_ > kDamagedMax)
    return FailWith(absl::DataLossError(absl::StrCat("more than ", kDamagedMax, " frames came damaged")));
  asked_.Add(range);
  Apply(TransferEvent::kDamaged);
  return absl::OkStatus();
}

bool Transfer::AdmitCommit() { return !std::exchange(commit_came_, true); }

Status Transfer::OnCommit(int64_t kv_tokens) {
  if (claimed_.end() > kv_tokens) {
    return FailWith(absl::InvalidArgumentError(
        absl::StrCat("the commit names ", kv_tokens, " tokens, but frames reach to token ", claimed_.end())));
  }
  kv_tokens_ = kv_tokens;
  Apply(HasAll() ? TransferEvent::kCommitAfterAll : TransferEvent::kCommitEarly);
  return absl::OkStatus();
}

void Transfer::Fail() {
  if (const auto next = Next(state_, TransferEvent::kFault)) state_ = *next;
}

void Transfer::Apply(TransferEvent event) {
  const std::optional<TransferState> next = Next(state_, event);
  SLUICE_CHECK(next, "a transfer that is ", std::string(Name(state_)), " takes no more");
  state_ = *next;
}

Status Transfer::FailWith(Status why) {
  Fail();
  return why;
}

}  // namespace sluice::decode
