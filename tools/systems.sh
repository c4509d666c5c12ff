#!/usr/bin/env bash
# The README's two commands in other releases of Debian, and a table of what came of it.
#
#     SYSTEMS='trixie sid'   these only; JOBS=2 for so many processes of tests; PATIENCE=5 on a busy machine
#     ROOTS=…                keeps the systems elsewhere than in build/systems
#
# Each system is made once by debootstrap, from the mirror that this machine's apt sources name, and
# is run in by chroot, so this needs root. Its mounts belong to the process that runs in it (unshare):
# however that ends, they are gone. What a command wrote is beside the system, in NAME.demo and NAME.tests.
set -euo pipefail

here=$(cd "$(dirname "$0")/.." && pwd)
roots=${ROOTS:-$here/build/systems}
systems=${SYSTEMS:-bookworm trixie sid}
wanted='python3-venv python3-dev gcc git curl openssl procps ca-certificates postgresql redis-server valkey-server'
old='-o Acquire::Check-Valid-Until=false' # a mirror may be a copy of some weeks ago
mirror=$(sed -nsE '/^ *#/d; s|.*(https?://[^ ]+/debian)/?( .*)?$|\1|p' /etc/apt/sources.list \
  /etc/apt/sources.list.d/* 2> /dev/null | sed -n 1p || true)

# The README's code blocks after the heading "Two commands".
block() {
  awk -v n="$1" '/^## Two commands/ {on = 1} on && /^```sh/ {at++; code = 1; next} /^```/ {code = 0}
                 on && code && at == n' "$here/README.md"
}

# enter ROOT COMMAND: run a command there, with a terminal's usual surroundings and nothing else.
enter() {
  unshare --mount bash -euc '
    mount --bind /dev "$1/dev"; mount -t devpts devpts "$1/dev/pts"; mount -t tmpfs tmpfs "$1/dev/shm"
    mount -t proc proc "$1/proc"
    exec env -i HOME=/root LANG=C.UTF-8 PATH=/usr/sbin:/usr/bin:/sbin:/bin DEBIAN_FRONTEND=noninteractive PYTEST_ADDOPTS="${PYTEST_ADDOPTS:-}" PATIENCE="${PATIENCE:-1}" \
      PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_ROOT_USER_ACTION=ignore chroot "$1" bash -euo pipefail -c "$2"' - "$1" "$2"
}

make_root() {
  [ -e "$1/etc/debian_version" ] || debootstrap --variant=minbase "${1##*/}" "$1" "$mirror" > "$1.made"
  printf '#!/bin/sh\nexit 101\n' > "$1/usr/sbin/policy-rc.d" # installed servers are not started
  chmod +x "$1/usr/sbin/policy-rc.d"
  enter "$1" "apt-get $old update -qq
    for name in $wanted; do apt-cache show \$name > /dev/null 2>&1 && echo \$name; done \
      | xargs apt-get $old install -qq -y --no-install-recommends" > "$1.installed" 2>&1
  # Networks and package indexes as this machine reaches them.
  cp /etc/resolv.conf "$1/etc/resolv.conf"
  cp /etc/ssl/certs/ca-certificates.crt "$1/etc/ssl/certs/ca-certificates.crt"
  if [ -e /etc/pip.conf ]; then cp /etc/pip.conf "$1/etc/pip.conf"; fi
}

count() { grep -oE "[0-9]+ $1" <<< "$summary" | grep -oE '^[0-9]+' || echo 0; }

row() { printf '%-9s %-8s %-38s %-6s %7s %7s %8s %8s\n' "$@"; }

mkdir -p "$roots"
table=$(row system Python servers demo passed failed skipped seconds)
bad=0
for name in $systems; do
  root=$roots/$name
  make_root "$root"
  rm -rf "$root/root/shardkit"
  git clone -q "$here" "$root/root/shardkit"
  python=$(cd "$root/usr/bin" && printf '%s\n' python3.* | grep -E '^python3\.[0-9]+$' | sort -V | tail -n 1)
  version=$(enter "$root" "$python -c 'import platform; print(platform.python_version())'")
  servers=$(enter "$root" 'for each in redis-server valkey-server; do
    ! command -v $each > /dev/null || $each --version; done' | sed -E 's/^(\w+).* v=([0-9.]+).*/\1 \2/' | paste -sd, | sed 's/,/, /')
  demo=ok
  enter "$root" "cd /root/shardkit; $(block 1 | sed "s/^python3 /$python /")" > "$root.demo" 2>&1 || demo=failed
  started=$(date +%s)
  enter "$root" "cd /root/shardkit; $(block 2 | sed "s/^python3 /$python /; s/-n 5/-n ${JOBS:-5}/")" > "$root.tests" 2>&1 || true
  seconds=$(($(date +%s) - started))
  summary=$(tail -n 1 "$root.tests")
  failed=$(($(count failed) + $(count error)))
  [ "$demo" = ok ] && [ "$failed" = 0 ] && [ "$(count passed)" != 0 ] || bad=1
  table+=$'\n'$(row "$name" "$version" "$servers" "$demo" "$(count passed)" "$failed" "$(count skipped)" "$seconds")
done
printf '%s\n' "$table"
exit "$bad"
