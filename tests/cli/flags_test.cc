// Flags and config files to options, and one sentence for what cannot be understood.
#include "cli/flags.h"

#include "CLI/CLI.hpp"
#include "cli/worker_flags.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/cli/command_line_runner.h"
#include "tests/model/checkpoint/temp_file.h"

namespace sluice {
namespace {

using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;

TEST(ByteCounts, AreReadAndWrittenWithTheirUnits) {
  EXPECT_EQ(*ParseByteCount("4096"), 4096);
  EXPECT_EQ(*ParseByteCount("64KiB"), 65536);
  EXPECT_EQ(*ParseByteCount("128MiB"), int64_t{128} << 20);
  EXPECT_EQ(*ParseByteCount("2GiB"), int64_t{2} << 30);
  for (const char* wrong : {"", "MiB", "-1", "1.5GiB", "12MB", "9999999999GiB", "1 MiB"}) {
    EXPECT_THAT(std::string(ParseByteCount(wrong).status().message()), HasSubstr("is not a number of bytes")) << wrong;
  }
  EXPECT_EQ(FormatByteCount(int64_t{512} << 20), "512MiB");
  EXPECT_EQ(FormatByteCount(1000), "1000");
}

TEST(TokenIds, AreAListOfNumbers) {
  EXPECT_THAT(*ParseTokenIds("1,22,333"), ElementsAre(1, 22, 333));
  for (const char* wrong : {"", "1,", "1, 2", "a", "-1", "99999999999"}) {
    EXPECT_FALSE(ParseTokenIds(wrong).ok()) << wrong;
  }
}

TEST(WorkerFlags, SetTheFieldsOfDecodesOptions) {
  CLI::App app;
  DecodeOptions options;
  AddDecodeFlags(app, &options);
  app.parse(
      "--model m --threads 3 --exact --kv-memory 64MiB --kv-store f32 --kv-wire int8 --connections 3 --kv-listen "
      "127.0.0.1:7 --lease 1500ms "
      "--cluster-key-file k --announce-fd 5 --kv-interface eth0 --kv-test-faults kill@3");
  EXPECT_EQ(options.model_path, "m");
  EXPECT_EQ(options.threads, 3);
  EXPECT_TRUE(options.exact);
  EXPECT_EQ(options.kv_memory_bytes, int64_t{64} << 20);
  EXPECT_EQ(options.kv_store, "f32");
  EXPECT_EQ(options.kv_wire, "int8");
  EXPECT_EQ(options.connections_max, 3);
  EXPECT_EQ(options.kv_listen, "127.0.0.1:7");
  EXPECT_EQ(options.lease_ms, 1500);
  EXPECT_EQ(options.cluster_key_file, "k");
  EXPECT_EQ(options.announce_fd, 5);
  EXPECT_EQ(options.kv_interface, "eth0");
  EXPECT_EQ(options.kv_test_faults, "kill@3");
}

TEST(WorkerFlags, SetTheFieldsOfPrefillsOptions) {
  CLI::App app;
  PrefillOptions options;
  AddPrefillFlags(app, &options);
  app.parse(
      "--model m --batch-tokens 64 --kv-memory 1GiB --result-timeout 2s --frame-bytes 1MiB --kv-interface eth1 "
      "--kv-test-faults drop=0.5 --prefix-cache-pages 7");
  EXPECT_EQ(options.batch_tokens_max, 64);
  EXPECT_EQ(options.kv_interface, "eth1");
  EXPECT_EQ(options.kv_test_faults, "drop=0.5");
  EXPECT_EQ(options.prefix_cache_pages, 7);
  EXPECT_EQ(options.kv_memory_bytes, int64_t{1} << 30);
  EXPECT_EQ(options.result_timeout, absl::Seconds(2));
  EXPECT_EQ(options.frame_bytes_max, 1 << 20);
  EXPECT_EQ(options.kv_store, PrefillOptions().kv_store);
}

TEST(WorkerFlags, SetTheFieldsOfTheGatewaysOptions) {
  CLI::App app;
  GatewayOptions options;
  AddGatewayFlags(app, &options);
  app.parse("--model m --prefill a:1,b:2 --decode c:3 --listen 127.0.0.1:0 --queue-timeout 1s --body-bytes 1MiB");
  EXPECT_THAT(options.prefill_workers, ElementsAre("a:1", "b:2"));
  EXPECT_THAT(options.decode_workers, ElementsAre("c:3"));
  EXPECT_EQ(options.listen, "127.0.0.1:0");
  EXPECT_EQ(options.room_wait_ms, 1000);
  EXPECT_EQ(options.body_bytes_max, size_t{1} << 20);
}

TEST(CommandLine, ShowsFlagsWithTheirDefaults) {
  const CommandLineResult result = RunSluice({"prefill", "--help"});
  EXPECT_EQ(result.status, 0);
  EXPECT_THAT(result.out, AllOf(HasSubstr("--kv-memory BYTES=512MiB"), HasSubstr("--connect-timeout DURATION=2s"),
                                HasSubstr("sluice prefill"), HasSubstr("section [prefill]")));
  EXPECT_THAT(RunSluice({"--help"}).out, AllOf(HasSubstr("Usage: sluice [OPTIONS]"), HasSubstr("serve"),
                                               HasSubstr("complete"), HasSubstr("--config")));
  EXPECT_THAT(RunSluice({"models", "show", "--help"}).out, HasSubstr("PATH"));
}

TEST(CommandLine, EndsWithStatusTwoAndOneSentenceWhereItIsNotUnderstood) {
  struct Case {
    std::vector<std::string> arguments;
    const char* words;
  };
  const Case cases[] = {
      {{}, "subcommand"},
      {{"nonsense"}, "nonsense"},
      {{"complete", "--nonsense", "1"}, "--nonsense"},
      {{"complete", "--prompt", "a"}, "give either --model PATH or --url URL"},
      {{"complete", "--model", "m"}, "give either --prompt or --prompt-ids"},
      {{"complete", "--model", "m", "--prompt-ids", "1,x"}, "\"1,x\" is not a list of token ids"},
      {{"complete", "--model", "m", "--prompt", "a", "--max-tokens", "many"}, "--max-tokens"},
      {{"complete", "--model", "m", "--prompt", "a", "--timeout", "soon"}, "\"soon\" is not a duration"},
      {{"complete", "--model", "m", "--prompt", "a", "--kv-store", "int9"}, "int9"},
      {{"prefill"}, "--model"},
      {{"prefill", "--model", "m", "--kv-memory", "lots"}, "\"lots\" is not a number of bytes"},
      {{"prefill", "--model", "m", "--threads", "0"}, "threads"},
      {{"serve", "--model", "m", "--port", "70000"}, "port is 70000"},
      {{"models"}, "subcommand"},
      {{"models", "show"}, "PATH"},
  };
  for (const Case& wrong : cases) {
    const CommandLineResult result = RunSluice(wrong.arguments);
    EXPECT_EQ(result.status, 2) << result.err;
    EXPECT_THAT(result.err, AllOf(testing::StartsWith("sluice: "), HasSubstr(wrong.words), HasSubstr("--help)")));
    EXPECT_EQ(std::count(result.err.begin(), result.err.end(), '\n'), 1) << result.err;
  }
}

TEST(ConfigFile, SetsFlagsOfItsSectionBelowTheCommandLine) {
  TempFolder folder;
  const std::string config =
      folder.Write("sluice.toml", "[models.show]\njson = true\n[prefill]\nkv-memory = \"lots\"\n");
  const std::string model = SLUICE_TEST_DATA "/tiny/llama-mha";
  EXPECT_THAT(RunSluice({"models", "show", model, "--config", config}).err, HasSubstr("\"lots\" is not"));
  folder.Write("sluice.toml", "[models.show]\njson = true\n[prefill]\nkv-memory = \"1GiB\"\n");
  const CommandLineResult shown = RunSluice({"models", "show", model, "--config", config});
  EXPECT_EQ(shown.status, 0) << shown.err;
  EXPECT_THAT(shown.out, testing::StartsWith("{"));
}

TEST(ConfigFile, IsRefusedWhereItNamesAnUnknownFlagOrIsMissing) {
  TempFolder folder;
  const std::string config = folder.Write("sluice.toml", "[complete]\nmax-tokns = 3\n");
  const CommandLineResult unknown = RunSluice({"complete", "--model", "m", "--prompt", "a", "--config", config});
  EXPECT_EQ(unknown.status, 2);
  EXPECT_THAT(unknown.err, HasSubstr("max-tokns"));
  const CommandLineResult missing = RunSluice({"models", "show", "x", "--config", folder.path() + "/none"});
  EXPECT_EQ(missing.status, 2);
  EXPECT_THAT(missing.err, HasSubstr("/none"));
}

}  // namespace
}  // namespace sluice
