#!/usr/bin/env bash
# host-init.sh (internal) — runs as PID 1 of new pid/mount/uts/ipc/net namespaces; builds the root, becomes systemd.
set -euo pipefail; [ -z "${HOSTLAB_DEBUG:-}" ] || set -x
ROOT=$1 NAME=$2 CGDIR=$3
mount --make-rprivate /
mount -t overlay "hostlab-$NAME" -o "lowerdir=$4,upperdir=$5/upper,workdir=$5/work" "$ROOT"
cd "$ROOT"
mount -t proc  -o nosuid,nodev,noexec proc proc
mount -t sysfs -o nosuid,nodev,noexec,ro sysfs sys
mount -t tmpfs -o mode=755,nosuid,strictatime tmpfs dev
mkdir dev/pts dev/shm
for n in null:1:3 zero:1:5 full:1:7 random:1:8 urandom:1:9 tty:5:0; do IFS=: read -r f a b <<<"$n"; mknod -m 666 "dev/$f" c "$a" "$b"; done
mount -t devpts -o newinstance,ptmxmode=666,mode=620,gid=5 devpts dev/pts; ln -s pts/ptmx dev/ptmx
ln -s /proc/self/fd dev/fd; ln -s fd/0 dev/stdin; ln -s fd/1 dev/stdout; ln -s fd/2 dev/stderr
mount -t tmpfs -o mode=1777,nosuid,nodev tmpfs dev/shm
for pair in ${HOSTLAB_BIND:-}; do mkdir -p ".${pair#*:}"; mount --bind "${pair%%:*}" ".${pair#*:}"; done   # OUTSIDE:INSIDE folders of a test
touch dev/console; mount --bind "$5/console" dev/console 2>/dev/null || true
mount -t tmpfs -o mode=755,nosuid,nodev tmpfs run
mount -t tmpfs -o mode=1777,nosuid,nodev tmpfs tmp
# /proc/sys and friends read-only: they are NOT namespaced, systemd must not change the outer kernel's settings
for p in proc/sys proc/sysrq-trigger proc/irq proc/bus; do [ -e $p ] && mount --bind $p $p && mount -o remount,bind,ro $p; done
mount --bind proc/sys/net proc/sys/net 2>/dev/null && mount -o remount,bind,rw proc/sys/net || true   # net sysctls are per netns
# a pure cgroup2 tree rooted at our own delegated sub-cgroup (cgroup namespace taken after entering it)
echo $$ >"$CGDIR/cgroup.procs"
exec unshare --cgroup bash -c '
  set -e
  mount -t cgroup2 -o nosuid,nodev,noexec,rw cgroup2 sys/fs/cgroup
  hostname "$1"
  mkdir -p .oldroot; pivot_root . .oldroot; cd /
  umount -l /.oldroot; rmdir /.oldroot 2>/dev/null || true
  exec env -i container=hostlab container_uuid="" PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin \
     setpriv --bounding-set=-sys_module,-sys_time,-sys_boot,-sys_rawio,-syslog,-audit_control,-mac_admin,-mac_override \
     /lib/systemd/systemd --system --show-status=no --log-target=journal
' init "$NAME"
