# SPDX-License-Identifier: MIT
"""The package's declarations of the C interface against rowfold.h: enums, constants, functions, struct layouts."""

from __future__ import annotations

import ctypes
import re
import shutil
import subprocess
from pathlib import Path

import pytest
from rowfold import _lib, errors

HEADER_DIR = Path(__file__).resolve().parents[1] / "lib"
FIRST_HEADER = Path(__file__).resolve().parent / "c" / "rowfold_0_1.h"


def declarations(header: Path) -> str:
    """Without comments."""
    return re.sub(r"/\*.*?\*/", "", header.read_text(), flags=re.DOTALL)


HEADER = declarations(HEADER_DIR / "rowfold.h")

ENUMS = {
    "rf_status": (_lib.Status, "RF_"),
    "rf_dtype": (_lib.DType, "RF_"),
    "rf_math": (_lib.Math, "RF_MATH_"),
    "rf_simplify": (_lib.Simplify, "RF_SIMPLIFY_"),
    "rf_memory": (_lib.Memory, "RF_MEMORY_"),
    "rf_format": (_lib.Format, "RF_FORMAT_"),
    "rf_op_class": (_lib.OpClass, "RF_CLASS_"),
    "rf_row_use": (_lib.RowUse, "RF_ROW_"),
}
# Operators come from rf_op_get_info at run time and have no list in Python.
ENUMS_FROM_THE_LIBRARY = {"rf_op_kind"}

STRUCTS = {
    "rf_op": _lib.Op,
    "rf_op_info": _lib.OpInfo,
    "rf_config": _lib.Config,
    "rf_vector": _lib.Vector,
    "rf_weights": _lib.Weights,
    "rf_forward_args": _lib.ForwardArgs,
    "rf_result": _lib.Result,
    "rf_row_input": _lib.RowInput,
    "rf_states": _lib.States,
    "rf_states_info": _lib.StatesInfo,
    "rf_collective": _lib.Collective,
    "rf_ways": _lib.Ways,
    "rf_result_info": _lib.ResultInfo,
    "rf_row_input_info": _lib.RowInputInfo,
    "rf_model_info": _lib.ModelInfo,
    "rf_tensor_info": _lib.TensorInfo,
    "rf_file_vector": _lib.FileVector,
    "rf_file_names": _lib.FileNames,
}

CONSTANTS = {
    "RF_MAX_OPS": _lib.MAX_OPS,
    "RF_MAX_OP_PARAMS": _lib.MAX_OP_PARAMS,
    "RF_MAX_NAME": _lib.MAX_NAME,
    "RF_MAX_DIMS": _lib.MAX_DIMS,
    "RF_MAX_RESULTS": _lib.MAX_RESULTS,
    "RF_MAX_TOP": _lib.MAX_TOP,
    "RF_BATCH_INVARIANT": _lib.BATCH_INVARIANT,
    "RF_BORROW": _lib.BORROW,
    "RF_KEEP_FORM": _lib.KEEP_FORM,
}

C_TYPES = {
    "void": None,
    "int": ctypes.c_int,
    "rf_status": ctypes.c_int,
    "rf_format": ctypes.c_int,
    "size_t": ctypes.c_size_t,
    "int64_t": ctypes.c_int64,
    "char *": ctypes.c_char_p,
    "void *": ctypes.c_void_p,
    "rf_model *": _lib.ModelPointer,
    "rf_model * *": ctypes.POINTER(_lib.ModelPointer),
    "rf_file *": _lib.FilePointer,
    "rf_file * *": ctypes.POINTER(_lib.FilePointer),
    "size_t *": ctypes.POINTER(ctypes.c_size_t),
    "int64_t *": ctypes.POINTER(ctypes.c_int64),
    "double *": ctypes.POINTER(ctypes.c_double),
    "char * *": ctypes.POINTER(ctypes.c_char_p),
    **{f"{name} *": ctypes.POINTER(struct) for name, struct in STRUCTS.items()},
}


def header_enums(header: str = HEADER) -> dict[str, dict[str, int]]:
    found = {}
    for body, name in re.findall(r"typedef enum \w+ \{(.*?)\} (\w+);", header, re.DOTALL):
        found[name] = {member: int(value) for member, value in re.findall(r"(\w+)\s*=\s*(\d+)", body)}
    return found


def c_type(text: str) -> object:
    return C_TYPES[" ".join(re.sub(r"\bconst\b", "", text).replace("*", " * ").split())]


def header_constants(header: str = HEADER) -> dict[str, int]:
    return {name: int(value.rstrip("u")) for name, value in re.findall(r"#define (RF_\w+) (\d+u?)", header)}


def header_functions(header: str = HEADER) -> dict[str, tuple[object, tuple[object, ...]]]:
    found = {}
    for result, name, parameters in re.findall(r"^([\w ]+?[ *]+)(rf_\w+)\(([^)]*)\);", header, re.MULTILINE):
        declared = [] if parameters == "void" else parameters.split(",")
        types = tuple(c_type(re.sub(r"\w+$", "", parameter.strip())) for parameter in declared)
        found[name] = (_lib.Status if result.strip() == "rf_status" else c_type(result), types)
    return found


