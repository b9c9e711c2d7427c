"""Lets ``python -m haproc`` run the command ``haproc``."""

import sys

from haproc.cli.main import main

sys.exit(main())
