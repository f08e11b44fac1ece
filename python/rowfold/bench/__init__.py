# SPDX-License-Identifier: MIT
"""``python -m rowfold bench``: rowfold beside numpy, OpenBLAS and PyTorch, in one run on one machine.

- cases.py: what is measured: chain, shape, dtype, data
- unfused.py: the same chain operator by operator, in numpy and in PyTorch; the float64 reference
- contenders.py: who computes it
- worker.py: one process for each contender, so that memory, threads and libraries do not mix
- runner.py: interleaves the workers' repetitions and collects times, memory and errors
- report.py: the table and the JSON document
- command.py: the command line
"""
