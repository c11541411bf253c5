"""The real SGLang for CPU as a test host's serving environment: provisioned once by the product, then cloned per host."""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

from orchestrator.hosts.inventory import HostConfig
from orchestrator.hosts.session import open_session
from orchestrator.release import wheels
from orchestrator.remote import scripts
from orchestrator.remote.provision_cpu import CpuHost, provision_environment
from tests.hosts_lab.lab import STATE, LabHost

FOLDER = STATE / "engine"  # a state folder of its own, with an embedded host that owns the environment
PAIR = "tiny-dense"
PORT = 30000
VENV = "/opt/sglang/venv"


def provision(progress: Callable[[str], None]) -> None:
    """Make the environment (minutes the first time, needs the package index); later calls only look."""
    config = HostConfig(name="local", transport="embedded", engine="sglang-cpu", model=PAIR)
    with open_session(config, FOLDER) as session:
        host = CpuHost(session.transport, session.services, session.home, session.unit, PORT, PAIR)
        provision_environment(host, session.wheel_dir, lambda text, _done, _total: progress(text))


def host(name: str, *, dflash: bool = True, listens: str = "127.0.0.1") -> LabHost:
    """A booted host that serves with the real engine under systemd, as root: linear DFLASH, or no speculation; ``listens``: on which address."""
    opt = STATE / "run" / f"opt-{name}"
    shutil.rmtree(opt, ignore_errors=True)
    (opt / "sglang").mkdir(parents=True)
    source = FOLDER / ".embedded" / "local" / "home" / "opt" / "sglang" / "venv"
    clone = Path(scripts.__file__).with_name("cloneenv.py")
    wish = f'{{"source": "{source}", "target": "{opt}/sglang/venv"}}'
    subprocess.run([sys.executable, str(clone), wish], check=True, capture_output=True)
    shutil.copytree(wheels.engine_folder() / "models" / PAIR, opt / "models" / PAIR)
    flags = f"--speculative-algorithm DFLASH --speculative-draft-model-path /opt/models/{PAIR}/draft " if dflash else ""
    unit = (
        "[Unit]\nDescription=SGLang\n[Service]\n"
        f"ExecStart={VENV}/bin/python -m sglang_cpu launch --model-path /opt/models/{PAIR}/target {flags}"
        # `sglang_cpu launch` sets this for the server itself; the plugin's own commands in a clone need it too.
        f"--host {listens} --port {PORT}\nEnvironment=SGLANG_USE_CPU_ENGINE=1\nTimeoutStopSec=60\n[Install]\nWantedBy=multi-user.target\n"
    )
    machine = LabHost(
        name,
        files={"/etc/systemd/system/sglang.service": unit.encode()},
        # The environment's interpreter is this machine's; its own path is the same inside.
        binds={str(opt): "/opt", sys.base_prefix: sys.base_prefix},
    )
    machine.up()
    machine.inside("systemctl daemon-reload && systemctl enable -q --now sglang.service")
    return machine


def remove(machine: LabHost) -> None:
    machine.down()
    shutil.rmtree(STATE / "run" / f"opt-{machine.name}", ignore_errors=True)
