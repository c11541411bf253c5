"""Looking at a host or a folder: engines, models, hardware, budgets, risks. Nothing here changes anything."""

from tasks.inspecting.inspection import Inspection, Scope, inspect_folder, inspect_host

__all__ = ["Inspection", "Scope", "inspect_folder", "inspect_host"]
