"""daqmeter from Python: records, engines, plans, decoders, conversions.

>>> import daqmeter
>>> records = daqmeter.load("records.jsonl")
>>> records.to_polars().group_by("stage").len()          # doctest: +SKIP
>>> volts = daqmeter.Scale(0.123, -45.6)(samples)        # doctest: +SKIP
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path
from typing import Any, Literal, overload

import numpy as np
import numpy.typing as npt

from . import _native
from ._native import __version__

__all__ = [
    "Cast",
    "Chunk",
    "Conversion",
    "FixedPoint",
    "Records",
    "Scale",
    "__version__",
    "decode_etherbone",
    "decode_felix",
    "engines",
    "load",
    "run",
    "run_plan",
]

What = Literal["stages", "samples", "counters", "series"]


def __dir__() -> list[str]:
    return __all__


class Records:
    """Measured points, read from files or just measured.

    Iterating gives each record as a dictionary with the fields of the JSON Schema (`docs/schema/run-record.v1.json`).
    `errors` says what could not be read or measured; everything else is here all the same.
    """

    def __init__(self, lines: Sequence[str], errors: Sequence[str] = ()) -> None:
        self._lines = list(lines)
        self.errors = list(errors)

    def __len__(self) -> int:
        return len(self._lines)

    def __iter__(self) -> Iterator[dict[str, Any]]:
        return map(json.loads, self._lines)

    @overload
    def __getitem__(self, at: int) -> dict[str, Any]: ...
    @overload
    def __getitem__(self, at: slice) -> Records: ...
    def __getitem__(self, at: int | slice) -> dict[str, Any] | Records:
        if isinstance(at, slice):
            return Records(self._lines[at])
        record: dict[str, Any] = json.loads(self._lines[at])
        return record

    def _counted(self) -> list[tuple[str, str, int]]:
        """Study, engine and number of records of each, in their order."""
        counts: dict[tuple[str, str], int] = {}
        for record in self:
            key = (record["study"], record["engine"]["name"])
            counts[key] = counts.get(key, 0) + 1
        return [(study, engine, count) for (study, engine), count in counts.items()]

    def __repr__(self) -> str:
        records = "1 record" if len(self) == 1 else f"{len(self)} records"
        studies = ", ".join(dict.fromkeys(study for study, _, _ in self._counted()))
        errors = f", {len(self.errors)} not read or measured" if self.errors else ""
        return f"<daqmeter.Records: {records}{': ' + studies if studies else ''}{errors}>"

    def _repr_html_(self) -> str:
        """A table of studies, for notebooks."""
        rows = "".join(
            f"<tr><td>{escape(study)}</td><td>{escape(engine)}</td><td>{count}</td></tr>"
            for study, engine, count in self._counted()
        )
        head = "<tr><th>study</th><th>engine</th><th>records</th></tr>"
        return f"<p>{escape(repr(self))}</p><table>{head}{rows}</table>"

    def columns(self, what: What = "stages") -> dict[str, Any]:
        """Columns by name: a row a stage with its summary, a sample, or a counter.

        Numbers, flags and moments (`datetime64[ms]`, UTC) are numpy arrays (holes are NaN and NaT), names are lists. Names carry their unit last; parameters of the workloads are
        columns named `param.<name>`.
        """
        return _native.columns(self._lines, what)

    def to_arrow(self, what: What = "stages") -> Any:
        """A `pyarrow.Table`."""
        import pyarrow

        return pyarrow.table(self.columns(what))

    def to_pandas(self, what: What = "stages") -> Any:
        """A `pandas.DataFrame`."""
        import pandas

        return pandas.DataFrame(self.columns(what))

    def to_polars(self, what: What = "stages") -> Any:
        """A `polars.DataFrame`."""
        import polars

        return polars.DataFrame(self.columns(what))


def load(paths: str | os.PathLike[str] | Iterable[str | os.PathLike[str]]) -> Records:
    """Reads records from a file, from files, or from folders of `.jsonl` files.

    Lines that are not records, or of a newer daqmeter, are left out and named in `Records.errors`.
    """
    given = [paths] if isinstance(paths, (str, os.PathLike)) else list(paths)
    files: list[str] = []
    for path in map(Path, given):
        files.extend(sorted(map(str, path.rglob("*.jsonl"))) if path.is_dir() else [str(path)])
    return Records(*_native.read(files))


def engines() -> dict[str, dict[str, str]]:
    """Every engine with its parameters and what they mean."""
    return {name: dict(parameters) for name, parameters in _native.engine_list()}


def run(
    engine: str,
    workload: Mapping[str, bool | int | float | str] | None = None,
    *,
    seconds: float = 0.3,
    pin: Sequence[int] = (),
    study: str = "python",
) -> dict[str, Any]:
    """Measures one point: bytes are verified, its limits are measured beside it, and the record is returned.

    `engines()` names the engines and their parameters. The interpreter's lock is not held meanwhile.
    """
    parameters = ", ".join(f"{_toml(name)} = {_toml(value)}" for name, value in (workload or {}).items())
    plan = (
        f'title = "a point"\ntime = "{seconds}s"\npin = {list(pin)}\n[[sweep]]\n'
        f"study = {_toml(study)}\nengine = {_toml(engine)}\nworkload = {{ {parameters} }}\n"
    )
    try:
        lines, errors = _native.run_plan("python", plan, None, None)
    except ValueError as error:
        # The place is one of the plan above, which the caller does not know.
        raise ValueError(re.sub(r"^python:\d+: (sweep 1, )?", "", str(error))) from None
    if errors:
        raise ValueError(errors[0])
    record: dict[str, Any] = json.loads(lines[0])
    return record


def _toml(value: Any) -> str:
    """A value in TOML. It is that in JSON, but an integer below zero is a fraction to engines."""
    if isinstance(value, int) and value < 0:
        value = float(value)
    return json.dumps(value, ensure_ascii=False, default=lambda of_numpy: of_numpy.item())


def run_plan(
    plan: str | os.PathLike[str], *, out: str | os.PathLike[str] | None = None, budget_s: float | None = None
) -> Records:
    """Measures the points of a plan, a TOML file or the name of one that ships with daqmeter.

    Each record is appended to `out`, a file of records, as it is measured, so that Ctrl-C loses none. After `budget_s` no
    further point is begun. `Records.errors` says what was not measured, and why.
    """
    lines, errors = _native.run_plan(os.fspath(plan), None, None if out is None else os.fspath(out), budget_s)
    return Records(lines, errors)


_Arguments = tuple[str, float, float, int, int, bool, int, int, bool]


class Conversion:
    """A conversion of 16-bit samples, prepared once and used on any number of arrays.

    The arithmetic is that of the command, to the bit: oracle-tested kernels of this CPU's best instruction set. Samples are `uint16`,
    or `int16` where the conversion is of signed codes, in any number of dimensions: each row of the last one is converted by itself, as a
    channel. Contiguous arrays are not copied, others are; `out`, if it is given, is contiguous and of `dtype`.
    """

    dtype: type[np.float32] | type[np.float64] = np.float32

    def __init__(
        self,
        kind: str,
        *,
        factor: float = 1.0,
        offset: float = 0.0,
        bits: tuple[int, int] = (1, 15),
        signed: bool = False,
        decimation: int = 1,
        first: int = 0,
        non_temporal: bool = False,
    ) -> None:
        self.__setstate__((kind, factor, offset, bits[0], bits[1], signed, decimation, first, non_temporal))

    def __getstate__(self) -> _Arguments:
        """What another process needs to make the same conversion."""
        return self._arguments

    def __setstate__(self, arguments: _Arguments) -> None:
        self._arguments = arguments
        self._native = _native.NativeConverter(*arguments)
        self.dtype = np.float64 if self._native.doubles else np.float32

    def kept(self, samples: int) -> int:
        """How many of so many samples are kept."""
        return self._native.kept(samples)

    def __call__(
        self, samples: npt.NDArray[np.uint16] | npt.NDArray[np.int16], out: npt.NDArray[Any] | None = None
    ) -> npt.NDArray[Any]:
        """Converts; returns `out`, or a new array where none is given. Of a masked array it is masked alike."""
        *_, signed, decimation, first, _ = self._arguments
        if isinstance(samples, np.ma.MaskedArray):
            converted = self(samples.data, out)
            mask = np.ma.getmaskarray(samples)[..., first::decimation][..., : converted.shape[-1]]
            return np.ma.MaskedArray(converted, mask)
        codes: npt.NDArray[Any] = np.require(samples, requirements=["C", "A"])
        if codes.dtype == np.int16 and signed:
            codes = codes.view(np.uint16)
        if codes.dtype != np.uint16 or codes.ndim == 0:
            wanted = "uint16 or int16" if signed else "uint16 (of codes without a sign: samples.view(numpy.uint16))"
            raise TypeError(f"samples: an array of {wanted} is wanted, not {codes.dtype} of {np.ndim(samples)} dimensions")
        shape = (*codes.shape[:-1], self.kept(codes.shape[-1]))
        if out is None:
            out = np.empty(shape, dtype=self.dtype)
        elif out.shape != shape or not out.flags.carray:
            raise ValueError(f"out: a contiguous, aligned array of shape {shape} is wanted, not {out.shape}")
        if out.size > 0:
            rows, converted = codes.reshape(-1, codes.shape[-1]), out.reshape(-1, shape[-1])
            for row, into in zip(rows, converted, strict=True):
                self._native.into(row, into)
        return out


class Cast(Conversion):
    """The raw code as `float32`."""

    def __init__(self, *, decimation: int = 1, first: int = 0, non_temporal: bool = False) -> None:
        super().__init__("cast", decimation=decimation, first=first, non_temporal=non_temporal)


class Scale(Conversion):
    """`float32(float64(raw) * factor + offset)`, with two roundings as the original has them."""

    def __init__(
        self, factor: float, offset: float, *, decimation: int = 1, first: int = 0, non_temporal: bool = False
    ) -> None:
        super().__init__(
            "scale", factor=factor, offset=offset, decimation=decimation, first=first, non_temporal=non_temporal
        )


class FixedPoint(Conversion):
    """Fixed-point codes of `int_bits` and `frac_bits`, two's complement or not, to `float32` or `float64`."""

    def __init__(
        self,
        int_bits: int,
        frac_bits: int,
        *,
        signed: bool = False,
        double: bool = False,
        decimation: int = 1,
        first: int = 0,
        non_temporal: bool = False,
    ) -> None:
        super().__init__(
            "fixed-f64" if double else "fixed-f32",
            bits=(int_bits, frac_bits),
            signed=signed,
            decimation=decimation,
            first=first,
            non_temporal=non_temporal,
        )


@dataclass(frozen=True)
class Chunk:
    """A whole chunk of a FELIX E-link."""

    elink: int
    """Number of the E-link, 11 bits."""
    payload: bytes
    """Its bytes, put together over blocks."""
    flags: tuple[str, ...]
    """What went wrong with it: truncated, error, crc, busy."""


def decode_felix(data: bytes | bytearray | memoryview, *, abce_kib: int = 1) -> tuple[list[Chunk], dict[str, int]]:
    """Whole chunks of consecutive FELIX blocks of any generation, in the order in which they end, and what was wrong.

    The size of blocks with magic ABCE is not in them: `abce_kib` tells it. Raises `ValueError` where no block begins, or the last
    one is cut off.
    """
    chunks, counts = _native.decode_felix(bytes(data), abce_kib)
    return [Chunk(elink, payload, tuple(flags)) for elink, payload, flags in chunks], counts


def decode_etherbone(data: bytes | bytearray | memoryview) -> dict[str, Any]:
    """One Etherbone message: its header's flags and its records, with `write` and `read` as `(base, values)` or None.

    Raises `ValueError` with what is wrong, and where.
    """
    return _native.decode_etherbone(bytes(data))
