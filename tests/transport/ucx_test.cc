#include "tests/transport/conformance.h"

namespace sluice {

INSTANTIATE_TEST_SUITE_P(Ucx, TransportConformance, testing::Values("ucx"));

}  // namespace sluice
