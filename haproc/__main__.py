"""``python -m haproc`` is ``haproc``."""

import sys

from haproc.cli.main import main

sys.exit(main())
