"""What each view says, computed from a reading of the store. No widget, no store access."""
