// The kernels that are written once over vector lanes and compiled once per instruction set: attention over a span of
// keys, RMS norm, rotary embedding, SiLU, the codecs of KV rows. Each has a plain reference in its own stem's .cc,
// which is the portable entry of this table.
//
// This header is included by the files that are compiled for one instruction set, so it includes nothing with inline
// code (a linker would keep one copy of such code for the whole program).
#pragma once

#include <stddef.h>
#include <stdint.h>

#include "kernels/codec/codec_id.h"
#include "kernels/codec_kernels.h"

namespace sluice {

inline constexpr int kSpanKeys = 256;  // keys of a span; spans begin at multiples of it

// Memory that is wanted soon: asked for a line at a time while something else is computed. In the order of addresses,
// so that the hardware runs ahead too.
struct PrefetchRange {
  const char* begin;
  const char* end;
};
struct PrefetchQueue {
  const PrefetchRange* next;
  const PrefetchRange* end;
  const char* at;  // in the range before `next`, as far as `stop`
  const char* stop;
  uint32_t owed;  // 2^-16 of a line
};

// Always inlined: GCC 12 takes a function that only prefetches for one without effects, and drops its calls.
__attribute__((always_inline)) static inline void PrefetchLines(PrefetchQueue& queue, int lines) {
  for (; lines > 0; --lines, queue.at += 64) {
    if (queue.at >= queue.stop) {
      if (queue.next == queue.end) return;
      queue.at = queue.next->begin;
      queue.stop = queue.next->end;
      ++queue.next;
    }
    __builtin_prefetch(queue.at, 0, 2);
  }
}

// `part` of a line, in 2^-16, at a time: evenly, as what is asked for faster than memory answers is dropped.
__attribute__((always_inline)) static inline void PrefetchPart(PrefetchQueue* queue, uint32_t part) {
  if (part == 0) return;
  queue->owed += part;
  PrefetchLines(*queue, static_cast<int>(queue->owed >> 16));
  queue->owed &= 0xffff;
}

// Softmax attention of some rows over the keys of one span. A row is one query head of one token, scaled already, and
// rotated where the codec is.
struct AttentionSpan {
  const float* q;          // [rows, key_stride], zero from key_dim on
  const int32_t* visible;  // [rows]: how many of the span's keys the row sees, in [0, keys]
  int rows;
  int keys;  // in [1, kSpanKeys]; keys beyond are never read
  int key_dim;
  int key_stride;  // key_dim rounded up to kDimPad
  int value_dim;
  int value_stride;  // value_dim rounded up to kDimPad
  KvCodec codec;
  int k_bytes;                  // of codes that are read of a row of K
  const void* const* k_rows;    // [keys]: codes
  const void* const* v_rows;    // [keys], perhaps within those of k_rows
  const void* const* k_scales;  // [keys]: a row's scales; unset for codecs without a scales plane
  const void* const* v_scales;  // likewise
  size_t k_offset;              // in bytes, added to each of k_rows; the same for the others
  size_t v_offset;
  size_t k_scale_offset;
  size_t v_scale_offset;
  PrefetchQueue* ahead;  // what is read next
  int ahead_lines;       // that many lines of it are to be asked for by the way
  float* k_tile;         // scratch, [kKeyTile, key_stride]
  float* v_tile;         // scratch, [kValueTile, value_stride]
  float* row_scales;     // scratch, [kSpanKeys] and no less than [key_stride / kInt4Group, kKeyTile]
  int32_t* q_codes;      // scratch, [rows, key_stride / 2]
  int32_t* q_offsets;    // scratch, [rows, key_stride / kInt4Group rounded up]
  float* q_scales;       // scratch, [rows]
  float* scores;         // [rows, kSpanKeys]: exp(score - max), from weigh_keys to sum_values, which spends them
  float* max;            // [rows]: largest score; unset where a row sees nothing
  float* sum;            // [rows]: sum of exp(score - max)
  float* out;            // [rows, value_stride]: sum of exp(score - max) v
  float* weights;        // where set, [rows, weights_stride]: exp(score - max) of each key
  int64_t weights_stride;
};
inline constexpr int kDimPad = 16;
inline constexpr int kKeyTile = 32;
inline constexpr int kValueTile = 64;

// One row's running softmax over spans in ascending order: (max, sum, acc) takes in (span_max, span_sum, span_acc).
// Starts at max = -infinity, sum = 0, acc = 0.
struct AttentionMerge {
  float* max;
  float* sum;
  float* acc;  // [dim]
  float span_max;
  float span_sum;
  const float* span_acc;  // [dim]
  int dim;                // a multiple of kDimPad
};

// How much attention the span's keys get from rows whose softmax is known: column[k] += sum over the rows that see k,
// in ascending order, of exp(score - max) factor. Of the span only what scores need is set.
struct AttentionColumns {
  const AttentionSpan* span;
  const float* max;      // [rows], over all spans
  const float* factors;  // [rows]
  float* columns;        // [keys up to a whole number of kDimPad]
};

struct SimdKernels {
  // The two halves of attention over a span, in this order: `scores`, `max`, `sum` and `weights` of its keys, then
  // `out` of its values.
  void (*weigh_keys)(const AttentionSpan& span);
  void (*sum_values)(const AttentionSpan& span);
  void (*sum_columns)(const AttentionColumns& columns);
  void (*merge_span)(const AttentionMerge& merge);
  void (*rms_norm_row)(const float* x, const float* weight, int64_t size, float eps, float* out);
  void (*rope_head)(float* x, const float* cos, const float* sin, int head_dim, bool interleaved);
  void (*silu_mul_row)(const float* gate, const float* up, int64_t size, float* out);
  CodecKernels codec;
};

// Null where the program was built for a machine without the instructions.
const SimdKernels* Avx2Kernels();
const SimdKernels* Avx512Kernels();
const SimdKernels* PortableKernels();
const SimdKernels& ActiveKernels();  // of ActiveIsa()

}  // namespace sluice
