"""Tutorials as notebooks in text form: `python -m tutorials`."""
