#!/usr/bin/env bash
# Install a wheel of gigagp on a bare Debian, where there is Python but no compiler, and run the README's demo there.
#
#     sudo packaging/check_debian.sh [build/wheels] [bookworm]
#
# The wheel is that of the folder given; without one, build_wheel.sh makes it. debootstrap makes the system in a temporary
# folder from the mirror in MIRROR, with python3 and python3-venv beside what every Debian has. pip finds what it finds on this machine.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
folder=${1:-build/wheels}
suite=${2:-bookworm}
compgen -G "$folder/gigagp-*.whl" >/dev/null || packaging/build_wheel.sh "$folder"
wheel=$(realpath "$(ls -t "$folder"/gigagp-*.whl | head -n 1)")
if [ "$(id -u)" != 0 ] || ! command -v debootstrap >/dev/null; then
    echo "debootstrap, as root, makes the Debian: apt-get install debootstrap." >&2
    exit 2
fi

root=$(mktemp -d)
mounted=()
finish() {
    for place in "${mounted[@]}"; do umount "$place"; done
    rm -rf --one-file-system "$root"
}
trap finish EXIT
debootstrap --variant=minbase --include=python3,python3-venv "$suite" "$root" "${MIRROR:-http://deb.debian.org/debian}" >"$root.log" ||
    { tail -n 20 "$root.log" >&2; exit 1; }
rm "$root.log"
# What pip is told on this machine: its settings, certificates, and folders of wheels.
python3 -m pip config debug | grep -oE "/.*, exists: True" | sed "s/, exists: True//" >"$root/told"
python3 -m pip config list | grep -oE "(file://)?/[^' ]+" | sed "s|^file://||; s|/simple$||" >>"$root/told"
mount -t proc proc "$root/proc"
mounted=("$root/proc")
for place in $(sort -u "$root/told"); do
    if [ -d "$place" ]; then
        mkdir -p "$root$place"
        mount --bind -o ro "$place" "$root$place"
        mounted=("$root$place" "${mounted[@]}")
    elif [ -f "$place" ]; then
        mkdir -p "$root$(dirname "$place")"
        cp "$place" "$root$place"
    fi
done
cp --dereference /etc/resolv.conf "$root/etc/resolv.conf"
cp "$wheel" constraints.txt packaging/check_installed.py "$root/root"
settings=$(env | grep -E "^(PIP_|SSL_CERT|https?_proxy|HTTPS?_PROXY|OMP_NUM_THREADS)" || true)

cat >"$root/root/try.sh" <<'WITHIN'
set -euo pipefail
cd /root
if command -v cc gcc g++ clang; then
    echo "a compiler is on the PATH" && exit 1
fi
echo "Debian $(cat /etc/debian_version), $(python3 --version), $(dpkg -l | grep -c ^ii) packages, no compiler"
python3 -m venv .venv
.venv/bin/pip install -q -c constraints.txt ./gigagp-*.whl
.venv/bin/gigagp demo
.venv/bin/python check_installed.py
WITHIN
# shellcheck disable=SC2086
env -i PATH=/usr/sbin:/usr/bin:/sbin:/bin HOME=/root LANG=C.UTF-8 $settings chroot "$root" bash /root/try.sh
