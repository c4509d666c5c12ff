#!/usr/bin/env bash
# Runs the README's two commands, the demo and the tests, on releases of Debian: what `make systems`
# calls. Needs root, and Debian's debootstrap, which makes a root of each release in build/systems/; the
# roots are kept for the next run.
#
#   tools/systems.sh [SUITE …]      by default bookworm trixie sid
#
# PYTHON names another interpreter of the release (a Debian package, such as python3.15). TESTS limits
# the tests. The last lines are a table of what ran.
set -euo pipefail

here=$(cd "$(dirname "$0")/.." && pwd)
mirror=${MIRROR:-http://deb.debian.org/debian}
python=${PYTHON:-python3}
packages="$python $python-venv $python-dev gcc git make ca-certificates procps libfaketime redis-server valkey-server"

# The README's code blocks after the heading "Two commands" are the demo and the tests.
command_of_readme() {
  awk -v wanted="$1" '/^## Two commands/ {on = 1} on && /^```sh/ {n++; code = 1; next} /^```/ {code = 0}
                      on && code && n == wanted' "$here/README.md" | sed "s/^python3 /$python /"
}

mounted=()
unmount() { for place in "${mounted[@]}"; do umount -R "$place" || true; done; }
trap unmount EXIT

results=""
failed=0
for suite in "${@:-bookworm trixie sid}"; do for suite in $suite; do
  root=$here/build/systems/$suite
  if [ ! -e "$root/ready" ]; then
    rm -rf "$root" && mkdir -p "$root"
    debootstrap --variant=minbase "$suite" "$root" "$mirror" > "$root.log"
    printf '#!/bin/sh\nexit 101\n' > "$root/usr/sbin/policy-rc.d"  # packages start no services
    chmod +x "$root/usr/sbin/policy-rc.d"
    touch "$root/ready"
  fi
  mount -t proc proc "$root/proc" && mounted+=("$root/proc")
  mount --rbind /dev "$root/dev" && mount --make-rslave "$root/dev" && mounted+=("$root/dev")
  cp /etc/resolv.conf "$root/etc/"
  inside() { chroot "$root" env -i HOME=/root PATH=/usr/sbin:/usr/bin:/sbin:/bin bash -euo pipefail -c "$1"; }

  inside 'apt-get -o Acquire::Check-Valid-Until=false update -qq'
  wanted=$(inside "apt-cache --names-only search . | cut -d' ' -f1 | grep -xF \"$(tr ' ' '\n' <<< "$packages")\"" | tr '\n' ' ')
  inside "DEBIAN_FRONTEND=noninteractive apt-get install -qq -y --no-install-recommends $wanted > /dev/null"
  cp /etc/ssl/certs/ca-certificates.crt "$root/etc/ssl/certs/"  # a registry's own, if there is one
  rm -rf "$root/root/shardkit"
  git clone --quiet "$here" "$root/root/shardkit"

  row=$(inside "$python --version; for s in redis-server valkey-server; do \$s --version 2> /dev/null | grep -o 'v=[0-9.]*' | sed \"s/v=/\${s%-server} /\" || true; done" | tr '\n' ' ')
  for number in 1 2; do
    command=$(command_of_readme $number)
    [ $number = 1 ] || command="$command ${TESTS:-}"
    printf '\n== %s: %s\n' "$suite" "$command"
    if inside "cd ~/shardkit && $command"; then row+="passed "; else row+="FAILED "; failed=1; fi
  done
  results+="$suite: $row"$'\n'
done; done
printf '\nRelease, interpreter and servers; demo, tests\n%s' "$results"
exit $failed
