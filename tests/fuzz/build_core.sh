#!/usr/bin/env bash
# Builds build/fuzz/cmake/core_fuzz: the scheduling core under libFuzzer, ASan and UBSan. That takes clang and its
# fuzzing runtime; where root runs this on Debian, they are installed. Without them it says so and succeeds: campaign.py
# does without, loudly.
set -euo pipefail
cd "$(dirname "$0")/../.."
PATH="$PWD/${VENV:-.venv}/bin:$PATH"

find_clang() {
  local compiler probe
  probe=$(mktemp -d)
  echo 'extern "C" int LLVMFuzzerTestOneInput(const unsigned char*, unsigned long) { return 0; }' > "$probe/probe.cpp"
  for compiler in clang++ clang++-{22,21,20,19,18,17,16,15,14}; do
    if command -v "$compiler" > /dev/null &&
      "$compiler" -std=c++20 -fsanitize=fuzzer,address,undefined "$probe/probe.cpp" -o "$probe/probe" 2> /dev/null; then
      echo "$compiler"
      break
    fi
  done
  rm -r "$probe"
}

clang=$(find_clang)
if [ -z "$clang" ] && [ "$(id -u)" = 0 ] && command -v apt-get > /dev/null; then
  echo "Installing clang and its fuzzing runtime ..."
  # Debian 12 keeps the runtime in a package of the compiler's version, later ones in one with clang's name.
  { apt-get install -qq -y --no-install-recommends clang libclang-rt-14-dev ||
    { apt-get update -qq && { apt-get install -qq -y --no-install-recommends clang libclang-rt-14-dev ||
      apt-get install -qq -y --no-install-recommends clang libclang-rt-dev; }; }; } > /dev/null 2>&1 || true
  clang=$(find_clang)
fi
if [ -z "$clang" ]; then
  echo "!!! clang with its fuzzing runtime was not found (Debian: apt-get install clang libclang-rt-14-dev)" >&2
  rm -f build/fuzz/cmake/core_fuzz
  exit 0
fi
cmake -S tests/fuzz -B build/fuzz/cmake -G Ninja -DCMAKE_CXX_COMPILER="$clang" > /dev/null
cmake --build build/fuzz/cmake
