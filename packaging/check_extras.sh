#!/usr/bin/env bash
# Install each extra of pyproject.toml alone in a fresh environment, and use what it promises (use_extras.py).
#
#     packaging/check_extras.sh            # all extras
#     packaging/check_extras.sh docs geo   # these
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
export PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_NO_INPUT=1 PYTHONDONTWRITEBYTECODE=1

extras=("$@")
if [ $# -eq 0 ]; then
    mapfile -t extras < <(python3 -c '
import tomllib
with open("pyproject.toml", "rb") as file:
    print(*tomllib.load(file)["project"]["optional-dependencies"], sep="\n")')
fi

check() {
    python3 -m venv "$scratch/$1" &&
        "$scratch/$1/bin/pip" install -q -c constraints.txt "gigagp[$1] @ file://$wheel" &&
        "$scratch/$1/bin/python" packaging/use_extras.py "$1"
}

# One wheel, as `pip install .` would build it each time.
python3 -m pip wheel -q --no-deps -w "$scratch" .
wheel=$(echo "$scratch"/gigagp-*.whl)
results=()
failed=0
for extra in "${extras[@]}"; do
    began=$SECONDS
    if check "$extra"; then result=passed; else result=FAILED failed=1; fi
    results+=("$(printf '%-10s %s, %d s' "$extra" "$result" $((SECONDS - began)))")
    rm -rf "${scratch:?}/$extra"
done
printf '%s\n' "${results[@]}"
exit $failed
