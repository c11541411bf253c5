# lib.sh — shared. State of host NAME: $LAB/run/NAME, netns $PFX-NAME and $PFX-lan, cgroup2 $CG2/$PFX-NAME.
LAB=${HOSTLAB:-${XDG_CACHE_HOME:-$HOME/.cache}/hostlab}; BASE=${HOSTLAB_BASE:-$LAB/cache/base}
NET=${HOSTLAB_NET:-10.213.7}               # our own /24, lives only inside our own bridge netns
PFX=${HOSTLAB_PREFIX:-ol}                  # netns and cgroup name prefix; give each CI run its own
CG2=$(awk '$3=="cgroup2"{print $2; exit}' /proc/mounts)   # /sys/fs/cgroup/unified here; /sys/fs/cgroup on a pure-v2 machine
die() { echo "$*" >&2; exit 1; }
alive() { [ -n "${1:-}" ] && [ -e "/proc/$1/stat" ] && [ "$(awk '{print $3}' "/proc/$1/stat" 2>/dev/null)" != Z ]; }
