"""Error against the weight of the local loss, in the form of Fig. 10, with Theorem 2's terms.

python experiments/alpha.py --quick
"""

import sys

from experiments.papers.alpha import STUDY
from experiments.papers.main import main

if __name__ == "__main__":
    sys.exit(main(STUDY))
