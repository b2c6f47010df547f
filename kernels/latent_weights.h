// The up-projection of latent attention, cut by heads: of each head the rows that make its key of a latent, and those
// that make its value. Decode brings queries into the latents' space, for which it needs the key's part transposed.
//
// Neither part is multiplied into the query's or the output's projection: the products of the two are larger than both
// (V3: 512 x 7168 for each head instead of 128 x 512 and 128 x 7168).
#pragma once

#include <vector>

#include "kernels/matmul.h"

namespace sluice {

// What a head's query, key and value consist of.
struct LatentShape {
  int heads = 0;
  int latent = 0;     // channels that the heads share: key and value are products of them
  int rope_dim = 0;   // and the rotated part of a key, which stands behind every head's own
  int nope_dim = 0;   // of a key that is a head's own
  int value_dim = 0;  // of a head

  int cached() const { return latent + rope_dim; }  // channels of a cached row
  int key_dim() const { return nope_dim + rope_dim; }
};

struct LatentWeights {
  std::vector<PackedMatrix> key;         // of each head [nope_dim, latent]
  std::vector<PackedMatrix> key_across;  // its transpose, [latent, nope_dim]
  std::vector<PackedMatrix> value;       // [value_dim, latent]

  // `up` is [heads (nope_dim + value_dim), latent]. InvalidArgument where it is quantised in blocks along its rows,
  // which cannot be transposed.
  static StatusOr<LatentWeights> Pack(const ConstMatrixView& up, const LatentShape& shape, const PackOptions& options,
                                      ThreadPool& pool);
  static size_t PackedBytes(DType type, const LatentShape& shape, const PackOptions& options);
};

}  // namespace sluice
