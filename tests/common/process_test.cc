#include "common/process.h"

#include <unistd.h>

#include <csignal>

#include "common/metrics_server.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace sluice {
namespace {

using ::testing::MatchesRegex;

std::string ReadAll(int fd) {
  std::string text;
  char buffer[256];
  for (ssize_t n; (n = read(fd, buffer, sizeof buffer)) > 0;) text.append(buffer, static_cast<size_t>(n));
  return text;
}

TEST(Announce, IsOneJsonLineAndClosesTheDescriptor) {
  int fds[2];
  ASSERT_EQ(pipe(fds), 0);
  ASSERT_TRUE(Announce(fds[1], {{"role", "prefill"}, {"odd", "a\"b\\c\n"}}).ok());
  EXPECT_EQ(ReadAll(fds[0]),
            absl::StrCat("{\"role\": \"prefill\", \"odd\": \"a\\\"b\\\\c\\u000a\", \"pid\": ", getpid(), "}\n"));
  close(fds[0]);
}

TEST(Announce, LeavesStandardOutputOpen) {
  const int saved = dup(STDOUT_FILENO);
  int fds[2];
  ASSERT_EQ(pipe(fds), 0);
  ASSERT_EQ(dup2(fds[1], STDOUT_FILENO), STDOUT_FILENO);
  const Status announced = Announce(STDOUT_FILENO, {});
  const ssize_t written = write(STDOUT_FILENO, "still open", 10);
  ASSERT_EQ(dup2(saved, STDOUT_FILENO), STDOUT_FILENO);
  for (const int fd : {saved, fds[0], fds[1]}) close(fd);
  EXPECT_TRUE(announced.ok());
  EXPECT_EQ(written, 10);
}

TEST(Announce, ToNobodyIsUnavailableAndToNoneIsFine) {
  EXPECT_TRUE(Announce(-1, {}).ok());
  EXPECT_EQ(Announce(987654, {}).code(), absl::StatusCode::kUnavailable);
}

TEST(NewEpoch, DiffersFromTheLast) { EXPECT_NE(NewEpoch(), NewEpoch()); }

TEST(TerminationSignals, WaitTakesASignalThatCameBefore) {
  TerminationSignals signals;
  ASSERT_EQ(kill(getpid(), SIGTERM), 0);
  EXPECT_EQ(signals.Wait(), SIGTERM);
}

TEST(MetricsServer, PicksAPortAndRefusesOneThatIsTaken) {
  Metrics metrics({{"sluice_test_total", MetricKind::kCounter, "For this test"}});
  const auto server = MetricsServer::Create("127.0.0.1:0", metrics);
  ASSERT_TRUE(server.ok()) << server.status();
  EXPECT_THAT((*server)->address(), MatchesRegex("127\\.0\\.0\\.1:[1-9][0-9]*"));
  EXPECT_EQ(MetricsServer::Create((*server)->address(), metrics).status().code(), absl::StatusCode::kUnavailable);
}

}  // namespace
}  // namespace sluice
