"""A service for each session of tests; services of a test's own are made with `service`."""

import pytest
from processes import DATA, MODEL, service


@pytest.fixture(scope="session")
def tiny_model():
    return DATA / "tiny/llama-gqa"


@pytest.fixture(scope="session")
def real_model():
    if not MODEL:
        pytest.skip("SLUICE_TEST_MODEL is not set")
    return MODEL


@pytest.fixture(scope="session")
def real_service(real_model):
    with service(real_model, worker_flags=["--threads", "2"]) as running:
        yield running
