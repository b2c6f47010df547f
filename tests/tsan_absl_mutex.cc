// Only in builds with the thread sanitizer, linked into every test. Debian's Abseil is built without it, so that the
// sanitizer would see no order between two holders of an absl::Mutex and report each value that one guards. These
// definitions stand before the library's and tell it; waiting is by looking again, since the library would evaluate a
// condition out of its sight. Other libraries without annotations (gRPC) need suppressions.
#include <dlfcn.h>
#include <unistd.h>

#include "absl/synchronization/mutex.h"
#include "absl/time/clock.h"

extern "C" void __tsan_acquire(void* address);
extern "C" void __tsan_release(void* address);

namespace absl {
ABSL_NAMESPACE_BEGIN

namespace {

using Method = void (*)(Mutex*);

Method TheLibrarys(const char* mangled_name) { return reinterpret_cast<Method>(dlsym(RTLD_NEXT, mangled_name)); }

constexpr useconds_t kLookAgainUs = 200;

// The library's search for deadlocks keeps a graph of its own for mutexes that are held together, which the sanitizer
// reports too. The sanitizer searches itself.
[[maybe_unused]] const bool no_search = [] {
  SetMutexDeadlockDetectionMode(OnDeadlockCycle::kIgnore);
  return true;
}();

}  // namespace

void Mutex::Lock() {
  static const Method lock = TheLibrarys("_ZN4absl7debian35Mutex4LockEv");
  lock(this);
  __tsan_acquire(this);
}

void Mutex::Unlock() {
  static const Method unlock = TheLibrarys("_ZN4absl7debian35Mutex6UnlockEv");
  __tsan_release(this);
  unlock(this);
}

bool Mutex::AwaitWithDeadline(const Condition& condition, absl::Time deadline) {
  while (!condition.Eval()) {
    if (absl::Now() >= deadline) return false;
    Unlock();
    usleep(kLookAgainUs);
    Lock();
  }
  return true;
}

bool Mutex::AwaitWithTimeout(const Condition& condition, absl::Duration timeout) {
  return AwaitWithDeadline(condition, absl::Now() + timeout);
}

void Mutex::Await(const Condition& condition) { AwaitWithDeadline(condition, absl::InfiniteFuture()); }

// What absl::Notification waits with.
void Mutex::LockWhen(const Condition& condition) {
  Lock();
  Await(condition);
}

bool Mutex::LockWhenWithDeadline(const Condition& condition, absl::Time deadline) {
  Lock();
  return AwaitWithDeadline(condition, deadline);
}

bool Mutex::LockWhenWithTimeout(const Condition& condition, absl::Duration timeout) {
  Lock();
  return AwaitWithTimeout(condition, timeout);
}

ABSL_NAMESPACE_END
}  // namespace absl
