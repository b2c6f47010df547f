// Prefill and decode as two real processes: what the handoff promises, seen from a gateway's place.
#include "tests/decode/pair.h"

#include <signal.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <future>

#include "common/rng.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/model/checkpoint/small_gguf.h"
#include "tests/model/checkpoint/temp_file.h"

namespace sluice::decode {
namespace {

const char kTinyModel[] = SLUICE_TEST_DATA "/tiny/llama-gqa";
constexpr int kTinyVocab = 384;

std::vector<TokenId> Prompt(int tokens, uint64_t salt = 1) {
  std::vector<TokenId> prompt;
  for (int i = 0; i < tokens; ++i) {
    prompt.push_back(static_cast<TokenId>(RandomBits(salt, static_cast<uint64_t>(i)) % kTinyVocab));
  }
  return prompt;
}

SamplingParams Greedy(int max_tokens) {
  SamplingParams sampling;
  sampling.temperature = 0;
  sampling.max_tokens = max_tokens;
  sampling.ignore_eos = true;
  return sampling;
}

void ExpectSame(const Answer& answer, const Answer& whole) {
  EXPECT_EQ(answer.tokens, whole.tokens);
  EXPECT_EQ(answer.finish, whole.finish);
  EXPECT_EQ(answer.usage.prompt_tokens(), whole.usage.prompt_tokens());
  EXPECT_EQ(answer.usage.completion_tokens(), whole.usage.completion_tokens());
  EXPECT_LT(answer.usage.cached_tokens(), answer.usage.prompt_tokens()) << "the last token is always computed";
}

class PairTest : public testing::Test {
 protected:
  // The answer of both processes together is the model's own.
  void ExpectRight(const std::vector<TokenId>& prompt, const SamplingParams& sampling) {
    const auto answer = Ask(decode_, prefill_, prompt, sampling);
    ASSERT_TRUE(answer.ok()) << answer.status();
    ExpectSame(*answer, AnswerWhole(kTinyModel, prompt, sampling));
  }
  // A reservation whose first token has come.
  std::unique_ptr<DecodeClient::Stream> Running(const std::vector<TokenId>& prompt, const SamplingParams& sampling) {
    const auto reserved = decode_.Reserve(static_cast<int64_t>(prompt.size()), sampling);
    SLUICE_CHECK(reserved.ok());
    auto stream = decode_.Generate(*reserved);
    SLUICE_CHECK(prefill_.Run(*reserved, prompt, sampling).ok());
    SLUICE_CHECK(stream->Read());
    return stream;
  }

