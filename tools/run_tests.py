"""Run groups of tests in the interpreters they need, and end with one line `N passed, N failed`.

`python tools/run_tests.py [GROUP …]`; without a group, those of `make test`, which leave out what needs large downloads. A skipped test is named and counts as
failed when CI=true, because a check that did not run proves nothing.
"""

from __future__ import annotations

import functools
import os
import shutil
import subprocess
import sys
import threading
import time
import xml.etree.ElementTree as ElementTree
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from tools import engine_env

ROOT = Path(__file__).resolve().parent.parent
RESULTS = ROOT / ".run" / "tests"
ENGINE_SIDE = ("tests/engine", "tests/kernels", "tests/models", "tests/baselines")
WHEEL_TESTS = "tests/inspect/test_wheels.py"
SCREEN_TEST = "tests/tui/test_real_deploy.py"
BROKEN_TEST = "tests/e2e/test_broken_engine.py"
TROUBLES_TEST = "tests/e2e/test_troubles.py"
OWN_GROUPS = ("tests/e2e", "tests/hosts_lab", "tests/rolling", WHEEL_TESTS, SCREEN_TEST)
NEWEST_SGLANG = "0.5.23"
GROUP_MINUTES = 30
MOST_SHOWN = 60_000
PRINTING = threading.Lock()
PROVISIONING = threading.Lock()


@dataclass(frozen=True)
class Counts:
    passed: int = 0
    failed: int = 0
    skipped: tuple[str, ...] = ()

    def __add__(self, other: Counts) -> Counts:
        return Counts(self.passed + other.passed, self.failed + other.failed, self.skipped + other.skipped)


def pytest(name: str, python: str, arguments: list[str], env: Mapping[str, str] | None = None) -> Counts:
    """One pytest process; what its JUnit file says, or one failure when it left none.

    Its output goes to .run/tests/NAME.log: the end is printed, or all of it when something failed.
    """
    RESULTS.mkdir(parents=True, exist_ok=True)
    report, log = RESULTS / f"{name}.xml", RESULTS / f"{name}.log"
    report.unlink(missing_ok=True)
    command = [python, "-m", "pytest", "-p", "no:cacheprovider", f"--junitxml={report}", *arguments]
    say(f"== {name}: started, output in {log.relative_to(ROOT)}")
    started = time.monotonic()
    with log.open("w") as output:
        process = subprocess.Popen(
            command, cwd=ROOT, env={**os.environ, **(env or {})}, stdout=output, stderr=subprocess.STDOUT
        )
        code = _wait(process, name, log)
    text = log.read_text(errors="replace")
    shown = text[-MOST_SHOWN:] if code else "\n".join(text.splitlines()[-3:])
    say(f"{shown}\n== {name}: exit {code} after {time.monotonic() - started:.0f} s")
    counts = read_report(report)
    return counts if code == 0 or counts.failed else counts + Counts(failed=1)


def _wait(process: subprocess.Popen[bytes], name: str, log: Path) -> int:
    """Wait for a group with a sign of life every minute; one that hangs is ended, which fails it."""
    for minute in range(1, GROUP_MINUTES + 1):
        try:
            return process.wait(timeout=60)
        except subprocess.TimeoutExpired:
            last = (log.read_text(errors="replace").strip().splitlines() or ["no output yet"])[-1]
            say(f"   {name}: {minute} min, {last[-60:]}")
    process.terminate()
    say(f"== {name} hung for {GROUP_MINUTES} minutes and was ended")
    try:
        return process.wait(timeout=60) or 1
    except subprocess.TimeoutExpired:
        process.kill()
        return process.wait() or 1


def say(text: str) -> None:
    with PRINTING:
        print(text, flush=True)


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
    python = engine_python()
    path = os.pathsep.join([str(ROOT / "engine"), str(engine_env.TOOLS)])
    return str(python), ["-q", *arguments], {"PYTHONPATH": path, "OMP_NUM_THREADS": "1"}


@functools.cache
def _made_engine() -> Path:
    return engine_env.make()


def engine_python() -> Path:
    """The engine's interpreter, provisioned by the first lane that needs it."""
    with PROVISIONING:
        return _made_engine()


def wheel_tests() -> Counts:
    """What inspect says about wheels of many releases, which are downloaded, unpacked and kept, and never run."""
    env = {"ORCHESTRATE_FULL": "1", "ORCHESTRATE_WHEELS": str(ROOT / ".cache" / "unpacked")}
    return pytest("wheels", sys.executable, ["-q", WHEEL_TESTS], env)


