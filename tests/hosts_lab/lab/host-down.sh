#!/usr/bin/env bash
# host-down.sh NAME | --all — end the host and everything of it. Idempotent; safe after a crashed host-up.
# host-down.sh --power-off NAME — pull the plug but keep disk, address and keys; host-up.sh NAME boots it again ("reboot").
# HOSTLAB_GRACE=SECS: first SIGRTMIN+3 (= systemctl halt) and wait; default 0 = pull the plug.
set -uo pipefail; HERE=$(cd "$(dirname "$0")" && pwd); . "$HERE/lib.sh"
if [ "${1:-}" = --all ]; then
  for d in "$LAB"/run/*/ov; do [ -d "$d" ] && "$0" "$(basename "$(dirname "$d")")"; done
  [ -e "/run/netns/$PFX-lan" ] && ip netns del "$PFX-lan"; exit 0
fi
KEEP=; [ "${1:-}" != --power-off ] || { KEEP=1; shift; }
N=${1:?name}; D=$LAB/run/$N; [ -d "$D" ] || exit 0
LP=$(cat "$D/leader" 2>/dev/null); OP=$(cat "$D/outer" 2>/dev/null)
# pids can be reused: only touch it if it still sits in our cgroup
mine() { alive "$1" && grep -q ":/$PFX-$N\(/\|$\)" "/proc/$1/cgroup" 2>/dev/null; }
if [ -n "$LP" ] && mine "$LP" && [ "${HOSTLAB_GRACE:-0}" != 0 ]; then
  kill -s RTMIN+3 "$LP"; for _ in $(seq $((HOSTLAB_GRACE*20))); do alive "$LP" || break; sleep 0.05; done
fi
CG=$(cat "$D/cgroup" 2>/dev/null)
[ -n "$CG" ] && [ -e "$CG/cgroup.kill" ] && echo 1 >"$CG/cgroup.kill"   # kills exactly this host, forks included (kernel >= 5.14)
[ -n "$OP" ] && alive "$OP" && [ "$(ps -o comm= -p "$OP")" = unshare ] && { for _ in $(seq 60); do alive "$OP" || break; sleep 0.05; done; }
for _ in $(seq 60); do [ -d "$CG" ] && grep -q 'populated 1' "$CG/cgroup.events" || break; sleep 0.05; done
[ -n "$CG" ] && [ -d "$CG" ] && find "$CG" -depth -type d -exec rmdir {} \;
V=$(cat "$D/veth" 2>/dev/null); [ -n "$V" ] && ip -n "$PFX-lan" link del "$V" 2>/dev/null
[ -e "/run/netns/$PFX-$N" ] && ip netns del "$PFX-$N"
rm -f "$D/leader" "$D/outer" "$D/cgroup" "$D/veth"
[ -z "$KEEP" ] || exit 0
rm -rf --one-file-system "$D"
[ -d "$D" ] && { echo "left: $D" >&2; exit 1; }; exit 0
