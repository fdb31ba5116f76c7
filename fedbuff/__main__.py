"""python -m fedbuff: the command `fedbuff`."""

from ._cli import main

if __name__ == "__main__":
    main()
