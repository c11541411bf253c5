"""Pure builders of the command line that one exec request carries; nothing here talks to a host."""

from __future__ import annotations

import base64
import re
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from orchestrator.errors import UsageError

ENV_NAME = re.compile(r"^[A-Za-z_][A-Za-z0-9_]*$")
CALL_VARIABLE = "ORCHESTRATE_CALL"  # marks every process of one call, so that a timed-out call can be stopped

# The secret part of the environment arrives as the first line of stdin: it never stands in an argument list.
_READ_SECRETS = 'IFS= read -r __o; eval "$(printf %s "$__o" | base64 -d)"; unset __o; '
# sudo validates with the password from the first line of stdin; the ticket then serves the command itself.
_ASKPASS = "IFS= read -r __p; printf '%s\\n' \"$__p\" | sudo -S -p '' -v || exit 1; unset __p; "


@dataclass(frozen=True)
class Exec:
    """A script for /bin/sh, and what has to precede the caller's own bytes on its stdin."""

    script: str
    stdin_head: bytes = b""

    @property
    def line(self) -> str:
        """The command line that runs the script, whatever the login shell is."""
        return shlex.join(["/bin/sh", "-c", self.script])


def build(
    argv: Sequence[str],
    *,
    env: Mapping[str, str] | None = None,
    cwd: str | None = None,
    sudo: bool = False,
    sudo_password: str | None = None,
    secrets: Sequence[str] = (),
    call_id: str | None = None,
) -> Exec:
    """Quote argv, environment and folder for a POSIX shell.

    Environment values that contain one of `secrets` travel on stdin. Raises UsageError for what no shell can
    carry (NUL), for bad variable names, and for a secret inside argv.
    """
    if not argv:
        raise UsageError("an empty command cannot be run on a host; pass the program and its arguments.")
    _refuse_unquotable(argv, env or {}, cwd, secrets)
    hidden = {k: v for k, v in (env or {}).items() if any(s and s in v for s in secrets)}
    plain = {k: v for k, v in (env or {}).items() if k not in hidden}
    if call_id:
        plain[CALL_VARIABLE] = call_id
    words = [f"{name}={value}" for name, value in plain.items()]
    command = shlex.join(["env", *words, *argv] if words else list(argv))
    if cwd is not None:
        command = f"cd {shlex.quote(cwd)} && {command}"
    head = b""
    if hidden:
        exports = "; ".join(f"export {name}={shlex.quote(value)}" for name, value in hidden.items())
        head = base64.b64encode(exports.encode()) + b"\n"
        command = _READ_SECRETS + command
    # The trailing exit keeps the shell alive beside the command, so that death by a signal arrives as 128 + number.
    command += "; exit $?"
    if sudo:
        command = shlex.join(["sudo", "-n", "--", "/bin/sh", "-c", command]) + "; exit $?"
        if sudo_password is not None:
            head = sudo_password.encode() + b"\n" + head
            command = _ASKPASS + command
    return Exec(command, head)


def kill_call(call_id: str, *, sudo: bool = False) -> str:
    """A command line that ends every process of a call: TERM, then KILL after at most two seconds."""
    script = (
        f'find_them() {{ for d in /proc/[0-9]*; do p=${{d#/proc/}}; [ "$p" = "$$" ] || '
        f'{{ grep -qsz \'^{CALL_VARIABLE}={call_id}$\' "$d/environ" && echo "$p"; }}; done; }}; '
        'them=$(find_them); [ -n "$them" ] || exit 0; kill -TERM $them 2>/dev/null; '
        'for _ in 1 2 3 4 5 6 7 8 9 10; do them=$(find_them); [ -n "$them" ] || exit 0; sleep 0.2; done; '
        "kill -KILL $them 2>/dev/null; exit 0"
    )
    line = ["/bin/sh", "-c", script]
    return shlex.join(["sudo", "-n", "--", *line] if sudo else line)


def _refuse_unquotable(argv: Sequence[str], env: Mapping[str, str], cwd: str | None, secrets: Sequence[str]) -> None:
    for name in env:
        if not ENV_NAME.match(name):
            raise UsageError(f"{name!r} is not a name for an environment variable; use letters, digits and _.")
    if any("\0" in text for text in (*argv, *env.values(), cwd or "")):
        raise UsageError(f"the command {argv[0]!r} holds a NUL character, which no shell can carry; remove it.")
    if any(secret and secret in word for secret in secrets for word in argv):
        raise UsageError(f"a secret stands in the arguments of {argv[0]!r}; pass it in the environment or on stdin.")
