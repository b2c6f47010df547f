// A checkpoint's weights as the transformer uses them: matrices packed for the kernels, norms as f32, the embedding in
// place. Read-only after loading.
#pragma once

#include <memory>
#include <vector>

#include "common/thread_pool.h"
#include "kernels/latent_weights.h"
#include "kernels/matmul.h"
#include "model/checkpoint/checkpoint.h"

namespace sluice {

LatentShape LatentShapeOf(const ModelConfig& config);  // REQUIRES: config.mla

struct ExpertWeights {
  PackedMatrix gate, up, down;
};

// What a layer does not have is empty.
struct LayerWeights {
  const float* attention_norm = nullptr;
  const float* mlp_norm = nullptr;
  const float* query_down_norm = nullptr;
  const float* latent_norm = nullptr;
  const float* router_bias = nullptr;
  PackedMatrix query;  // of the hidden state, or of query_down's product
  PackedMatrix query_down;
  PackedMatrix key, value;  // GQA
  PackedMatrix latent_down;
  LatentWeights latent_up;
  PackedMatrix attention_output;
  PackedMatrix gate, up, down;  // the MLP of all tokens: a dense layer's, or the shared experts'
  PackedMatrix router;          // exact: a rounded logit may choose another expert
  std::vector<ExpertWeights> experts;
};

struct TransformerWeights {
  std::vector<LayerWeights> layers;
  PackedMatrix output;
  const float* output_norm = nullptr;
  ConstMatrixView embedding;  // mapped; all of it resident after loading
  Buffer vectors;             // norms and biases

  // Packs tensor after tensor, the output first, which is the largest of most models, and gives each one's mapped pages
  // back at once: beside what stays, loading takes the mapped pages of one tensor.
  static StatusOr<TransformerWeights> Load(const Checkpoint& checkpoint, const PackOptions& options, ThreadPool& pool);

  struct Sizes {
    size_t packed_bytes = 0;
    size_t mapped_bytes = 0;
  };
  static StatusOr<Sizes> Plan(const Checkpoint& checkpoint, const PackOptions& options);
};

}  // namespace sluice
