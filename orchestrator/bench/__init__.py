"""Measuring two speculative algorithms against each other so that the verdict can be trusted."""
