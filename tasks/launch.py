"""From the linear service's launch to the tree's: nothing differs but interpreter, algorithm, width, port and knobs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from orchestrator.errors import UsageError
from orchestrator.release.launch import Launch, flag_value, with_flags

ALGORITHM = "--speculative-algorithm"
WIDTH = "--speculative-num-draft-tokens"
DRAFT = "--speculative-draft-model-path"
TARGET = "--model-path"
PORT = "--port"


def algorithm_of(argv: Sequence[str]) -> str:
    """Upper-case name of the speculative algorithm that a command line asks for; NONE without one."""
    return (flag_value(argv, ALGORITHM) or "NONE").upper()


def on_port(launch: Launch, port: int) -> Launch:
    """The same launch on another port."""
    return launch.model_copy(update={"argv": with_flags(launch.argv, {PORT: str(port)})})


def linear_launch(found: Launch, draft: str, block: int) -> Launch:
    """The launch that serves linear DFLASH with drafts of `block` tokens, from any other launch of SGLang.

    Every flag of the speculation that ran before (NEXTN, EAGLE, n-gram) goes; all others stay.
    """
    gone = [word.split("=", 1)[0] for word in found.argv if word.startswith("--speculative-")]
    flags = {ALGORITHM: "DFLASH", DRAFT: draft, WIDTH: str(block)}
    return found.model_copy(update={"argv": with_flags(found.argv, flags, remove=gone)})


def tree_launch(linear: Launch, nodes: int, knobs: Mapping[str, object]) -> Launch:
    """The launch that serves DDTREE with `nodes` tree nodes, from the linear DFLASH service's one.

    knobs: the engine's own (SGLANG_DDTREE_<NAME>); None leaves the engine's default. UsageError for a service that
    is not DFLASH, or has no draft model.
    """
    algorithm = algorithm_of(linear.argv)
    if algorithm not in ("DFLASH", "DDTREE"):
        raise UsageError(
            f"The service runs {algorithm}, not linear DFLASH: `orchestrate run deploy-dflash` makes that first."
        )
    if not flag_value(linear.argv, DRAFT):
        raise UsageError(f"The service's command line has no {DRAFT}; a tree needs the draft model.")
    argv = with_flags(linear.argv, {ALGORITHM: "DDTREE", WIDTH: str(nodes + 1)})
    env = {f"SGLANG_DDTREE_{name.upper()}": str(value) for name, value in knobs.items() if value is not None}
    return linear.model_copy(update={"argv": argv, "env": {**linear.env, **env}})


def adaptive_knobs(linear: Launch, nodes: int) -> dict[str, object]:
    """Knobs of a service that chooses among the linear chain, `nodes` and what lies between by what it measures.

    Narrower trees must hold the draft's block, so they are offered only where the linear command line names it.
    """
    block = int(flag_value(linear.argv, WIDTH) or 0)
    narrower = [part for part in (nodes // 4, nodes // 2) if 0 < block <= part + 1]
    return {"widths": ",".join(["chain", *map(str, [*narrower, nodes])]), "width": "auto"}
