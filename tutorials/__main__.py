"""Runs the tutorials, each in a process of its own, and writes them as notebooks; or writes the
stored notebooks as pages, which runs nothing.
"""

import argparse
import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from ._notebook import as_page, make


FOLDER = Path(__file__).parent
# Their models are so small that to compile takes longer than to run.
SMALL = (
    "03_numpyro",
    "06_nonnegative_data",
    "07_which_learner",
    "08_scaling_out",
    "09_from",
    "10_is",
)


def main() -> None:
    known = sorted(path.stem for path in FOLDER.glob("[0-9]*.py"))
    parser = argparse.ArgumentParser(prog="python -m tutorials", description=__doc__)
    parser.add_argument("names", nargs="*", help=f"which, all by default: {', '.join(known)}")
    parser.add_argument("--pages", type=Path, help="a folder for pages made of stored notebooks")
    parser.add_argument(
        "--notebooks",
        nargs="?",
        type=Path,
        const=FOLDER,
        help="a folder for Jupyter notebooks, by default that of the tutorials",
    )
    parser.add_argument("--at-once", type=int, default=2, help="how many processes")
    args = parser.parse_args()
    chosen = [name for name in known if not args.names or any(x in name for x in args.names)]
    if not chosen:
        raise SystemExit(f"no tutorial is called {args.names}; there are {', '.join(known)}")
    if args.pages is not None:
        for name in chosen:
            as_page(FOLDER / f"{name}.ipynb", args.pages)
        return
    if len(chosen) == 1:
        seconds = make(FOLDER / f"{chosen[0]}.py", args.notebooks)
        print(f"{chosen[0]}: {seconds:.0f} s", flush=True)
        return
    folder = [] if args.notebooks is None else [f"--notebooks={args.notebooks}"]

    def one(name: str) -> int:
        command = [sys.executable, "-m", "tutorials", name, *folder]
        # Side by side they share the cores: to compile in several threads as well would only cost.
        flags = "--xla_cpu_parallel_codegen_split_count=1 --xla_cpu_use_fusion_emitters=false"
        environment = {**os.environ, "XLA_FLAGS": f"{os.environ.get('XLA_FLAGS', '')} {flags}"}
        if name.startswith(SMALL):
            environment["JAX_DISABLE_MOST_OPTIMIZATIONS"] = "1"
        return subprocess.run(command, env=environment).returncode

    with ThreadPoolExecutor(args.at_once) as pool:
        failed = [name for name, code in zip(chosen, pool.map(one, chosen), strict=True) if code]
    if failed:
        raise SystemExit(f"failed: {', '.join(failed)}")


if __name__ == "__main__":
    main()
