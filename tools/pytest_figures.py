#!/usr/bin/env python3
"""The figures of a run of pytest, as a gate's last line has them.

usage: pytest_figures.py RESULTS.xml     (of pytest --junit-xml, junit_family xunit1)

Prints how many tests ran, failed and were skipped, and the largest value of each property that
tests recorded; which test recorded what goes to standard error. Exit code 1: a test failed, or was
skipped, which is not passed; 2: there are no such results.
"""

import json
import sys
import xml.etree.ElementTree


def recorded(suite):
    """(test, property, value) of all that is a number."""
    for case in suite.iter("testcase"):
        for one in case.iter("property"):
            yield case.get("name"), one.get("name"), float(one.get("value"))


def main(path):
    try:
        (suite,) = xml.etree.ElementTree.parse(path).iter("testsuite")
    except (OSError, ValueError, xml.etree.ElementTree.ParseError) as error:
        print(f"pytest_figures: {path}: {error}", file=sys.stderr)
        return 2
    figures = {"tests": int(suite.get("tests")),
               "failed": int(suite.get("failures")) + int(suite.get("errors")),
               "skipped": int(suite.get("skipped"))}
    largest = {}
    for test, name, value in recorded(suite):
        print(f"{test}: {name} {value}", file=sys.stderr)
        largest[name] = max(value, largest.get(name, value))
    for case in suite.iter("testcase"):
        for skipped in case.iter("skipped"):
            said = f"skipped, which is not passed: {case.get('name')}: {skipped.text}"
            print(said, file=sys.stderr)
    print(json.dumps(figures | largest)[1:-1])
    return 1 if figures["failed"] or figures["skipped"] else 0


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    sys.exit(main(sys.argv[1]))
