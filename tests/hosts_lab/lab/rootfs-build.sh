#!/usr/bin/env bash
# rootfs-build.sh — build (once) the base rootfs of the test hosts into $HOSTLAB_BASE. Idempotent: a stamp (suite + packages + version of
# this recipe) marks a finished build; a changed recipe rebuilds.  SUITE=bookworm (systemd 252) | trixie (systemd 257).  Needs root, mmdebstrap.
set -euo pipefail; HERE=$(cd "$(dirname "$0")" && pwd); . "$HERE/lib.sh"
SUITE=${SUITE:-bookworm}
MIRROR=${MIRROR:-$(apt-get indextargets --format '$(REPO_URI)' 'Created-By: Packages' 2>/dev/null | grep -v security | head -1)}   # default: the mirror that apt already uses
[ -n "$MIRROR" ] || die "set MIRROR to a Debian mirror"
PKGS=systemd,systemd-sysv,dbus,libpam-systemd,openssh-server,sudo,python3-minimal,python3-venv,iproute2,iputils-ping,procps,ca-certificates,dbus-user-session,nftables${EXTRA:+,$EXTRA}
STAMP=$BASE/.hostlab-stamp; WANT="$SUITE $PKGS 6"
cached() { [ -f "$STAMP" ] && [ "$(cat "$STAMP")" = "$WANT" ]; }
cached && { echo "cached: $BASE"; exit 0; }
mkdir -p "$(dirname "$BASE")"; exec 8>"$BASE.lock"; flock 8
cached && { echo "cached: $BASE"; exit 0; }                      # built by whoever held the lock: hosts may run on it by now
grep -qs " $BASE[/ ]\|lowerdir=$BASE[:,]" /proc/mounts && die "refusing: $BASE is in use"
R=$BASE.new; rm -rf --one-file-system "$R" "$BASE"; T0=$SECONDS
mmdebstrap --quiet --mode=root --variant=minbase --include="$PKGS" \
  --dpkgopt='path-exclude=/usr/share/man/*' --dpkgopt='path-exclude=/usr/share/doc/*' --dpkgopt='path-exclude=/usr/share/locale/*' \
  --dpkgopt='force-unsafe-io' "$SUITE" "$R" $MIRROR >"$BASE.log" 2>&1 || { tail -20 "$BASE.log" >&2; exit 1; }
rm -f "$R"/etc/ssh/ssh_host_*; : >"$R/etc/machine-id"           # identity is per host, never in the base
for u in console-getty.service getty@tty1.service getty-static.service apt-daily.timer apt-daily-upgrade.timer \
         fstrim.timer e2scrub_all.timer e2scrub_reap.service dpkg-db-backup.timer systemd-timesyncd.service systemd-networkd.service \
         systemd-udevd.service systemd-udev-trigger.service systemd-sysctl.service systemd-modules-load.service systemd-resolved.service \
         sys-kernel-debug.mount sys-kernel-tracing.mount sys-kernel-config.mount sys-fs-fuse-connections.mount dev-hugepages.mount dev-mqueue.mount \
         systemd-remount-fs.service systemd-firstboot.service proc-sys-fs-binfmt_misc.automount tmp.mount; do
  ln -sf /dev/null "$R/etc/systemd/system/$u"; done
chroot "$R" useradd -m -s /bin/bash -p '*' deploy                # key login only
echo 'deploy ALL=(ALL) NOPASSWD:ALL' >"$R/etc/sudoers.d/deploy"; chmod 440 "$R/etc/sudoers.d/deploy"
mkdir -p "$R/etc/systemd/journald.conf.d" "$R/var/log/journal"
printf '[Journal]\nStorage=persistent\nSystemMaxUse=16M\nAudit=no\nReadKMsg=no\n' >"$R/etc/systemd/journald.conf.d/lab.conf"
printf 'UseDNS no\nPasswordAuthentication no\nPermitRootLogin no\n' >"$R/etc/ssh/sshd_config.d/lab.conf"
chroot "$R" systemctl -q enable ssh.service
chroot "$R" python3 -m venv /opt/sglang/venv                     # the serving environment; tests put a package sglang there
echo "$WANT" >"$R/.hostlab-stamp"; mv "$R" "$BASE"
echo "built $BASE: $(du -sh "$BASE" | cut -f1) in $((SECONDS-T0)) s"
