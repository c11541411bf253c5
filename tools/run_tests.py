"""Run groups of tests in the interpreters they need, and end with one line `N passed, N failed`.

`python tools/run_tests.py [GROUP …]`; without a group, those of `make test`. A skipped test is named and counts as
failed when CI=true, because a check that did not run proves nothing.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
import xml.etree.ElementTree as ElementTree
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
RESULTS = ROOT / ".run" / "tests"
ENGINE_SIDE = ("tests/engine", "tests/kernels", "tests/models", "tests/baselines")
OWN_GROUPS = ("tests/e2e", "tests/hosts_lab")


@dataclass(frozen=True)
class Counts:
    passed: int = 0
    failed: int = 0
    skipped: tuple[str, ...] = ()

    def __add__(self, other: Counts) -> Counts:
        return Counts(self.passed + other.passed, self.failed + other.failed, self.skipped + other.skipped)


def pytest(name: str, python: str, arguments: list[str], env: Mapping[str, str] | None = None) -> Counts:
    """One pytest process; what its JUnit file says, or one failure when it left none."""
    RESULTS.mkdir(parents=True, exist_ok=True)
    report = RESULTS / f"{name}.xml"
    report.unlink(missing_ok=True)
    command = [python, "-m", "pytest", "-p", "no:cacheprovider", f"--junitxml={report}", *arguments]
    print(f"== {name}: {' '.join(command[3:])}", flush=True)
    started = time.monotonic()
    code = subprocess.run(command, cwd=ROOT, env={**os.environ, **(env or {})}, check=False).returncode
    print(f"== {name}: exit {code} after {time.monotonic() - started:.0f} s", flush=True)
    counts = read_report(report)
    return counts if code == 0 or counts.failed else counts + Counts(failed=1)


def read_report(report: Path) -> Counts:
    if not report.is_file():
        return Counts(failed=1)
    passed, failed, skipped = 0, 0, []
    for case in ElementTree.parse(report).getroot().iter("testcase"):
        if case.find("failure") is not None or case.find("error") is not None:
            failed += 1
        elif (skip := case.find("skipped")) is not None:
            skipped.append(f"{case.get('classname')}.{case.get('name')}: {skip.get('message')}")
        else:
            passed += 1
    return Counts(passed, failed, tuple(skipped))


def orchestrator_tests() -> Counts:
    ignored = [f"--ignore={folder}" for folder in (*ENGINE_SIDE, *OWN_GROUPS)]
    return pytest("orchestrator", sys.executable, ["tests", *ignored, "--durations=15"])


def engine_tests() -> Counts:
    return pytest("engine", *_engine(["tests/engine", "--durations=10"]))


def kernel_tests() -> Counts:
    """Twice: Triton chooses between its interpreter and its compiler when a kernel's module is imported."""
    python, arguments, env = _engine(["tests/kernels", "--durations=10"])
    interpreted = pytest("kernels-interpreted", python, arguments, {**env, "TRITON_INTERPRET": "1"})
    return interpreted + pytest("kernels-compiled", python, arguments, env)


def model_tests() -> Counts:
    return pytest("models", *_engine(["tests/models", "tests/baselines", "--durations=10"]))


def _engine(arguments: list[str]) -> tuple[str, list[str], dict[str, str]]:
    sys.path.insert(0, str(ROOT))
    from tools import engine_env

    python = engine_env.make()
    path = os.pathsep.join([str(ROOT / "engine"), str(engine_env.TOOLS)])
    return str(python), ["-q", *arguments], {"PYTHONPATH": path, "OMP_NUM_THREADS": "1"}


def story_tests() -> Counts:
    """The main job on embedded hosts of its own."""
    sys.path.insert(0, str(ROOT))
    from tools import engine_env

    engine_env.make()
    base = engine_env.engine_python().parent.parent
    return pytest("e2e", sys.executable, ["tests/e2e", "-x", "--durations=10"], {"ORCHESTRATE_ENGINE_BASE": str(base)})


GROUPS: dict[str, Callable[[], Counts]] = {
    "orchestrator": orchestrator_tests,
    "engine": engine_tests,
    "kernels": kernel_tests,
    "models": model_tests,
    "e2e": story_tests,
}


def main(names: list[str]) -> int:
    total = Counts()
    for name in names or list(GROUPS):
        total = total + GROUPS[name]()
    for skip in total.skipped:
        print(f"skipped: {skip}")
    failed = total.failed + (len(total.skipped) if os.environ.get("CI") == "true" else 0)
    print(f"{total.passed} passed, {failed} failed")
    return 0 if total.passed and not failed else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
