"""The rules themselves, by subject. Importing this package fills the rule base (tasks.inspecting.risks.RULES)."""

from tasks.inspecting.risk_rules import engine, hardware, measuring, models, service

__all__ = ["engine", "hardware", "measuring", "models", "service"]
