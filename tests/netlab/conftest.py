"""A lab for each test: prefill, decode and the test itself in namespaces of their own."""

import contextlib
import pathlib
import sys

import pytest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent / "process"))

import network  # noqa: E402
from cable import Cable  # noqa: E402
from processes import DATA, MODEL, service  # noqa: E402


@pytest.fixture(scope="session")
def namespaces():
    reason = network.why_not()
    if reason:
        pytest.skip(reason)


@pytest.fixture
def lab(namespaces):
    made = network.Lab()
    try:
        with made.test.entered():
            yield made
    finally:
        made.close()


@pytest.fixture
def cable(lab):
    made = Cable(lab.tuns())
    try:
        yield made
    finally:
        made.close()


@pytest.fixture(scope="session")
def real_model():
    if not MODEL:
        pytest.skip("SLUICE_TEST_MODEL is not set")
    return MODEL


@pytest.fixture(scope="session")
def tiny_model():
    return DATA / "tiny/llama-gqa"


@pytest.fixture
def lab_service(lab):
    """A function that starts a service in the lab, until the end of the test."""
    with contextlib.ExitStack() as stack:
        yield lambda *args, **kwargs: stack.enter_context(service(*args, places=lab.places(), **kwargs))
