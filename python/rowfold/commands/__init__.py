# SPDX-License-Identifier: MIT
"""Sub-commands of ``rowfold``: a module each, with ``add_parser`` and ``run``."""
