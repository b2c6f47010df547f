// What tests of the sender share: a pool whose every element says where it is, and what must travel of it.
#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "common/dtype.h"
#include "gtest/gtest.h"
#include "model/handoff.h"
#include "model/kv_body.h"
#include "prefill/kv_sender.h"

namespace sluice::prefill {

inline constexpr KvLayout kLayout = KvLayout::Gqa(3, 1, 32);  // in bf16 a token of one layer has 128 bytes
inline constexpr KvCodec kCodec = KvCodec::kBf16;
inline constexpr int kPageTokens = 4;
inline constexpr uint64_t kDecodeEpoch = 99;

inline proto::Hello HelloOf(std::string_view role, uint64_t epoch, const std::vector<KvCodec>& wire = {kCodec}) {
  proto::Hello hello = MakeHello(role, {epoch}, "hash", ToProto(kLayout), kCodec, wire);
  if (role == "decode") hello.set_credit_bytes(1 << 20);
  return hello;
}

inline KvSenderOptions SmallOptions() {
  return {.hello = HelloOf("prefill", 1),
          .send_memory_bytes = 8192,
          .connection_bytes_in_flight_max = 4096,
          .frame_bytes_min = 1,
          .frame_bytes_max = 2048,
          .connections_max = 2,
          .connect_timeout = absl::Seconds(20),
          .result_timeout = absl::Seconds(20)};
}

inline proto::Ticket TicketOf(uint64_t reservation, const std::string& address, uint64_t epoch = kDecodeEpoch) {
  proto::Ticket ticket;
  ticket.set_request_id(reservation + 1000);
  ticket.set_reservation_id(reservation);
  ticket.set_generation(1);
  ticket.set_decode_epoch(epoch);
  ticket.set_kv_address(address);
  return ticket;
}

inline proto::HandoffRecord RecordOf(uint64_t reservation, int kv_tokens) {
  proto::HandoffRecord record;
  record.set_request_id(reservation + 1000);
  record.set_kv_tokens(static_cast<uint32_t>(kv_tokens));
  return record;
}

inline KvRange AllLayers(int64_t first_token, int64_t tokens) {
  return {.layers = kLayout.layers, .first_token = first_token, .tokens = tokens};
}

// A pool whose every element says where it is.
struct FilledPool {
  explicit FilledPool(int64_t tokens)
      : pool(*KvPool::Create({.layout = kLayout, .codec = kCodec, .page_tokens = kPageTokens, .pages = 64})),
        lease(*pool->Lease(pool->PagesFor(tokens))) {
    for (int layer = 0; layer < kLayout.layers; ++layer) {
      for (int64_t t = 0; t < tokens; ++t) {
        for (int e = 0; e < 32; ++e) {
          *Element(pool->Plane(Page(t), layer, 0).codes, t, e) = Value(false, layer, t, e);
          *Element(pool->Plane(Page(t), layer, 1).codes, t, e) = Value(true, layer, t, e);
        }
      }
    }
  }
  PageIndex Page(int64_t token) const { return lease.pages()[static_cast<size_t>(token / kPageTokens)]; }
  static uint16_t* Element(std::byte* plane, int64_t token, int element) {
    return reinterpret_cast<uint16_t*>(plane) + token % kPageTokens * 32 + element;
  }
  static uint16_t Value(bool is_v, int layer, int64_t token, int element) {
    return F32ToBf16(static_cast<float>((is_v ? -1 : 1) * (1 + layer + 3 * (element % 32) + 128 * (token % 64))));
  }
  std::vector<PageIndex> pages() const { return {lease.pages().begin(), lease.pages().end()}; }

  std::unique_ptr<KvPool> pool;
  PageLease lease;
};

// A frame holds what FilledPool put there, in its codec and in the order of KV_METHODS section 8.
inline void ExpectFilledRows(const KvFrameHeader& header, absl::Span<const std::byte> payload) {
  const KvCodecInfo& codec = Info(header.codec);
  const KvRowShape shape = kLayout.row();
  std::vector<std::byte> expected;
  for (int layer = header.layer; layer < header.layer + header.layers; ++layer) {
    for (const bool is_v : {false, true}) {
      std::vector<float> rows;
      for (uint32_t t = header.first_token; t < header.first_token + header.tokens; ++t) {
        for (int e = 0; e < 32; ++e) rows.push_back(Bf16ToF32(FilledPool::Value(is_v, layer, t, e)));
      }
      const size_t begin = (expected.size() + 15) / 16 * 16;
      const size_t code_bytes = codec.code_bytes(shape) * header.tokens;
      expected.resize(begin + code_bytes + codec.scale_bytes(shape) * header.tokens);
      codec.encode(shape, rows.data(), header.tokens, 32, &expected[begin], expected.data() + begin + code_bytes);
    }
  }
  EXPECT_TRUE(absl::MakeConstSpan(expected) == payload)
      << Name(header.codec) << ": layer " << header.layer << " from token " << header.first_token;
}

}  // namespace sluice::prefill
