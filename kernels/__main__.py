import sys

from monotile.cli import main

sys.exit(main())
