"""Both thresholds of Selective-FD, in the form of the paper's Fig. 6.

python experiments/thresholds.py --quick
"""

import sys

from experiments.papers.main import main
from experiments.papers.thresholds import STUDY

if __name__ == "__main__":
    sys.exit(main(STUDY))
