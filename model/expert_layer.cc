#include "model/expert_layer.h"

#include <algorithm>
#include <cstring>

#include "kernels/activation.h"
#include "model/row_parallel.h"

namespace sluice {

namespace {

int64_t ScratchFloats(const MoeConfig& config, int hidden_size, int64_t tokens_max) {
  return tokens_max * (int64_t{hidden_size} + int64_t{2} * config.intermediate_size);
}

}  // namespace

size_t ExpertLayer::Bytes(const MoeConfig& config, int hidden_size, int64_t tokens_max) {
  return static_cast<size_t>(ScratchFloats(config, hidden_size, tokens_max)) * sizeof(float) +
         static_cast<size_t>(tokens_max * config.experts_per_token) * (sizeof(ExpertWeight) + sizeof(Visit));
}

StatusOr<ExpertLayer> ExpertLayer::Create(const MoeConfig& config, int hidden_size, int64_t tokens_max) {
  ExpertLayer layer;
  layer.config_ = config;
  layer.hidden_ = hidden_size;
  const auto bytes = static_cast<size_t>(ScratchFloats(config, hidden_size, tokens_max)) * sizeof(float);
  SLUICE_ASSIGN_OR_RETURN(layer.scratch_, Buffer::Create(bytes, /*touch=*/true));
  layer.gathered_ = layer.scratch_.as<float>();
  layer.gate_up_ = layer.gathered_ + tokens_max * hidden_size;
  layer.chosen_.resize(static_cast<size_t>(tokens_max * config.experts_per_token));
  layer.visits_.resize(layer.chosen_.size());
  layer.first_visit_.resize(static_cast<size_t>(config.experts) + 1);
  return layer;
}

absl::Span<const ExpertWeight> ExpertLayer::Run(const LayerWeights& w, const float* logits, const float* normed,
                                                float* residual, int64_t rows, Activations& activations,
                                                ThreadPool& pool) {
  const auto experts = static_cast<size_t>(config_.experts);
  const auto chosen_per_row = static_cast<size_t>(config_.experts_per_token);
  const absl::Span<const float> bias(w.router_bias, w.router_bias == nullptr ? 0 : experts);
  ForRows(rows, pool, [&](int64_t r) {
    const auto row = static_cast<size_t>(r);
    ChooseExperts(config_, {logits + row * experts, experts}, bias,
                  absl::MakeSpan(chosen_).subspan(row * chosen_per_row, chosen_per_row));
  });
  ListVisits(rows);
  for (size_t e = 0; e < experts; ++e) {
    const auto first = static_cast<size_t>(first_visit_[e]);
    const auto count = static_cast<size_t>(first_visit_[e + 1]) - first;
    if (count == 0) continue;
    RunExpert(w.experts[e], absl::MakeConstSpan(visits_).subspan(first, count), normed, residual, activations, pool);
  }
  return absl::MakeConstSpan(chosen_).first(static_cast<size_t>(rows) * chosen_per_row);
}

// Counts, then places: visits in the order of experts, each expert's in the order of rows.
void ExpertLayer::ListVisits(int64_t rows) {
  const auto k = static_cast<size_t>(config_.experts_per_token);
  const auto chosen = absl::MakeConstSpan(chosen_).first(static_cast<size_t>(rows) * k);
  std::fill(first_visit_.begin(), first_visit_.end(), 0);
  for (const ExpertWeight& c : chosen) ++first_visit_[static_cast<size_t>(c.expert) + 1];
  for (size_t e = 1; e < first_visit_.size(); ++e) first_visit_[e] += first_visit_[e - 1];
  for (size_t i = 0; i < chosen.size(); ++i) {
    int64_t& next = first_visit_[static_cast<size_t>(chosen[i].expert)];
    visits_[static_cast<size_t>(next++)] = {static_cast<int32_t>(i / k), chosen[i].weight};
  }
  // Each has moved on to its end, which is where the next one begins.
  std::copy_backward(first_visit_.begin(), first_visit_.end() - 1, first_visit_.end());
  first_visit_[0] = 0;
}

void ExpertLayer::RunExpert(const ExpertWeights& w, absl::Span<const Visit> visits, const float* normed,
                            float* residual, Activations& activations, ThreadPool& pool) {
  const auto rows = static_cast<int64_t>(visits.size());
  const int64_t size = config_.intermediate_size;
  activations.Begin(gathered_, rows, hidden_, hidden_);
  ForRows(rows, pool, [&](int64_t r) {
    std::memcpy(gathered_ + r * hidden_, normed + visits[static_cast<size_t>(r)].row * hidden_,
                static_cast<size_t>(hidden_) * sizeof(float));
    if (w.gate.rounds_activations() || w.up.rounds_activations()) activations.RoundRow(r);
  });
  MatmulGroup({{&w.gate, gate_up_, 2 * size}, {&w.up, gate_up_ + size, 2 * size}}, activations, pool);
  activations.Begin(gate_up_, rows, size, 2 * size);
  ForRows(rows, pool, [&](int64_t r) {
    float* gate = gate_up_ + r * 2 * size;
    SiluMulRow(gate, gate + size, size, gate);
    if (w.down.rounds_activations()) activations.RoundRow(r);
  });
  Matmul(w.down, activations, gathered_, hidden_, /*accumulate=*/false, pool);
  ForRows(rows, pool, [&](int64_t r) {
    const Visit& visit = visits[static_cast<size_t>(r)];
    float* out = residual + visit.row * hidden_;
    for (int64_t c = 0; c < hidden_; ++c) out[c] += visit.weight * gathered_[r * hidden_ + c];
  });
}

}  // namespace sluice
