#!/usr/bin/env bash
# network-up.sh — the bridge in its own network namespace that every test host hangs on. Idempotent.
set -euo pipefail; HERE=$(cd "$(dirname "$0")" && pwd); . "$HERE/lib.sh"
LAN=$PFX-lan
[ -e "/run/netns/$LAN" ] && exit 0
ip netns add "$LAN"; ip -n "$LAN" link set lo up
ip -n "$LAN" link add br0 address 02:00:00:00:00:01 type bridge
ip -n "$LAN" addr add "$NET.1/24" dev br0; ip -n "$LAN" link set br0 up
