#include "decode/request.h"

#include "common/proto/convert.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace sluice::decode {
namespace {

constexpr int kContext = 20;
constexpr CachePolicy kWindow = {.kind = CachePolicyKind::kSinkWindow, .budget = 6, .sinks = 2, .window = 4};

// A model whose every token is 1.
class RequestTest : public ::testing::Test {
 protected:
  std::unique_ptr<Request> Begun(const CachePolicy& policy, int max_tokens) {
    sampling_.max_tokens = max_tokens;
    auto request = std::make_unique<Request>(&model_, RequestId{7}, static_cast<int64_t>(prompt_.size()), sampling_,
                                             stream_, prompt_, 0, policy);
    const Status begun = request->Begin(absl::UnixEpoch(), Record(policy));
    EXPECT_TRUE(begun.ok()) << begun;
    return request;
  }
  // Steps until the end: how many tokens there are then.
  size_t Run(Request& request) {
    size_t tokens = 1;
    for (; !request.AllFinished(); ++tokens) {
      if (request.kept(0) != nullptr) request.kept(0)->FinishStep(1);
      EXPECT_TRUE(request.Step(0, logits_).ok());
    }
    return tokens;
  }

  const ModelFacts model_ = {.vocab_size = 4, .context_tokens_max = kContext, .layout = KvLayout::Gqa(2, 2, 16)};
  const std::vector<TokenId> prompt_ = std::vector<TokenId>(12, 1);
  const std::vector<float> logits_ = {0, 1, 0, 0};
  const std::shared_ptr<TokenStream> stream_ = std::make_shared<TokenStream>(1000, [] {});

 private:
  proto::HandoffRecord Record(const CachePolicy& policy) const {
    const GenerationContext context = {.sampling = sampling_,
                                       .prompt_ids = prompt_,
                                       .vocab_size = model_.vocab_size,
                                       .positions_max = policy.PositionsMax(kContext)};
    proto::HandoffRecord record;
    *record.mutable_prompt_ids() = {prompt_.begin(), prompt_.end()};
    *record.mutable_sampling() = ToProto(sampling_);
    Generation generation(&context, 0);
    EXPECT_TRUE(generation.Step(logits_).ok());
    *record.add_choices() = generation.State();
    return record;
  }

  SamplingParams sampling_ = {.temperature = 0};
};

TEST_F(RequestTest, EndsWithTheContextWhereAllIsKept) {
  const auto request = Begun({}, 50);
  EXPECT_EQ(Run(*request), static_cast<size_t>(kContext) - prompt_.size());
}

TEST_F(RequestTest, GoesOnBeyondTheContextInAWindowThatMoves) {
  const auto request = Begun(kWindow, 50);
  EXPECT_EQ(Run(*request), 50u);
  EXPECT_EQ(request->kept(0)->held(), 6);
  EXPECT_EQ(request->kept(0)->position(), static_cast<int64_t>(prompt_.size()) + 49);
}

}  // namespace
}  // namespace sluice::decode
