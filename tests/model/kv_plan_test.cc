// The planner's arithmetic against published sizes, and its advice against its own numbers.
#include "model/kv_plan.h"

#include <algorithm>
#include <cmath>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "model/kept_prompt.h"
#include "model/kept_slots.h"

namespace sluice {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

constexpr double kGiB = 1 << 30;
constexpr double kMiB = 1 << 20;

PlannedModel Gqa(int layers, int heads, int kv_heads, int head_dim) {
  return {.layout = KvLayout::Gqa(layers, kv_heads, head_dim), .heads = heads};
}

PlannedModel Mla(int layers, int heads) {
  return {.layout = KvLayout::Mla(layers, 512, 64), .heads = heads, .nope_dim = 128, .value_dim = 128};
}

const PlannedModel kLlama70B = Gqa(80, 64, 8, 128);
const PlannedModel kV2Lite = Mla(27, 16);

KvPlan Plan(const PlannedModel& model, const KvPlanOptions& options) {
  StatusOr<KvPlan> plan = MakeKvPlan(model, options);
  SLUICE_CHECK(plan.ok(), "", plan.status().ToString());
  return *std::move(plan);
}

const KvPlanRow& Row(const ContextPlan& context, KvCodec codec, size_t policy = 0) {
  const auto at = std::find_if(context.rows.begin(), context.rows.end(),
                               [&](const KvPlanRow& row) { return row.codec == codec && row.policy == policy; });
  SLUICE_CHECK(at != context.rows.end(), "no row of ", std::string(Name(codec)));
  return *at;
}

int64_t RequestBytes(const PlannedModel& model, KvCodec codec, int64_t tokens) {
  return Row(Plan(model, {.context_tokens = {tokens}}).contexts[0], codec).request_bytes;
}

std::string Refusal(const PlannedModel& model, const KvPlanOptions& options) {
  const Status status = MakeKvPlan(model, options).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  return std::string(status.message());
}

// Bytes a token of known models. int4 is 4.5 bits; int8 and fp8 have one f32 scale a token and KV head; the last column
// is what a latent of 512 + 64 in bf16 would take with as many layers.
struct KnownGqa {
  const char* name;
  int layers, heads, kv_heads, head_dim;
  int64_t elements, bf16, int8, int4, as_mla;
  double bf16_gib_at_32k;
};
constexpr KnownGqa kKnownGqa[] = {
    {"Llama-2-7B", 32, 32, 32, 128, 262144, 524288, 270336, 147456, 36864, 16.00},
    {"Llama-2-13B", 40, 40, 40, 128, 409600, 819200, 422400, 230400, 46080, 25.00},
    {"Llama-3.1-8B", 32, 32, 8, 128, 65536, 131072, 67584, 36864, 36864, 4.00},
    {"Llama-3.2-3B", 28, 24, 8, 128, 57344, 114688, 59136, 32256, 32256, 3.50},
    {"Llama-3.1-70B", 80, 64, 8, 128, 163840, 327680, 168960, 92160, 92160, 10.00},
    {"Llama-3.1-405B", 126, 128, 8, 128, 258048, 516096, 266112, 145152, 145152, 15.75},
    {"Mistral-7B", 32, 32, 8, 128, 65536, 131072, 67584, 36864, 36864, 4.00},
    {"Qwen2.5-7B", 28, 28, 4, 128, 28672, 57344, 29568, 16128, 32256, 1.75},
    {"Qwen2-72B", 80, 64, 8, 128, 163840, 327680, 168960, 92160, 92160, 10.00},
    {"Qwen3-8B", 36, 32, 8, 128, 73728, 147456, 76032, 41472, 41472, 4.50},
    {"Qwen3-32B", 64, 64, 8, 128, 131072, 262144, 135168, 73728, 73728, 8.00},
    {"Qwen3-30B-A3B", 48, 32, 4, 128, 49152, 98304, 50688, 27648, 55296, 3.00},
    {"GPT-OSS-120B, all layers full", 36, 64, 8, 64, 36864, 73728, 39168, 20736, 41472, 2.25},
    {"DeepSeek-67B", 95, 64, 8, 128, 194560, 389120, 200640, 109440, 109440, 11.875},
};

TEST(KvPlanTable, HasTheBytesATokenOfKnownGqaModels) {
  for (const KnownGqa& known : kKnownGqa) {
    SCOPED_TRACE(known.name);
    const PlannedModel model = Gqa(known.layers, known.heads, known.kv_heads, known.head_dim);
    EXPECT_EQ(RequestBytes(model, KvCodec::kF32, 1), known.elements * 4);
    EXPECT_EQ(RequestBytes(model, KvCodec::kBf16, 1), known.bf16);
    EXPECT_EQ(RequestBytes(model, KvCodec::kF16, 1), known.bf16);
    EXPECT_EQ(RequestBytes(model, KvCodec::kFp8, 1), known.int8);
    EXPECT_EQ(RequestBytes(model, KvCodec::kInt8, 1), known.int8);
    EXPECT_EQ(RequestBytes(model, KvCodec::kInt4, 1), known.int4);
    EXPECT_EQ(RequestBytes(Mla(known.layers, known.heads), KvCodec::kBf16, 1), known.as_mla);
    EXPECT_EQ(static_cast<double>(RequestBytes(model, KvCodec::kBf16, 32768)) / kGiB, known.bf16_gib_at_32k);
    EXPECT_EQ(Plan(model, {.context_tokens = {1}}).mha_bytes_per_token, known.bf16 * known.heads / known.kv_heads);
  }
}

TEST(KvPlanTable, HasTheBytesATokenOfKnownMlaModels) {
  struct KnownMla {
    const char* name;
    int layers, heads;
    int64_t elements, bf16, mla_fp8;
    double bf16_gib_at_32k, fp8_gib_at_32k;
  };
  constexpr KnownMla kKnown[] = {{"DeepSeek-V2-Lite", 27, 16, 15552, 31104, 17712, 0.95, 0.54},
                                 {"DeepSeek-V2", 60, 128, 34560, 69120, 39360, 2.11, 1.20},
                                 {"DeepSeek-V3", 61, 128, 35136, 70272, 40016, 2.14, 1.22}};
  for (const KnownMla& known : kKnown) {
    SCOPED_TRACE(known.name);
    const PlannedModel model = Mla(known.layers, known.heads);
    EXPECT_EQ(RequestBytes(model, KvCodec::kF32, 1), known.elements * 4);
    EXPECT_EQ(RequestBytes(model, KvCodec::kBf16, 1), known.bf16);
    EXPECT_EQ(RequestBytes(model, KvCodec::kMlaFp8, 1), known.mla_fp8);
    EXPECT_EQ(known.mla_fp8, 656 * known.layers);
    EXPECT_NEAR(static_cast<double>(RequestBytes(model, KvCodec::kBf16, 32768)) / kGiB, known.bf16_gib_at_32k, 0.005);
    EXPECT_NEAR(static_cast<double>(RequestBytes(model, KvCodec::kMlaFp8, 32768)) / kGiB, known.fp8_gib_at_32k, 0.005);
  }
  // The heads of the latent, expanded: K of 192 and V of 128 channels each.
  EXPECT_EQ(Plan(kV2Lite, {.context_tokens = {1}}).mha_bytes_per_token, 276480);
  EXPECT_EQ(Plan(Mla(61, 128), {.context_tokens = {1}}).mha_bytes_per_token, 4997120);
}

// Sizes that other implementations printed for DeepSeek-V2-Lite.
TEST(KvPlanTable, AgreesWithSizesThatOthersLogged) {
  EXPECT_EQ(static_cast<double>(RequestBytes(kV2Lite, KvCodec::kF16, 32768)) / kMiB, 972.0);
  const PlannedModel values = Gqa(27, 16, 16, 128);  // V of the expanded heads is half of this
  EXPECT_EQ(static_cast<double>(RequestBytes(values, KvCodec::kF16, 65536)) / 2 / kMiB, 6912.0);
}

// A row has its scale whatever other heads there are: G rows of d channels, never one of G x d.
TEST(KvPlanTable, CountsScalesARow) {
  EXPECT_EQ(RequestBytes(Gqa(1, 8, 8, 128), KvCodec::kInt8, 1), 2 * 8 * (128 + 4));
  EXPECT_NE(RequestBytes(Gqa(1, 8, 8, 128), KvCodec::kInt8, 1), RequestBytes(Gqa(1, 1, 1, 1024), KvCodec::kInt8, 1));
  // Keys of 192 channels beside values of 128, in a byte each and a scale a row: other people's logs have 8 bytes of
  // it.
  EXPECT_EQ(TensorBytes(KvLayout::Gqa(27, 16, 192), KvCodec::kInt8, 65536).total() * 27,
            65536ull * 27 * 16 * (192 + 4));
}

TEST(KvPlanHeadlines, SeventyBillionParametersAt8K) {
  const ContextPlan context = Plan(kLlama70B, {.context_tokens = {8192}}).contexts[0];
  EXPECT_NEAR(static_cast<double>(context.mha_bytes) / 1e9, 21.5, 0.05);
  EXPECT_NEAR(static_cast<double>(Row(context, KvCodec::kBf16).request_bytes) / 1e9, 2.68, 0.005);
  EXPECT_NEAR(static_cast<double>(RequestBytes(kLlama70B, KvCodec::kBf16, 1000000)) / 1e9, 327.7, 0.05);
  const ContextPlan batch = Plan(kLlama70B, {.context_tokens = {32768}, .batch = 32}).contexts[0];
  EXPECT_EQ(static_cast<double>(Row(batch, KvCodec::kBf16).batch_bytes) / kGiB, 320.0);
}

// 86 GB against 5.1 GB compares the KV of two models, Llama-2-7B's shape and V2-Lite's, at one number of slots.
TEST(KvPlanHeadlines, EightySixAgainstFivePointOneIsTwoModelsAtOneNumberOfSlots) {
  const PlannedModel mha = Gqa(32, 32, 32, 128);
  EXPECT_NEAR(static_cast<double>(RequestBytes(mha, KvCodec::kBf16, 163840)) / 1e9, 85.90, 0.005);
  EXPECT_NEAR(static_cast<double>(RequestBytes(kV2Lite, KvCodec::kBf16, 163840)) / 1e9, 5.096, 0.0005);
  EXPECT_EQ(static_cast<double>(RequestBytes(mha, KvCodec::kBf16, 176128)) / kGiB, 86.0);
  const double part = static_cast<double>(RequestBytes(kV2Lite, KvCodec::kBf16, 1)) /
                      static_cast<double>(RequestBytes(mha, KvCodec::kBf16, 1));
  EXPECT_NEAR(1 / part, 16.856, 0.0005);
  EXPECT_NEAR(1 - part, 0.9407, 0.00005);
  // V2 beside DeepSeek-67B in the same 16 bits.
  const double v2 = static_cast<double>(RequestBytes(Mla(60, 128), KvCodec::kBf16, 1));
  EXPECT_NEAR(1 - v2 / static_cast<double>(RequestBytes(Gqa(95, 64, 8, 128), KvCodec::kBf16, 1)), 0.822, 0.0005);
}

TEST(KvPlanModel, IsRefusedWithBothValuesWhereItContradictsItself) {
  const KvPlanOptions options = {.context_tokens = {1}};
  EXPECT_THAT(Refusal(Gqa(80, 64, 7, 128), options), HasSubstr("heads (64) is not a multiple of kv_heads (7)"));
  EXPECT_THAT(Refusal(Gqa(0, 64, 8, 127), options),
              AllOf(HasSubstr("layers is 0, 1 to 1024"), HasSubstr("head_dim (127) is odd")));
  EXPECT_THAT(Refusal({.layout = KvLayout::Mla(27, 0, 63), .heads = 16}, options),
              AllOf(HasSubstr("latent is 0"), HasSubstr("rope_dim (63) is odd")));
  PlannedModel half = kV2Lite;
  half.value_dim = 0;
  EXPECT_THAT(Refusal(half, options), HasSubstr("nope_dim (128) and value_dim (0)"));
}

TEST(KvPlanOptions, AreRefusedWithTheirValues) {
  KvPlanOptions wrong = {.context_tokens = {0, 1 << 30}, .batch = -1, .device_bytes = 0};
  wrong.policies = {{},
                    {.kind = CachePolicyKind::kSinkWindow, .sinks = -4, .window = 8},
                    {.kind = CachePolicyKind::kH2o, .budget_share = 1.01}};
  wrong.link_bytes_per_s = 0;
  wrong.prefill_tokens_per_s = std::nan("");
  EXPECT_THAT(Refusal(kLlama70B, wrong),
              AllOf(HasSubstr("context is 0"), HasSubstr("batch is -1"), HasSubstr("device memory is 0"),
                    HasSubstr("sinks is -4"), HasSubstr("budget is 1.01 of the prompt"), HasSubstr("link bytes/s is 0"),
                    HasSubstr("prefill tokens/s is nan")));
  EXPECT_THAT(Refusal(kLlama70B, {}), HasSubstr("no context length"));
}

TEST(KvPlanOptions, SizesBeyondSixtyThreeBitsAreRefusedNamingTheFactors) {
  EXPECT_THAT(Refusal(Gqa(1024, 1024, 1024, 1024), {.context_tokens = {1 << 30}}),
              AllOf(HasSubstr("8589934592 x 1073741824"), HasSubstr("exceeds 2^63")));
  EXPECT_THAT(Refusal(Gqa(1024, 1024, 1, 1024), {.context_tokens = {1 << 28}, .batch = 1 << 20}),
              HasSubstr("exceeds 2^63"));
  EXPECT_THAT(Refusal({.layout = KvLayout::Mla(1024, 1 << 12, 64), .heads = 1},
                      {.context_tokens = {1 << 30}, .batch = 1 << 20}),
              HasSubstr("exceeds 2^63"));
}

KvPlanOptions WithPolicies(int64_t context_tokens) {
  return {.context_tokens = {context_tokens},
          .policies = {{},
                       {.kind = CachePolicyKind::kSinkWindow, .sinks = 4, .window = 1020},
                       {.kind = CachePolicyKind::kH2o, .budget_share = 0.2},
                       {.kind = CachePolicyKind::kTova, .budget = 100},
                       {.kind = CachePolicyKind::kSnapKv, .budget_share = 0.2}}};
}

TEST(KvPlanPolicies, HoldTheirBudgetAndOneSlotMore) {
  const KvPlanOptions options = WithPolicies(2048);
  const ContextPlan context = Plan(kLlama70B, options).contexts[0];
  EXPECT_EQ(Row(context, KvCodec::kBf16, 0).slots, 2048);
  EXPECT_EQ(Row(context, KvCodec::kBf16, 1).slots, 1025);
  EXPECT_EQ(Row(context, KvCodec::kBf16, 1).request_bytes, 1025 * 327680 + 1025 * 4 + 4);
  EXPECT_EQ(Row(context, KvCodec::kBf16, 2).slots, 410);  // 409.6, rounded down, and one
  EXPECT_EQ(Row(context, KvCodec::kBf16, 3).slots, 101);
  EXPECT_EQ(Row(context, KvCodec::kBf16, 4).slots, 409);  // only a prompt is pruned: no step runs on one more
  EXPECT_EQ(Row(context, KvCodec::kBf16, 2).request_bytes,
            410 * 327680 + Row(context, KvCodec::kBf16, 2).kept_slots_bytes);
}

TEST(KvPlanPolicies, TakeThePositionsAndScoresThatDecodeTakes) {
  const ContextPlan context = Plan(kLlama70B, WithPolicies(2048)).contexts[0];
  const auto bytes = [&](size_t policy) { return Row(context, KvCodec::kInt8, policy).kept_slots_bytes; };
  EXPECT_EQ(bytes(0), 0);
  EXPECT_EQ(bytes(1), 1025 * 4 + 4);            // all layers keep the same
  EXPECT_EQ(bytes(2), 80 * 8 * (410 * 8 + 4));  // each KV head its own, by scores of all steps
  EXPECT_EQ(bytes(3), 80 * (101 * 8 + 4));      // each layer its own
  EXPECT_EQ(bytes(4), 80 * 8 * (409 * 4 + 4));  // scores end with the prompt
  for (size_t i = 1; i < 5; ++i) {
    const CachePolicy policy = *Resolve(WithPolicies(2048).policies[i], 2048);
    const int64_t slots = Row(context, KvCodec::kInt8, i).slots;
    EXPECT_EQ(bytes(i), static_cast<int64_t>(KeptSlots::Bytes(policy, kLlama70B.layout, slots)));
  }
}

TEST(KvPlanPolicies, NeverHoldMoreThanTheContext) {
  const ContextPlan context = Plan(kLlama70B, WithPolicies(64)).contexts[0];
  EXPECT_EQ(Row(context, KvCodec::kBf16, 1).slots, 64);
  EXPECT_EQ(Row(context, KvCodec::kBf16, 1).request_bytes,
            Row(context, KvCodec::kBf16, 0).request_bytes + Row(context, KvCodec::kBf16, 1).kept_slots_bytes);
  EXPECT_EQ(Row(context, KvCodec::kBf16, 2).slots, 13);
  EXPECT_EQ(Row(context, KvCodec::kBf16, 3).slots, 64);
}

TEST(KvPlanPolicies, RankOneRowOfHeadsInMla) {
  const ContextPlan context = Plan(kV2Lite, WithPolicies(2048)).contexts[0];
  EXPECT_EQ(Row(context, KvCodec::kBf16, 2).kept_slots_bytes, 27 * (410 * 8 + 4));
}

TEST(KvPlanPages, HoldWholePagesWorthOfSlots) {
  const ContextPlan context = Plan(kLlama70B, WithPolicies(2048)).contexts[0];
  EXPECT_EQ(Row(context, KvCodec::kBf16, 0).page_slots, 2048);
  EXPECT_EQ(Row(context, KvCodec::kBf16, 1).page_slots,
            1040);  // 1025 slots: the one for the step is in a page of its own
  EXPECT_EQ(Row(context, KvCodec::kBf16, 2).page_slots, 416);
}

TEST(KvPlanRequests, AreWholePagesBesideTheModel) {
  KvPlanOptions options = {
      .context_tokens = {100}, .device_bytes = 1000000000 + 3 * 7 * 16 * 327680, .model_bytes = 1000000000};
  EXPECT_EQ(*Row(Plan(kLlama70B, options).contexts[0], KvCodec::kBf16).requests, 3);  // 100 tokens are 7 pages of 16
  options.model_bytes += 1;
  EXPECT_EQ(*Row(Plan(kLlama70B, options).contexts[0], KvCodec::kBf16).requests, 2);
  options.model_bytes = *options.device_bytes + 1;
  EXPECT_EQ(*Row(Plan(kLlama70B, options).contexts[0], KvCodec::kBf16).requests, 0);
  options.device_bytes.reset();
  EXPECT_FALSE(Row(Plan(kLlama70B, options).contexts[0], KvCodec::kBf16).requests.has_value());
  // Positions and scores lie beside the pages.
  options = {.context_tokens = {100},
             .policies = {{}, {.kind = CachePolicyKind::kH2o, .budget = 63}},
             .device_bytes = 3 * (4 * 16 * 327680 + 80 * 8 * (64 * 8 + 4))};
  EXPECT_EQ(*Row(Plan(kLlama70B, options).contexts[0], KvCodec::kBf16, 1).requests, 3);
  options.model_bytes = 1;
  EXPECT_EQ(*Row(Plan(kLlama70B, options).contexts[0], KvCodec::kBf16, 1).requests, 2);
}

// `q` for bf16 of a 70B shape, 327680 bytes a token.
ContextPlan WithQ(const PlannedModel& model, double q, KvPlanOptions options = {.context_tokens = {8192}}) {
  const double bytes_per_token = static_cast<double>(Bytes(model.layout, KvCodec::kBf16, 1));
  options.prefill_tokens_per_s = 1000;
  options.link_bytes_per_s = q * bytes_per_token * 1000;
  return Plan(model, options).contexts[0];
}

TEST(KvPlanTransfer, TakesBytesOverTheLink) {
  const KvPlanOptions options = {.context_tokens = {8192}, .link_bytes_per_s = 1.25e9};
  const TransferPlan transfer = *Row(Plan(kLlama70B, options).contexts[0], KvCodec::kBf16).transfer;
  EXPECT_EQ(transfer.bytes, int64_t{8192} * 327680);
  EXPECT_DOUBLE_EQ(transfer.seconds, 8192.0 * 327680 / 1.25e9);
  EXPECT_FALSE(transfer.q.has_value());
}

TEST(KvPlanTransfer, SendsWhatAPolicyKeepsAndWhichTokensTheyAre) {
  KvPlanOptions options = WithPolicies(2048);
  options.link_bytes_per_s = 1.25e9;
  const ContextPlan context = Plan(kLlama70B, options).contexts[0];
  for (const auto& [policy, kept] : {std::pair<size_t, int64_t>{1, 1024}, {2, 409}, {3, 100}, {4, 409}}) {
    const TransferPlan transfer = *Row(context, KvCodec::kInt8, policy).transfer;
    EXPECT_EQ(transfer.tokens, kept);
    const size_t told = KeptPromptBytesMax(*Resolve(options.policies[policy], 2048), kLlama70B.layout, 2048);
    EXPECT_EQ(transfer.bytes, kept * 168960 + static_cast<int64_t>(told)) << policy;
  }
}

TEST(KvPlanTransfer, QIsLinkOverKvPerTokenTimesPrefillRate) {
  for (const double q : {0.25, 1.0, 5.0, 20.0}) {
    const TransferPlan transfer = *Row(WithQ(kLlama70B, q), KvCodec::kBf16).transfer;
    EXPECT_NEAR(*transfer.q, q, 1e-12 * q);
    EXPECT_DOUBLE_EQ(transfer.prefill_seconds, 8.192);
    EXPECT_NEAR(transfer.late_after_prefill_s, 8.192 / q, 1e-9);
  }
  // Half the bytes are twice the q, and so are half of the tokens.
  EXPECT_NEAR(*Row(WithQ(kLlama70B, 1), KvCodec::kInt8).transfer->q, 327680.0 / 168960, 1e-9);
  KvPlanOptions half = {.context_tokens = {2048},
                        .policies = {{}, {.kind = CachePolicyKind::kSinkWindow, .sinks = 4, .window = 1020}}};
  EXPECT_NEAR(*Row(WithQ(kLlama70B, 1, half), KvCodec::kBf16, 1).transfer->q, 2, 1e-9);
}

// Layer i leaves when it is computed and the link is free.
double LateOfSimulatedPipeline(int layers, double prefill_s, double transfer_s) {
  double link_free = 0;
  for (int i = 1; i <= layers; ++i) link_free = std::max(link_free, prefill_s * i / layers) + transfer_s / layers;
  return link_free - prefill_s;
}

TEST(KvPlanTransfer, PerLayerAddsWhatAPipelineOfTwoStagesAdds) {
  for (const double q : {0.1, 0.5, 0.9, 1.0, 1.1, 2.0, 30.0}) {
    const TransferPlan transfer = *Row(WithQ(kLlama70B, q), KvCodec::kBf16).transfer;
    EXPECT_NEAR(transfer.late_per_layer_s, LateOfSimulatedPipeline(80, transfer.prefill_seconds, transfer.seconds),
                1e-9)
        << q;
  }
}

TEST(KvPlanAdvice, FollowsFromQ) {
  struct Case {
    double q;
    TransferMeans means;
    KvCodec codec;
  };
  const Case cases[] = {
      {40, TransferMeans::kAfterPrefill, KvCodec::kBf16},
      {20.1, TransferMeans::kAfterPrefill, KvCodec::kBf16},
      {19.9, TransferMeans::kPerLayer, KvCodec::kBf16},
      {5.1, TransferMeans::kPerLayer, KvCodec::kBf16},
      {4.9, TransferMeans::kPerLayerCompressed, KvCodec::kInt8},
      {1.01, TransferMeans::kPerLayerCompressed, KvCodec::kInt8},
      {0.99, TransferMeans::kCodecRequired, KvCodec::kInt8},
      {0.52, TransferMeans::kCodecRequired, KvCodec::kInt8},
      {0.51, TransferMeans::kCodecRequired, KvCodec::kInt4},
      {0.29, TransferMeans::kCodecRequired, KvCodec::kInt4},
      {0.28, TransferMeans::kPrefillWhereDecoded, KvCodec::kInt4},
  };
  for (const Case& c : cases) {
    const ContextPlan context = WithQ(kLlama70B, c.q);
    const TransferAdvice advice = Advise(context);
    EXPECT_EQ(static_cast<int>(advice.means), static_cast<int>(c.means)) << c.q;
    EXPECT_EQ(advice.row->codec, c.codec) << c.q;
    EXPECT_NEAR(advice.plain_q, c.q, 1e-9);
  }
}

TEST(KvPlanAdvice, TakesABoundedPolicyWhereNoCodecSuffices) {
  const KvPlanOptions options = WithPolicies(8192);
  const ContextPlan sink_window = WithQ(kLlama70B, 0.2, options);  // an eighth of the tokens: q 1.6 in bf16
  TransferAdvice advice = Advise(sink_window);
  EXPECT_EQ(advice.means, TransferMeans::kPolicyRequired);
  EXPECT_EQ(advice.row->policy, 1u);
  EXPECT_EQ(advice.row->codec, KvCodec::kBf16);
  const ContextPlan last = WithQ(kLlama70B, 0.02, options);  // only the 100 tokens of the last policy
  advice = Advise(last);
  EXPECT_EQ(advice.means, TransferMeans::kPolicyRequired);
  EXPECT_EQ(advice.row->policy, 3u);
  const ContextPlan none = WithQ(kLlama70B, 0.001, options);
  EXPECT_EQ(Advise(none).means, TransferMeans::kPrefillWhereDecoded);
}

TEST(KvPlanAdvice, KnowsTheCodecOfMla) {
  const ContextPlan context = WithQ(kV2Lite, 0.9);
  const TransferAdvice advice = Advise(context);
  EXPECT_EQ(advice.means, TransferMeans::kCodecRequired);
  EXPECT_EQ(advice.row->codec, KvCodec::kMlaFp8);
}

}  // namespace
}  // namespace sluice
