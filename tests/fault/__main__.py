"""`python -m tests.fault` prints the fault matrix as Markdown."""

import sys

from tests.kit.fault_matrix import faults, page

sys.stdout.write(page(faults()))
