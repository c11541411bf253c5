"""A cut-over of a slow engine on a test host, by the program's own task: in this process, or in one that a test kills.

`python -m tests.hosts_lab.bridging FILE`, FILE a JSON object {host, state_dir, hold}: once a log line holds the text
`hold`, `POINT` is printed and the process waits for a line on standard input.
"""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from orchestrator.hosts.inventory import HostConfig
from orchestrator.hosts.session import HostSession, open_session
from orchestrator.store.store import Store
from tasks.launch import ALGORITHM
from tasks.samples import SAMPLE_PROMPTS, default_prompts, take_samples
from tasks.takeover import KEY
from tests.hosts_lab import lab, scene
from tests.hosts_lab.lab import LabHost
from tests.rolling.test_router import Ctx
from tests.to_tree import ToTree

WARM_UP_S = 5
STANDIN = "sglang-standin.service"
ENGINE = lab.REPOSITORY / "tests" / "rolling" / "standin.py"
UNIT = f"""\
[Unit]
Description=SGLang, linear DFlash, slow to start

[Service]
ExecStart=/opt/sglang/venv/bin/python -m sglang.serve --host 0.0.0.0 --port {scene.PORT} {ALGORITHM} DFLASH
Environment=STANDIN_WARM_UP_S={WARM_UP_S}
User=deploy
Restart=on-failure
RestartSec=200ms

[Install]
WantedBy=multi-user.target
"""


def host(name: str) -> LabHost:
    """A booted host whose service answers."""
    files = {
        f"{scene.SITE}/__init__.py": b'__version__ = "0.5.20"\n',
        f"{scene.SITE}/serve.py": ENGINE.read_bytes(),
        f"{Path(scene.SITE).parent}/tests/hosts_lab/standin.py": (lab.HERE / "standin.py").read_bytes(),
        "/etc/systemd/system/sglang.service": UNIT.encode(),
    }
    machine = LabHost(name, files).up()
    machine.inside("systemctl daemon-reload && systemctl enable -q --now sglang.service")
    return machine


def config(machine: LabHost, **service: object) -> HostConfig:
    """confirm_s and drain_timeout_s are short, so that a host whose operator is gone goes back within a test."""
    wish = {"unit": "sglang.service", "port": scene.PORT, "start_timeout_s": 60, "drain_timeout_s": 10, **service}
    return machine.config(service=wish)


@dataclass
class Watcher(Ctx):
    """A task's context that tells each log line, and has nowhere to put files."""

    told: Callable[[str], None] = lambda _line: None
    artifacts: dict[str, str] = field(default_factory=dict)
    store: Store | None = None

    def log(self, line: str) -> None:
        super().log(line)
        self.told(line)

    def artifact(self, name: str, text: str) -> None:
        self.artifacts[name] = text


def cut_over(session: HostSession, told: Callable[[str], None], *more: str) -> Watcher:
    """The whole task; its output is in the returned context, also its evidence."""
    with session.http() as url:
        samples = take_samples(url, default_prompts(SAMPLE_PROMPTS), 16)
    ctx = Watcher(session, settings={"confirm_s": "20"}, told=told)
    action = ToTree(samples, *more)
    ctx.outputs[KEY] = action.apply(ctx)  # type: ignore[arg-type]
    ctx.outputs["evidence"] = action.verify(ctx).output  # type: ignore[arg-type]
    return ctx


@contextlib.contextmanager
def operator(config: HostConfig, state_dir: Path, hold: str) -> Iterator[subprocess.Popen[str]]:
    """The cut-over in a process of its own, which has come to `hold`."""
    path = state_dir / "bridging.json"
    wish = {"host": config.model_dump(mode="json", exclude={"service_driver"}), "state_dir": str(state_dir)}
    path.write_text(json.dumps({**wish, "hold": hold}))
    process = subprocess.Popen(
        [sys.executable, "-u", "-m", "tests.hosts_lab.bridging", str(path)],
        cwd=lab.REPOSITORY, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
    )  # fmt: skip
    said: list[str] = []
    try:
        assert process.stdout is not None
        for line in process.stdout:
            said.append(line.rstrip())
            if line.strip() == "POINT":
                break
        else:
            raise lab.LabError(f"the operator never came to {hold!r}: {' | '.join(said[-5:])}")
        yield process
    finally:
        process.kill()
        process.wait()


@contextlib.contextmanager
def clients(machine: LabHost, folder: Path) -> Iterator[Callable[[], list[dict[str, Any]]]]:
    """Clients inside and outside of the host during the block; the given function ends them and says what they saw."""
    program = str(lab.HERE / "knock.py")
    where = {
        "inside": (["nsenter", "-t", str(machine.leader), "-n", "--"], "127.0.0.1"),
        "outside": ([], machine.address),
    }
    running = {
        folder / f"{name}.json": subprocess.Popen(
            [*enter, sys.executable, program, address, str(scene.PORT), str(folder / f"{name}.json")],
            stdin=subprocess.PIPE,
        )
        for name, (enter, address) in where.items()
    }

    def done() -> list[dict[str, Any]]:
        for process in running.values():
            process.communicate(timeout=60)
        return [json.loads(path.read_text()) for path in running]

    try:
        yield done
    finally:
        for process in running.values():
            process.kill()
            process.wait()


def main() -> int:
    wish = json.loads(Path(sys.argv[1]).read_text())

    def told(line: str) -> None:
        print(line, flush=True)
        if wish["hold"] in line:
            print("POINT", flush=True)
            sys.stdin.readline()

    with open_session(HostConfig.model_validate(wish["host"]), Path(wish["state_dir"])) as session:
        print(cut_over(session, told).outputs[KEY], flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
