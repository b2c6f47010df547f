// `sluice eval`: what cache policies and codecs cost on a user's own model and text.
#include <unistd.h>

#include <chrono>
#include <filesystem>
#include <fstream>
#include <thread>

#include "CLI/CLI.hpp"
#include "cli/eval_flags.h"
#include "cli/eval_input.h"
#include "cli/eval_report.h"
#include "cli/subcommand.h"
#include "eval/text_runner.h"

namespace sluice {
namespace {

constexpr int64_t kStreamBlocks = 8;

Status WriteFile(const std::string& path, const std::string& text) {
  std::ofstream file(path, std::ios::binary);
  file << text;
  file.close();
  return file.good() ? absl::OkStatus() : absl::UnavailableError(absl::StrCat("cannot write ", path));
}

// What is measured for hours should not be lost for a name.
Status CheckWritable(const EvalFlags& flags) {
  if (!flags.json_file.empty() && !std::ofstream(flags.json_file, std::ios::app).good()) {
    return absl::InvalidArgumentError(absl::StrCat("--json: cannot write ", flags.json_file));
  }
  if (flags.plots_folder.empty()) return absl::OkStatus();
  std::error_code error;
  std::filesystem::create_directories(flags.plots_folder, error);
  if (access(flags.plots_folder.c_str(), W_OK | X_OK) != 0 || !std::filesystem::is_directory(flags.plots_folder)) {
    return absl::InvalidArgumentError(absl::StrCat("--plots: cannot write into ", flags.plots_folder));
  }
  return absl::OkStatus();
}

StatusOr<std::vector<CacheCase>> Caches(const EvalFlags& flags, const KvLayout& layout) {
  std::vector<CacheCase> caches;
  for (const std::string& codec : flags.codecs) {
    for (const std::string& policy : flags.policies) {
      SLUICE_ASSIGN_OR_RETURN(CacheCase cache, ParseCacheCase(policy));
      SLUICE_ASSIGN_OR_RETURN(cache.codec, ChooseStoreCodec(codec, layout));
      caches.push_back(std::move(cache));
    }
  }
  return caches;
}

// Tells what is done, not oftener than people read.
std::function<void(int64_t, int64_t)> ProgressTo(std::ostream& err) {
  using Clock = std::chrono::steady_clock;
  return [&err, told = Clock::now()](int64_t done, int64_t all) mutable {
    if (Clock::now() - told < std::chrono::seconds(10)) return;
    told = Clock::now();
    err << "sluice: " << 100 * done / all << " % of " << all << " tokens\n" << std::flush;
  };
}

class EvalCommand final : public Subcommand {
 public:
  explicit EvalCommand(CLI::App* app) : Subcommand(app) { AddEvalFlags(*app, &flags_); }

  Status Check() const override { return sluice::Check(flags_); }

  Status Run(Streams streams) override {
    SLUICE_RETURN_IF_ERROR(CheckWritable(flags_));
    SLUICE_ASSIGN_OR_RETURN(const std::unique_ptr<Checkpoint> checkpoint, OpenCheckpoint(flags_.model));
    SLUICE_ASSIGN_OR_RETURN(const EvalInput input, ReadEvalInput(flags_, *checkpoint));
    SLUICE_ASSIGN_OR_RETURN(caches_, Caches(flags_, KvLayout::Of(checkpoint->config())));
    const int threads =
        flags_.threads > 0 ? flags_.threads : std::max(1, static_cast<int>(std::thread::hardware_concurrency()));
    SLUICE_ASSIGN_OR_RETURN(const std::unique_ptr<Transformer> transformer,
                            Transformer::Create(checkpoint.get(), TextRunner::Transformers(threads, flags_.exact)));
    TextRunner runner(transformer.get(), {.kv_bytes_max = static_cast<size_t>(flags_.kv_memory_bytes),
                                          .on_progress = ProgressTo(streams.err)});
    EvalReport report = {.model = flags_.model, .exact = flags_.exact};
    SLUICE_RETURN_IF_ERROR(Measure(runner, input, streams, report));
    if (!flags_.json_file.empty()) {
      SLUICE_RETURN_IF_ERROR(WriteFile(flags_.json_file, ToJson(report).dump(1) + "\n"));
    }
    if (flags_.plots_folder.empty()) return absl::OkStatus();
    for (const auto& [name, plot] : Plots(report)) {
      SLUICE_RETURN_IF_ERROR(WriteFile(flags_.plots_folder + "/" + name + ".svg", ToSvg(plot)));
    }
    return absl::OkStatus();
  }

 private:
  // Each part is printed as soon as it is there.
  Status Measure(TextRunner& runner, const EvalInput& input, Streams streams, EvalReport& report) const {
    const std::vector<absl::Span<const TokenId>> windows(input.windows.begin(), input.windows.end());
    if (flags_.part("perplexity")) {
      SLUICE_ASSIGN_OR_RETURN(report.perplexity, Streamed(runner, windows, flags_.block));
      Print(*report.perplexity, "perplexity", streams.out);
    }
    if (flags_.part("agreement")) {
      SLUICE_ASSIGN_OR_RETURN(report.agreement, OfContinuations(runner, windows));
      Print(*report.agreement, streams.out);
    }
    if (flags_.part("needles")) {
      SLUICE_ASSIGN_OR_RETURN(std::vector<NeedleRow> rows, MeasureNeedles(runner, input.needles, caches_));
      report.needles = NeedlesReport{input.needles, std::move(rows)};
      Print(*report.needles, streams.out);
    }
    if (flags_.part("stream")) {
      const auto tokens = static_cast<int64_t>(input.stream.size());
      const int64_t block = std::max(flags_.block, (tokens + kStreamBlocks - 1) / kStreamBlocks);
      SLUICE_ASSIGN_OR_RETURN(report.stream, Streamed(runner, {input.stream}, block));
      Print(*report.stream, "stream", streams.out);
    }
    streams.out.flush();
    return absl::OkStatus();
  }

  StatusOr<StreamedReport> Streamed(TextRunner& runner, const std::vector<absl::Span<const TokenId>>& texts,
                                    int64_t block) const {
    StreamedReport report = {
        .texts = static_cast<int64_t>(texts.size()), .tokens = static_cast<int64_t>(texts[0].size()), .block = block};
    SLUICE_ASSIGN_OR_RETURN(report.rows,
                            MeasureStreamed(runner, texts, caches_, {.block = block, .budget_of = flags_.context}));
    return report;
  }

  StatusOr<AgreementReport> OfContinuations(TextRunner& runner,
                                            const std::vector<absl::Span<const TokenId>>& texts) const {
    AgreementReport report = {.texts = static_cast<int64_t>(texts.size()),
                              .prompt_tokens = flags_.context - flags_.continuation,
                              .continuation = flags_.continuation,
                              .greedy = flags_.greedy};
    SLUICE_ASSIGN_OR_RETURN(report.result,
                            MeasureAgreement(runner, texts, caches_,
                                             {.prompt_tokens = report.prompt_tokens, .greedy_tokens = report.greedy}));
    return report;
  }

  EvalFlags flags_;
  std::vector<CacheCase> caches_;
};

}  // namespace

std::unique_ptr<Subcommand> MakeEvalCommand(CLI::App& parent) {
  return std::make_unique<EvalCommand>(
      parent.add_subcommand("eval", "Measure what cache policies and codecs cost on a model and a text"));
}

}  // namespace sluice
