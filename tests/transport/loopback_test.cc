#include "tests/transport/conformance.h"

namespace sluice {

INSTANTIATE_TEST_SUITE_P(Loopback, TransportConformance, testing::Values("loopback"));

}  // namespace sluice
