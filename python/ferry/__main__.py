"""python -m ferry, and the command `ferry` of an installed module: becomes the program."""
import os
import sys

import ferry


def main() -> None:
    program = ferry.program()
    os.execv(program, [program, *sys.argv[1:]])


if __name__ == "__main__":
    main()
