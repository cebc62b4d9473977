"""The bridge to PGMax. Importing it makes PGMax run on recent versions of JAX."""

from ._compat import make_compatible as _make_compatible


_make_compatible()
