"""Training of the small target/draft pairs: ``python -m models.train --help`` (with engine/ on PYTHONPATH)."""
