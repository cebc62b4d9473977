"""The bridge to PGMax. Importing it makes PGMax run on recent versions of JAX, and tells it of the
factor groups here: build graphs afterwards.
"""

from ._compat import make_compatible as _make_compatible


_make_compatible()

from ._rbm_group import (  # noqa: E402
    RBMFactor as RBMFactor,
    RBMFactorGroup as RBMFactorGroup,
    RBMWiring as RBMWiring,
    register as _register,
)


_register()
