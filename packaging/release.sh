#!/usr/bin/env bash
# Make a release of the commit that is checked out: its notes, its citation, its tag, and its sdist and wheel, checked. Nothing is uploaded.
#
#     packaging/release.sh 1.2.0
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
version=${1:-}
[[ $version =~ ^[0-9]+\.[0-9]+\.[0-9]+$ ]] || { echo "usage: packaging/release.sh MAJOR.MINOR.PATCH" >&2; exit 2; }
[ -z "$(git status --porcelain)" ] || { echo "Commit or stash what is not committed: a release is of a commit." >&2; exit 1; }
! git rev-parse -q --verify "refs/tags/v$version" >/dev/null || { echo "The tag v$version exists." >&2; exit 1; }

fragments=$(git ls-files 'changes/+*')
if grep -q "^## $version\b" CHANGELOG.md; then # the notes of a first release are written by hand
    [ -z "$fragments" ] || { echo "CHANGELOG.md has $version already: put these into it, and delete them: $fragments" >&2; exit 1; }
else
    [ -n "$fragments" ] || { echo "changes/ is empty: there is nothing to release." >&2; exit 1; }
    python3 -m towncrier build --yes --version "$version"
fi
sed -i "s/^version: .*/version: $version/" CITATION.cff
git diff --quiet HEAD || git commit -aqm "Release $version"
git tag -a "v$version" -m "gigagp $version"
packaging/check_wheel.sh "build/release-$version"
ls "build/release-$version"/gigagp-"$version"*.whl
