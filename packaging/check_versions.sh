#!/usr/bin/env bash
# Run the tests with the oldest versions that pyproject.toml allows of everything that the package and its tests require, or
# with the newest that pip finds. Arguments behind the first one are pytest's; without them the whole suite runs.
#
#     packaging/check_versions.sh oldest
#     PYTHON=python3.13 packaging/check_versions.sh newest tests/solvers -x
#     ENVIRONMENT=build/oldest packaging/check_versions.sh oldest tests/kernels   # keeps the environment, or uses it again
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
case "${1:-}" in
    oldest | newest) which=$1 ;;
    *) echo "usage: packaging/check_versions.sh oldest|newest [arguments of pytest]" >&2 && exit 2 ;;
esac
shift
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
export PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_NO_INPUT=1 PYTHONDONTWRITEBYTECODE=1
environment=${ENVIRONMENT:-$scratch/environment}

if [ ! -e "$environment/complete" ]; then
    "${PYTHON:-python3}" -m venv "$environment"
    "$environment/bin/pip" install -q --upgrade pip
    touch "$scratch/constraints.txt"
    [ "$which" = newest ] || "${PYTHON:-python3}" packaging/lowest_versions.py > "$scratch/constraints.txt"
    "$environment/bin/pip" install -q -c "$scratch/constraints.txt" ".[test]"
    touch "$environment/complete"
fi
"$environment/bin/python" - <<'PYTHON'
import platform
import tomllib
from importlib import metadata

with open("pyproject.toml", "rb") as file:
    project = tomllib.load(file)["project"]
names = [one.partition(">")[0] for one in project["dependencies"] + project["optional-dependencies"]["test"]]
print("Python", platform.python_version(), *(f"{name} {metadata.version(name)}" for name in names), sep=", ")
PYTHON
[ $# -gt 0 ] || set -- -n auto
# The installed package is tested, not the checkout's src/.
"$environment/bin/python" -m pytest -q -p no:cacheprovider -o "pythonpath=tests ." "$@"
