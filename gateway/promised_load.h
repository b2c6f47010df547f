// Work that a worker was given, or is about to be given, and that its last report cannot contain yet. Pure; lives on
// the loop's thread.
#pragma once

#include <cstdint>
#include <memory>

namespace sluice {

class PromisedLoad {
 public:
  // Work that is not on its way yet. Counts until it is sent and reported, or until this is destroyed unsent.
  class Hold {
   public:
    Hold(PromisedLoad* load, int64_t amount) : load_(load), amount_(amount) { load_->held_ += amount_; }
    ~Hold() {
      if (load_ != nullptr) load_->held_ -= amount_;
    }
    Hold(const Hold&) = delete;
    Hold& operator=(const Hold&) = delete;
    // It is on its way: a report that is asked for from here on contains it.
    void Sent() {
      if (load_ == nullptr) return;
      load_->held_ -= amount_;
      load_->Add(amount_);
      load_ = nullptr;
    }

   private:
    PromisedLoad* load_;  // null once sent; outlives this
    const int64_t amount_;
  };

  void Add(int64_t amount) { since_asked_ += amount; }
  void OnAsk() {
    before_asked_ += since_asked_;
    since_asked_ = 0;
  }
  void OnReport() { before_asked_ = 0; }
  // What was sent is lost with the worker.
  void OnLost() { before_asked_ = since_asked_ = 0; }
  int64_t total() const { return held_ + before_asked_ + since_asked_; }

 private:
  int64_t held_ = 0;
  int64_t before_asked_ = 0;
  int64_t since_asked_ = 0;
};

}  // namespace sluice
