"""Client selectors side by side: AUROC and accuracy, in the form of the paper's Fig. 5.

python experiments/selector_study.py --quick
"""

import sys

from experiments.papers.main import main
from experiments.papers.selectors import STUDY

if __name__ == "__main__":
    sys.exit(main(STUDY))
