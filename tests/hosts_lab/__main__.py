"""Boots the lab's network and runs the tests of this folder inside it: `python -m tests.hosts_lab [more] [pytest arguments]`.

`more` stands for the longer ones in more/: a group of hosts, and deploy-dflash with the real engine.

Ends with `N passed, N failed`; a test that was skipped counts as failed. Needs root, Debian tools (see README.md).
"""

from __future__ import annotations

import re
import subprocess
import sys

from tests.hosts_lab import engine, lab

MORE = "tests/hosts_lab/more"


def main(arguments: list[str]) -> int:
    lab.prepare()
    engine.provision(lambda text: print(f"engine: {text}", flush=True))
    wanted = [f"--ignore={MORE}", "tests/hosts_lab"]
    if arguments[:1] == ["more"]:
        wanted, arguments = [MORE], arguments[1:]
    command = lab.inside_network([sys.executable, "-m", "pytest", *wanted, *arguments])
    try:
        done = subprocess.run(command, cwd=lab.REPOSITORY, stdout=subprocess.PIPE, text=True, check=False)
    finally:
        lab.remove_all()
    sys.stdout.write(done.stdout)
    counts = {
        word: int(number) for number, word in re.findall(r"(\d+) (passed|failed|error|errors|skipped)", done.stdout)
    }
    failed = counts.get("failed", 0) + counts.get("error", 0) + counts.get("errors", 0) + counts.get("skipped", 0)
    print(f"{counts.get('passed', 0)} passed, {failed} failed")
    return 0 if done.returncode == 0 and counts.get("passed") and not failed else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
