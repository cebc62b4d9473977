"""Optional packages: an error that says what to install."""

from importlib.util import find_spec
from pathlib import Path


_PACKAGES = {
    "pgmax": ("PGMax", ("pgmax", "numba")),
    "plot": ("Matplotlib", ("matplotlib",)),
    "data": ("scikit-learn", ("sklearn",)),
    "sklearn": ("scikit-learn", ("sklearn",)),
}
# PGMax declares its development tools as run-time requirements; this installs what it imports.
_SLIM = {"pgmax": ", or slim: pip install numba && pip install --no-deps pgmax"}


def need(what: str, *extras: str) -> None:
    """Raises `ImportError` unless the packages of `extras`, which `what` needs, are installed."""
    missing = [
        extra
        for extra in extras
        if any(find_spec(module) is None for module in _PACKAGES[extra][1])
    ]
    if missing:
        packages = " and ".join(_PACKAGES[extra][0] for extra in missing)
        slim = "".join(_SLIM.get(extra, "") for extra in missing)
        # A checkout is installed from its folder.
        checkout = (Path(__file__).parents[1] / "pyproject.toml").exists()
        name = f"{'.' if checkout else 'ebmlearn'}[{','.join(missing)}]"
        raise ImportError(f'{what} needs {packages}: pip install "{name}"{slim}')
