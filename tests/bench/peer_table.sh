#!/usr/bin/env bash
# Sluice beside llama.cpp, built for this machine: one table, medians of ratios of interleaved runs.
#
#   tests/bench/peer_table.sh --model FILE.gguf [--rounds 5] [--threads 2] [--work FOLDER] [--before "chrt -f 1"]
#
# llama.cpp's source lies in the source package of llama-cpp-python; it is fetched and built in FOLDER (by default
# ~/.cache/sluice/peer), once. --before is put before every measured command: on a busy machine, what gives it the cores.
set -euo pipefail

root=$(cd "$(dirname "$0")/../.." && pwd)
work=${XDG_CACHE_HOME:-$HOME/.cache}/sluice/peer
version=0.3.36
model='' rounds=5 threads=2 before=''
while [[ $# -gt 0 ]]; do
  [[ $# -ge 2 ]] || { echo "$1 needs a value" >&2; exit 2; }
  case $1 in
    --model) model=$2 ;;
    --rounds) rounds=$2 ;;
    --threads) threads=$2 ;;
    --work) work=$2 ;;
    --before) before=$2 ;;
    *) echo "unknown option $1" >&2; exit 2 ;;
  esac
  shift 2
done
[[ -f $model ]] || { echo "--model names no file: '$model'" >&2; exit 2; }

mkdir -p "$work"
if [[ ! -x $work/build/bin/llama-bench || ! -x $work/build/bin/llama-batched-bench ]]; then
  echo "building llama.cpp in $work (several minutes)" >&2
  python3 -m pip download --quiet --no-deps --no-binary llama-cpp-python -d "$work" "llama-cpp-python==$version"
  mkdir -p "$work/source"
  tar xf "$work/llama_cpp_python-$version.tar.gz" -C "$work/source" --strip-components 1
  cmake -S "$work/source/vendor/llama.cpp" -B "$work/build" -G Ninja -DCMAKE_BUILD_TYPE=Release -DGGML_NATIVE=ON \
    -DLLAMA_CURL=OFF -DLLAMA_BUILD_TESTS=OFF -DLLAMA_BUILD_EXAMPLES=OFF -DLLAMA_BUILD_SERVER=OFF \
    -DBUILD_SHARED_LIBS=OFF >"$work/configure.log"
  cmake --build "$work/build" --target llama-bench llama-batched-bench >"$work/build.log"
fi

echo "building engine_bench" >&2
cmake -S "$root" -B "$root/build/bench" -G Ninja -DCMAKE_BUILD_TYPE=Release -DCMAKE_CXX_FLAGS_RELEASE="-O2 -g1" \
  -DSLUICE_BENCHMARKS=ON -DSLUICE_TESTS=ON >/dev/null
cmake --build "$root/build/bench" --target engine_bench >/dev/null

exec python3 "$root/tests/bench/peer_table.py" --engine "$root/build/bench/bin/engine_bench" \
  --llama "$work/build/bin" --model "$model" --rounds "$rounds" --threads "$threads" --before "$before"
