"""Every Triton kernel against its reference on this device (part of ``python -m sglang_ddtree selftest``).

Every tile configuration a launcher may pick, odd sizes, outputs and scratch full of NaN beforehand.
"""

from __future__ import annotations

import multiprocessing
import time
import traceback
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import asdict, dataclass
from pathlib import Path

from .selftest_data import Outcome


@dataclass(frozen=True)
class Case:
    """One comparison: the op, what is special about it, and the function that runs it."""

    op: str
    name: str
    run: Callable[[], Outcome]


@dataclass(frozen=True)
class Result:
    op: str
    name: str
    ok: bool
    error: float
    limit: float
    seconds: float
    detail: str = ""


def cases(device: str, full: bool = False) -> Iterator[Case]:
    """All cases for a device; ``full`` adds real model dimensions (a GPU's work)."""
    from . import selftest_state, selftest_tree, selftest_upstream

    yield from selftest_tree.cases(device, full)
    yield from selftest_state.cases(device, full)
    if device == "cuda":
        yield from selftest_upstream.cases()


def run_case(case: Case) -> Result:
    """Never raises: an exception is a failed result."""
    started = time.monotonic()
    try:
        outcome = case.run()
    except Exception:
        detail = traceback.format_exc().strip().splitlines()[-1]
        return Result(case.op, case.name, False, float("nan"), 0.0, time.monotonic() - started, detail[:500])
    return Result(case.op, case.name, outcome.ok, outcome.error, outcome.limit, time.monotonic() - started)


def _run_index(job: tuple[str, bool, int]) -> Result:
    device, full, index = job
    if device not in _listed:
        _listed[device] = list(cases(device, full))
    return run_case(_listed[device][index])


_listed: dict[str, list[Case]] = {}
KEPT_EVERY = 11


def results(device: str, workers: int = 1) -> Iterator[Result]:
    """All results, as they come; several workers compile and run side by side.

    Compiling takes most of the time on a GPU and neighbours mostly need the same kernel, so the workers begin far apart.
    """
    full = device == "cuda"
    jobs = [(device, full, index) for index in range(len(list(cases(device, full))))]
    if workers <= 1:
        yield from map(_run_index, jobs)
        return
    with ProcessPoolExecutor(workers, mp_context=multiprocessing.get_context("spawn")) as pool:
        apart = -(-len(jobs) // workers)
        spread = sorted(jobs, key=lambda job: job[2] % apart)
        for done in as_completed([pool.submit(_run_index, job) for job in spread]):
            yield done.result()


def run(device: str, json_file: str | None = None, workers: int = 1) -> int:
    """Prints a line per op and every failure; exit code 0 when all passed, 1 when not."""
    found: list[Result] = []
    for result in results(device, workers):
        found.append(result)
        if json_file and len(found) % KEPT_EVERY == 0:  # an interrupted run leaves what it found
            _keep(json_file, found)
        if not result.ok:
            print(
                f"FAIL {result.op} {result.name}: error {result.error:.3g} (at most {result.limit:.0e}) {result.detail}",
                flush=True,
            )
    for op in dict.fromkeys(result.op for result in found):
        mine = [result for result in found if result.op == op]
        worst = max((r.error for r in mine if r.ok), default=float("nan"))
        passed = sum(r.ok for r in mine)
        print(
            f"{op:20} {passed:4} of {len(mine):4} passed, worst error {worst:.2e}, {sum(r.seconds for r in mine):.1f} s"
        )
    failed = sum(not result.ok for result in found)
    print(f"{len(found) - failed} passed, {failed} failed")
    if json_file:
        _keep(json_file, found)
    return 1 if failed else 0


def _keep(json_file: str, found: list[Result]) -> None:
    from .bench.report import write_result

    write_result(Path(json_file), "selftest", [asdict(result) for result in found])
