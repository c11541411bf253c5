"""The Prometheus text of an engine, summed over labels. A text of another kind has no samples."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterator

from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.samples import Sample


def read_metrics(text: str) -> dict[str, float]:
    """Sample name -> value summed over all label sets."""
    totals: dict[str, float] = defaultdict(float)
    for sample in _samples(text):
        totals[sample.name] += sample.value
    return dict(totals)


def by_label(text: str, name: str, label: str) -> dict[str, float]:
    """Label value -> summed value of one sample name."""
    totals: dict[str, float] = defaultdict(float)
    for sample in _samples(text):
        if sample.name == name:
            totals[sample.labels.get(label, "")] += sample.value
    return dict(totals)


def _samples(text: str) -> Iterator[Sample]:
    """Those with a number: NaN and infinity, which a gauge may show before its first value, are none."""
    try:
        for family in text_string_to_metric_families(text):
            yield from (sample for sample in family.samples if math.isfinite(sample.value))
    except (ValueError, KeyError, IndexError, AttributeError):  # a web page, for example of a gateway
        return
