# SPDX-License-Identifier: MIT
"""The loops over products of the kernels of sm_90a hold little else in the machine code of this build."""

from __future__ import annotations

import os
import sys
from dataclasses import replace
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "tools"))

import loops  # noqa: E402

pytestmark = pytest.mark.cpu_only

LIBRARY = os.environ.get("ROWFOLD_LIBRARY")
BUILT = sorted((Path(LIBRARY).resolve().parent / "../../cuda/sm90/.libs").glob("*.o")) if LIBRARY else []
OBJECTS = [path for path in BUILT if path.stem != "asked"]  # which has few products, ahead of a pass

DUMP = """
        Function : fold_kernel
        /*0000*/                   MOV R1, c[0x0][0x28] ;
        /*0010*/                   HGMMA.64x128x16.F32 R24, gdesc[UR40], RZ, !UPT ;
        /*0020*/              @!P0 BRA 0x10 ;
        /*0030*/                   R2UR UR4, R8 ;
        /*0040*/                   HGMMA.64x128x16.F32 R24, gdesc[UR40], R24, gsb0 ;
        /*0050*/               @P1 BRA 0x30 ;
        /*0060*/                   HGMMA.64x128x16.F32 R24, gdesc[UR40], R24, gsb0 ;
        /*0070*/                   LDL R3, [R1] ;
        /*0080*/                   WARPSYNC.ALL ;
        /*0090*/                   IADD3 R3, R3, 0x1, RZ ;
        /*00a0*/                   BRA 0x60 ;
        /*00b0*/               @P2 BRA 0x0 ;
        Function : other
        /*0000*/                   BRA 0x0 ;
"""


def test_the_loops_of_a_dump_are_found() -> None:
    """Innermost, of the kernel's own kind of products, and with about as many of these an instruction as others."""
    first, second = loops.main_loops(iter(DUMP.replace("IADD3", "HGMMA").splitlines()))
    assert (first.kernel, first.products, first.instructions, first.unwanted) == ("fold_kernel", 1, 2, {})
    assert str(first) == "  1 HGMMA in    2 instructions, nothing else: fold_kernel"
    assert (second.products, second.instructions) == (2, 5)
    assert second.unwanted == {"WARPSYNC": 1, "LDL": 1}
    assert first.is_clean and not second.is_clean
    assert str(second) == "  2 HGMMA in    5 instructions, 1 WARPSYNC, 1 LDL: fold_kernel"
    assert loops.main_loops(iter(DUMP.splitlines())) == [first]
    tf32 = DUMP.replace("x16.F32 R24, gdesc[UR40], RZ", "x8.F32.TF32 R24")
    [other] = loops.main_loops(iter(tf32.splitlines()))
    assert (other.instructions, other.unwanted, other.tf32) == (3, {"R2UR": 1}, False)
    [own] = loops.main_loops(iter(tf32.replace("fold_kernel", "fold_kernelILb1EEEEEv").splitlines()))
    assert (own.instructions, own.tf32) == (2, True)
    moves = [replace(first, unwanted={"R2UR": count}).is_clean for count in (loops.MOST_MOVES, loops.MOST_MOVES + 1)]
    assert moves == [True, False]


@pytest.mark.heavy
@pytest.mark.parametrize("path", OBJECTS or [None], ids=[p.stem for p in OBJECTS] or ["none"])
def test_loops_over_products_hold_little_else(path: Path | None) -> None:
    if path is None:
        pytest.skip("no objects with code of sm_90a beside the library")
    if missing := loops.missing_tools():
        pytest.skip(f"{', '.join(missing)}: not found")
    wrong = [str(loop) for loop in loops.loops_of(path) if not loop.is_clean]
    assert not wrong, "\n".join(wrong)
