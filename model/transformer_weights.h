// A checkpoint's weights as the transformer uses them: matrices packed for the kernels, norms as f32, the embedding in
// place. Read-only after loading.
#pragma once

#include <memory>
#include <vector>

#include "common/thread_pool.h"
#include "kernels/matmul.h"
#include "model/checkpoint/checkpoint.h"

namespace sluice {

struct LayerWeights {
  const float* attention_norm = nullptr;
  const float* mlp_norm = nullptr;
  PackedMatrix query, key, value, attention_output, gate, up, down;
};

struct TransformerWeights {
  std::vector<LayerWeights> layers;
  PackedMatrix output;
  const float* output_norm = nullptr;
  ConstMatrixView embedding;  // mapped; all of it resident after loading
  Buffer norms;

  // Packs tensor after tensor and gives each one's mapped pages back at once, the largest first, so that loading never
  // takes more memory than what stays.
  static StatusOr<TransformerWeights> Load(const Checkpoint& checkpoint, const PackOptions& options, ThreadPool& pool);

  struct Sizes {
    size_t packed_bytes = 0;
    size_t mapped_bytes = 0;
  };
  static StatusOr<Sizes> Plan(const Checkpoint& checkpoint, const PackOptions& options);
};

}  // namespace sluice
