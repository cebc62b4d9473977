"""The package as a newcomer meets it: imports, README, demonstration, layers."""

import ast
import importlib
import inspect
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import programs
import pytest

import ebmlearn as ebm


ROOT = Path(__file__).parents[1]
# Each room may use the rooms before it.
ROOMS = ["units", "factors", "models", "messages", "elimination", "inference", "samplers"]
ROOMS += [
    "answers",
    "estimate",
    "learners",
    "training",
    "pgmax",
    "numpyro",
    "plotting",
    "sklearn",
    "uai",
]


def run(code: str) -> str:
    command = [sys.executable, "-c", code]
    return subprocess.run(
        command, check=True, capture_output=True, text=True, cwd=ROOT, env=programs.quickly()
    ).stdout


# Classes of which users only see the objects that functions return.
RETURNED = {
    *("Answer", "BlockState", "BorderOwnership", "Convolution", "ExchangeState", "Fitted"),
    *("KernelState", "QueryEntropy", "Report", "Segmentation", "Split"),
    *("AsRBM", "NNBMWiring", "PGMaxGraph", "RBMWiring"),
}


def test_quick_tests_use_every_public_name():
    """Abstract classes are used by those below them."""
    public = set[str]()
    for package in ("", ".datasets", ".numpyro", ".pgmax", ".plotting", ".sklearn", ".uai"):
        room = importlib.import_module(f"ebmlearn{package}")
        own = {name for name in dir(room) if not name.startswith(("_", "Abstract"))}
        public |= {name for name in own if not inspect.ismodule(getattr(room, name))}
    used = set[str]()
    for path in (ROOT / "tests").glob("*.py"):
        text = path.read_text()
        for node in ast.parse(text).body:
            marks = [ast.unparse(x) for x in getattr(node, "decorator_list", [])]
            if "pytest.mark.slow" not in marks and not ast.unparse(node).startswith("RETURNED"):
                used.update(re.findall(r"\w+", ast.get_source_segment(text, node) or ""))
    assert public - used - RETURNED == set()


@pytest.mark.slow
def test_import_loads_no_other_ecosystem():
    loaded = run("import sys, ebmlearn; print([m for m in sys.modules if '.' not in m])")
    for name in (
        "pgmax",
        "numpyro",
        "matplotlib",
        "sklearn",
        "tqdm",
        "scipy",
        "optimistix",
        "safetensors",
    ):
        assert repr(name) not in loaded


def test_import_compiles_nothing():
    events = run(
        "import jax; seen = []; note = lambda event, *_, **__: seen.append(event);"
        " jax.monitoring.register_event_duration_secs_listener(note); import ebmlearn; print(seen)"
    )
    assert events.strip() == "[]"


@pytest.mark.slow
def test_missing_extra_says_what_to_install():
    """In one process, without the packages of all extras."""
    uses = {
        "import ebmlearn.pgmax": "ebmlearn.pgmax needs PGMax: "
        'pip install ".[pgmax]", or slim: pip install numba && pip install --no-deps pgmax',
        "import ebmlearn.plotting": 'ebmlearn.plotting needs Matplotlib: pip install ".[plot]"',
        "import ebmlearn.sklearn": 'ebmlearn.sklearn needs scikit-learn: pip install ".[sklearn]"',
        "from ebmlearn import datasets; datasets.digits()": "datasets.digits needs scikit-learn: "
        'pip install ".[data]"',
        "import runpy; runpy.run_module('ebmlearn', run_name='__main__')": "error: "
        'python -m ebmlearn needs scikit-learn and Matplotlib: pip install ".[data,plot]"',
    }
    out = run(
        "import sys\n"
        "for name in ('pgmax', 'matplotlib', 'sklearn'):\n    sys.modules[name] = None\n"
        f"for use in {list(uses)!r}:\n"
        "    try:\n        exec(use)\n"
        "    except (ImportError, SystemExit) as error:\n        print(error)"
    )
    assert out.splitlines() == list(uses.values())


