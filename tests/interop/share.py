"""The share of cases that a run takes."""

import os


def of_share(cases):
    """The cases that FERRY_TEST_SHARE takes, as in tests/share.sh; some case always is."""
    first, of = map(int, os.environ.get("FERRY_TEST_SHARE", "0/1").split("/"))
    of = min(of, len(cases)) or 1
    return [case for i, case in enumerate(cases) if i % of == first % of]
