"""``python -m jlaunch``."""

from jlaunch.cli.main import entry

if __name__ == "__main__":
    entry()
