#include "decode/token_stream.h"

#include <thread>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace sluice::decode {
namespace {

proto::GenerateEvent Tokens(uint32_t choice, std::initializer_list<int> ids) {
  proto::GenerateEvent event;
  event.set_choice(choice);
  for (const int id : ids) event.add_tokens()->set_token(id);
  return event;
}

std::vector<int> Ids(const std::optional<proto::GenerateEvent>& event) {
  std::vector<int> ids;
  if (event) {
    for (const auto& token : event->tokens()) ids.push_back(token.token());
  }
  return ids;
}

class TokenStreamTest : public testing::Test {
 protected:
  std::optional<proto::GenerateEvent> Take() { return stream_.Take(&end_); }

  int drained_ = 0;
  int readable_ = 0;
  std::optional<Status> end_;
  TokenStream stream_{3, [this] { ++drained_; }};
};

TEST_F(TokenStreamTest, AReaderThatKeepsUpGetsEachTokenAlone) {
  for (int id = 0; id < 3; ++id) {
    stream_.Push(Tokens(0, {id}));
    EXPECT_THAT(Ids(Take()), testing::ElementsAre(id));
  }
}

TEST_F(TokenStreamTest, TokensGatherPerChoiceWhileTheReaderIsSlow) {
  stream_.Push(Tokens(0, {1}));
  stream_.Push(Tokens(1, {2}));
  stream_.Push(Tokens(0, {3}));
  EXPECT_THAT(Ids(Take()), testing::ElementsAre(1, 3));
  EXPECT_THAT(Ids(Take()), testing::ElementsAre(2));
  EXPECT_FALSE(Take().has_value());
  EXPECT_EQ(end_, std::nullopt);
}

TEST_F(TokenStreamTest, TheLastEventIsReadLast) {
  stream_.Push(Tokens(0, {1}));
  stream_.Push(Tokens(1, {2}));
  auto last = Tokens(0, {3});
  last.set_finish(proto::FINISH_STOP);
  last.set_last(true);
  last.mutable_usage()->set_completion_tokens(3);
  stream_.Push(last);
  stream_.Close(absl::OkStatus());
  EXPECT_THAT(Ids(Take()), testing::ElementsAre(2));
  const auto event = Take();
  EXPECT_THAT(Ids(event), testing::ElementsAre(1, 3));
  EXPECT_EQ(event->finish(), proto::FINISH_STOP);
  EXPECT_EQ(event->usage().completion_tokens(), 3u);
  EXPECT_FALSE(Take().has_value());
  ASSERT_TRUE(end_.has_value());
  EXPECT_TRUE(end_->ok());
}

TEST_F(TokenStreamTest, FullAtTheBoundAndDrainedWhenRead) {
  stream_.Push(Tokens(0, {1, 2}));
  EXPECT_FALSE(stream_.Full(0));
  stream_.Push(Tokens(0, {3}));
  EXPECT_TRUE(stream_.Full(0));
  EXPECT_FALSE(stream_.Full(1));
  Take();
  EXPECT_FALSE(stream_.Full(0));
  EXPECT_EQ(drained_, 1);
}

TEST_F(TokenStreamTest, AnErrorEndsTheStreamBeforeWhatWaits) {
  stream_.Push(Tokens(0, {1}));
  stream_.Close(absl::AbortedError("gone"));
  EXPECT_FALSE(Take().has_value());
  ASSERT_TRUE(end_.has_value());
  EXPECT_EQ(end_->code(), absl::StatusCode::kAborted);
  stream_.Push(Tokens(0, {2}));
  EXPECT_FALSE(Take().has_value());
}

TEST_F(TokenStreamTest, TheReaderIsCalledForWhatWasThereBeforeItAndForWhatComes) {
  stream_.Push(Tokens(0, {1}));
  stream_.Attach([this] { ++readable_; });
  EXPECT_EQ(readable_, 1);
  stream_.Push(Tokens(0, {2}));
  EXPECT_EQ(readable_, 2);
  stream_.Close(absl::OkStatus());
  EXPECT_EQ(readable_, 3);
}

TEST_F(TokenStreamTest, ADetachedReaderIsNotCalledAndNothingIsKeptForIt) {
  stream_.Attach([this] { ++readable_; });
  stream_.Detach();
  for (int id = 0; id < 10; ++id) stream_.Push(Tokens(0, {id}));
  EXPECT_EQ(readable_, 1);
  EXPECT_FALSE(stream_.Full(0));
  EXPECT_FALSE(Take().has_value());
  stream_.Attach([this] { ++readable_; });
  EXPECT_EQ(readable_, 1);
}

TEST(TokenStream, KeepsOrderBetweenTwoThreads) {
  TokenStream stream(8, [] {});
  constexpr int kTokens = 20'000;
  std::thread engine([&stream] {
    for (int id = 0; id < kTokens; ++id) {
      while (stream.Full(0)) std::this_thread::yield();
      stream.Push(Tokens(0, {id}));
    }
    stream.Close(absl::OkStatus());
  });
  int next = 0;
  std::optional<Status> end;
  while (!end) {
    const auto event = stream.Take(&end);
    for (const int id : Ids(event)) ASSERT_EQ(id, next++);
    if (!event) std::this_thread::yield();
    ASSERT_LE(event.value_or(proto::GenerateEvent()).tokens_size(), 8);
  }
  engine.join();
  EXPECT_EQ(next, kTokens);
}

}  // namespace
}  // namespace sluice::decode
