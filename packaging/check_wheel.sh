#!/usr/bin/env bash
# Build the sdist, and the wheel from the sdist; install the wheel where no compiler can be found; run the demo, the check of
# the installed package and tests of it. The wheel is left in the folder given, build/wheels unless another is.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
mkdir -p "${1:-build/wheels}"
out=$(cd "${1:-build/wheels}" && pwd)
scratch=$(mktemp -d)
path=$PATH
trap 'PATH=$path; rm -rf "$scratch"' EXIT
export PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_NO_INPUT=1 PYTHONDONTWRITEBYTECODE=1

packaging/build_wheel.sh "$out"

# Only what pip and the tests need is on the PATH: `cc` and `g++` are not.
mkdir "$scratch/tools"
for tool in bash sh env uname ldconfig git; do
    found=$(command -v "$tool" || true)
    [ -z "$found" ] || ln -s "$found" "$scratch/tools/$tool"
done
python3 -m venv "$scratch/user"
mkdir "$scratch/away"
cp -r packaging tests benchmarks pyproject.toml constraints.txt "$scratch/away" # a test imports one of the benchmarks
cd "$scratch/away"
export PATH="$scratch/user/bin:$scratch/tools"
if command -v cc gcc g++ clang; then
    echo "a compiler is on the PATH" && exit 1
fi
wheel=$(/bin/ls -t "$out"/gigagp-*.whl | /usr/bin/head -n 1) # the folder may have those of earlier commits
pip install -q -c constraints.txt "$wheel" pytest pytest-timeout hypothesis
export OMP_NUM_THREADS="${OMP_NUM_THREADS:-1}" # on busy cores two threads wait for each other, and tests run out of time
gigagp demo
python packaging/check_installed.py
python -m pytest -q -o pythonpath=tests tests/products tests/solvers tests/kernels
