"""The CUDA graphs of several widths in one server.

SGLang captures the target's and the draft's graphs for one width.  For every other width the same runner is built again:
the target's per number of rows, the draft's per width, because the tree is built inside its graph.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence
from typing import Any

from .compat.base import Line
from .widths import Width

logger = logging.getLogger(__name__)


class WidthGraphs:
    """Puts the graph runners of a width in force on the model runners of target and draft."""

    def __init__(self, target: Any, draft: Any, line: Line, widths: Sequence[Width]) -> None:
        """target, draft: SGLang's model runners, whose own graphs are those of the last (widest) of ``widths``."""
        self._target, self._draft, self._line = target, draft, line
        widest = widths[-1]
        self._target_graphs = {widest.rows: target.decode_cuda_graph_runner}
        self._draft_graphs = {widest: draft.decode_cuda_graph_runner}

    def capture(self, widths: Sequence[Width], use: Callable[[Width], None]) -> None:
        """Capture what is missing, widest first, so that narrower graphs find buffers that are large enough.

        use(width) puts everything but the graphs in force.  A runner without graphs (eager mode) stays without.
        """
        for width in sorted(widths, key=lambda width: -width.rows):
            begun = time.monotonic()
            use(width)
            if self._target.decode_cuda_graph_runner is not None and width.rows not in self._target_graphs:
                self._target_graphs[width.rows] = self._line.capture_graphs(self._target, width.rows)
            if self._draft.decode_cuda_graph_runner is not None and width not in self._draft_graphs:
                self._draft_graphs[width] = self._line.capture_graphs(self._draft, None)
            logger.info("DDTREE: graphs of width %s after %.1f s", width.label, time.monotonic() - begun)

    def use(self, width: Width) -> None:
        """Replay the graphs of this width from now on."""
        if self._target.decode_cuda_graph_runner is not None:
            self._target.decode_cuda_graph_runner = self._target_graphs[width.rows]
        if self._draft.decode_cuda_graph_runner is not None:
            self._draft.decode_cuda_graph_runner = self._draft_graphs[width]
