import argparse
import importlib
from pathlib import Path

from . import _report, report


NAMES = (
    "bp",
    "cd_starts",
    "compile",
    "crbm",
    "equilibrium",
    "exchange",
    "gibbs",
    "logz",
    "nnbm",
    "notebooks",
    "numpyro",
    "pgmax",
    "pmp",
    "precision",
    "qt",
    "resume",
    "samplers",
    "sap",
    "sklearn",
    "speed",
    "structure",
    "structures",
    "uai",
    "upstream",
)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    commands = parser.add_subparsers(dest="name", required=True)
    for name in NAMES:
        module = importlib.import_module(f"benchmarks.{name}")
        command = commands.add_parser(name, help=(module.__doc__ or "").splitlines()[0])
        module.add_arguments(command)
        command.add_argument(
            "--json",
            nargs="?",
            type=Path,
            const=Path(__file__).parent / "results" / f"{name}.json",
            help="write the result to a file, by default in benchmarks/results",
        )
    commands.add_parser("report", help="write the tables of the README from the results")
    args = parser.parse_args()
    if args.name == "report":
        report.write()
        return
    try:
        result = importlib.import_module(f"benchmarks.{args.name}").main(args)
    except FileNotFoundError as error:
        raise SystemExit(f"Not run: {error}") from None
    if args.json is not None:
        _report.write(args.json, {"command": args.name, **_report.arguments(args), **result})
        print(f"wrote {args.json}")


if __name__ == "__main__":
    main()
