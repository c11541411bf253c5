"""Speed on real hosts, printed as ratios: `python -m tests.hosts_lab.speed`.

* 50 files and 50 commands on 3 hosts, ours against Ansible (ansible-core, pipelining, one connection kept) in the same run.
* How long connections are refused while a unit is switched from one release to another: at once, and with an engine that
  takes some seconds to load, without and with one that stands in.
* A second look at a host that needs nothing: connect, read the release, the unit and the dead man's switch.

It makes an environment for Ansible below .cache the first time (needs the package index). No figure fails the run.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from orchestrator.hosts.readiness import wait_ready
from orchestrator.hosts.session import HostSession, open_session
from orchestrator.release.build import build_release
from orchestrator.release.settle import look
from tasks.takeover import KEY
from tests.hosts_lab import bridging, lab, scene
from tests.hosts_lab.lab import LabHost

COUNT, HOSTS, ROUNDS = 50, 3, 3
ANSIBLE = "ansible-core==2.19.14"
PLAYBOOK = [
    {
        "hosts": "all", "gather_facts": False,
        "tasks": [
            {"name": "folder", "file": {"path": "/tmp/speed", "state": "directory"}},
            {"name": "files", "copy": {"src": "{{ source }}/{{ item }}", "dest": "/tmp/speed/{{ item }}", "mode": "0644"},
             "loop": [f"file-{number}" for number in range(COUNT)]},
            {"name": "commands", "command": "/bin/echo {{ item }}", "loop": list(range(COUNT))},
        ],
    }
]  # fmt: skip


def main() -> int:
    if not os.environ.get(lab.INSIDE):
        install_ansible()  # out here: the network of the hosts reaches no package index
        lab.prepare()
        try:
            return subprocess.run(lab.inside_network([sys.executable, "-m", "tests.hosts_lab.speed"])).returncode
        finally:
            lab.remove_all()
    machines = [scene.host(f"speed-{number}") for number in range(HOSTS)]
    with tempfile.TemporaryDirectory(prefix="orchestrate-speed-") as scratch:
        home = Path(scratch)
        (home / "known_hosts").write_text("".join(machine.pinned_line() for machine in machines))
        against_ansible(machines, home)
        gaps(machines[0], home)
        slow_gaps(home)
    return 0


def against_ansible(machines: list[LabHost], home: Path) -> None:
    """In turn, so that a busy machine hits both alike; the best of each counts."""
    source = home / "source"
    source.mkdir()
    for number in range(COUNT):
        (source / f"file-{number}").write_bytes(os.urandom(2000))
    playbook = ansible(machines, home, source)
    ours, theirs = [], []
    for number in range(ROUNDS):
        clear(machines)
        ours.append(timed(lambda: spread(machines, home, lambda session: work(session, source))))
        clear(machines)
        theirs.append(timed(playbook))
        print(f"round {number + 1}: {ours[-1]:.2f} s, Ansible {theirs[-1]:.2f} s", flush=True)
    ratio = min(theirs) / min(ours)
    print(
        f"{COUNT} files + {COUNT} commands on {len(machines)} hosts: {min(ours):.2f} s against {min(theirs):.2f} s "
        f"with Ansible, {ratio:.1f} times as fast"
    )


def work(session: HostSession, source: Path) -> None:
    session.transport.run(["mkdir", "-p", "/tmp/speed"], check=True)
    for number in range(COUNT):
        session.transport.put_file(str(source / f"file-{number}"), f"/tmp/speed/file-{number}")
    for number in range(COUNT):
        session.transport.run(["/bin/echo", str(number)], check=True)


def clear(machines: list[LabHost]) -> None:
    for machine in machines:
        machine.inside("rm -rf /tmp/speed")


def spread(machines: list[LabHost], home: Path, task: Callable[[HostSession], None]) -> None:
    def one(machine: LabHost) -> None:
        with open_session(machine.config(), home) as session:
            task(session)

    with ThreadPoolExecutor(len(machines)) as pool:
        list(pool.map(one, machines))


def install_ansible() -> Path:
    """The program in an environment of its own, made once."""
    venv = lab.STATE / "ansible"
    program = venv / "bin" / "ansible-playbook"
    if not program.exists():
        subprocess.run([sys.executable, "-m", "venv", str(venv)], check=True)
        install = ["install", "-q", "--disable-pip-version-check", ANSIBLE]
        subprocess.run([str(venv / "bin" / "python"), "-m", "pip", *install], check=True)
    return program


def ansible(machines: list[LabHost], home: Path, source: Path) -> Callable[[], None]:
    """A function that runs the playbook once."""
    program = install_ansible()
    (home / "play.json").write_text(json.dumps(PLAYBOOK))
    rows = [
        f"{machine.name} ansible_host={machine.address} ansible_user=deploy "
        f"ansible_ssh_private_key_file={machine.key} ansible_python_interpreter=/usr/bin/python3"
        for machine in machines
    ]
    (home / "inventory.ini").write_text("[all]\n" + "\n".join(rows) + "\n")
    (home / "ansible.cfg").write_text(
        f"[defaults]\nforks = {HOSTS}\n[ssh_connection]\npipelining = True\n"
        f"ssh_args = -o ControlMaster=auto -o ControlPersist=60s -o UserKnownHostsFile={home / 'known_hosts'}\n"
    )
    command = [str(program), "-i", str(home / "inventory.ini"), "-e", f"source={source}", str(home / "play.json")]

    def run() -> None:
        env = {**os.environ, "ANSIBLE_CONFIG": str(home / "ansible.cfg"), "HOME": str(home)}
        done = subprocess.run(command, env=env, capture_output=True, text=True, check=False)
        if done.returncode:
            raise lab.LabError(done.stdout[-1500:] + done.stderr[-500:])

    return run


def gaps(machine: LabHost, home: Path) -> None:
    """The switch on a unit, watched by connecting every few ms, and a look at a host where nothing is to do."""
    with open_session(machine.config(), home) as session:
        source = scene.found(session)
        plan = scene.plan(source, scene.plugin_wheel(b"speed", home / "wheel"))
        release = build_release(session.releases, plan, lambda *_: None)
        activation = session.activation()
        with Prober(machine) as prober:
            switched = activation.switch(release, source, deadline_s=60)
            prober.wait_answer()
        activation.confirm(switched.token)
        print(f"cut-over by restart (stand-in engine): {prober.refused_s:.2f} s of refused connections")
        again = timed(lambda: print(f"nothing to do: {look(activation)}"))
    whole = timed(lambda: spread([machine], home, lambda one: print(f"connected anew: {look(one.activation())}")))
    print(f"a look at an unchanged host: {again:.2f} s, with the login {whole:.2f} s")


def slow_gaps(home: Path) -> None:
    """The whole task of the program, on a host whose engine is slow to start."""
    for mode, said in (("never", "nothing stands in"), ("auto", "an engine stands in")):
        machine = bridging.host(f"speed-{mode}")
        (home / "known_hosts").write_text(machine.pinned_line())
        with open_session(bridging.config(machine, stand_in=mode), home) as session:
            wait_ready(session, session.unit, scene.PORT, 60, lambda *_: None)
            with Prober(machine) as prober:
                output = bridging.cut_over(session, lambda _line: None).outputs[KEY]
            print(
                f"cut-over to an engine that takes {bridging.WARM_UP_S} s to load, {said}: {prober.refused_s:.2f} s of refused "
                f"connections (the program says {output['refused_s']}), the unit away for {output['down_s']:.1f} s"
            )
        machine.down()


class Prober:
    """Connects to the service's port from inside the network until told to stop; sums up how long it was refused."""

    def __init__(self, machine: LabHost) -> None:
        self._machine = machine
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._probe)
        self._seen = threading.Event()
        self.refused_s = 0.0
        self.changes = 0
        self.open = False

    def __enter__(self) -> Prober:
        # The service listens on the host's own loopback: the probe runs there and reports through its output.
        code = (
            "import socket,sys,time\nlast=None\nwhile True:\n s=socket.socket(); s.settimeout(1)\n"
            f" up=s.connect_ex(('127.0.0.1',{scene.PORT}))==0; s.close()\n"
            " if up!=last: print(time.monotonic(),int(up),flush=True); last=up\n time.sleep(0.005)\n"
        )
        self._process = subprocess.Popen(
            ["nsenter", "-t", str(self._machine.leader), "-n", "--", sys.executable, "-c", code],
            stdout=subprocess.PIPE, text=True,
        )  # fmt: skip
        self._thread.start()
        if not self._seen.wait(30) or not self.open:
            raise lab.LabError("the service does not answer before the switch")
        return self

    def _probe(self) -> None:
        down_since: float | None = None
        assert self._process.stdout is not None
        for line in self._process.stdout:
            at, up = line.split()
            self.open = up == "1"
            self.changes += 1
            self._seen.set()
            if not self.open:
                down_since = float(at)
            elif down_since is not None:
                self.refused_s += float(at) - down_since
                down_since = None

    def wait_answer(self) -> None:
        """Until it was seen gone and back."""
        deadline = time.monotonic() + 60
        while self.changes < 3 or not self.open:
            if time.monotonic() > deadline:
                raise lab.LabError("the switch was not seen on the port")
            time.sleep(0.02)

    def __exit__(self, *_: object) -> None:
        self._process.terminate()
        self._process.wait()
        self._thread.join()


def timed(task: Callable[[], object]) -> float:
    started = time.monotonic()
    task()
    return time.monotonic() - started


if __name__ == "__main__":
    sys.exit(main())
