"""`python -m firth VERB ...`, where no `firth` command is installed."""

import sys

from firth.cli import main

sys.exit(main())
