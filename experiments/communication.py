"""Accuracy and bytes against rounds, beside FedAvg, in the form of the paper's Fig. 7.

python experiments/communication.py --quick
"""

import sys

from experiments.papers.communication import STUDY
from experiments.papers.main import main

if __name__ == "__main__":
    sys.exit(main(STUDY))
