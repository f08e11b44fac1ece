# SPDX-License-Identifier: MIT
"""Derive the constants and polynomials of lib/vmath_poly.h.

    python tools/minimax.py > lib/vmath_poly.h

Needs mpmath and a few seconds; nothing is random, so the bytes are the same each time. Each row of `polynomials` is a
function that lib/vmath_typed.h approximates by a polynomial on an interval. The coefficients are the minimax ones in
relative error, of which a row may allow more at one end, found by Remez's exchange algorithm (E. Ya. Remez, 1934; see
J.-M. Muller, "Elementary Functions", chapter 3) on a dense grid in multiple precision, then rounded to the type. The
error printed beside a polynomial is that of the rounded coefficients on the grid, without the rounding of the
evaluation itself.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import mpmath as mp

mp.mp.dps = 70
MANTISSA = {"f32": 24, "f64": 53}
GRID_PER_COEFFICIENT = 60


@dataclass(frozen=True)
class Polynomial:
    """A function on [low, high] and the degree its polynomial has in each type."""

    name: str
    meaning: str
    function: Callable[[mp.mpf], mp.mpf]
    low: mp.mpf
    high: mp.mpf
    degree: dict[str, int]
    allowed: Callable[[mp.mpf], mp.mpf] | None = None  # the error at t, in units; None: one everywhere


def expm1_tail(r: mp.mpf) -> mp.mpf:
    """What exp(r) - 1 = r + r^2 q(r) leaves to q."""
    return (mp.expm1(r) - r) / r**2


def log1p_tail(f: mp.mpf) -> mp.mpf:
    """What log(1 + f) = f - f^2 / 2 + f^3 q(f) leaves to q."""
    return (mp.log1p(f) - f + f**2 / 2) / f**3


def tanh_tail(z: mp.mpf) -> mp.mpf:
    """What tanh(x) = x + x^3 q(x^2) leaves to q."""
    x = mp.sqrt(z)
    return (mp.tanh(x) - x) / x**3


def sine_of_quarter_turns(z: mp.mpf) -> mp.mpf:
    """sin(pi t / 2) / t of z = t^2."""
    t = mp.sqrt(z)
    return mp.sin(mp.pi * t / 2) / t


def cosine_of_quarter_turns(z: mp.mpf) -> mp.mpf:
    """cos(pi t / 2) of z = t^2."""
    return mp.cos(mp.pi * mp.sqrt(z) / 2)


def mills_ratio(k: mp.mpf) -> Callable[[mp.mpf], mp.mpf]:
    """(z + 1.25) Phi(-z) exp(z^2 / 2) as a function of t = (z - k) / (z + k): flat, so an error of t costs little.

    After M. M. Shepherd and J. G. Laframboise, "Chebyshev approximation of (1 + 2x) exp(x^2) erfc x in [0, oo)",
    Mathematics of Computation 36, 1981.
    """

    def scaled(t: mp.mpf) -> mp.mpf:
        z = k * (1 + t) / (1 - t)
        return (z + mp.mpf("1.25")) * mp.erfc(z / mp.sqrt(2)) / 2 * mp.exp(z**2 / 2)

    return scaled


def tail_of_normal(t: mp.mpf) -> mp.mpf:
    """Phi(-z) exp(z^2 / 2) of t = z / (z + 3)."""
    z = 3 * t / (1 - t)
    return mp.erfc(z / mp.sqrt(2)) / 2 * mp.exp(z**2 / 2)


def condition_of_tail(t: mp.mpf) -> mp.mpf:
    """About how many units a unit of z changes Phi(-z) by: an error no larger than that does not show."""
    z = 3 * t / (1 - t)
    return 1 + z**2


HALF_LN2 = mp.log(2) / 2 * mp.mpf("1.001")  # the rounding of x / ln 2 to an integer may go a little past the half
SQRT2 = mp.sqrt(2) * mp.mpf("1.000001")
TANH_CUT = mp.mpf("0.55")
NORMCDF_K = {"f32": mp.mpf("3.5"), "f64": mp.mpf("4")}  # few powers, and coefficients that happen to round well
NORMCDF_END = {"f32": mp.mpf("14.5"), "f64": mp.mpf("38.7")}  # Phi(-z) rounds to 0 from here on
QUARTER_TURN_END = mp.mpf("0.505") ** 2  # t goes a little past the half, as above
# Parts of 2^q 2/pi mod 4: two of these last places, whose products with 24 bits are exact in double, and what is left.
QUARTERS_PLACES = (27, 56)
QUARTERS_STEP = 21
# ln 2 = LN2_HI + LN2_LO, LN2_HI with so few bits that its product with the exponent of any number of the type is exact.
LN2_HI_BITS = {"f32": 15, "f64": 40}


def polynomials(suffix: str) -> list[Polynomial]:
    """All there are, in the order of the header."""
    k, end = NORMCDF_K[suffix], NORMCDF_END[suffix]
    rows = [
        Polynomial("EXPM1", "(expm1(t) - t) / t^2", expm1_tail, -HALF_LN2, HALF_LN2, {"f32": 4, "f64": 9}),
        Polynomial(
            "LOG1P", "(log1p(t) - t + t^2 / 2) / t^3", log1p_tail, 1 / SQRT2 - 1, SQRT2 - 1, {"f32": 8, "f64": 19}
        ),
        Polynomial("TANH", "(tanh(x) - x) / x^3, t = x^2", tanh_tail, mp.mpf(0), TANH_CUT**2, {"f32": 4, "f64": 10}),
        Polynomial(
            "NORMCDF",
            "(z + 1.25) Phi(-z) exp(z^2 / 2), t = (z - k) / (z + k)",
            mills_ratio(k),
            mp.mpf(-1),
            (end - k) / (end + k),
            {"f32": 9, "f64": 23},
        ),
        Polynomial(
            "TAIL",
            "Phi(-z) exp(z^2 / 2), t = z / (z + 3), for CUDA",
            tail_of_normal,
            mp.mpf(0),
            end / (end + 3),
            {"f32": 7},
            condition_of_tail,
        ),
    ]
    return [row for row in rows if suffix in row.degree]


def constants(suffix: str) -> dict[str, mp.mpf]:
    """What the C code shares with the polynomials, by name."""
    with mp.workprec(LN2_HI_BITS[suffix]):
        high = +mp.log(2)
    return {
        "LOG2E": 1 / mp.log(2),
        "LN2_HI": high,
        "LN2_LO": mp.log(2) - high,
        "TANH_CUT": TANH_CUT,
        "NORMCDF_K": NORMCDF_K[suffix],
        "NORMCDF_END": NORMCDF_END[suffix],
    }


def trigonometric() -> list[str]:
    """What sin and cos of float, computed in double, share: their polynomials, and x in quarter turns.

    The parts are of 2^q 2/pi, q = 0, 21, 42, 63 and 84, without whole turns: an x whose last place is 2^q or more does
    not need these.
    """
    rows = [
        Polynomial("SIN", "sin(pi t / 2) / t, t^2", sine_of_quarter_turns, mp.mpf(0), QUARTER_TURN_END, {"f64": 4}),
        Polynomial("COS", "cos(pi t / 2), t^2", cosine_of_quarter_turns, mp.mpf(0), QUARTER_TURN_END, {"f64": 4}),
    ]
    lines = []
    for scale in range(5):
        rest = mp.ldexp(2 / mp.pi, QUARTERS_STEP * scale)
        rest -= 4 * mp.nint(rest / 4)
        for part, places in enumerate((*QUARTERS_PLACES, None)):
            value = rest if places is None else mp.ldexp(mp.floor(mp.ldexp(rest, places)), -places)
            rest -= value
            lines.append(f"#define RFI_QUARTERS_{scale}_{part} {hexadecimal(value, 'f64')[0]}")
    return lines + [text for row in rows for text in ("", macro(row, "f64"))]


def horner(coefficients: Sequence[mp.mpf], t: mp.mpf) -> mp.mpf:
    """The polynomial at t; lowest power first."""
    total = mp.mpf(0)
    for c in reversed(coefficients):
        total = total * t + c
    return total


def grid(low: mp.mpf, high: mp.mpf, count: int) -> list[mp.mpf]:
    """Chebyshev points, dense at the ends, where a minimax error changes sign fastest. None is 0: there is 0 / 0."""
    middle, half = (low + high) / 2, (high - low) / 2
    return [middle - half * mp.cos(mp.pi * (i + mp.mpf("0.37")) / count) for i in range(count)]


def extrema(errors: Sequence[mp.mpf]) -> list[int]:
    """The index of the largest error in each run of equal signs."""
    picked = [0]
    for i, error in enumerate(errors):
        if (error < 0) != (errors[picked[-1]] < 0):
            picked.append(i)
        elif abs(error) > abs(errors[picked[-1]]):
            picked[-1] = i
    return picked


def remez(points: Sequence[mp.mpf], values: Sequence[mp.mpf], allowed: Sequence[mp.mpf], degree: int) -> list[mp.mpf]:
    """The polynomial of least largest relative error on the points, in units of what is allowed there."""
    count = degree + 2
    nodes = [round((i + 0.5) * len(points) / count) for i in range(count)]
    for _ in range(40):
        system = mp.matrix(count, count)
        right = mp.matrix(count, 1)
        for row, node in enumerate(nodes):
            for power in range(degree + 1):
                system[row, power] = points[node] ** power / values[node]
            system[row, degree + 1] = (-1) ** row * allowed[node]
            right[row] = 1
        solution = mp.lu_solve(system, right)
        coefficients = [solution[i] for i in range(degree + 1)]
        level = abs(solution[degree + 1])
        errors = [(horner(coefficients, t) / v - 1) / a for t, v, a in zip(points, values, allowed)]
        if max(map(abs, errors)) <= level * mp.mpf("1.0001"):
            return coefficients
        found = extrema(errors)
        while len(found) > count:  # keep the alternation and the largest error: drop the weaker end
            found.pop(0 if abs(errors[found[0]]) < abs(errors[found[-1]]) else -1)
        if len(found) < count:
            raise ArithmeticError(f"the error changes sign {len(found)} times, not {count}: raise mp.dps or the grid")
        nodes = found
    raise ArithmeticError("no convergence")


def hexadecimal(value: mp.mpf, suffix: str) -> tuple[str, mp.mpf]:
    """The C literal nearest to value in the type, and what it stands for."""
    with mp.workprec(MANTISSA[suffix]):
        rounded = +value
    digits, exponent = float(rounded).hex().split("p")
    return digits.rstrip("0").rstrip(".") + "p" + exponent + ("f" if suffix == "f32" else ""), rounded


def macro(row: Polynomial, suffix: str) -> str:
    """The C macro that evaluates the polynomial by Horner's rule."""
    points = grid(row.low, row.high, GRID_PER_COEFFICIENT * (row.degree[suffix] + 1))
    values = [row.function(t) for t in points]
    allowed = [row.allowed(t) if row.allowed else mp.mpf(1) for t in points]
    literals, rounded = zip(*(hexadecimal(c, suffix) for c in remez(points, values, allowed, row.degree[suffix])))
    error = max(abs(horner(rounded, t) / v - 1) / a for t, v, a in zip(points, values, allowed))
    interval = f"[{mp.nstr(row.low, 4)}, {mp.nstr(row.high, 4)}]"
    unit = " (1 + z^2)" if row.allowed else ""
    lines = [
        f"/* {row.meaning} on {interval}: relative error 2^{mp.nstr(mp.log(error, 2), 4)}{unit} */",
        f"#define RFI_POLY_{row.name}_{suffix}(t) \\",
    ]
    lines += [f"    ({literal} + (t) * \\" for literal in literals[:-1]]
    lines.append("    " + literals[-1] + ")" * (len(literals) - 1))
    return "\n".join(lines)


def main() -> None:
    """Print the header."""
    print("/* SPDX-License-Identifier: MIT */")
    print("/* Constants and polynomials of vmath_typed.h, written by tools/minimax.py: change that, not this. */")
    print("#ifndef ROWFOLD_VMATH_POLY_H\n#define ROWFOLD_VMATH_POLY_H")
    for suffix in MANTISSA:
        print()
        for name, value in constants(suffix).items():
            print(f"#define RFI_{name}_{suffix} {hexadecimal(value, suffix)[0]}")
        for row in polynomials(suffix):
            print("\n" + macro(row, suffix))
    print("\n" + "\n".join(trigonometric()))
    print("\n#endif")


if __name__ == "__main__":
    main()