def test_every_enum_of_the_header_has_the_same_members_in_python():
    enums = header_enums()
    assert set(enums) == set(ENUMS) | ENUMS_FROM_THE_LIBRARY
    for name, (python, prefix) in ENUMS.items():
        ours = {}
        for member in python:
            spelled = "RF_DTYPE_DEFAULT" if member is _lib.DType.DEFAULT else prefix + member.name
            ours[spelled] = member.value
        assert ours == enums[name], name


def test_constants():
    assert header_constants() == CONSTANTS


def test_no_two_names_of_an_enum_have_one_number():
    for name, members in header_enums().items():
        assert len(set(members.values())) == len(members), name


def test_every_function_of_the_header_is_in_the_table_with_its_types():
    table = {row.name: (row.restype, row.argtypes) for row in _lib.FUNCTIONS}
    header = header_functions()
    assert set(table) == set(header)
    for name, types in header.items():
        assert table[name] == types, name


def test_every_struct_of_the_header_is_declared():
    assert set(re.findall(r"typedef struct (\w+) \{", HEADER)) == set(STRUCTS)


def compiled_layout(header: Path, fields: dict[str, list[str]], folder: Path) -> dict[str, tuple[int, int]]:
    """Offset and size of each field, and (0, size) of each struct, by the C compiler's reckoning."""
    compiler = shutil.which("cc") or shutil.which("gcc") or shutil.which("clang")
    if compiler is None:
        pytest.skip("no C compiler")
    lines = []
    for name, members in fields.items():
        lines.append(f'printf("{name} 0 %zu\\n", sizeof({name}));')
        lines += [
            f'printf("{name}.{field} %zu %zu\\n", offsetof({name}, {field}), sizeof((({name} *)0)->{field}));'
            for field in members
        ]
    source, program = folder / "layout.c", folder / "layout"
    source.write_text(
        f'#include <stdio.h>\n#include "{header}"\nint main(void) {{\n' + "\n".join(lines) + "\nreturn 0;\n}\n"
    )
    subprocess.run([compiler, "-o", str(program), str(source)], check=True)
    printed = subprocess.run([str(program)], check=True, capture_output=True, text=True).stdout
    return {where: (int(offset), int(size)) for where, offset, size in map(str.split, printed.splitlines())}


def struct_fields(header: str, name: str) -> list[str]:
    found = re.search(rf"typedef struct {name} \{{(.*?)\}} {name};", header, re.DOTALL)
    assert found, name
    fields = []
    for declaration in filter(None, (part.strip() for part in found.group(1).split(";"))):
        fields += re.findall(r"(\w+)(?:\[\w+\])?\s*(?:,|$)", declaration)
    return fields


def test_struct_layouts_are_what_the_c_compiler_makes_of_the_header(tmp_path):
    expected = {}
    for name, struct in STRUCTS.items():
        expected[name] = (0, ctypes.sizeof(struct))
        for field, *_ in struct._fields_:
            where = getattr(struct, field)
            expected[f"{name}.{field}"] = (where.offset, where.size)
    fields = {name: [field for field, *_ in struct._fields_] for name, struct in STRUCTS.items()}
    assert compiled_layout(HEADER_DIR / "rowfold.h", fields, tmp_path) == expected


def test_what_the_first_header_declared_is_where_it_was(tmp_path):
    """tests/c/rowfold_0_1.h is the header of 0.1.0: enums and constants keep their values, functions their
    types, and structs grow at their ends alone.
    """
    first = declarations(FIRST_HEADER)
    today = header_enums()
    assert len(header_enums(first)) == first.count("typedef enum")
    assert header_constants(first).items() <= header_constants().items()
    assert len(header_functions(first)) >= 28
    assert header_functions(first).items() <= header_functions().items()
    for name, members in header_enums(first).items():
        assert members.items() <= today[name].items(), name
    fields = {name: struct_fields(first, name) for name in re.findall(r"typedef struct (\w+) \{", first)}
    then = compiled_layout(FIRST_HEADER, fields, tmp_path)
    now = compiled_layout(HEADER_DIR / "rowfold.h", fields, tmp_path)
    for where, (offset, size) in then.items():
        if "." in where:
            assert now[where] == (offset, size), where
        else:
            # The end of a struct is no padding: a field put there later would hold what an older program left in it.
            last = f"{where}.{fields[where][-1]}"
            assert sum(then[last]) == size <= now[where][1], where
            assert where == "rf_op" or fields[where][0] == "size", where
    assert now["rf_op"] == then["rf_op"]


@pytest.mark.parametrize("name", STRUCTS)
def test_struct_fields_have_the_names_and_the_order_of_the_header(name):
    assert struct_fields(HEADER, name) == [field for field, *_ in STRUCTS[name]._fields_]


def test_every_status_but_ok_has_an_exception_of_a_standard_kind():
    assert set(errors.BY_STATUS) == {status.name for status in _lib.Status if status}
    kinds = (ValueError, TypeError, MemoryError, OSError, RuntimeError)
    for name, error in errors.BY_STATUS.items():
        assert issubclass(error, errors.Error), name
        assert issubclass(error, kinds), name