def newest_engine_tests() -> Counts:
    """The engine's tests against the newest supported SGLang instead of the one of the CPU engine."""
    python, arguments, env = _engine(["tests/engine", "--durations=10"])
    tree = ROOT / ".cache" / f"sglang-{NEWEST_SGLANG}"
    if not tree.is_dir():
        part = tree.with_name(f"{tree.name}.part")
        shutil.rmtree(part, ignore_errors=True)
        options = ["-q", "--disable-pip-version-check", "--no-deps", "--only-binary", ":all:", "--target", str(part)]
        subprocess.run([python, "-m", "pip", "install", *options, f"sglang=={NEWEST_SGLANG}"], check=True)
        part.rename(tree)
    return pytest(f"engine-{NEWEST_SGLANG}", python, arguments, {**env, "ENGINE_SGLANG_TREE": str(tree)})


def story_tests() -> Counts:
    """The main job on embedded hosts of its own."""
    return _on_embedded_hosts("e2e", "tests/e2e", f"--ignore={BROKEN_TEST}", f"--ignore={TROUBLES_TEST}")


def trouble_tests() -> Counts:
    """What goes wrong in a real deployment: plugins that do not load, full disks, Ctrl-C, services that are down."""
    return _on_embedded_hosts("troubles", TROUBLES_TEST)


def screen_test() -> Counts:
    """A whole deployment driven by keys through the TUI in a real terminal."""
    return _on_embedded_hosts("screen", SCREEN_TEST)


def broken_engine_test() -> Counts:
    """Releases that are broken on purpose, against the parity check of a deploy."""
    return _on_embedded_hosts("broken", BROKEN_TEST)


def _on_embedded_hosts(name: str, *tests: str) -> Counts:
    base = engine_python().parent.parent
    return pytest(name, sys.executable, [*tests, "-x", "--durations=10"], {"ORCHESTRATE_ENGINE_BASE": str(base)})


def router_tests() -> Counts:
    """The real router with stand-in engines, thousands of requests in two minutes; -s shows how many failed."""
    return pytest("router", sys.executable, ["tests/rolling/test_router.py", "-x", "-s"])


def rolling_tests() -> Counts:
    """The same with three real engines, through the program's commands; ROLLING_REQUESTS says how many each way."""
    base = engine_python().parent.parent
    wanted = ["tests/rolling/test_engines.py", "-x", "-s"]
    return pytest("rolling", sys.executable, wanted, {"ORCHESTRATE_ENGINE_BASE": str(base)})


GROUPS: dict[str, Callable[[], Counts]] = {
    "orchestrator": orchestrator_tests,
    "engine": engine_tests,
    "kernels": kernel_tests,
    "models": model_tests,
    "e2e": story_tests,
}
LARGE_GROUPS: dict[str, Callable[[], Counts]] = {
    "troubles": trouble_tests,
    "wheels": wheel_tests,
    "router": router_tests,
    "rolling": rolling_tests,
    f"engine-{NEWEST_SGLANG}": newest_engine_tests,
    "screen": screen_test,
    "broken": broken_engine_test,
}


# Groups of one lane run one after the other, because they would disturb each other; the longest lanes come first.
LANES = (
    ("orchestrator", "wheels"),
    ("e2e", "troubles", "screen", "broken", "router", "rolling"),
    ("engine", f"engine-{NEWEST_SGLANG}"),
    ("kernels",),
    ("models",),
)
AT_ONCE = 3  # most of the orchestrator's tests wait, those on embedded hosts half the time, and the engine's compute


def main(names: list[str]) -> int:
    known = GROUPS | LARGE_GROUPS
    unknown = [name for name in names if name not in known]
    if unknown:
        print(f"There is no group {unknown[0]!r}; known: {', '.join(known)}.")
        return 2
    chosen = names or list(GROUPS)
    lanes = [[name for name in lane if name in chosen] for lane in LANES]
    at_once = 2 if os.environ.get("CI") == "true" else AT_ONCE  # CI has time, and no use for a crowded machine
    with ThreadPoolExecutor(at_once) as pool:
        total = sum((counts for lane in pool.map(_lane, lanes) for counts in lane), Counts())
    for skip in total.skipped:
        print(f"skipped: {skip}")
    failed = total.failed + (len(total.skipped) if os.environ.get("CI") == "true" else 0)
    print(f"{total.passed} passed, {failed} failed")
    return 0 if total.passed and not failed else 1


def _lane(names: list[str]) -> list[Counts]:
    return [(GROUPS | LARGE_GROUPS)[name]() for name in names]


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
