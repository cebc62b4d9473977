import subprocess
import sys
from pathlib import Path


_CALLS = {
    "BP(10)(rbm)": "ebm.BP(10)(rbm)",
    "sample(rbm, Gibbs(), 10, key=0)": "ebm.sample(rbm, ebm.Gibbs(), 10, key=0)",
    "fit(crbm, MLE(BP(10)), ...)": (
        "ebm.fit(crbm, ebm.MLE(ebm.BP(10)), (x, v), optimizer=optax.sgd(0.1), epochs=1,"
        " batch_size=20, key=1, progress=False)"
    ),
    "Auto()(table_model)": "ebm.Auto()(chain)",
}
_SCRIPT = """
import sys
import numpy as np, optax
import ebmlearn as ebm

folder = sys.argv[1] + "/"
assert ebm.__file__ == folder + "__init__.py", ebm.__file__
files = set()

def see(frame, event, _):
    if event == "call" and frame.f_code.co_filename.startswith(folder):
        files.add(frame.f_code.co_filename)

x, v = np.random.default_rng(0).integers(0, 2, (2, 40, 8)).astype(np.float32)
rbm = ebm.RBM.init(8, 4, key=0)
crbm = ebm.CRBM.init(8, 4, 8, key=0)
tables = np.random.default_rng(1).normal(size=(39, 2, 2)).astype(np.float32)
chain = ebm.TableModel([2] * 40, [(k, k + 1) for k in range(39)], tables)
sys.setprofile(see)
{call}
sys.setprofile(None)
print(len(files))
"""


def passed_through(package: Path) -> dict[str, int]:
    """How many files of a package have functions that a first call runs, in a fresh process."""
    found = {}
    for name, call in _CALLS.items():
        done = subprocess.run(
            [sys.executable, "-c", _SCRIPT.replace("{call}", call), str(package)],
            cwd=package.parent,
            check=True,
            stdout=subprocess.PIPE,
            text=True,
        )
        found[name] = int(done.stdout)
    return found
