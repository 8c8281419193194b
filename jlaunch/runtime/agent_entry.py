"""Where an agent's process begins. It is run by its path, so that neither the directory in which the user
stands nor anything in it can take the place of a module.
"""

import os
import sys

_root = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
# The interpreter put our own directory first: what is there are not top-level modules.
sys.path[:1] = [] if _root in sys.path[1:] else [_root]

from jlaunch.runtime.agent import main  # noqa: E402

sys.exit(main())