  WorkerProcess decode_process_{{"decode", kTinyModel}};
  WorkerProcess prefill_process_{{"prefill", kTinyModel}};
  DecodeClient decode_{decode_process_.address("grpc")};
  PrefillClient prefill_{prefill_process_.address("grpc")};
};

// "name value" of a line; 0 where there is none.
double MetricOf(const WorkerProcess& process, const std::string& name) {
  const std::string text = MetricsText(process);
  const size_t at = text.find("\n" + name + " ");
  return at == std::string::npos ? 0 : std::strtod(text.c_str() + at + name.size() + 2, nullptr);
}

TEST(PairStores, WhatTheirCodecCutsIsCountedByBoth) {
  const TempFolder folder;
  const std::string model = folder.Write("model.gguf", ModelWithLargeValues(1e6f));
  const WorkerProcess decode_process({.role = "decode", .model = model, .kv_store = "f16"});
  const WorkerProcess prefill_process({.role = "prefill", .model = model, .kv_store = "f16", .kv_wire = "f16"});
  DecodeClient decode(decode_process.address("grpc"));
  PrefillClient prefill(prefill_process.address("grpc"));
  ASSERT_TRUE(Ask(decode, prefill, {2, 3, 4}, Greedy(4)).ok());
  EXPECT_GT(MetricOf(prefill_process, "sluice_prefill_stored_saturated_values_total"), 0);
  EXPECT_GT(MetricOf(decode_process, "sluice_decode_stored_values_saturated_total"), 0);
  EXPECT_EQ(MetricOf(prefill_process, "sluice_prefill_stored_nonfinite_rows_total"), 0);
}

TEST_F(PairTest, TokensAreThoseOfTheModelServedWhole) {
  for (const int tokens : {1, 2, 15, 16, 17, 64, 200}) {
    for (const int max_tokens : {1, 2, 20}) ExpectRight(Prompt(tokens), Greedy(max_tokens));
  }
  EXPECT_TRUE(decode_.AllPagesComeBack());
}

TEST_F(PairTest, SampledChoicesAreThoseOfTheModelServedWhole) {
  SamplingParams sampling = Greedy(24);
  sampling.temperature = 1;
  sampling.n = 4;
  sampling.seed = 99;
  sampling.frequency_penalty = 0.5f;
  sampling.repetition_penalty = 1.2f;
  ExpectRight(Prompt(37), sampling);
  EXPECT_TRUE(decode_.AllPagesComeBack());
}

TEST_F(PairTest, AFirstTokenThatStopsTheTextIsTheWholeAnswer) {
  SamplingParams sampling = Greedy(20);
  sampling.stop_token_ids = {AnswerWhole(kTinyModel, Prompt(30), Greedy(1)).tokens[0][0]};
  ExpectRight(Prompt(30), sampling);
  EXPECT_TRUE(decode_.AllPagesComeBack());
}

TEST_F(PairTest, ManyAtOnceEachGetTheirOwnAnswer) {
  std::vector<std::future<StatusOr<Answer>>> answers;
  for (int i = 0; i < 24; ++i) {
    answers.push_back(std::async(std::launch::async, [this, i] {
      return Ask(decode_, prefill_, Prompt(5 + 7 * i, static_cast<uint64_t>(i)), Greedy(10 + i));
    }));
  }
  for (int i = 0; i < 24; ++i) {
    const auto answer = answers[static_cast<size_t>(i)].get();
    ASSERT_TRUE(answer.ok()) << answer.status();
    ExpectSame(*answer, AnswerWhole(kTinyModel, Prompt(5 + 7 * i, static_cast<uint64_t>(i)), Greedy(10 + i)));
  }
  EXPECT_TRUE(decode_.AllPagesComeBack());
}

TEST_F(PairTest, TheSamePromptsAskedAgainAndAgainHaveTheSameAnswers) {
  std::vector<Answer> answers;
  for (uint64_t i = 0; i < 20; ++i) answers.push_back(AnswerWhole(kTinyModel, Prompt(30, i), Greedy(8)));
  for (int round = 0; round < 10; ++round) {
    for (uint64_t i = 0; i < 20; ++i) {
      const auto answer = Ask(decode_, prefill_, Prompt(30, i), Greedy(8));
      ASSERT_TRUE(answer.ok()) << answer.status();
      ASSERT_EQ(answer->tokens, answers[i].tokens) << "prompt " << i << " in round " << round;
    }
  }
  EXPECT_TRUE(decode_.AllPagesComeBack());
}

TEST_F(PairTest, ACancelledStreamGivesItsPagesBack) {
  const auto stream = Running(Prompt(20), Greedy(450));
  stream->Cancel();
  EXPECT_EQ(stream->ReadToEnd().status().code(), absl::StatusCode::kCancelled);
  EXPECT_TRUE(decode_.AllPagesComeBack());
}

TEST_F(PairTest, AReservationGoesOnWithAnotherPrefillWhenItsOwnDies) {
  const auto reserved = decode_.Reserve(100, Greedy(20));
  ASSERT_TRUE(reserved.ok());
  const auto stream = decode_.Generate(*reserved);
  prefill_process_.Signal(SIGSTOP);
  auto first = std::async(std::launch::async, [&] { return prefill_.Run(*reserved, Prompt(100), Greedy(20)); });
  prefill_process_.Signal(SIGKILL);
  EXPECT_EQ(first.get().status().code(), absl::StatusCode::kUnavailable);
  WorkerProcess other({"prefill", kTinyModel});
  const auto rearmed = decode_.Rearm(*reserved);
  ASSERT_TRUE(rearmed.ok()) << rearmed.status();
  ASSERT_TRUE(PrefillClient(other.address("grpc")).Run(*rearmed, Prompt(100), Greedy(20)).ok());
  const auto answer = stream->ReadToEnd();
  ASSERT_TRUE(answer.ok()) << answer.status();
  ExpectSame(*answer, AnswerWhole(kTinyModel, Prompt(100), Greedy(20)));
  EXPECT_TRUE(decode_.AllPagesComeBack());
}

TEST_F(PairTest, AnOldTicketIsWorthNothingAfterItsReservationWasReleased) {
  const auto reserved = decode_.Reserve(40, Greedy(20));
  ASSERT_TRUE(reserved.ok());
  ASSERT_TRUE(decode_.Release(*reserved).ok());
  EXPECT_EQ(prefill_.Run(*reserved, Prompt(40), Greedy(20)).status().code(), absl::StatusCode::kAborted);
  EXPECT_TRUE(decode_.AllPagesComeBack());
}

TEST_F(PairTest, APrefillWithAnotherPageSizeGivesTheSameAnswers) {
  const WorkerProcess other({"prefill", kTinyModel, /*page_tokens=*/24});
  PrefillClient prefill(other.address("grpc"));
  for (const int tokens : {1, 23, 24, 40, 200}) {
    const auto answer = Ask(decode_, prefill, Prompt(tokens), Greedy(20));
    ASSERT_TRUE(answer.ok()) << answer.status();
    ExpectSame(*answer, AnswerWhole(kTinyModel, Prompt(tokens), Greedy(20)));
  }
  EXPECT_TRUE(decode_.AllPagesComeBack());
}

TEST_F(PairTest, WhenKvLeavesDoesNotChangeTheAnswer) {
  for (const char* send : {"chunk", "prompt"}) {
    const WorkerProcess other({.role = "prefill", .model = kTinyModel, .send = send});
    PrefillClient prefill(other.address("grpc"));
    for (const int tokens : {1, 2, 15, 16, 17, 200}) {
      for (const int max_tokens : {1, 20}) {
        const auto answer = Ask(decode_, prefill, Prompt(tokens), Greedy(max_tokens));
        ASSERT_TRUE(answer.ok()) << send << ": " << answer.status();
        ExpectSame(*answer, AnswerWhole(kTinyModel, Prompt(tokens), Greedy(max_tokens)));
      }
    }
  }
  EXPECT_TRUE(decode_.AllPagesComeBack());
}

TEST_F(PairTest, AWireCodecThatLosesNothingDoesNotChangeTheAnswerAndTheOthersStillGiveOne) {
  for (const char* wire : {"f32", "f16", "int8", "fp8", "auto"}) {
    const WorkerProcess other({.role = "prefill", .model = kTinyModel, .kv_wire = wire});
    PrefillClient prefill(other.address("grpc"));
    for (const int tokens : {1, 17, 200}) {
      const auto answer = Ask(decode_, prefill, Prompt(tokens), Greedy(20));
      ASSERT_TRUE(answer.ok()) << wire << ": " << answer.status();
      if (std::strcmp(wire, "f32") == 0) {
        ExpectSame(*answer, AnswerWhole(kTinyModel, Prompt(tokens), Greedy(20)));
      } else {
        EXPECT_EQ(answer->tokens[0].size(), 20u) << wire;
      }
    }
  }
  EXPECT_TRUE(decode_.AllPagesComeBack());
}

// Different page sizes and store codecs on the two sides, and any wire codec between them: the answer is that of one
// process which recodes the prompt's KV in the same way; where nothing is lost on the way, the model's own.
struct PathCase {
  KvPath path;
  int prefill_page_tokens = 16;
  int decode_page_tokens = 16;
};
std::string PathName(const testing::TestParamInfo<PathCase>& info) {
  const PathCase& c = info.param;
  std::string name = absl::StrCat(c.path.prefill_store, "_", c.path.wire, "_", c.path.decode_store, "_pages_",
                                  c.prefill_page_tokens, "_", c.decode_page_tokens);
  std::replace(name.begin(), name.end(), '-', '_');
  return name;
}
class KvPathTest : public testing::TestWithParam<PathCase> {};

TEST_P(KvPathTest, TokensAreThoseOfOneProcessThatRecodesAlike) {
  const auto& [path, prefill_page_tokens, decode_page_tokens] = GetParam();
  const WorkerProcess decode_process(
      {.role = "decode", .model = kTinyModel, .page_tokens = decode_page_tokens, .kv_store = path.decode_store});
  const WorkerProcess prefill_process({.role = "prefill",
                                       .model = kTinyModel,
                                       .page_tokens = prefill_page_tokens,
                                       .kv_store = path.prefill_store,
                                       .kv_wire = path.wire});
  DecodeClient decode(decode_process.address("grpc"));
  PrefillClient prefill(prefill_process.address("grpc"));
  EXPECT_EQ(decode.GetStatus().store_codec(), path.decode_store);
  EXPECT_EQ(decode.GetStatus().page_tokens(), static_cast<uint32_t>(decode_page_tokens));
  for (const int tokens : {1, 23, 24, 65, 200}) {
    const auto answer = Ask(decode, prefill, Prompt(tokens), Greedy(20));
    ASSERT_TRUE(answer.ok()) << answer.status();
    ExpectSame(*answer, AnswerWhole(kTinyModel, Prompt(tokens), Greedy(20), path));
  }
  EXPECT_TRUE(decode.AllPagesComeBack());
}

INSTANTIATE_TEST_SUITE_P(
    Paths, KvPathTest,
    testing::Values(PathCase{{"bf16", "bf16", "bf16"}, 24, 16}, PathCase{{"bf16", "f32", "bf16"}, 16, 64},
                    PathCase{{"bf16", "bf16", "f32"}, 64, 24}, PathCase{{"f32", "bf16", "bf16"}, 16, 24},
                    PathCase{{"f32", "int8", "f32"}, 24, 64}, PathCase{{"int8", "int8", "int8"}, 64, 16},
                    PathCase{{"bf16", "int8", "int8"}, 16, 24}, PathCase{{"int8", "int8", "fp8"}, 24, 16},
                    PathCase{{"bf16", "fp8", "f32"}, 16, 16}, PathCase{{"f32", "f16", "bf16"}, 24, 24}),
    PathName);

TEST_F(PairTest, TerminationLetsWhatRunsFinish) {
  const auto stream = Running(Prompt(20), Greedy(400));
  decode_process_.Signal(SIGTERM);
  const auto answer = stream->ReadToEnd();
  ASSERT_TRUE(answer.ok()) << answer.status();
  ExpectSame(*answer, AnswerWhole(kTinyModel, Prompt(20), Greedy(400)));
  EXPECT_EQ(decode_process_.Wait(), 0);
}

// Latents, of a model with experts: kept alike on both sides, or recoded on their way in the same way in one process.
class LatentPathTest : public testing::TestWithParam<PathCase> {};

TEST_P(LatentPathTest, TokensAreThoseOfOneProcessThatRecodesAlike) {
  const std::string model = SLUICE_TEST_DATA "/tiny/deepseek-v2-lite";
  const auto& [path, prefill_page_tokens, decode_page_tokens] = GetParam();
  const WorkerProcess decode_process(
      {.role = "decode", .model = model, .page_tokens = decode_page_tokens, .kv_store = path.decode_store});
  const WorkerProcess prefill_process({.role = "prefill",
                                       .model = model,
                                       .page_tokens = prefill_page_tokens,
                                       .kv_store = path.prefill_store,
                                       .kv_wire = path.wire});
  DecodeClient decode(decode_process.address("grpc"));
  PrefillClient prefill(prefill_process.address("grpc"));
  for (const int tokens : {1, 17, 100}) {
    std::vector<TokenId> prompt;
    for (const TokenId token : Prompt(tokens)) prompt.push_back(token % 320);
    const auto answer = Ask(decode, prefill, prompt, Greedy(12));
    ASSERT_TRUE(answer.ok()) << answer.status();
    ExpectSame(*answer, AnswerWhole(model, prompt, Greedy(12), path));
  }
  EXPECT_TRUE(decode.AllPagesComeBack());
}

INSTANTIATE_TEST_SUITE_P(Paths, LatentPathTest,
                         testing::Values(PathCase{{"bf16", "bf16", "bf16"}, 16, 24},
                                         PathCase{{"mla-fp8", "mla-fp8", "mla-fp8"}, 24, 16},
                                         PathCase{{"bf16", "mla-fp8", "bf16"}, 16, 16},
                                         PathCase{{"f32", "f16", "mla-fp8"}, 16, 64}),
                         PathName);

TEST(RealPair, TokensAreThoseOfTheModelServedWhole) {
  const char* model = std::getenv("SLUICE_TEST_MODEL");
  if (model == nullptr) GTEST_SKIP() << "SLUICE_TEST_MODEL is not set";
  const WorkerProcess decode_process({"decode", model});
  const WorkerProcess prefill_process({"prefill", model});
  DecodeClient decode(decode_process.address("grpc"));
  PrefillClient prefill(prefill_process.address("grpc"));
  std::vector<TokenId> prompt;
  for (uint64_t i = 0; i < 130; ++i) prompt.push_back(static_cast<TokenId>(RandomBits(3, i) % 40'000));
  const auto answer = Ask(decode, prefill, prompt, Greedy(12));
  ASSERT_TRUE(answer.ok()) << answer.status();
  ExpectSame(*answer, AnswerWhole(model, prompt, Greedy(12)));
  EXPECT_TRUE(decode.AllPagesComeBack());
}

}  // namespace
}  // namespace sluice::decode

int main(int argc, char** argv) {
  if (argc > 1 && std::strcmp(argv[1], "--worker") == 0) return sluice::decode::RunWorkerMain(argc, argv);
  testing::InitGoogleTest(&argc, argv);
  return RUN_ALL_TESTS();
}
