"""``python -m fedshift.cli``: the command line without the installed script."""

import sys

from fedshift.cli import main

sys.exit(main())
