#!/usr/bin/env bash
# From a fresh Debian 12 to an answered question: installs packages, builds, gets a model, starts gateway, prefill and
# decode on loopback, asks one question, and stays up until Ctrl-C.
#
#   deploy/quickstart.sh [--model PATH] [--port N] [--prefill N] [--decode N] [--once] [--question TEXT]
#
#   --model PATH     a GGUF file or a Hugging Face folder; default: SmolLM2-135M-Instruct, downloaded once
#   --port N         port of the HTTP endpoint (8080)
#   --prefill N      prefill processes (1)
#   --decode N       decode processes (1)
#   --question TEXT  what to ask
#   --once           stop after the answer; exit status 0 only if one came
set -euo pipefail
ROOT=$(cd "$(dirname "$0")/.." && pwd)
cd "$ROOT"
. deploy/lib.sh

model= port=8080 prefill=1 decode=1 once= question="Why is the sky blue? Answer in two sentences."
while [ $# -gt 0 ]; do
  case $1 in
    --model | --port | --prefill | --decode | --question)
      [ $# -ge 2 ] || fail "$1 needs a value"
      declare "${1#--}=$2"; shift 2 ;;
    --once) once=1; shift ;;
    -h | --help) sed -n '2,13s/^# \{0,1\}//p' "$0"; exit 0 ;;
    *) fail "unknown argument $1; see --help" ;;
  esac
done
[ -z "$model" ] || [ -e "$model" ] || fail "--model $model: no such file or folder"

need_packages deploy/packages.txt deploy/packages-quickstart.txt

if [ ! -f build/release/build.ninja ]; then
  step "Configuring the release build"
  configure release -DSLUICE_TESTS=OFF
fi
step "Building build/release/bin/sluice (some minutes the first time, nothing the next)"
ninja -C build/release sluice || fail "the build failed (see above). With little memory, try: ninja -C build/release -j1 sluice"

[ -n "$model" ] || model=$(default_model)

endpoint=http://127.0.0.1:$port
if curl --silent --max-time 2 --output /dev/null "$endpoint/health"; then
  fail "something already answers on port $port; give another with --port"
fi
step "Starting one gateway, $prefill prefill and $decode decode process(es) with $(basename "$model")"
log=$(mktemp /tmp/sluice-quickstart.XXXXXX.log)
build/release/bin/sluice serve --model "$model" --port "$port" --prefill "$prefill" --decode "$decode" >"$log" 2>&1 &
server=$!
stop() {
  trap - EXIT INT TERM
  kill -TERM "$server" 2>/dev/null || true
  wait "$server" 2>/dev/null || true
}
trap stop EXIT
trap 'stop; exit 130' INT TERM

for second in $(seq 1 120); do
  kill -0 "$server" 2>/dev/null || { tail -n 20 "$log"; fail "the service ended while starting; its log is $log"; }
  curl --silent --fail --max-time 2 --output /dev/null "$endpoint/ready" && break
  [ "$second" -lt 120 ] || { tail -n 20 "$log"; fail "not ready after 120 s; its log is $log"; }
  [ $((second % 5)) -ne 0 ] || echo "  waiting for readiness, $second s: $(curl --silent --max-time 2 "$endpoint/ready" | head -c 200)"
  sleep 1
done

step "Asking: $question"
answer=$(mktemp)
status=0
printf '%s\n' "$question" | build/release/bin/sluice chat --url "$endpoint" --max-tokens 120 | tee "$answer" || status=$?
if [ "$status" -ne 0 ] || ! grep -q '[^[:space:]]' "$answer"; then
  rm -f "$answer"; tail -n 20 "$log"
  fail "no answer came; the service's log is $log"
fi
rm -f "$answer"
[ -z "$once" ] || { stop; rm -f "$log"; exit 0; }

cat <<EOF

The service listens on $endpoint (OpenAI API: /v1/chat/completions, /v1/completions, /v1/models; also /ready, /metrics).
Its log is $log. Try:

  curl $endpoint/v1/chat/completions -H 'Content-Type: application/json' -d \\
    '{"messages": [{"role": "user", "content": "Name three rivers."}], "max_tokens": 64, "stream": true}' --no-buffer

Ctrl-C stops it.
EOF
wait "$server"
