"""The Prometheus text of an engine, summed over labels."""

from __future__ import annotations

from collections import defaultdict

from prometheus_client.parser import text_string_to_metric_families


def read_metrics(text: str) -> dict[str, float]:
    """Sample name -> value summed over all label sets. Raises ValueError for text that is not Prometheus'."""
    totals: dict[str, float] = defaultdict(float)
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            totals[sample.name] += sample.value
    return dict(totals)


def by_label(text: str, name: str, label: str) -> dict[str, float]:
    """Label value -> summed value of one sample name."""
    totals: dict[str, float] = defaultdict(float)
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            if sample.name == name:
                totals[sample.labels.get(label, "")] += sample.value
    return dict(totals)
