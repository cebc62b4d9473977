"""Answers a task of the UAI competitions: the answer goes to standard output in the format of the
competition, and a report of how it was found to standard error.
"""

import argparse
import sys

from . import answer, read_evidence, read_network, read_query
from ._answers import TASKS


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m ebmlearn.uai", description=__doc__)
    parser.add_argument("task", choices=TASKS)
    parser.add_argument("file", help="the network, a .uai file")
    parser.add_argument("evidence", nargs="?", help="an .evid file; none if not given")
    parser.add_argument("query", nargs="?", help="a .query file, for MMAP")
    parser.add_argument("--seconds", type=float, default=20.0, help="about how long it may take")
    parser.add_argument(
        "--memory",
        type=float,
        default=28.0,
        help="log2 of the largest table that elimination may use",
    )
    given = parser.parse_args()
    if given.task == "MMAP" and given.query is None:
        parser.error("MMAP needs a query: write MMAP FILE.uai FILE.uai.evid FILE.uai.query")
    evidence, query = None, ()
    try:
        network = read_network(given.file)
        if given.evidence is not None:
            evidence = read_evidence(given.evidence, network.counts)
        if given.task == "MMAP":
            query = read_query(given.query, network.counts)
    except (OSError, ValueError) as error:
        sys.exit(str(error))
    try:
        found, report = answer(
            given.task, network, evidence, query, seconds=given.seconds, memory=given.memory
        )
    except ValueError as error:
        files = [given.file] if given.evidence is None else [given.file, given.evidence]
        sys.exit(f"{' with '.join(f'`{file}`' for file in files)}: {error}")
    sys.stdout.write(found.text())
    print(report, file=sys.stderr)


if __name__ == "__main__":
    main()
