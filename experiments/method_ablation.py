"""What each part of Selective-FD is worth, one part left out at a time.

python experiments/method_ablation.py --quick
"""

import sys

from experiments.papers.ablation import STUDY
from experiments.papers.main import main

if __name__ == "__main__":
    sys.exit(main(STUDY))
