"""Lists the available data sets, or makes their files from the original distributions."""

import argparse
import os
import sys
from pathlib import Path

from . import _files
from ._originals import convert


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m ebmlearn.datasets", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    commands.add_parser("list", help="list the data sets in the folder EBMLEARN_DATA")
    command = commands.add_parser("convert", help="make a file from the original ones")
    command.add_argument("name", choices=_files.FILES)
    command.add_argument("paths", nargs="+", type=Path, help="the original file, files or folder")
    command.add_argument("--to", type=Path, help="the folder to write to; default: EBMLEARN_DATA")
    command.add_argument("--units", type=int, help="the number of units, if the files show fewer")
    command.add_argument("--format", choices=("libsvm", "amat"), help="of text files")
    args = parser.parse_args(arguments)
    try:
        if args.command == "list":
            _list()
        else:
            arrays = convert(args.name, args.paths, args.units, args.format)
            print(f"wrote {_files.write(args.name, arrays, args.to or _files.folder())}")
    except (OSError, ValueError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    return 0


def _list() -> None:
    path = os.environ.get("EBMLEARN_DATA")
    print(f"EBMLEARN_DATA={path or ''}")
    for name, file in _files.FILES.items():
        there = path is not None and (Path(path) / f"{file.name}.npz").exists()
        print(f"{name:12} {'there' if there else 'missing':8} {file.origin}")


if __name__ == "__main__":
    sys.exit(main())
