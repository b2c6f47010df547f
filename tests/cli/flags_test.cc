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
      "127.0.0.1:7 --lease 1500ms --prefix-cache-pages 9 --prefix-cache-keep 90s --local-prefill-tokens 48 "
      "--local-prefill-chunk 16 --cluster-key-file k --announce-fd 5 --kv-interface eth0 --kv-test-faults kill@3");
  EXPECT_EQ(options.model_path, "m");
  EXPECT_EQ(options.threads, 3);
  EXPECT_TRUE(options.exact);
  EXPECT_EQ(options.kv_memory_bytes, int64_t{64} << 20);
  EXPECT_EQ(options.kv_store, "f32");
  EXPECT_EQ(options.kv_wire, "int8");
  EXPECT_EQ(options.connections_max, 3);
  EXPECT_EQ(options.kv_listen, "127.0.0.1:7");
  EXPECT_EQ(options.lease_ms, 1500);
  EXPECT_EQ(options.prefix_cache_pages, 9);
  EXPECT_EQ(options.prefix_cache_keep_ms, 90'000);
  EXPECT_EQ(options.local_prefill_tokens_max, 48);
  EXPECT_EQ(options.local_prefill_chunk_tokens, 16);
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
      "--kv-test-faults drop=0.5 --prefix-cache-pages 7 --kv-wire store --send chunk");
  EXPECT_EQ(options.batch_tokens_max, 64);
  EXPECT_EQ(options.kv_interface, "eth1");
  EXPECT_EQ(options.kv_test_faults, "drop=0.5");
  EXPECT_EQ(options.prefix_cache_pages, 7);
  EXPECT_EQ(options.kv_wire, "store");
  EXPECT_EQ(options.send, "chunk");
  EXPECT_EQ(options.kv_memory_bytes, int64_t{1} << 30);
  EXPECT_EQ(options.result_timeout, absl::Seconds(2));
  EXPECT_EQ(options.frame_bytes_max, 1 << 20);
  EXPECT_EQ(options.kv_store, PrefillOptions().kv_store);
}

TEST(WorkerFlags, SetTheFieldsOfTheGatewaysOptions) {
  CLI::App app;
  GatewayOptions options;
  AddGatewayFlags(app, &options);
  app.parse(
      "--model m --prefill a:1,b:2 --decode c:3 --listen 127.0.0.1:0 --queue-timeout 1s --body-bytes 1MiB "
      "--prefix-pages 5 --prefill-queue-max 3s");
  EXPECT_THAT(options.prefill_workers, ElementsAre("a:1", "b:2"));
  EXPECT_THAT(options.decode_workers, ElementsAre("c:3"));
  EXPECT_EQ(options.listen, "127.0.0.1:0");
  EXPECT_EQ(options.room_wait_ms, 1000);
  EXPECT_EQ(options.prefill_queue_max_ms, 3000);
  EXPECT_EQ(options.body_bytes_max, size_t{1} << 20);
  EXPECT_EQ(options.prefix_pages_max, 5);
}

