"""Compiles every kernel for every supported GPU architecture on a machine that needs no GPU.

The shared memory of each result is compared with what a block may use on that architecture.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass

import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from .kernels.common import SHARED_LIMIT, Variant, interpreting, variants


@dataclass(frozen=True)
class Row:
    """One compilation: ``error`` is empty when it worked and fits."""

    op: str
    label: str
    arch: int
    shared: int
    limit: int
    error: str = ""


def compile_one(variant: Variant, arch: int) -> Row:
    """Compiles one variant for one architecture (80, 86, ...)."""
    limit = SHARED_LIMIT[arch]
    signature = variant.signature | dict.fromkeys(variant.constexprs, "constexpr")
    order = [name for name in variant.kernel.arg_names if name in signature]
    source = ASTSource(variant.kernel, {name: signature[name] for name in order}, constexprs=variant.constexprs)
    options = {"num_warps": variant.num_warps, "num_stages": variant.num_stages}
    try:
        compiled = triton.compile(source, target=GPUTarget("cuda", arch, 32), options=options)
    except Exception as error:
        text = f"{type(error).__name__}: {error}".splitlines()[0][:300]
        return Row(variant.op, variant.label, arch, 0, limit, text)
    shared = int(compiled.metadata.shared)
    error = "" if shared <= limit else f"takes {shared} bytes of shared memory, a block may use {limit}"
    return Row(variant.op, variant.label, arch, shared, limit, error)


def _compile_index(index: int, arch: int) -> Row:
    return compile_one(_selected[index], arch)


_selected: list[Variant] = []


def matrix(
    architectures: Iterable[int] = tuple(SHARED_LIMIT),
    ops: Iterable[str] = (),
    workers: int = 1,
    only: Callable[[Variant], bool] = lambda variant: True,
) -> Iterator[Row]:
    """All rows, in the order of the kernels; ``ops`` and ``only`` narrow them."""
    if interpreting():
        raise RuntimeError("compile-matrix needs the compiler: unset TRITON_INTERPRET.")
    wanted = set(ops)
    _selected[:] = [v for v in variants() if (not wanted or v.op in wanted) and only(v)]
    jobs = [(i, arch) for i, v in enumerate(_selected) for arch in architectures if arch in v.architectures]
    if workers <= 1:
        for job in jobs:
            yield _compile_index(*job)
        return
    with ProcessPoolExecutor(workers) as pool:  # forked, so the children see _selected
        yield from pool.map(_compile_index, *zip(*jobs, strict=True), chunksize=4)


def run(as_json: bool = False, architectures: str = "", ops: str = "") -> int:
    """Prints a row per compilation; exit code 1 if any fails or does not fit."""
    archs = [int(a) for a in architectures.split(",") if a] or list(SHARED_LIMIT)
    started = time.monotonic()
    rows = list(matrix(archs, [op for op in ops.split(",") if op], workers=min(16, os.cpu_count() or 1)))
    bad = [row for row in rows if row.error]
    if as_json:
        print(json.dumps({"triton": triton.__version__, "ok": not bad, "rows": [asdict(row) for row in rows]}))
    else:
        for row in rows:
            print(
                f"sm_{row.arch} {row.op:18} {row.label:28} {row.shared / 1024:6.1f} of {row.limit >> 10} KiB {row.error}"
            )
    seconds = time.monotonic() - started
    summary = f"{len(rows) - len(bad)} passed, {len(bad)} failed in {seconds:.0f} s (Triton {triton.__version__})"
    print(summary, file=sys.stderr if as_json else sys.stdout)
    return 1 if bad else 0
