#include "decode/transfer.h"

#include <algorithm>
#include <iterator>

namespace sluice::decode {

Status Coverage::Add(int layer, int64_t first, int64_t tokens) {
  const int64_t end = first + tokens;
  if (layer < 0 || layer >= static_cast<int>(ranges_.size()) || first < 0 || tokens < 1 || end > tokens_max_) {
    return absl::InvalidArgumentError(absl::StrCat("tokens ", first, "..", end, " of layer ", layer, " are outside of ",
                                                   tokens_max_, " tokens and ", ranges_.size(), " layers"));
  }
  auto& ranges = ranges_[static_cast<size_t>(layer)];
  auto after = ranges.lower_bound(first);  // the first range that begins at `first` or later
  const auto before = after == ranges.begin() ? ranges.end() : std::prev(after);
  if ((after != ranges.end() && after->first < end) || (before != ranges.end() && before->second > first)) {
    return absl::InvalidArgumentError(absl::StrCat("tokens ", first, "..", end, " of layer ", layer, " came twice"));
  }
  int64_t merged_end = end;
  if (after != ranges.end() && after->first == end) {
    merged_end = after->second;
    ranges.erase(after);
  }
  if (before != ranges.end() && before->second == first) {
    before->second = merged_end;
  } else {
    ranges.emplace(first, merged_end);
  }
  end_ = std::max(end_, end);
  return absl::OkStatus();
}

bool Coverage::CoversExactly(int64_t tokens) const {
  return std::all_of(ranges_.begin(), ranges_.end(), [tokens](const std::map<int64_t, int64_t>& ranges) {
    if (tokens == 0) return ranges.empty();
    return ranges.size() == 1 && ranges.begin()->first == 0 && ranges.begin()->second == tokens;
  });
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
      if (event == E::kFrame) return S::kReceiving;          // do place it
      if (event == E::kCommitEarly) return S::kCommitHeld;   // do keep the record
      if (event == E::kCommitAfterAll) return S::kComplete;  // do start decoding
      if (event == E::kFault) return S::kFailed;             // do tell prefill
      return std::nullopt;
    case S::kCommitHeld:
      if (event == E::kFrame) return S::kCommitHeld;    // do place it
      if (event == E::kLastFrame) return S::kComplete;  // do place it and start decoding
      if (event == E::kFault) return S::kFailed;        // do tell prefill and drop the record
      return std::nullopt;
    case S::kComplete:
    case S::kFailed:
      return std::nullopt;
  }
  return std::nullopt;
}

Status Transfer::OnFrame(int layer, int64_t first, int64_t tokens) {
  if (state_ != TransferState::kReceiving && state_ != TransferState::kCommitHeld) return Apply(TransferEvent::kFrame);
  if (Status added = coverage_.Add(layer, first, tokens); !added.ok()) return FailWith(std::move(added));
  if (state_ == TransferState::kReceiving) return Apply(TransferEvent::kFrame);
  if (coverage_.end() > kv_tokens_) {
    return FailWith(absl::InvalidArgumentError(
        absl::StrCat("a frame reaches to token ", coverage_.end(), ", the commit names ", kv_tokens_, " tokens")));
  }
  return Apply(coverage_.CoversExactly(kv_tokens_) ? TransferEvent::kLastFrame : TransferEvent::kFrame);
}

Status Transfer::OnCommit(int64_t kv_tokens) {
  if (state_ == TransferState::kCommitHeld) return FailWith(absl::InvalidArgumentError("a second commit came"));
  if (state_ == TransferState::kReceiving && coverage_.end() > kv_tokens) {
    return FailWith(absl::InvalidArgumentError(
        absl::StrCat("the commit names ", kv_tokens, " tokens, but frames reached to token ", coverage_.end())));
  }
  kv_tokens_ = kv_tokens;
  return Apply(coverage_.CoversExactly(kv_tokens) ? TransferEvent::kCommitAfterAll : TransferEvent::kCommitEarly);
}

void Transfer::Fail() {
  if (const auto next = Next(state_, TransferEvent::kFault)) state_ = *next;
}

Status Transfer::Apply(TransferEvent event) {
  const std::optional<TransferState> next = Next(state_, event);
  if (!next) {
    return absl::FailedPreconditionError(absl::StrCat("the transfer is ", std::string(Name(state_))));
  }
  state_ = *next;
  return absl::OkStatus();
}

Status Transfer::FailWith(Status why) {
  Fail();
  return why;
}

}  // namespace sluice::decode
