#!/usr/bin/env bash
# host-up.sh NAME [IPLAST] — boot one test host: systemd as PID 1 + sshd:22, reachable from netns "$PFX-lan" at $NET.IPLAST.
# Prints: NAME IP LEADER_PID.  Needs root.  Undo with host-down.sh NAME.
set -euo pipefail; HERE=$(cd "$(dirname "$0")" && pwd); . "$HERE/lib.sh"
N=${1:?name}; L=${2:-}; D=$LAB/run/$N; NS=$PFX-$N; LAN=$PFX-lan; T0=$(date +%s%N)
[ -f "$BASE/.hostlab-stamp" ] || die "no base rootfs; run rootfs-build.sh"
[ ! -e "$D/leader" ] || ! alive "$(cat "$D/leader")" || die "$N is already up"
[ ! -e "$D/cgroup" ] || die "$D is left from a crashed run: host-down.sh $N first"
AGAIN=; [ -d "$D/ov/upper" ] && AGAIN=1
mkdir -p "$LAB/run" "$D/root" "$D/ov/upper" "$D/ov/work"; : >"$D/ov/console"
trap '[ $? = 0 ] || [ -n "${HOSTLAB_KEEP:-}" ] || { echo "host-up $N failed; cleaning" >&2; "$HERE/host-down.sh" "$N" >&2 || true; }' EXIT
exec 9>"$LAB/run/.lock"; flock 9                       # lan, address choice and login key are shared between hosts
[ -f "$LAB/run/id" ] || { ssh-keygen -q -t ed25519 -N '' -C hostlab -f "$LAB/run/id.$$" && mv "$LAB/run/id.$$.pub" "$LAB/run/id.pub" && mv "$LAB/run/id.$$" "$LAB/run/id"; }
"$HERE/network-up.sh"
[ -n "$L" ] || ! [ -f "$D/ip" ] || L=$(sed 's/.*\.//' "$D/ip")
[ -n "$L" ] || { L=10; while grep -qsx "$NET.$L" "$LAB"/run/*/ip; do L=$((L+1)); done; }
IP=$NET.$L; echo "$IP" >"$D/ip"; V=v$L
ip netns add "$NS"
ip link add "$V" netns "$LAN" type veth peer name eth0 address "$(printf '02:00:00:00:01:%02x' "$L")" netns "$NS"
# fixed MACs: with random ones a rebooted host meets the stale ARP entry of its last life, and a connect() hangs up to 131 s
ip -n "$LAN" link set "$V" master br0 up; echo "$V" >"$D/veth"
ip -n "$NS" link set lo up; ip -n "$NS" addr add "$IP/24" dev eth0; ip -n "$NS" link set eth0 up; ip -n "$NS" route add default via "$NET.1"
flock -u 9; exec 9>&-
if [ -z "$AGAIN" ]; then
# per-host identity, written into the overlay upper before boot
U=$D/ov/upper; mkdir -p "$U/etc/ssh" "$U/home/deploy/.ssh"
ssh-keygen -q -t ed25519 -N '' -C "$N" -f "$U/etc/ssh/ssh_host_ed25519_key"
cp "$LAB/run/id.pub" "$U/home/deploy/.ssh/authorized_keys"
UIDD=$(awk -F: '$1=="deploy"{print $3":"$4}' "$BASE/etc/passwd"); chown -R "$UIDD" "$U/home/deploy"; chmod 700 "$U/home/deploy/.ssh"
echo "$N" >"$U/etc/hostname"; printf '127.0.0.1 localhost\n%s %s\n' "$IP" "$N" >"$U/etc/hosts"; : >"$U/etc/resolv.conf"
echo "$IP $(cut -d' ' -f1,2 "$U/etc/ssh/ssh_host_ed25519_key.pub")" >"$D/known_hosts"
[ -z "${HOSTLAB_SEED:-}" ] || cp -a "$HOSTLAB_SEED/." "$U/"      # optional: a folder of a test's own files for /, before the first boot
fi
CG=$CG2/$PFX-$N; mkdir "$CG"; echo "$CG" >"$D/cgroup"
# nsenter, not "ip netns exec": that one mounts a fresh /sys without the cgroup tree. setsid + closed fds: nothing holds the caller's pipes
setsid nsenter --net="/run/netns/$NS" unshare --fork --kill-child --pid --mount --uts --ipc --propagation private \
   bash "$HERE/host-init.sh" "$D/root" "$N" "$CG" "$BASE" "$D/ov" </dev/null >"$D/init.log" 2>&1 &
echo $! >"$D/outer"
for _ in $(seq 100); do   # leader = the only child of unshare = PID 1 inside
  O=$(cat "$D/outer"); read -r LP _ <"/proc/$O/task/$O/children" || true; [ -n "${LP:-}" ] && break
  alive "$(cat "$D/outer")" || { cat "$D/init.log" >&2; exit 1; }; sleep 0.02
done
echo "$LP" >"$D/leader"
for _ in $(seq 400); do
  if timeout 2 nsenter --net="/run/netns/$LAN" bash -c "exec 3<>/dev/tcp/$IP/22 && read -t 2 -r b <&3 && [[ \$b == SSH-* ]]" 2>/dev/null; then
    echo "$N $IP $LP $(( ($(date +%s%N)-T0)/1000000 ))ms"; exit 0; fi
  alive "$LP" || { cat "$D/init.log" >&2; exit 1; }; sleep 0.05
done
cat "$D/init.log" >&2; die "$N: sshd did not answer in time"
