#!/usr/bin/env bash
# Installs what the tests need, builds, and runs every test. Ends in ctest's closing line.
#
#   tests/run.sh [--preset release|asan|tsan] [-- CTEST ARGUMENTS]
set -euo pipefail
ROOT=$(cd "$(dirname "$0")/.." && pwd)
cd "$ROOT"
. deploy/lib.sh

preset=release
if [ "${1-}" = --preset ]; then preset=${2?--preset needs a name}; shift 2; fi
[ "${1-}" != -- ] || shift

need_packages deploy/packages.txt deploy/packages-quickstart.txt tests/packages.txt

step "Building the $preset preset with its tests"
configure "$preset" -DSLUICE_TESTS=ON
ninja -C "build/$preset" || fail "the build failed (see above)"

venv=$ROOT/.cache/test-venv
if ! cmp -s tests/requirements.txt "$venv/requirements.txt"; then
  step "Installing the tests' Python packages into .cache/test-venv"
  rm -rf "$venv"
  python3 -m venv "$venv"
  "$venv/bin/pip" install --quiet --disable-pip-version-check -r tests/requirements.txt ||
    fail "pip could not install tests/requirements.txt: check the network and run this again"
  cp tests/requirements.txt "$venv/requirements.txt"
fi
SLUICE_TEST_MODEL=${SLUICE_TEST_MODEL-$(default_model)}
export SLUICE_TEST_MODEL SLUICE_TEST_PYTHON=$venv/bin/python
export SLUICE_TEST_BINARY=$ROOT/build/$preset/bin/sluice

step "Running the tests"
ctest --test-dir "build/$preset" --output-on-failure --parallel "$(nproc)" "$@"
