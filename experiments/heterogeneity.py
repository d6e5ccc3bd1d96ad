"""Accuracy against the concentration of a Dirichlet split, in the form of the paper's Fig. 9.

python experiments/heterogeneity.py --quick
"""

import sys

from experiments.papers.heterogeneity import STUDY
from experiments.papers.main import main

if __name__ == "__main__":
    sys.exit(main(STUDY))