def test_rooms_use_only_rooms_before_them():
    for k, room in enumerate(ROOMS):
        for path in (ROOT / "ebmlearn" / room).glob("*.py"):
            for node in ast.walk(ast.parse(path.read_text())):
                if isinstance(node, ast.ImportFrom) and node.level == 2 and node.module:
                    used = node.module.split(".")[0]
                    assert used not in ROOMS[k + 1 :], f"{path} uses {used}"


@pytest.mark.slow
def test_each_ecosystem_has_its_room():
    rooms = {
        "pgmax": {"pgmax"},
        "numpyro": {"numpyro"},
        "matplotlib": {"plotting", "__main__"},
        "tqdm": {"_watch"},
        "sklearn": {"datasets", "sklearn"},
    }
    for path in (ROOT / "ebmlearn").rglob("*.py"):
        room = path.relative_to(ROOT / "ebmlearn").with_suffix("").parts[0]
        for node in ast.walk(ast.parse(path.read_text())):
            names = []
            if isinstance(node, ast.Import):
                names = [alias.name for alias in node.names]
            elif isinstance(node, ast.ImportFrom) and node.level == 0:
                names = [node.module or ""]
            for name in names:
                allowed = rooms.get(name.split(".")[0])
                assert allowed is None or room in allowed, f"{path} imports {name}"


@pytest.mark.slow
def test_readme_examples_run():
    """Each for itself, in one process."""
    blocks = re.findall(r"```python\n(.*?)```", (ROOT / "README.md").read_text(), re.DOTALL)
    assert len(blocks) >= 2
    out = run(f"for block in {blocks!r}:\n    exec(block, {{}})\n    print('it ran')")
    assert out.count("it ran") == len(blocks)


@pytest.mark.slow
def test_demonstration(tmp_path):
    path = tmp_path / "demo.png"
    command = [sys.executable, "-m", "ebmlearn", "--quiet", "--epochs", "8"]
    command += ["--output", str(path), "--learners", "logistic regression", "MLE-BP", "MSSVM"]
    out = subprocess.run(
        command, check=True, capture_output=True, text=True, cwd=ROOT, env=programs.as_users()
    ).stdout
    assert path.read_bytes().startswith(b"\x89PNG")
    errors = {}
    for line in out.splitlines():
        match = re.match(r"(.+?) +([\d.]+)% +([\d.]+)%", line)
        if match:
            errors[match[1]] = float(match[2])
    assert len(errors) == 4
    assert "Train longer" not in out
    assert errors["MLE-BP"] < errors["logistic regression"] < errors["left as it came"] / 1.2


@pytest.mark.slow
def test_demonstration_says_that_few_epochs_are_too_few(tmp_path):
    command = [sys.executable, "-m", "ebmlearn", "--quiet", "--epochs", "1"]
    command += ["--output", str(tmp_path / "demo.png"), "--learners", "MSSVM"]
    out = subprocess.run(
        command, check=True, capture_output=True, text=True, cwd=ROOT, env=programs.as_users()
    ).stdout
    assert "Worse than the noisy digits: MSSVM. Train longer; the default is 60 epochs." in out


@pytest.mark.slow
def test_benchmark_in_brief(tmp_path):
    path = tmp_path / "precision.json"
    command = [sys.executable, "-m", "benchmarks", "precision", "--seeds", "1", "--json", str(path)]
    out = subprocess.run(
        command, check=True, capture_output=True, text=True, cwd=ROOT, env=programs.quickly()
    ).stdout
    assert "|W|" in out
    assert path.exists()


def test_version():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert project["version"] == ebm.__version__
    assert f"\nversion: {ebm.__version__}\n" in (ROOT / "CITATION.cff").read_text()
    assert f"\n## [{ebm.__version__}] - " in (ROOT / "CHANGELOG.md").read_text()


@pytest.mark.parametrize("name", [name for name in dir(ebm) if not name.startswith("_")])
def test_everything_public_is_documented(name):
    thing = getattr(ebm, name)
    if inspect.ismodule(thing):
        return
    assert inspect.getdoc(thing)
    if inspect.isclass(thing):
        for member, value in inspect.getmembers(thing, inspect.isfunction):
            if not member.startswith("_"):
                assert inspect.getdoc(value), f"{name}.{member}"
