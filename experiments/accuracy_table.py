"""Test accuracy of every method, in the form of the paper's Tables 1 and 2 and its Fig. 4.

python experiments/accuracy_table.py --image-sets mnist --splits strong
"""

import sys

from experiments.papers.accuracy import STUDY
from experiments.papers.main import main

if __name__ == "__main__":
    sys.exit(main(STUDY))
