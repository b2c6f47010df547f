// A mixture of experts over the rows of a batch: which experts each row goes to, then expert by expert the rows that
// chose it, gathered. Internal to the forward pass.
//
// A row's result depends on the row alone: its experts' results are added in the order of their numbers, and no product
// depends on how many rows it has.
#pragma once

#include <vector>

#include "kernels/matmul.h"
#include "model/moe_gate.h"
#include "model/transformer_weights.h"

namespace sluice {

class ExpertLayer {
 public:
  static StatusOr<ExpertLayer> Create(const MoeConfig& config, int hidden_size, int64_t tokens_max);
  static size_t Bytes(const MoeConfig& config, int hidden_size, int64_t tokens_max);

  // residual[r] += sum over r's experts of weight * expert(normed[r]). Both are [rows, hidden]; `logits`, the router's,
  // are [rows, experts]. `activations` is used and left changed. Returns the choices, [rows, experts_per_token].
  absl::Span<const ExpertWeight> Run(const LayerWeights& w, const float* logits, const float* normed, float* residual,
                                     int64_t rows, Activations& activations, ThreadPool& pool);

 private:
  struct Visit {
    int32_t row;
    float weight;
  };
  void ListVisits(int64_t rows);
  void RunExpert(const ExpertWeights& w, absl::Span<const Visit> visits, const float* normed, float* residual,
                 Activations& activations, ThreadPool& pool);

  MoeConfig config_;
  int64_t hidden_ = 0;
  Buffer scratch_;
  float* gathered_ = nullptr;         // [tokens, hidden]: an expert's input, then its output
  float* gate_up_ = nullptr;          // [tokens, 2 intermediate]
  std::vector<ExpertWeight> chosen_;  // [tokens, experts_per_token]
  std::vector<Visit> visits_;         // by expert, then by row
  std::vector<int64_t> first_visit_;  // [experts + 1]
};

}  // namespace sluice