TEST(WorkerFlags, TakeEveryValueThatTheirHelpNames) {
  using Arguments = std::vector<std::string>;
  // What is wrong with these is the port alone, and is found with everything else: after the values were read.
  const auto problem = [](Arguments arguments) {
    for (const char* more : {"--model", "m", "--threads", "0"}) arguments.push_back(more);
    return RunSluice(arguments).err;
  };
  for (const std::string process : {"prefill", "decode"}) {
    for (const std::string codec : {"auto", "f32", "bf16", "f16", "fp8", "int8", "int4", "mla-fp8"}) {
      for (const std::string flag : {"--kv-store", "--kv-wire"})
        EXPECT_THAT(problem({process, flag, codec}), testing::StartsWith("sluice: threads is 0")) << flag << codec;
    }
    for (const std::string pages : {"-1", "0", "100"})
      EXPECT_THAT(problem({process, "--prefix-cache-pages", pages}), testing::StartsWith("sluice: threads is 0"));
  }
  for (const Arguments& arguments :
       {Arguments{"prefill", "--kv-wire", "store"}, Arguments{"prefill", "--send", "layer"},
        Arguments{"prefill", "--send", "chunk"}, Arguments{"prefill", "--send", "prompt"},
        Arguments{"decode", "--prefix-cache-keep", "1ms"}, Arguments{"decode", "--prefix-cache-keep", "1h"},
        Arguments{"decode", "--local-prefill-tokens", "0"}, Arguments{"decode", "--local-prefill-chunk", "1"}})
    EXPECT_THAT(problem(arguments), testing::StartsWith("sluice: threads is 0")) << arguments[1];
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
      {{"complete", "--model", "m", "--prompt", "a", "--cache-policy", "lru"},
       "'lru' is none of full, sink-window, h2o"},
      {{"complete", "--model", "m", "--prompt", "a", "--cache-policy", "h2o"}, "h2o: needs a budget"},
      {{"complete", "--model", "m", "--prompt", "a", "--cache-budget", "5"}, "full: has no budget"},
      {{"complete", "--model", "m", "--prompt", "a", "--cache-budget", "half"}, "'half' is neither"},
      {{"complete", "--model", "m", "--prompt", "a", "--cache-policy", "h2o", "--cache-budget", "8", "--window", "9"},
       "window is 9, not 1 to 8"},
      {{"complete", "--model", "m", "--prompt", "a", "--prefill", "streamed"}, "other than full"},
      {{"complete", "--model", "m", "--prompt", "a", "--cache-policy", "snapkv", "--cache-budget", "8", "--prefill",
        "streamed"},
       "snapkv chooses when the whole prompt is there"},
      {{"complete", "--url", "http://a:1", "--prompt", "a", "--cache-policy", "h2o"}, "--cache-policy excludes --url"},
      {{"prefill"}, "--model"},
      {{"prefill", "--model", "m", "--kv-memory", "lots"}, "\"lots\" is not a number of bytes"},
      {{"prefill", "--model", "m", "--threads", "0"}, "threads"},
      {{"serve", "--model", "m", "--port", "70000"}, "port is 70000"},
      {{"serve", "--model", "m", "--cache-policy", "h2o"}, "h2o: needs a budget"},
      {{"serve", "--model", "m", "--cache-policy", "tova", "--cache-budget", "9", "--score-by-age"},
       "tova: by_age is true, and only h2o"},
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

// Flags of how KV is kept, sent and remembered: wrong values, and those of another process.
TEST(CommandLine, NamesFieldAndValueOfWhatKvCannotBe) {
  struct Case {
    std::vector<std::string> arguments;
    const char* words;
  };
  const Case cases[] = {
      {{"prefill", "--kv-store", "e5m2"}, "kv_store: unknown KV codec 'e5m2': there are f32, bf16"},
      {{"prefill", "--kv-wire", "e5m2"}, "kv_wire: auto, store or a codec; unknown KV codec 'e5m2': there are f32"},
      {{"decode", "--kv-store", "fp8_e5m2"}, "kv_store: unknown KV codec 'fp8_e5m2': there are f32"},
      {{"decode", "--kv-wire", "e5m2"}, "kv_wire: unknown KV codec 'e5m2': there are f32"},
      {{"decode", "--kv-wire", "store"}, "kv_wire: unknown KV codec 'store'"},  // its own to say
      {{"prefill", "--kv-store", ""}, "kv_store: unknown KV codec ''"},
      {{"prefill", "--kv-store", "int8,fp8"}, "kv_store: unknown KV codec 'int8,fp8'"},
      {{"complete", "--prompt", "a", "--kv-store", "e5m2"}, "--kv-store: e5m2 not in {auto,f32,bf16,"},
      {{"chat", "--kv-store", "e5m2"}, "--kv-store: e5m2 not in {auto,f32,bf16,"},
      {{"prefill", "--send", "token"}, "send: 'token' is none of layer"},
      {{"prefill", "--send", "Layer"}, "send: 'Layer' is none of layer"},
      {{"decode", "--prefix-cache-keep", "0s"}, "prefix_cache_keep_ms is 0, must be at least 1"},
      {{"decode", "--prefix-cache-keep", "-1s"}, "-1s"},
      {{"decode", "--prefix-cache-keep", "600"}, "\"600\" is not a duration"},
      {{"prefill", "--prefix-cache-pages", "-2"}, "prefix_cache_pages is -2, must be at least -1"},
      {{"decode", "--prefix-cache-pages", "all"}, "--prefix-cache-pages"},
      {{"decode", "--local-prefill-tokens", "-1"}, "local_prefill_tokens_max is -1, must be at least 0"},
      {{"decode", "--local-prefill-tokens", "1.5"}, "--local-prefill-tokens"},
      {{"decode", "--local-prefill-chunk", "0"}, "local_prefill_chunk_tokens is 0, must be at least 1"},
      {{"gateway", "--prefill", "a:1", "--decode", "b:2", "--prefix-pages", "-1"},
       "prefix_pages_max is -1, must be at least 0"},
      {{"gateway", "--prefill", "a:1", "--decode", "b:2", "--prefix-pages", "many"}, "--prefix-pages"},
      // Flags that another process has.
      {{"prefill", "--prefix-cache-keep", "1s"}, "--prefix-cache-keep"},
      {{"prefill", "--local-prefill-tokens", "1"}, "--local-prefill-tokens"},
      {{"decode", "--send", "layer"}, "--send"},
      {{"decode", "--prefix-pages", "1"}, "--prefix-pages"},
      {{"gateway", "--prefill", "a:1", "--decode", "b:2", "--kv-store", "f32"}, "--kv-store"},
  };
  for (Case wrong : cases) {
    wrong.arguments.insert(wrong.arguments.begin() + 1, {"--model", "m"});
    const CommandLineResult result = RunSluice(wrong.arguments);
    EXPECT_EQ(result.status, 2) << result.err;
    EXPECT_THAT(result.err, AllOf(testing::StartsWith("sluice: "), HasSubstr(wrong.words)));
    EXPECT_EQ(std::count(result.err.begin(), result.err.end(), '\n'), 1) << result.err;
  }
}

TEST(CommandLine, NamesWhatDoesNotGoTogether) {
  EXPECT_THAT(RunSluice({"complete", "--url", "http://a:1", "--prompt", "a", "--kv-store", "f32"}).err,
              AllOf(HasSubstr("--kv-store"), HasSubstr("--url")));
  // What a model cannot keep or send is found when it is opened, and ends the start with both.
  setenv("SLUICE_CLUSTER_KEY", std::string(64, '1').c_str(), 1);
  const std::string heads = SLUICE_TEST_DATA "/tiny/llama-gqa";
  const std::string latents = SLUICE_TEST_DATA "/tiny/deepseek-v2-lite";
  for (const std::string process : {"prefill", "decode"}) {
    for (const auto& [model, flag, codec, shape] :
         {std::tuple{heads, "--kv-store", "mla-fp8", "16 + 0"}, std::tuple{heads, "--kv-wire", "int4", "16 + 0"},
          std::tuple{latents, "--kv-store", "int8", "32 + 16"}, std::tuple{latents, "--kv-wire", "fp8", "32 + 16"}}) {
      const CommandLineResult result = RunSluice({process, "--model", model, flag, codec});
      EXPECT_EQ(result.status, 1) << result.err;
      EXPECT_THAT(result.err, AllOf(HasSubstr(codec), HasSubstr(shape))) << process << " " << flag;
    }
  }
  unsetenv("SLUICE_CLUSTER_KEY");
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
